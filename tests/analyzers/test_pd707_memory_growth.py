"""PD707 on whole runs: with and without recorded memory, its line, its promise, and what is quiet."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from cases_device_memory import MB, Tensor, training

from perfdoctor import pipeline
from perfdoctor.analysis.captured_facts import RunSteps, parse_run_steps
from perfdoctor.analyzers.pd707_memory_growth import MemoryGrowth
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules import Run
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.testing import TraceBuilder

STEPS = 300
FACTS = {
    "windows": {"evidence": {"steps": 3, "complete": True, "first_step": 39}},
    "run": {"steps": STEPS, "seen_ns": 1, "unprofiled_steps": 1, "unprofiled_ns": 1},
}


def run_of(curve: Callable[[int], float], name: str = "held_bytes") -> RunSteps | None:
    """Steps of a run that hold so many MB at their ends, without those with the profiler."""
    rows = [
        {"step": step, "dur_ns": 1_000_000, "loader_wait_ns": 0, "window": "after" if step > 30 else "base"}
        | {name: round(curve(step) * MB)}
        for step in (*range(20, 30), *range(42, STEPS))
    ]
    return parse_run_steps("\n".join(map(json.dumps, rows)).encode())


def findings_on(trace: TraceBuilder, run: RunSteps | None, facts: dict[str, Any] | None = None) -> Sequence[Finding]:
    rank = Rank(trace.trace(), facts=CapturedFacts.parse(FACTS | (facts or {})), run_steps=run)
    report = pipeline.diagnose_run(Run((rank,)), [MemoryGrowth])
    assert [outcome.status for outcome in report.outcomes] == ["ran"]
    return report.findings


def kept(megabytes: int = 20, device: int | None = None) -> TraceBuilder:
    """Three recorded steps that keep something each."""
    return training(Tensor(megabytes, 150, None), Tensor(80, 160, 450), device=device)


@pytest.mark.parametrize(("device", "name"), [(None, "held_bytes"), (0, "allocated_bytes")])
def test_the_whole_run_is_priced_by_its_steps(device: int | None, name: str) -> None:
    (finding,) = findings_on(kept(device=device), run_of(lambda step: 500 + 20.0 * step, name))
    # At least what the 279 steps from the first to the last one seen have added, at most 300 and one that did not end.
    assert finding.saved_bytes == SavedBytes(5580 * MB, 6000 * MB, 6020 * MB, 6000 * MB, "run")
    place = "the CPU" if device is None else "GPU 0"
    assert finding.title == f"Memory of {place} grows by 20 MB in each step, by 6 GB over the 300 steps of the run"
    assert str(finding.location) == "train.py:7"
    assert finding.severity == "info"
    assert {each.label: each.value for each in finding.evidence}["more in each step"] == 20 * MB


def test_what_would_not_fit_once_more_is_more_than_an_information() -> None:
    memory = {"host_bytes": 16_000 * MB, "available_bytes": 4_000 * MB, "windows": {}}
    memory["windows"] = {"after": {"step": STEPS, "rss_bytes": 7_000 * MB, "rss_peak_bytes": 7_000 * MB}}
    (finding,) = findings_on(kept(), run_of(lambda step: 500 + 20.0 * step), {"memory": memory})
    assert finding.severity == "medium"


def test_a_window_in_which_little_is_made_has_the_line_of_what_stays() -> None:
    little = training(Tensor(4, 150, None), Tensor(1, 160, 450))
    (finding,) = findings_on(little, run_of(lambda step: 500 + 4.0 * step))
    assert str(finding.location) == "train.py:7"
    assert not findings_on(little, run_of(QUIET["level"]))


@pytest.mark.parametrize(("rise", "more"), [(None, 0), (0, 0), (700, 700), (9000, 6000)])
def test_what_a_program_makes_of_all_it_has_kept_is_saved_too(rise: int | None, more: int) -> None:
    facts: dict[str, Any] = {
        "memory": {"windows": {}} | ({} if rise is None else {"rise_after_steps_bytes": rise * MB})
    }
    (finding,) = findings_on(kept(), run_of(lambda step: 500 + 20.0 * step), facts)
    assert finding.saved_bytes == SavedBytes(5580 * MB, 6000 * MB, (6020 + more) * MB, 6000 * MB, "run")


def test_a_run_that_grows_in_some_steps_has_the_line_where_one_was_recorded() -> None:
    run = run_of(lambda step: 500 + 24.0 * (step // 4))
    once = training(Tensor(24, 150, None, once=True), Tensor(80, 160, 450))
    (finding,) = findings_on(once, run)
    assert str(finding.location) == "train.py:7"
    assert finding.saved_bytes is not None
    assert finding.saved_bytes.low <= 24 * MB * STEPS / 4 <= finding.saved_bytes.high


@pytest.mark.parametrize(
    "trace",
    [
        training(Tensor(80, 160, 450)),  # nothing is kept in the recorded steps
        training(Tensor(10, 150, 1140), Tensor(80, 160, 450)),  # a variable of the loop
        TraceBuilder(device=None).step(0, 1000).op("aten::mm", 100, 800).step(1000, 1000).op("aten::mm", 1100, 800),
    ],
    ids=["freed", "variable", "no memory recorded"],
)
def test_without_a_line_it_says_how_to_find_it(trace: TraceBuilder) -> None:
    (finding,) = findings_on(trace, run_of(lambda step: 500 + 6.0 * step))
    assert finding.location is None
    assert finding.fix is not None
    assert "--evidence" in finding.fix
    assert finding.saved_bytes is not None
    assert finding.saved_bytes.expected == 1800 * MB


QUIET: dict[str, Callable[[int], float]] = {
    "level": lambda step: 500 + 0 * step,
    "a cache that fills and stops": lambda step: 500 + 20 * min(step, 80),
    "a queue with a bound": lambda step: 500 + 20 * min(step, 6),
    "an evaluation in each tenth": lambda step: 500 + 300 * (step % 10 == 9),
}


@pytest.mark.parametrize("device", [None, 0])
@pytest.mark.parametrize("name", QUIET)
def test_a_run_that_does_not_grow_is_quiet_whatever_its_window_shows(name: str, device: int | None) -> None:
    column = "held_bytes" if device is None else "allocated_bytes"
    assert not findings_on(kept(device=device), run_of(QUIET[name], column))


def test_the_host_of_a_gpu_program_is_not_its_gpu() -> None:
    """What malloc hands out is none of the device's; of that the window alone tells, which has no end of the run."""
    gpu, host = findings_on(kept(device=0), run_of(lambda step: 500 + 5.0 * step))
    assert (gpu.title, gpu.saved_bytes) == ("Memory of GPU 0 grows by 20 MB in each step", None)
    assert host.title.startswith("Memory of the CPU grows by 5 MB in each step, by 1.5 GB over")
    assert host.location is None


def test_of_a_run_of_unknown_length_only_the_step_is_told() -> None:
    """A window in the middle of a run says nothing of how much the run keeps."""
    (finding,) = findings_on(kept(device=0), None)
    assert finding.saved_bytes is None
    assert finding.title == "Memory of GPU 0 grows by 20 MB in each step"
    assert not findings_on(kept(), None)  # on the CPU a queue with a bound looks alike
