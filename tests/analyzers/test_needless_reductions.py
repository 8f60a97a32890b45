"""Reductions that a later micro-batch repeats are reported once, by the rule whose fix leaves them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases_data_parallel import micro_batches_on_the_cpu

import perfdoctor


@pytest.mark.parametrize(
    ("reduces", "costs"),
    [([True, True], {"PD406": 140_000, "PD402": 320_000 - 140_000}), ([False, True], {"PD402": 160_000})],
    ids=["twice", "once"],
)
def test_exposed_communication_leaves_needless_reductions_out(
    reduces: list[bool], costs: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    micro_batches_on_the_cpu(reduces).write(path)
    report = perfdoctor.analyze(str(path))
    assert {finding.rule: finding.cost_ns for finding in report.findings if finding.rule in ("PD402", "PD406")} == costs
