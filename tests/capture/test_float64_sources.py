"""Lines that ask for float64 before the loop: found by a capture, and named by PD204."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

DOUBLE = """
import torch
from torch import nn
x, y = torch.randn(256, 64, dtype=torch.float64), torch.randn(256, 1, dtype=torch.float64)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
model = model.double()
model.to("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(14):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def line_of(source: str, text: str) -> int:
    return 1 + next(row for row, line in enumerate(source.splitlines()) if text in line)


def test_a_double_model_is_named_by_the_line_that_made_it_double(launcher: Any) -> None:
    import perfdoctor

    recorded = launcher.record(DOUBLE)
    (source,) = recorded.facts()["float64_sources"]
    assert source["call"] == "Module.double"
    program = Path(source["location"]["file"]).read_text()
    assert source["location"]["line"] == line_of(program, "model.double()")
    (finding,) = (each for each in perfdoctor.analyze(recorded.out).findings if each.rule == "PD204")
    assert finding.location is not None
    assert finding.location.line == line_of(program, "model.double()")


def test_other_ways_to_float64(launcher: Any) -> None:
    ways = "model = model.to(torch.float64); torch.set_default_dtype(torch.float64)"
    facts = launcher.record(DOUBLE.replace("model = model.double()", ways), evidence=0).facts()
    assert [each["call"] for each in facts["float64_sources"]] == ["Module.to", "set_default_dtype"]


def test_what_is_no_call_for_float64() -> None:
    import torch

    from perfdoctor.capture.inject._perfdoctor_inject.run_totals import MAX_SOURCES, Float64Sources, asks_for_float64

    for args, asks in (
        ((torch.float64,), True),
        ((torch.zeros(1, dtype=torch.float64),), True),
        (("cpu",), False),
        ((torch.float32,), False),
        ((torch.zeros(1),), False),
        ((), False),
    ):
        assert asks_for_float64(args, {}) is asks
    sources = Float64Sources()
    sources.note("Module.to", None)
    sources.note("Module.to", None)
    assert sources.found == [{"call": "Module.to", "location": None}]
    for number in range(2 * MAX_SOURCES):
        sources.note(str(number), None)
    assert len(sources.found) == MAX_SOURCES
