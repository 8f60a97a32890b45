"""PD705 on a recording that begins in the middle of a run: what it frees first was made before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases_device_memory import MB, STEP_US, Tensor, training

import perfdoctor


@pytest.mark.parametrize(
    ("tensors", "saved"),
    [((Tensor(90, 150, 1170), Tensor(60, 160, 450)), 90), ((Tensor(60, 560, 1395), Tensor(100, 150, 450)), 60)],
    ids=["results", "gradients"],
)
def test_the_first_recorded_step_has_those_of_the_step_before(
    tensors: tuple[Tensor, ...], saved: int, tmp_path: Path
) -> None:
    trace, path = training(*tensors, steps=4).to_dict(), tmp_path / "trace.json"
    trace["traceEvents"] = [each for each in trace["traceEvents"] if each.get("ts", STEP_US) >= STEP_US]
    path.write_text(json.dumps(trace))
    (finding,) = [each for each in perfdoctor.analyze(path).findings if each.rule == "PD705"]
    assert finding.saved_bytes is not None
    assert finding.saved_bytes.expected == saved * MB
