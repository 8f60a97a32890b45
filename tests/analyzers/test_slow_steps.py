"""Slow steps: laws of finding them, those of a whole captured run, and how step times are read from a capture."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfdoctor
from perfdoctor import pipeline
from perfdoctor.analysis.captured_facts import RunSteps, parse_run_steps
from perfdoctor.analyzers._pd003_slow_steps import find_slow_steps, measure_growth
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.savings.saving import Saving
from perfdoctor.testing import TraceBuilder

durations = st.lists(st.integers(1, 10**12), min_size=1, max_size=60)


@given(durations, st.floats(1.1, 5), st.floats(0.05, 1))
def test_slow_steps_exceed_the_factor_and_their_excess_is_over_the_median(
    lengths: list[int], factor: float, most_share: float
) -> None:
    found = find_slow_steps(np.array(lengths, np.int64), factor, most_share)
    over = [length for length in lengths if length > factor * int(np.median(lengths))]
    if found is None:
        assert not over or len(over) > most_share * len(lengths)
    else:
        assert [lengths[row] for row in found.rows] == over
        assert found.excess_ns == sum(over) - len(over) * found.median_ns


@given(durations, st.integers(2, 1000))
def test_a_longer_unit_of_time_scales_the_excess_alone(lengths: list[int], scale: int) -> None:
    even = [2 * length for length in lengths]  # a median between two steps stays whole
    once, more = (find_slow_steps(np.array(even, np.int64) * k, 1.5, 0.34) for k in (1, scale))
    assert (once is None) == (more is None)
    if once is not None and more is not None:
        assert once.rows.tolist() == more.rows.tolist()
        assert more.excess_ns == scale * once.excess_ns


def test_a_jump_or_an_alternation_is_no_growth() -> None:
    assert measure_growth(np.linspace(100, 300, 40).astype(np.int64)) == pytest.approx(274.5 / 122, rel=0.02)
    assert measure_growth(np.array([100] * 20 + [300] * 20, np.int64)) == 1.0
    assert measure_growth(np.array([100, 300] * 20, np.int64)) == 1.0
    assert measure_growth(np.array([5], np.int64)) == 1.0


def steps_jsonl(lengths: Iterable[int], waits: Iterable[int] | None = None, window: str = "after") -> bytes:
    """A steps.jsonl of such step times and waits for the loader, in ns."""
    lengths = list(lengths)
    waits_ns = list(waits) if waits is not None else [0] * len(lengths)
    steps = zip(range(len(lengths)), lengths, waits_ns, strict=True)
    keys = ("step", "dur_ns", "loader_wait_ns")
    return b"".join(
        json.dumps({**dict(zip(keys, step, strict=True)), "window": window}).encode() + b"\n" for step in steps
    )


def steady_trace() -> TraceBuilder:
    trace = TraceBuilder(device=None)
    for number in range(6):
        trace.step(1000 * number, 1000).op("aten::addmm", 1000 * number, 990)
    return trace


@pytest.mark.parametrize("names", [("aten::add", "aten::mul"), ("aten::mul", "aten::add")])
def test_of_two_ops_that_grow_alike_the_first_by_name_is_told(names: tuple[str, str]) -> None:
    trace = TraceBuilder(device=None)
    for number in range(6):
        length = 2000 if number == 4 else 1000
        trace.step(1000 * number + 1000 * (number > 4), length)
        for row, name in enumerate(names):
            trace.op(name, 1000 * number + 1000 * (number > 4) + row * length / 2, length / 2)
    rules = [analyzer for analyzer in registry.load_analyzers() if analyzer.rule == "PD003"]
    (finding,) = pipeline.diagnose_run(Run((Rank(trace.trace()),)), rules).findings
    assert {each.label: each.value for each in finding.evidence}["most more time in"] == "aten::add"


def findings_on_steps(text: bytes) -> tuple[Finding, ...]:
    """The findings of PD003 on a run with such a steps.jsonl whose trace is steady."""
    run = Run((Rank(steady_trace().trace(), run_steps=parse_run_steps(text)),))
    return pipeline.diagnose_run(run, [a for a in registry.load_analyzers() if a.rule == "PD003"]).findings


def test_a_checkpoint_every_fifty_steps_is_reported_with_that_spacing() -> None:
    (finding,) = findings_on_steps(steps_jsonl([1_000_000 + (9_000_000 if n % 50 == 49 else n) for n in range(200)]))
    assert "4 of 200 steps of the run take up to 10.0 times the median, every 50 steps" in finding.title
    assert finding.saving == Saving()
    assert 175_000 < finding.cost_ns < 181_000


def test_slow_steps_without_a_fixed_spacing_may_be_the_machines() -> None:
    (alone,) = findings_on_steps(steps_jsonl([1_000_000] * 99 + [9_000_000]))
    assert alone.title == "1 of 100 steps of the run takes 9.0 times the median"
    (in_a_row,) = findings_on_steps(steps_jsonl([1_000_000] * 96 + [3_000_000] * 4))
    assert in_a_row.title == "4 of 100 steps of the run take up to 3.0 times the median"
    (regular,) = findings_on_steps(steps_jsonl([1_000_000 + 9_000_000 * (n % 50 == 49) for n in range(200)]))
    shared = "other programs share the machine"
    assert [shared in f.advice for f in (alone, in_a_row, regular)] == [True, True, False]


def test_slow_steps_that_wait_for_the_loader_are_attributed_to_it() -> None:
    slow = [n % 40 == 0 for n in range(120)]
    (finding,) = findings_on_steps(
        steps_jsonl([8_000_000 if s else 1_000_000 for s in slow], [7_000_000 if s else 10_000 for s in slow])
    )
    assert "waits for the loader" in finding.title
    assert {e.label: e.value for e in finding.evidence}["more wait for the loader in a slow step"] == 6_990_000


def test_steps_that_keep_growing_get_a_finding() -> None:
    (finding,) = findings_on_steps(steps_jsonl(range(1_000_000, 3_000_000, 20_000)))
    assert "Steps keep growing: the last quarter of the run takes 2.2 times" in finding.title


@pytest.mark.parametrize(
    "text",
    [
        steps_jsonl([1_000_000] * 100),
        steps_jsonl([1_000_000] * 99 + [3_000_000]),
        steps_jsonl([9_000_000, 1_000_000] * 5),
        steps_jsonl([1_000_000] * 80 + [9_000_000] * 20, window="timing"),
        steps_jsonl([1_000_000, 3_000_000] * 50),
        b"",
    ],
    ids=["steady", "one-in-a-hundred", "too-few", "profiled", "two-kinds", "nothing"],
)
def test_a_run_without_costly_exceptions_gets_no_finding(text: bytes) -> None:
    assert findings_on_steps(text) == ()


def test_lines_that_are_no_steps_are_ignored() -> None:
    text = b'{"step":0,"dur_ns":5,"window":"base","loader_wait_ns":2}\nnull\n{"step":1}\n\xff\n'
    text += b'{"step":-1,"dur_ns":5,"window":"base","loader_wait_ns":0}\n'
    text += b'{"step":2,"dur_ns":99999999999999999999,"window":"base","loader_wait_ns":0}\n'
    found = parse_run_steps(text + b'{"step":2,"dur_ns":7,"window":"after","loader_w')
    assert isinstance(found, RunSteps)
    assert (found.number.tolist(), found.dur_ns.tolist(), found.loader_wait_ns.tolist()) == ([0], [5], [2])
    assert parse_run_steps(b"") is None


def test_the_step_times_of_a_capture_folder_are_read(tmp_path: Path) -> None:
    rank = tmp_path / "rank0"
    rank.mkdir()
    steady_trace().write(rank / "timing.json.gz")
    (rank / "facts.json").write_text("{}")
    (rank / "steps.jsonl").write_bytes(
        steps_jsonl([1_000_000 + (9_000_000 if n % 50 == 49 else n) for n in range(200)])
    )
    assert ["every 50 steps" in f.title for f in perfdoctor.analyze(tmp_path, select=["PD003"]).findings] == [True]
    (rank / "steps.jsonl").unlink()
    assert perfdoctor.analyze(tmp_path, select=["PD003"]).findings == ()
