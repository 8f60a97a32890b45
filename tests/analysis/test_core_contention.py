"""Who had the cores: waits for a core are known from sleep, and those due to other programs from the program's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.captured_facts import step_times_of
from perfdoctor.analysis.core_contention import NO_CONTENTION, count_free_cores, find_contention, without_others
from perfdoctor.analysis.step_times import comparable_unprofiled_ns
from perfdoctor.facts.captured import CapturedFacts

MS = 1_000_000


def captured(
    cpu_ms: float, queued_ms: float, sleep_ms: float = 0.0, *, others: float | None = 0.0, **parts: Any
) -> CapturedFacts:
    """Five steps in which the training thread ran, waited for a core, and slept for so long, on two cores."""
    dur_ms = cpu_ms + queued_ms + sleep_ms
    cores = {"available": 2.0, "training": round(cpu_ms / dur_ms, 3), "workers": 0.0, "others": others}
    steps = {"base_step_ns": dur_ms, "base_cpu_ns": cpu_ms, "base_queued_ns": queued_ms}
    plain = {name: [round(ms * MS)] * 5 for name, ms in steps.items()}
    cpu = {"torch_threads": parts.pop("threads", 1)}
    loaders = parts.pop("loaders", [])
    return CapturedFacts.parse(plain | {"cores": cores | parts, "cpu": cpu, "loaders": loaders})


positive = st.floats(0.1, 1000)


@given(positive, positive, st.floats(0, 1000), st.floats(0.25, 2))
def test_a_step_without_others_is_what_ran_and_what_slept(
    cpu: float, queued: float, sleep: float, others: float
) -> None:
    facts = captured(cpu, queued, sleep, others=others)
    found, base = find_contention(facts), step_times_of(facts.base)
    assert base is not None
    assert found.core_share == pytest.approx(cpu / (cpu + queued), rel=1e-3)
    own_ns = without_others(base, found)
    expected_ms = cpu + sleep + (0 if found.is_severe else queued)
    assert own_ns == pytest.approx(np.full(5, expected_ms * MS), rel=1e-3, abs=2)
    assert comparable_unprofiled_ns(facts) == pytest.approx(expected_ms * MS, rel=1e-3, abs=2)


@given(positive, positive, st.floats(0, 1000), st.floats(0, 0.24))
def test_waits_for_a_core_that_nobody_else_uses_are_the_programs_own(
    cpu: float, queued: float, sleep: float, others: float
) -> None:
    """Sixteen threads on two cores wait for each other: that is a finding, and no busy machine."""
    facts = captured(cpu, queued, sleep, others=others, training=2.0, threads=16)
    assert find_contention(facts).core_share == 1.0
    assert comparable_unprofiled_ns(facts) == pytest.approx((cpu + queued + sleep) * MS, rel=1e-3, abs=2)


def test_threads_that_outnumber_the_cores_wait_for_each_other_beside_a_small_other_program() -> None:
    """Measured: 16 threads on two cores take 100 ms a step by themselves, and 114 beside a third of a core."""
    facts = captured(18, 84, 12, others=0.31, training=1.66, threads=16)
    assert find_contention(facts).core_share == pytest.approx(1 - 0.31 / (0.31 + 1.66 - 18 / 114) * 84 / 102, rel=1e-3)
    assert not find_contention(facts).is_severe
    assert comparable_unprofiled_ns(facts) == pytest.approx(114 * MS, rel=1e-3)


@given(positive, positive, st.floats(0.25, 2), st.floats(0.25, 2), st.floats(0, 2))
def test_more_of_others_is_more_of_their_doing(cpu: float, queued: float, one: float, two: float, own: float) -> None:
    few, many = sorted((one, two))
    parts = {"training": 1 + own / 2, "workers": own}
    shares = [find_contention(captured(cpu, queued, others=each, **parts)).core_share for each in (few, many)]
    assert shares[0] >= shares[1] - 1e-9
    assert cpu / (cpu + queued) - 1e-4 <= shares[1] <= 1


def test_sleep_is_no_lack_of_a_core() -> None:
    """Waits for a GPU, a disk or a loader: the thread does not run, and asks for no core."""
    assert not find_contention(captured(10, 1, 300, others=1.9)).is_severe


def test_other_ranks_of_the_job_are_no_other_programs() -> None:
    two_ranks = captured(50, 50, others=1.0, training=1.0, local_ranks=2)
    assert not find_contention(two_ranks).is_severe
    assert find_contention(captured(50, 50, others=1.0, training=1.0)).is_severe


@pytest.mark.parametrize(("threads", "is_severe"), [(1, True), (2, True), (16, False)])
def test_without_a_count_of_others_waits_are_theirs_where_the_program_has_cores_for_all(
    threads: int, is_severe: bool
) -> None:
    assert find_contention(captured(5, 20, others=None, threads=threads)).is_severe is is_severe


def test_a_worker_that_lacks_its_core_is_contention_though_the_training_thread_sleeps() -> None:
    fetch = {"where": "worker", "cpu_ns": 10 * MS, "queued_ns": 90 * MS}
    facts = captured(10, 1, 100, others=1.5, loaders=[{"num_workers": 2, "wait_ns": MS, "fetch": fetch}])
    assert find_contention(facts).core_share == pytest.approx(0.1)


def test_a_capture_without_the_run_delay_guesses_by_preemptions() -> None:
    columns = {"step_ns": 100 * MS, "cpu_ns": 40 * MS, "preempted": 9}
    old = CapturedFacts.parse({f"base_{name}": [value] * 5 for name, value in columns.items()})
    assert find_contention(old) == (0.4, None)
    assert comparable_unprofiled_ns(old) == 100 * MS
    assert find_contention(CapturedFacts()) == NO_CONTENTION


@pytest.mark.parametrize(
    ("facts", "free"),
    [
        (captured(90, 1, others=0.1), 0.9),
        (captured(30, 60, others=1.7), 0.0),
        (captured(90, 1, others=0.1, local_ranks=2), 0.0),
        (captured(90, 1, others=1.0, training=1.0, local_ranks=2, available=8.0), 3.0),
        (captured(90, 1, others=4.0, training=1.0, local_ranks=2, available=6.0), 1.0),  # two more programs
    ],
    ids=["one-core-idles", "all-taken", "two-trainers-on-two-cores", "two-trainers-on-eight", "and-others"],
)
def test_free_cores_are_those_that_no_trainer_and_no_other_program_uses(facts: CapturedFacts, free: float) -> None:
    assert count_free_cores(facts) == pytest.approx(free, abs=0.01)
