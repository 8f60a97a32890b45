"""The table of collectives: time, bandwidth by the definitions of nccl-tests, what nothing hides, and waiting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_traces import read_once

from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.collectives_table import collectives_table
from perfdoctor.testing import TraceBuilder, collective

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_nn"


def comm(name: str, elements: int, **options: object) -> dict[str, object]:
    return collective(name, elements, dtype="Float", ranks=range(4), **options)


def rows_of(b: TraceBuilder, by: str = "kind") -> dict[object, dict[str, object]]:
    return {row["name"]: row for row in collectives_table(Rank(b.trace()), by).rows}


@pytest.mark.parametrize(
    ("kernel", "name", "algorithm", "bus"),
    [
        # nccl-tests, doc/PERFORMANCE.md, for 4 ranks: S/t, and S/t times 2(n-1)/n, (n-1)/n, 1.
        (REDUCE, "allreduce", 1.0, 1.5),
        (SCATTER, "_reduce_scatter_base", 1.0, 0.75),
        (GATHER, "_allgather_base", 4.0, 3.0),  # its size is what comes out: four times what one rank puts in
        ("ncclDevKernel_Broadcast_RING_LL(x)", "broadcast", 1.0, 1.0),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "reduce", 1.0, 1.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(kernel: str, name: str, algorithm: float, bus: float) -> None:
    b = TraceBuilder().kernel(kernel, 10, 100, launch_us=5, comm=comm(name, 1 << 20))
    (row,) = rows_of(b).values()
    put_in_per_s = 4 * (1 << 20) / 100e-6
    assert row["algorithm_bytes_per_s"] == pytest.approx(algorithm * put_in_per_s)
    assert row["bus_bytes_per_s"] == pytest.approx(bus * put_in_per_s)
    assert (row["bytes"], row["message_bytes"], row["ranks"], row["dtype"]) == (4 << 20, 4 << 20, 4, "Float")


def test_sends_have_no_bus_bandwidth() -> None:
    b = TraceBuilder().kernel(SEND, 10, 100, launch_us=5, comm=comm("send", 1 << 20))
    (row,) = rows_of(b).values()
    assert row["kind"] == "send_recv"
    assert row["algorithm_bytes_per_s"] == pytest.approx(4 * (1 << 20) / 100e-6)
    assert row["bus_bytes_per_s"] is None


def training() -> TraceBuilder:
    """Two steps of 1 ms with two all-reduces of different sizes in one group and an all-gather in another."""
    b = TraceBuilder()
    for at in (0, 1000):
        b.step(at, 1000).kernel(GEMM, at + 10, 150, launch_us=at + 5)
        b.kernel(REDUCE, at + 100, 100, stream=20, launch_us=at + 6, comm=comm("allreduce", 1000, description="dp"))
        b.kernel(REDUCE, at + 300, 50, stream=20, launch_us=at + 7, comm=comm("allreduce", 500, description="dp"))
        b.kernel(GATHER, at + 400, 30, stream=20, launch_us=at + 8, comm=comm("allgather", 200, description="tp"))
    return b


def test_by_kind_by_group_and_by_size() -> None:
    time = {
        by: {name: row["step_ns"] for name, row in rows_of(training(), by).items()} for by in ("kind", "group", "size")
    }
    assert time == {
        "kind": {"all_reduce": 150_000, "all_gather": 30_000},
        "group": {"dp, all_reduce": 150_000, "tp, all_gather": 30_000},
        "size": {"all_reduce, 4000 bytes": 100_000, "all_reduce, 2000 bytes": 50_000, "all_gather, 800 bytes": 30_000},
    }


def test_what_differs_within_a_row_is_left_out() -> None:
    by_kind, by_size = rows_of(training())["all_reduce"], rows_of(training(), "size")["all_reduce, 4000 bytes"]
    assert (by_kind["message_bytes"], by_kind["group"], by_kind["ranks"]) == (None, "dp", 4)
    assert (by_size["message_bytes"], by_size["window_count"], by_size["window_ns"]) == (4000, 2, 200_000)


def test_what_no_kernel_hides_is_exposed() -> None:
    rows = rows_of(training(), "size")
    assert rows["all_reduce, 4000 bytes"]["exposed_ns"] == 40_000
    assert rows["all_reduce, 2000 bytes"]["exposed_ns"] == 50_000


def test_a_size_that_is_not_recorded_gives_no_bandwidth_but_a_note() -> None:
    table = collectives_table(Rank(TraceBuilder().kernel(REDUCE, 10, 100, launch_us=5).trace()), "size")
    (row,) = table.rows
    assert (row["name"], row["group"], row["ranks"]) == ("all_reduce, size not recorded", None, None)
    assert (row["bytes"], row["bus_bytes_per_s"], row["algorithm_bytes_per_s"]) == (None, None, None)
    assert any("PyTorch 2.3" in note for note in table.notes)


def ranks_of_a_job(late_us: float) -> list[Rank]:
    """Two ranks, the second of which comes late to every collective."""
    ranks = []
    for number in range(2):
        b = TraceBuilder(rank=number)
        for at in range(0, 8000, 1000):
            late = late_us if number else 0
            b.step(at, 1000).kernel(GEMM, at + 10, 50 + late, launch_us=at + 5)
            b.kernel(
                REDUCE,
                at + 100 + late,
                300 - late,
                stream=20,
                launch_us=at + 6,
                comm=collective("allreduce", 1 << 20, sequence=at // 1000),
            )
        ranks.append(Rank(b.trace()))
    return ranks


def test_waiting_for_a_late_rank_is_known_where_several_ranks_are() -> None:
    ranks = ranks_of_a_job(late_us=200)
    peers = [rank.collectives for rank in ranks]
    tables = [collectives_table(rank, "kind", peers).rows[0] for rank in ranks]
    assert [row["waiting_ns"] for row in tables] == [200_000, 0]
    transfer = [row["transfer_bytes_per_s"] for row in tables]
    assert transfer == [pytest.approx((4 << 20) / 100e-6)] * 2
    assert tables[0]["bus_bytes_per_s"] == pytest.approx(transfer[0] / 3)


def test_a_rank_finds_itself_by_its_number_when_it_is_read_again() -> None:
    peers = [rank.collectives for rank in ranks_of_a_job(200)]
    (row,) = collectives_table(ranks_of_a_job(200)[0], "kind", peers).rows
    assert row["waiting_ns"] == 200_000


def test_of_one_rank_nothing_is_said_about_waiting() -> None:
    table = collectives_table(ranks_of_a_job(200)[0], "kind")
    assert "waiting_ns" not in {column.name for column in table.columns}


def test_without_collectives_the_table_says_so() -> None:
    table = collectives_table(Rank(TraceBuilder().kernel(GEMM, 10, 5, launch_us=2).trace()), "kind")
    assert (len(table), table.notes) == (0, ("no collective ran in the analysed time",))
    launched = TraceBuilder()
    launched.call("cudaLaunchKernel", 5)
    assert "ProfilerActivity.CUDA" in collectives_table(Rank(launched.trace()), "kind").notes[0]


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file", ["mi300x-resnet-ddp.json.gz", "a100-ddp-control/rank3.json.gz", "cpu-only-rank34.json.gz"]
)
def test_however_they_are_grouped_they_are_the_collectives_of_the_rank(corpus: Path, file: str) -> None:
    rank = Rank(read_once(corpus / file))
    tables: list[Table] = [collectives_table(rank, by) for by in ("kind", "group", "size")]
    sums = [tuple(sum(row[name] for row in table.rows) for name in ("window_ns", "window_count")) for table in tables]
    known = rank.collectives
    inside = known.in_window
    assert sums == [(int((known.end_ns - known.start_ns)[inside].sum()), int(np.count_nonzero(inside)))] * 3
