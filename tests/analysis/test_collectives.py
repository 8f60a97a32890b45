"""Collectives of several ranks are matched by their ends, whatever the difference of the clocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.communication.collectives import CollectiveTable, CollectiveTotal
from perfdoctor.analysis.communication.match_collectives import match_collectives
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def collectives_of_rank(
    number: int, ends_us: Sequence[float], clock_us: float = 0, waits_us: float = 50
) -> CollectiveTable:
    trace = TraceBuilder(rank=number)
    for end in ends_us:
        trace.kernel(ALL_REDUCE, end + clock_us - waits_us, waits_us)
    return Rank(trace.trace()).collectives


# Ends at irregular distances of at least 2 ms: those of partners differ by 0.1 ms, others by more.
irregular_ends = st.lists(st.integers(2_000, 60_000), min_size=4, max_size=12, unique=True).map(
    lambda breaks: [sum(breaks[: i + 1]) for i in range(len(breaks))]
)


@given(irregular_ends, st.lists(st.integers(-3_000_000, 3_000_000), min_size=1, max_size=3), st.data())
def test_clocks_are_aligned_on_shared_ends(ends: list[int], clocks: list[int], data: st.DataObject) -> None:
    jitter = st.integers(0, 100)
    ranks = [collectives_of_rank(0, ends)]
    for number, clock in enumerate(clocks, 1):
        ranks.append(collectives_of_rank(number, [end + data.draw(jitter) for end in ends], clock))
    matched = match_collectives(ranks)
    assert matched is not None
    assert len(matched) == len(ends)
    for row, clock in enumerate([0, *clocks]):
        assert abs(int(matched.offset_ns[row]) + 1000 * clock) <= 100_000
        table = matched.tables[row]
        assert matched.collective_of_row[row].tolist() == list(range(len(ends)))
        assert (abs(table.end_ns + matched.offset_ns[row] - matched.end_ns) <= 200_000).all()
    assert (matched.rank_count == len(ranks)).all()


def test_a_collective_that_some_ranks_lack_has_no_partners() -> None:
    ends = [1_000, 4_000, 9_000, 11_000, 18_000]
    matched = match_collectives([collectives_of_rank(0, ends), collectives_of_rank(1, [*ends[:2], *ends[3:]], 5e6)])
    assert matched is not None
    assert [end // 1_000_000 for end in matched.end_ns.tolist()] == [1, 4, 11, 18]


def test_equal_steps_are_not_shifted_by_one_when_a_rank_lacks_the_first() -> None:
    ends = [1_000 * k for k in range(1, 21)]
    matched = match_collectives([collectives_of_rank(0, ends), collectives_of_rank(1, ends[1:])])
    assert matched is not None
    assert matched.offset_ns.tolist() == [0, 0]
    assert len(matched) == 19


def test_too_few_collectives_prove_nothing() -> None:
    assert match_collectives([collectives_of_rank(0, [1_000, 5_000]), collectives_of_rank(1, [1_000, 5_000])]) is None


def test_collectives_that_do_not_fit_together_are_not_matched() -> None:
    ends = [1_000, 4_000, 9_000, 30_000]
    others = [1_000, 12_000, 40_000, 90_000]
    assert match_collectives([collectives_of_rank(0, ends), collectives_of_rank(1, others)]) is None


@pytest.mark.parametrize(
    ("kind", "group_size", "size_bytes", "expected"),
    [
        ("all_reduce", 8, 16_000_000, 2.8e9),  # 16 MB in 10 ms, times 2 (n - 1) / n
        ("all_gather", 2, 16_000_000, 1.6e9),
        ("all_reduce", None, 16_000_000, None),
        ("all_reduce", 8, None, None),
        ("send_recv", 8, 16_000_000, None),
    ],
)
def test_bus_bandwidth_takes_sizes_and_ranks(
    kind: str, group_size: int | None, size_bytes: int | None, expected: float | None
) -> None:
    total = CollectiveTotal(kind, None, group_size, 2, size_bytes, 10_000_000, 10_000_000)
    assert total.bus_bytes_per_s == (None if expected is None else pytest.approx(expected))
