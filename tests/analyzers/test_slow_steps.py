"""Slow steps: laws of finding them, those of a whole captured run, and how step times are read from a capture."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    lengths: list[int], factor: float, max_share: float
) -> None:
    found = find_slow_steps(np.array(lengths, np.int64), factor, max_share)
    over = [length for length in lengths if length > factor * int(np.median(lengths))]
    if found is None:
        assert not over or len(over) > max_share * len(lengths)
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


def steps_jsonl(
    lengths: Iterable[int], waits: Iterable[int] | None = None, window: str = "after", **columns: Iterable[Any]
) -> bytes:
    """A steps.jsonl of such step times and waits for the loader, in ns, and what else was recorded of each step."""
    lengths = list(lengths)
    waits_ns = list(waits) if waits is not None else [0] * len(lengths)
    steps = zip(range(len(lengths)), lengths, waits_ns, *columns.values(), strict=True)
    keys = ("step", "dur_ns", "loader_wait_ns", *columns)
    rows = [{**dict(zip(keys, step, strict=True)), "window": window} for step in steps]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


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
    assert {f.severity for f in (alone, in_a_row, regular)} <= {"info", "low"}
    assert [shared in f.advice for f in (alone, in_a_row, regular)] == [True, True, False]


def test_slow_steps_that_wait_for_the_loader_are_attributed_to_it() -> None:
    slow = [n % 40 == 0 for n in range(120)]
    (finding,) = findings_on_steps(
        steps_jsonl([8_000_000 if s else 1_000_000 for s in slow], [7_000_000 if s else 10_000 for s in slow])
    )
    assert "they wait for the loader" in finding.title
    assert {e.label: e.value for e in finding.evidence}["more wait for the loader in a slow step"] == 6_990_000


def test_steps_that_keep_growing_get_a_finding() -> None:
    (finding,) = findings_on_steps(steps_jsonl(range(1_000_000, 3_000_000, 20_000)))
    assert "Steps keep growing: the last quarter of the run takes 2.2 times" in finding.title


MS = 1_000_000


def slow_every_tenth(count: int = 100) -> list[bool]:
    return [number % 10 == 9 for number in range(count)]


def recorded_steps(
    cpu_ms: tuple[float, float],
    preempted: tuple[int, int] = (0, 0),
    lengths_ms: tuple[int, int] = (10, 40),
    **columns: Any,
) -> bytes:
    """Steps of which every tenth is slow; of each pair the first is that of a usual step."""
    slow = slow_every_tenth()
    cpu_ns = [round(MS * cpu_ms[is_slow]) for is_slow in slow]
    return steps_jsonl(
        [MS * lengths_ms[is_slow] for is_slow in slow],
        cpu_ns=cpu_ns,
        process_cpu_ns=[2 * ns for ns in cpu_ns],
        preempted=[preempted[is_slow] for is_slow in slow],
        **columns,
    )


def test_steps_that_others_made_slow_are_no_fault_of_the_program() -> None:
    (finding,) = findings_on_steps(recorded_steps((9.9, 10.1), (0, 8)))
    assert (
        finding.title == "The machine was shared: other programs made 10 of 100 steps longer, by 23% of the run's time"
    )
    assert (finding.severity, finding.cost_ns, finding.fix) == ("info", 0, None)


def test_threads_that_wait_busily_for_a_preempted_one_do_no_work() -> None:
    """As measured: 49 ms became 440 ms beside two busy programs, with three times the CPU time and 40 preemptions."""
    (finding,) = findings_on_steps(recorded_steps((48, 143), (1, 40), (49, 440)))
    assert "The machine was shared" in finding.title


def test_slow_steps_that_compute_more_are_the_programs_own() -> None:
    (finding,) = findings_on_steps(recorded_steps((9.9, 39.6), (1, 4)))
    assert "10 of 100 steps of the run take up to 4.0 times the median, every 10 steps: they take more CPU time" in (
        finding.title
    )
    assert "What takes it was not recorded" in finding.advice
    assert "Write" not in finding.advice
    assert finding.severity == "low"


def test_slow_steps_that_wait_without_being_preempted_wait_for_something() -> None:
    (finding,) = findings_on_steps(recorded_steps((9.9, 10.1), (0, 0)))
    assert "they wait, without more CPU time" in finding.title


@pytest.mark.parametrize(
    ("content", "text", "severities"),
    [
        ("save", "they save a checkpoint", {"medium"}),
        ("evaluation", "they evaluate", {"low"}),
        ("rollout", "they collect more experience", {"low"}),
        ("gc", "Python collects garbage in them", {"medium"}),
    ],
)
def test_a_cause_is_named_where_it_was_seen(content: str, text: str, severities: set[str]) -> None:
    contains = [[content] if is_slow else [] for is_slow in slow_every_tenth()]
    (finding,) = findings_on_steps(recorded_steps((9.9, 39.6), contains=contains))
    assert finding.title.endswith(f"every 10 steps: {text}") or text in finding.title
    assert finding.severity in severities


@pytest.mark.parametrize(("length_ms", "severity"), [(30, "low"), (40, "low"), (50, "medium"), (90, "medium")])
@pytest.mark.parametrize("content", ["rollout", "evaluation"])
def test_what_a_quarter_of_the_run_goes_to_is_part_of_every_step(content: str, length_ms: int, severity: str) -> None:
    slow = slow_every_tenth()
    contains = [[content] if is_slow else [] for is_slow in slow]
    text = recorded_steps((9.9, 9.9 * length_ms / 10), lengths_ms=(10, length_ms), contains=contains)
    (finding,) = findings_on_steps(text)
    share = 10 * (length_ms - 10) / (90 * 10 + 10 * length_ms)
    assert finding.severity == severity
    assert finding.is_one_off == (severity == "low")
    assert (f"{share:.0%} of the run goes to 10 of 100 steps, every 10 steps: they" in finding.title) == (share > 0.25)


def test_what_all_steps_contain_is_no_cause() -> None:
    (finding,) = findings_on_steps(recorded_steps((9.9, 39.6), contains=[["save"]] * 100))
    assert "checkpoint" not in finding.title + finding.advice


def test_steps_with_more_micro_batches_are_no_slow_steps() -> None:
    backwards = [4 if is_slow else 1 for is_slow in slow_every_tenth()]
    (finding,) = findings_on_steps(recorded_steps((9.9, 39.6), backwards=backwards))
    assert "they hold up to 4 micro-batches instead of 1" in finding.title
    assert finding.severity == "info"


def test_an_evaluation_reads_batches_and_is_still_slow() -> None:
    """Its batches are no micro-batches, as backward passes are counted."""
    slow = slow_every_tenth()
    text = recorded_steps((9.9, 39.6), backwards=[1] * 100, batches=[21 if is_slow else 1 for is_slow in slow])
    assert "10 of 100 steps of the run take up to 4.0 times" in findings_on_steps(text)[0].title


def test_accumulation_that_ramps_up_is_no_growth() -> None:
    backwards = [1 + number // 20 for number in range(100)]
    text = steps_jsonl([MS * count for count in backwards], backwards=backwards)
    assert not any("growing" in finding.title for finding in findings_on_steps(text))


@pytest.mark.parametrize(
    "text",
    [
        recorded_steps((9.9, 9.9), lengths_ms=(10, 10)),
        recorded_steps((9.9, 10.8), (1, 2), lengths_ms=(10, 11)),
        steps_jsonl([MS] * 100),
        steps_jsonl([1_000_000] * 99 + [3_000_000]),
        steps_jsonl([9_000_000, 1_000_000] * 5),
        steps_jsonl([1_000_000] * 80 + [9_000_000] * 20, window="timing"),
        steps_jsonl([1_000_000, 3_000_000] * 50),
        b"",
    ],
    ids=[
        "recorded-steady",
        "recorded-within-a-tenth",
        "steady",
        "one-in-a-hundred",
        "too-few",
        "profiled",
        "two-kinds",
        "nothing",
    ],
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


@pytest.mark.parametrize("name", ["step", "dur_ns", "loader_wait_ns"])
@pytest.mark.parametrize("value", ["18446744073709551615", "-1", "true", "1e3"])
def test_a_step_with_a_number_that_is_no_count_is_ignored(name: str, value: str) -> None:
    numbers = {"step": "0", "dur_ns": "7", "loader_wait_ns": "1"}
    lines = ["".join(f'"{key}":{each},' for key, each in row.items()) for row in (numbers, numbers | {name: value})]
    found = parse_run_steps("".join(f'{{{line}"window":"base"}}\n' for line in lines).encode())
    assert found is not None
    assert found.number.tolist() == [0]


def test_what_a_row_lacks_is_unknown_of_all() -> None:
    rows = [
        {"step": n, "dur_ns": 5, "window": "after", "loader_wait_ns": 0, "cpu_ns": 4, "backwards": 1} for n in (0, 1)
    ]
    del rows[1]["backwards"]
    rows[0]["contains"] = ["save", 7]
    found = parse_run_steps(b"\n".join(json.dumps(row).encode() for row in rows))
    assert found is not None
    assert found.cpu_ns is not None
    assert found.cpu_ns.tolist() == [4, 4]
    assert (found.backwards, found.preempted) == (None, None)
    assert found.contains == (frozenset({"save"}), frozenset())


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
