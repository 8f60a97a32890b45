"""PD104 on a CPU: what takes the time without ops is named where stacks show a call that a step can do without."""

from __future__ import annotations

import pytest

from perfdoctor.analyzers.pd104_launch_bound import LaunchBound
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder

BASE = {"base_step_ns": [1_000_000] * 4}


def finding_of(*frames: tuple[str, float, float]) -> Finding:
    """The finding on a step of 1 ms without ops from 100 to 500 us at line 9, and to 700 us at line 8."""
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 100).op("aten::mm", 700, 290)
    trace.range("@train.py:9 sample", 100, 400).range("@train.py:8 write", 500, 200)
    for name, start, dur in frames:
        trace.frame(name, start, dur)
    return next(each for each in LaunchBound().analyze(Run((Rank(trace.trace(), facts=BASE),))) if each.rule == "PD104")


@pytest.mark.parametrize(
    ("frame", "says", "advice"),
    [
        ("<built-in function collect>", "gc.collect takes 33% of that", "gc.collect() out of the loop"),
        ("<built-in function fsync>", "os.fsync takes 33% of that", "Log every so many steps"),
        ("/venv/torch/serialization.py(944): save", "torch.save takes 33% of that", "Save less often"),
        ("copy.py(128): deepcopy", "copy.deepcopy takes 33% of that", "Copy less often"),
    ],
)
def test_a_known_call_is_named_with_its_line_and_its_share(frame: str, says: str, advice: str) -> None:
    finding = finding_of((frame, 500, 200))
    assert says in finding.title
    assert "most at train.py:8" in finding.title  # though line 9 takes more
    assert advice in finding.advice
    assert finding.saving.high_ns == 600_000
    assert finding.saving.expected_ns is not None
    assert 190_000 <= finding.saving.expected_ns <= 200_000


@pytest.mark.parametrize(
    "frame",
    [
        ("<built-in function collect>", 500, 100),  # a sixth
        ("<built-in function collect>", 0, 100),  # beside an op
        ("<built-in method collect of Spark object at 0x7f>", 500, 200),
        ("my/serialization.py(944): save", 500, 200),
        ("mycopy.py(128): deepcopy", 500, 200),
    ],
)
def test_another_call_or_a_short_one_is_not_blamed(frame: tuple[str, float, float]) -> None:
    finding = finding_of(frame)
    assert "Python, most at train.py:9" in finding.title
    assert finding.saving.expected_ns is None


def test_of_nested_and_repeated_calls_no_time_counts_twice() -> None:
    finding = finding_of(
        ("copy.py(128): deepcopy", 500, 200),
        ("copy.py(128): deepcopy", 510, 100),
        ("<built-in function fsync>", 300, 30),
    )
    assert "copy.deepcopy takes 33% of that" in finding.title
