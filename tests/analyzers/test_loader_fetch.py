"""What loading a batch takes by itself, where others have the cores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analyzers._loader_model import own_fetch_ns
from perfdoctor.analyzers._loader_texts import describe_loading_work
from perfdoctor.analyzers._loader_wait_parts import LoadingWork
from perfdoctor.facts.loaders import BatchFetch
from perfdoctor.rules import SourceLocation, activity_kinds

NS = st.integers(0, 10**10)


@given(NS, NS, NS, st.floats(0, 1))
def test_a_fetch_takes_its_cpu_time_at_least_and_what_was_measured_at_most(
    median_ns: int, cpu_ns: int, queued_ns: int, share: float
) -> None:
    own_ns = own_fetch_ns(BatchFetch(median_ns=median_ns, cpu_ns=cpu_ns, queued_ns=queued_ns), share)
    assert own_ns is not None
    assert min(cpu_ns, median_ns) <= own_ns <= median_ns


@pytest.mark.parametrize(("queued_ns", "share", "own_ns"), [(300, 1.0, 700), (300, 0.5, 850), (None, 1.0, 1000)])
def test_the_wait_for_a_core_is_no_part_of_a_fetch(queued_ns: int | None, share: float, own_ns: float) -> None:
    assert own_fetch_ns(BatchFetch(median_ns=1000, cpu_ns=100, queued_ns=queued_ns), share) == own_ns


def test_a_fetch_that_nobody_measured_is_not_known() -> None:
    assert own_fetch_ns(BatchFetch(cpu_ns=100), 1.0) is None


def test_a_data_set_that_sleeps_is_told_to_wait_less_often() -> None:
    sleeping = LoadingWork("<built-in function sleep>", activity_kinds.SLEEP, 30_000_000, SourceLocation("data.py", 6))
    said = describe_loading_work(sleeping)
    assert said.startswith(
        " 30 ms of the wait is built-in function sleep (data.py:6), sleep: to make a batch cheaper, "
    )
    assert "keep what it waits for" in said
    assert "event" not in said
    assert "cheaper" not in describe_loading_work(sleeping._replace(kind=None))
