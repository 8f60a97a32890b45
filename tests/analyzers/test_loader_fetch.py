"""What loading a batch takes by itself, where others have the cores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analyzers._pd101_loader_model import own_fetch_ns
from perfdoctor.facts.loaders import BatchFetch

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
