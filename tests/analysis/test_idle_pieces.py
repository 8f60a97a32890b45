"""The idle time in pieces, and where on the CPU each comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from real_traces import read_once
from trace_strategies import TENSOR_GEMM, File, any_file, rank_of

from perfdoctor.analysis.timeline.account import IDLE_CAUSES
from perfdoctor.analysis.timeline.idle_pieces import IdleInstants, IdlePieces, idle_instants_of, idle_pieces_of
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

GEMM = TENSOR_GEMM


def pieces_of(rank: Rank) -> tuple[IdlePieces, IdleInstants]:
    pieces = idle_pieces_of(rank.trace, rank.gaps, rank.account.parts)
    return pieces, idle_instants_of(rank.trace, pieces, rank.launching_thread)


def described(b: TraceBuilder) -> list[tuple[str, int, str | None, bool]]:
    """For each piece its cause, its length in us, the call to blame, and whether the next item was queued."""
    rank = Rank(b.trace())
    pieces, calls = pieces_of(rank)[0], rank.trace.calls
    names = [rank.trace.text(calls.name[each]) if each >= 0 else None for each in pieces.call.tolist()]
    lengths = (pieces.dur_ns // 1000).tolist()
    causes = [IDLE_CAUSES[each] for each in pieces.cause.tolist()]
    return list(zip(causes, lengths, names, pieces.queued.tolist(), strict=True))


def check_whole(rank: Rank) -> None:
    """The pieces are the idle time of the account, and so are the instants that stand for them."""
    pieces, instants = pieces_of(rank)
    for number, cause in enumerate(IDLE_CAUSES):
        assert int(pieces.dur_ns[pieces.cause == number].sum()) == rank.account.detail[f"idle_{cause}"]
    assert (pieces.start_ns[1:] >= pieces.end_ns[:-1]).all()
    assert int(instants.weight_ns.sum()) == int(pieces.dur_ns.sum())
    assert (instants.weight_ns >= 0).all()


def test_a_late_launch_is_to_blame_for_the_gap_before_it() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0).kernel(GEMM, 150, 100, launch_us=140)
    assert described(b) == [("launch", 40, "cudaLaunchKernel", False)]


def test_between_queued_items_the_device_takes_its_time() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0).kernel(GEMM, 113, 100, launch_us=6)
    assert described(b) == [("launch", 3, "cudaLaunchKernel", True)]


def test_a_launch_call_that_takes_long_is_late_whenever_it_began() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0)
    b.kernel(GEMM, 300, 100, correlation=b.call("cudaGraphLaunch", 90, 205))
    assert described(b) == [("launch", 190, "cudaGraphLaunch", False)]


def test_a_call_that_blocks_is_to_blame_for_as_long_as_it_waited() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0)
    b.call("cudaStreamSynchronize", 90, 25)
    b.kernel(GEMM, 150, 100, launch_us=140)
    assert described(b) == [("sync", 25, "cudaStreamSynchronize", False), ("launch", 15, "cudaLaunchKernel", False)]


def test_an_allocation_is_to_blame_for_its_own_time() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0)
    b.call("cudaMalloc", 120, 20)
    b.kernel(GEMM, 150, 100, launch_us=142)
    assert [each[:3] for each in described(b)] == [
        ("launch", 10, "cudaLaunchKernel"),
        ("allocator", 20, "cudaMalloc"),
        ("launch", 10, "cudaLaunchKernel"),
    ]


def test_what_no_cause_explains_comes_from_nowhere() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0).kernel(GEMM, 400, 100, launch_us=6)
    assert described(b) == [("unexplained", 290, None, False)]
    assert pieces_of(Rank(b.trace()))[1].at_ns.tolist() == [-1]


def test_before_a_long_gap_the_cpu_is_looked_at_in_several_places() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0)
    b.op("aten::slow", 110, 600)
    b.kernel(GEMM, 910, 100, launch_us=905)
    rank = Rank(b.trace())
    _, instants = pieces_of(rank)
    in_op = instants.weight_ns[instants.op == 0].sum()
    assert (int(in_op), int(instants.weight_ns.sum())) == (600_000, 800_000)
    assert set(instants.thread.tolist()) == {rank.launching_thread}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(any_file())
def test_of_any_trace_the_pieces_are_the_idle_time(file: File) -> None:
    rank = rank_of(file)
    if rank.device_kind == "gpu":
        check_whole(rank)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file", ["a100-nccl-config/rank0.json.gz", "mi300x-resnet-ddp.json.gz", "v100-legacy-workers0.json.gz"]
)
def test_of_real_traces_the_pieces_are_the_idle_time(corpus: Path, file: str) -> None:
    check_whole(Rank(read_once(corpus / file)))
