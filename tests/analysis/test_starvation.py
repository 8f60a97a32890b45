"""Starvation: idle time before late launches, and what emptied the queue."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from trace_strategies import lawful_file, rank_of

from perfdoctor.analysis.timeline.starvation import StarvationRoot
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def short_kernels(trace: TraceBuilder, first_us: float, count: int = 10) -> TraceBuilder:
    """A long kernel until 1000 us, then kernels of 10 us every 30 us, each launched after the one before has ended."""
    trace.kernel(GEMM, 0, 900, launch_us=0).kernel(GEMM, 900, 100, launch_us=500)
    for row in range(count):
        at = first_us + 30 * row
        trace.kernel(GEMM, at, 10, launch_us=at - 8)
    return trace


def times_us(trace: TraceBuilder) -> dict[str, float]:
    starvation = Rank(trace.trace()).starvation
    times = {root.name: iv.total(starvation.time_after(root)) / 1000 for root in StarvationRoot}
    return {name: us for name, us in times.items() if us}


def test_the_gaps_after_a_sync_are_its_until_the_lead_is_back() -> None:
    trace = TraceBuilder().step(0, 1500)
    trace.call("cudaStreamSynchronize", 905, 100)
    # It waited for 100 us: the gap of 30 right behind it, three of 20, and half of the fourth.
    assert times_us(short_kernels(trace, 1030)) == {"SYNC": 100, "NO_ROOT": 30 + 9 * 20 - 100}


def test_each_sync_has_the_time_after_it() -> None:
    trace = TraceBuilder().step(0, 1500)
    rows = [905, 1111]
    for at, waited in zip(rows, (100, 20), strict=True):
        trace.call("cudaStreamSynchronize", at, waited)
    rank = Rank(short_kernels(trace, 1030).trace())
    calls = [int(row) for row in range(len(rank.trace.calls)) if rank.trace.calls.start_ns[row] in (905_000, 1_111_000)]
    after = [iv.total(rank.starvation.time_after_syncs([call])) / 1000 for call in calls]
    assert after == [30 + 3 * 20, 20]  # the second one drains the queue after the fourth short kernel


def test_a_pause_and_the_loader_are_roots_too() -> None:
    assert times_us(short_kernels(TraceBuilder().step(0, 3000), 2030)) == {"PAUSE": 1030 + 9 * 20}
    waiting = TraceBuilder().step(0, 1500).range(LOADER, 950, 60)
    assert times_us(short_kernels(waiting, 1030)) == {"DATALOADER": 60, "NO_ROOT": 150}
    allocating = TraceBuilder().step(0, 1500)
    allocating.call("cudaMalloc", 1001, 10)
    assert times_us(short_kernels(allocating, 1030)) == {"ALLOCATOR": 10, "NO_ROOT": 200}


def test_launches_that_are_slower_than_kernels_have_no_root() -> None:
    assert times_us(short_kernels(TraceBuilder().step(0, 1500), 1030)) == {"NO_ROOT": 210}


def test_a_gpu_with_a_full_queue_does_not_starve() -> None:
    trace = TraceBuilder().step(0, 1000)
    for row in range(10):
        trace.kernel(GEMM, 90 * row, 90, launch_us=row)
    assert times_us(trace) == {}


def test_what_comes_before_the_first_launch_is_the_start() -> None:
    trace = TraceBuilder().step(0, 1000).kernel(GEMM, 300, 700, launch_us=290)
    assert times_us(trace) == {"START": 300}


@given(lawful_file())
def test_pieces_are_disjoint_and_within_the_late_gaps(file: dict[str, Any]) -> None:
    rank = rank_of(file)
    starvation, gaps = rank.starvation, rank.gaps
    pieces = iv.union(starvation.start_ns, starvation.end_ns)
    assert iv.total(pieces) == int((starvation.end_ns - starvation.start_ns).sum())
    rows = gaps.late_launch | (gaps.sync >= 0)
    assert iv.total(pieces) == int((gaps.end_ns - gaps.start_ns)[rows].sum())
    assert ((starvation.call >= 0) == (starvation.root == StarvationRoot.SYNC)).all()
