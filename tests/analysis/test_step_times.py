"""What step times of a capture say: preemption and work are taken out, and a sample is compared with its run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.captured_facts import RunSteps, StepTimes
from perfdoctor.analysis.core_contention import NO_CONTENTION, find_contention, is_shared_throughout
from perfdoctor.analysis.step_times import (
    comparable_unprofiled_ns,
    cpu_time_ratio,
    describe_sample,
    even_out_work,
    find_preemption,
)
from perfdoctor.facts.captured import CapturedFacts

MS = 1_000_000


def times(dur_ms: list[float], cpu_ms: list[float], preempted: list[int], threads: int = 1) -> StepTimes:
    dur_ns, cpu_ns = ((np.array(each) * MS).astype(np.int64) for each in (dur_ms, cpu_ms))
    return StepTimes(
        dur_ns=dur_ns, cpu_ns=cpu_ns, process_cpu_ns=threads * cpu_ns, preempted=np.array(preempted, np.int64)
    )


def run_of(dur_ms: list[float], first: int = 0, **columns: Any) -> RunSteps:
    count = len(dur_ms)
    return RunSteps(
        number=np.arange(first, first + count),
        dur_ns=(np.array(dur_ms) * MS).astype(np.int64),
        loader_wait_ns=np.zeros(count, np.int64),
        is_after=np.ones(count, bool),
        contains=(frozenset(),) * count,
        **columns,
    )


steps = st.integers(1, 60).flatmap(
    lambda count: st.tuples(
        *(st.lists(st.integers(low, 10**9), min_size=count, max_size=count) for low in (1, 0, 0)),
        st.lists(st.integers(0, 100), min_size=count, max_size=count),
    )
)


@given(steps)
def test_a_steps_own_time_is_at_most_its_duration_and_no_less_than_a_usual_step(columns: Any) -> None:
    dur_ns, cpu_ns, process_ns, preempted = (np.array(each, np.int64) for each in columns)
    found = find_preemption(StepTimes(dur_ns=dur_ns, cpu_ns=cpu_ns, process_cpu_ns=process_ns, preempted=preempted))
    assert (found.own_ns <= dur_ns).all()
    assert (found.own_ns >= np.minimum(dur_ns, int(np.median(dur_ns)) - 1)).all()
    assert (found.own_ns[~found.is_preempted] == dur_ns[~found.is_preempted]).all()
    assert not (found.is_preempted & ~found.lost_core).any()


def test_a_preempted_step_is_as_long_as_its_cpu_time_says() -> None:
    found = find_preemption(times([50, 50, 50, 200, 100], [50, 50, 50, 60, 100], [0, 0, 0, 40, 0]))
    assert (found.own_ns // MS).tolist() == [50, 50, 50, 60, 100]
    assert found.is_preempted.tolist() == [False, False, False, True, False]


def test_threads_that_wait_busily_for_a_preempted_one_do_no_work() -> None:
    measured = times([49] * 5 + [440], [48] * 5 + [143], [1] * 5 + [40], threads=2)
    assert find_preemption(measured).own_ns[-1] // MS == 49
    one_thread = times([49] * 5 + [440], [48] * 5 + [143], [1] * 5 + [40])
    assert find_preemption(one_thread).own_ns[-1] // MS == 145


@pytest.mark.parametrize("lacking", ["cpu_ns", "preempted"])
def test_without_cpu_times_all_of_a_step_is_its_own(lacking: str) -> None:
    columns = {"cpu_ns": np.array([MS] * 3), "preempted": np.array([0, 0, 9])}
    columns.pop(lacking)
    assert find_preemption(StepTimes(dur_ns=np.array([MS, MS, 9 * MS]), **columns)).own_ns.tolist() == [MS, MS, 9 * MS]


def test_work_is_evened_out_by_backward_passes_before_batches() -> None:
    dur_ns = np.array([10, 20, 10], np.int64) * MS
    backwards, batches = np.array([1, 2, 1]), np.array([1, 1, 9])
    both = StepTimes(dur_ns=dur_ns, backwards=backwards, batches=batches)
    assert (even_out_work(dur_ns, both) // MS).tolist() == [10, 10, 10]
    inference = StepTimes(dur_ns=dur_ns, backwards=np.zeros(3, np.int64), batches=np.array([1, 2, 1]))
    assert (even_out_work(dur_ns, inference) // MS).tolist() == [10, 10, 10]
    assert even_out_work(dur_ns, StepTimes(dur_ns=dur_ns)) is dur_ns


def facts(base_ms: float, timing_ms: float, **more: Any) -> CapturedFacts:
    steps = {"base_step_ns": [round(base_ms * MS)] * 4, "timing_step_ns": [round(timing_ms * MS)] * 4}
    return CapturedFacts.parse(steps | more)


def test_the_unprofiled_step_is_scaled_to_the_recorded_work_and_no_longer_than_the_recorded_one() -> None:
    assert comparable_unprofiled_ns(facts(10, 12)) == 10 * MS
    assert comparable_unprofiled_ns(facts(19, 12)) == 12 * MS
    assert comparable_unprofiled_ns(facts(10, 24, base_backwards=[1] * 4, timing_backwards=[2] * 4)) == 20 * MS
    assert comparable_unprofiled_ns(CapturedFacts.parse({"base_step_ns": [3]})) == 3
    assert comparable_unprofiled_ns(CapturedFacts()) is None


def test_cpu_time_grows_by_the_profiler_for_the_same_work() -> None:
    cpu = {"base_cpu_ns": [10] * 4, "timing_cpu_ns": [30] * 4}
    assert cpu_time_ratio(facts(10, 30, **cpu)) == 3
    assert cpu_time_ratio(facts(10, 30, **cpu, base_backwards=[1] * 4, timing_backwards=[2] * 4)) == 1.5
    assert cpu_time_ratio(facts(10, 30)) is None


def test_a_machine_is_shared_throughout_where_preemptions_explain_the_thread_being_away() -> None:
    assert is_shared_throughout(times([100] * 5, [40] * 5, [20] * 5))
    assert not is_shared_throughout(times([100] * 5, [40] * 5, [0] * 5))
    assert not is_shared_throughout(times([500] * 5, [40] * 5, [1] * 5))  # it waits for a GPU
    assert not is_shared_throughout(times([100] * 5, [95] * 5, [20] * 5))


def test_early_steps_that_are_shorter_than_the_run_are_said_to_be_so() -> None:
    growing = [4.5 + min(number, 60) * 0.2 for number in range(200)]
    (sentence,) = describe_sample(facts(4.5, 5), run_of(growing, first=30))
    assert "they take 4.5 ms, the median step of the 200 after them 16.5 ms; record later" in sentence
    skip = int(sentence.split("--skip ")[1].split()[0])
    assert growing[skip - 30] > 16.5 / 1.25


@pytest.mark.parametrize(
    "run", [run_of([4.5] * 200), run_of([6.0] * 200), run_of([16.0] * 10), None], ids=["same", "a-third", "few", "none"]
)
def test_a_sample_that_fits_needs_no_sentence(run: RunSteps | None) -> None:
    assert describe_sample(facts(4.5, 5), run) == ()


def test_windows_of_unlike_work_are_said_to_be_unlike() -> None:
    (sentence,) = describe_sample(facts(10, 40, base_backwards=[1] * 4, timing_backwards=[4] * 4), None)
    assert "4 times the micro-batches" in sentence


def test_a_disturbed_sample_is_not_blamed_on_the_program() -> None:
    column = {"cpu_ns": [100 * MS] * 4, "preempted": [37] * 4, "process_cpu_ns": [200 * MS] * 4}
    disturbed = facts(
        280, 290, **{f"{window}_{name}": column[name] for window in ("base", "timing") for name in column}
    )
    columns = {
        "cpu_ns": np.array([48 * MS] * 80),
        "process_cpu_ns": np.array([96 * MS] * 80),
        "preempted": np.array([1] * 80),
    }
    (sentence,) = describe_sample(disturbed, run_of([49] * 80, **columns))
    assert sentence.startswith("other programs had the machine while steps were recorded")
    assert "--skip" not in sentence


def test_a_step_with_other_work_may_use_fewer_threads_without_being_preempted() -> None:
    columns = {
        "cpu_ns": np.array([4, 4, 4, 70]) * MS,
        "process_cpu_ns": np.array([8, 8, 8, 80]) * MS,
        "preempted": np.array([0, 0, 0, 5]),
    }
    run = run_of([4, 4, 4, 70], **columns)
    assert find_preemption(run).is_preempted.tolist() == [False, False, False, True]
    rollout = replace(run, contains=(*(frozenset[str](),) * 3, frozenset({"rollout"})))
    assert find_preemption(rollout).own_ns.tolist() == run.dur_ns.tolist()


def test_a_loader_that_sleeps_is_no_other_program() -> None:
    step = {"step_ns": [80_000_000] * 10, "cpu_ns": [48_000_000] * 10, "preempted": [1] * 10}
    sleeping = {f"{window}_{name}": values for window in ("base", "timing") for name, values in step.items()}
    assert find_contention(CapturedFacts.parse(sleeping)) == NO_CONTENTION
    disturbed = sleeping | {"base_preempted": [9] * 10, "timing_preempted": [9] * 10}
    assert find_contention(CapturedFacts.parse(disturbed)).is_severe


@pytest.mark.parametrize(
    ("end", "said"),
    [("running", True), ("recorded", True), ("exit", False), ("SIGTERM", False), ("session", False), (None, False)],
)
def test_a_run_that_was_killed_is_called_one(end: str | None, said: bool) -> None:
    sentences = describe_sample(CapturedFacts.parse({"exit": end}), None)
    assert [sentence.startswith("the end of the program is not recorded") for sentence in sentences] == [True] * said
