"""Why the GPU had nothing to do, on traces written by hand; on real ones see tests/corpus/test_idle_causes.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from trace_strategies import ALL_REDUCE, TENSOR_GEMM, File, any_file, rank_of

from perfdoctor.analysis.host.loader_waits import loader_waits_of
from perfdoctor.analysis.timeline.queue_stalls import StallCause, is_subsampled
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv

GEMM = TENSOR_GEMM


def idle_us(trace: TraceBuilder) -> dict[str, int]:
    """Idle time in us by cause, without causes of none."""
    detail = Rank(trace.trace()).account.detail
    return {name[5:]: ns // 1000 for name, ns in detail.items() if ns and name.startswith("idle_")}


def stall_causes(trace: TraceBuilder) -> list[int]:
    """For each gap that an item ends why the item did not start before."""
    gaps = Rank(trace.trace()).gaps
    found: list[int] = gaps.stall[gaps.next_item >= 0].tolist()
    return found


def queued_kernel(gap_us: float) -> TraceBuilder:
    """A kernel of 100 us, and after a gap a second one that was launched at the beginning."""
    return TraceBuilder().kernel(GEMM, 0, 100, launch_us=0).kernel(GEMM, 100 + gap_us, 100, launch_us=10)


@pytest.mark.parametrize(
    ("gap_us", "cause"), [(1, "launch"), (20, "launch"), (21, "unexplained"), (500, "unexplained")]
)
def test_the_device_takes_up_to_20_us_between_items_that_were_queued(gap_us: int, cause: str) -> None:
    assert idle_us(queued_kernel(gap_us)) == {cause: gap_us}


def test_a_gap_in_which_the_launch_call_still_runs_is_launching_and_a_gap_after_it_is_not() -> None:
    def slow(returns_us: float) -> TraceBuilder:
        trace = TraceBuilder().kernel(GEMM, 0, 100, launch_us=0)
        return trace.kernel(GEMM, 600, 100, correlation=trace.call("cudaLaunchKernel", 50, returns_us - 50))

    assert idle_us(slow(590)) == {"launch": 500}
    assert idle_us(slow(90)) == {"unexplained": 500}


def kernel_behind_an_event_wait(record_stream: int | None = None, wait_us: float = 15) -> TraceBuilder:
    """A kernel on stream 9 that was queued long before it starts, behind a wait for an event."""
    trace = TraceBuilder().kernel(GEMM, 0, 10, stream=9, launch_us=0).kernel(GEMM, 5, 100, launch_us=5)
    correlation = trace.call("cudaStreamWaitEvent", wait_us, 2)
    if record_stream is not None:
        trace.sync("Stream Wait Event", wait_us, 2, stream=record_stream, wait_stream=7, correlation=correlation)
    return trace.kernel(GEMM, 300, 100, stream=9, launch_us=20)


def test_an_item_behind_a_wait_for_an_event_of_another_stream_is_communication() -> None:
    assert idle_us(kernel_behind_an_event_wait()) == {"communication": 195}
    assert idle_us(kernel_behind_an_event_wait(record_stream=9)) == {"communication": 195}


def test_a_wait_of_another_stream_or_at_another_time_explains_nothing() -> None:
    assert stall_causes(kernel_behind_an_event_wait(record_stream=13)) == [StallCause.UNKNOWN]
    assert stall_causes(kernel_behind_an_event_wait(wait_us=40)) == [StallCause.UNKNOWN]


def test_a_collective_that_was_queued_waits_for_its_input() -> None:
    trace = TraceBuilder().kernel(GEMM, 0, 100, launch_us=0).kernel(ALL_REDUCE, 200, 100, stream=20, launch_us=10)
    assert stall_causes(trace) == [StallCause.EVENT_WAIT]
    assert idle_us(trace) == {"communication": 100}


def graph_of_kernels(*starts_us: float, returns_us: float = 30) -> TraceBuilder:
    """One graph launch at 0 of kernels of 100 us."""
    trace = TraceBuilder()
    correlation = trace.call("cudaGraphLaunch", 0, returns_us)
    for start in starts_us:
        trace.kernel(GEMM, start, 100, correlation=correlation)
    return trace


def test_a_pause_within_a_graph_is_work_that_was_not_recorded() -> None:
    rank = Rank(graph_of_kernels(10, 115, 500).trace())
    assert rank.gaps.stall.tolist() == [StallCause.NO_STALL, StallCause.NO_STALL, StallCause.MISSING_KERNELS]
    assert iv.total(rank.missing_kernels) == rank.account.detail["idle_unexplained"] == 285_000


def test_so_is_a_pause_after_a_graph_and_not_one_after_a_kernel() -> None:
    assert stall_causes(graph_of_kernels(10).kernel(GEMM, 400, 50, launch_us=40)) == [
        StallCause.NO_STALL,
        StallCause.MISSING_KERNELS,
    ]
    assert (
        stall_causes(graph_of_kernels(10).kernel(GEMM, 115, 50, launch_us=40).kernel(GEMM, 400, 50, launch_us=50))[-1]
        == StallCause.UNKNOWN
    )


def test_a_node_of_a_graph_but_the_first_cannot_wait_for_another_stream() -> None:
    trace = TraceBuilder().kernel(GEMM, 0, 100, launch_us=0)
    trace.call("cudaStreamWaitEvent", 12, 2)
    correlation = trace.call("cudaGraphLaunch", 20, 30)
    trace.kernel(GEMM, 200, 10, correlation=correlation).kernel(GEMM, 300, 10, correlation=correlation)
    assert stall_causes(trace)[-2:] == [StallCause.EVENT_WAIT, StallCause.MISSING_KERNELS]


def test_a_collective_on_the_cpu_counts_while_the_launching_thread_does_nothing_else() -> None:
    def reduce(thread: int) -> TraceBuilder:
        trace = TraceBuilder().kernel(GEMM, 0, 100, launch_us=0).range("gloo:all_reduce", 150, 300, thread=thread)
        return trace.op("aten::sort", 200, 100).kernel(GEMM, 500, 100, launch_us=495)

    assert idle_us(reduce(thread=1)) == {"communication": 300, "launch": 100}
    assert idle_us(reduce(thread=2)) == {"communication": 200, "launch": 200}


DATALOADER = "/x/site-packages/torch/utils/data/dataloader.py"


def test_frames_of_next_are_the_loader_where_no_range_marks_it() -> None:
    trace = TraceBuilder().kernel(GEMM, 0, 100, launch_us=0).kernel(GEMM, 500, 100, launch_us=480)
    outer = trace.frame("train.py(3): main", 0, 600)
    middle = trace.frame(f"{DATALOADER}(701): __next__", 200, 200, parent=outer)
    inner = trace.frame(f"{DATALOADER}(757): _next_data", 210, 180, parent=middle)
    trace.frame(f"{DATALOADER}(701): __next__", 220, 100, parent=inner)
    waits = loader_waits_of(trace.trace())
    assert (len(waits), waits.from_frames) == (1, True)
    assert idle_us(trace) == {"dataloader": 200, "launch": 200}


def test_a_range_of_pytorch_precedes_frames_and_another_next_is_no_loader() -> None:
    trace = TraceBuilder().range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 200, 100)
    trace.frame(f"{DATALOADER}(701): __next__", 190, 150)
    waits = loader_waits_of(trace.trace())
    assert (waits.from_frames, waits.intervals.tolist()) == (False, [[200_000, 300_000]])
    other = TraceBuilder()
    other.frame("/usr/lib/python3.11/csv.py(111): __next__", 0, 100)
    assert len(loader_waits_of(other.trace())) == 0


def numbered_ops(every: int) -> TraceBuilder:
    """600 ops whose numbers are multiples of `every`, as in a file that lacks the others."""
    trace = TraceBuilder()
    for row in range(600):
        trace.op("aten::add", 10 * row, 5)
    built = trace.to_dict()
    other = TraceBuilder()
    for event in built["traceEvents"]:
        event["args"]["External id"] *= every
        other.event(**event)
    return other


def test_a_file_with_a_tenth_of_its_op_numbers_is_subsampled() -> None:
    assert is_subsampled(numbered_ops(every=20).trace())
    assert not is_subsampled(numbered_ops(every=2).trace())


def early_kernels_and_a_copy(end_us: float) -> TraceBuilder:
    """Ten kernels that start 25 us before their launch, and a copy whose call returns at 1100 us."""
    trace = TraceBuilder()
    for row in range(10):
        trace.kernel(GEMM, 100 * row, 20, launch_us=100 * row + 25)
    return trace.memcpy("DtoH", end_us - 10, 10, correlation=trace.call("cudaMemcpyAsync", 1000, 100))


def test_gpu_times_are_shifted_only_as_far_as_copies_allow_and_drifting_clocks_are_marked() -> None:
    fits, drifts = Rank(early_kernels_and_a_copy(1060).trace()), Rank(early_kernels_and_a_copy(1090).trace())
    assert (fits.clock_shift.shift_ns, fits.clock_shift.consistent) == (25_000, True)
    assert (drifts.clock_shift.shift_ns, drifts.clock_shift.consistent) == (10_000, False)
    assert any("drift apart" in warning for warning in drifts.trace.warnings)
    assert not any("drift apart" in warning for warning in fits.trace.warnings)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(any_file())
def test_every_gap_has_one_stall_cause_and_only_queued_items_are_stalled(file: File) -> None:
    rank = rank_of(file)
    gaps = rank.gaps
    assert set(gaps.stall.tolist()) <= {
        StallCause.NO_STALL,
        StallCause.EVENT_WAIT,
        StallCause.MISSING_KERNELS,
        StallCause.UNKNOWN,
    }
    assert not (gaps.late_launch & (gaps.stall != StallCause.NO_STALL)).any()
    assert iv.total(rank.missing_kernels) <= rank.account.detail["idle_unexplained"]
    assert (np.diff(gaps.start_ns) > 0).all()
