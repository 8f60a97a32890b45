"""The table of gaps: they add up to the idle time, however they are grouped; their causes, roots and lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from real_traces import read_once
from trace_strategies import TENSOR_GEMM, File, any_file, rank_of

from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.gaps import gaps_table
from perfdoctor.testing import TraceBuilder

GEMM = TENSOR_GEMM
GROUPINGS = ("cause", "root", "line", "gap")


def table_of(b: TraceBuilder, by: str = "root") -> Table:
    return gaps_table(Rank(b.trace()), by)


def time_by_name(table: Table) -> dict[object, object]:
    return {row["name"]: row["window_ns"] for row in table.rows}


def waiting() -> TraceBuilder:
    """A kernel, a sync of 30 us in `item`, 10 us to a launch, 3 us between queued kernels, and an allocation."""
    b = TraceBuilder()
    b.frame("train.py(5): step", 0, 1000)
    b.kernel(GEMM, 10, 100, launch_us=0).op("aten::item", 80, 60)
    b.op("aten::_local_scalar_dense", 82, 55)
    b.call("cudaStreamSynchronize", 90, 30)
    b.op("aten::mm", 140, 20).kernel(GEMM, 150, 100, launch_us=145).kernel(GEMM, 253, 100, launch_us=152)
    b.op("aten::empty", 340, 45)
    b.call("cudaMalloc", 345, 38)
    return b.op("aten::mm", 386, 10).kernel(GEMM, 393, 100, launch_us=388)


def idle_ns_of(rank: Rank) -> int:
    return sum(ns for name, ns in rank.account.detail.items() if name.startswith("idle_"))


def test_each_part_of_the_idle_time_has_its_root() -> None:
    assert time_by_name(table_of(waiting())) == {
        "cudaStreamSynchronize in item": 30_000,
        "cudaMalloc in empty": 30_000,
        "launch of mm": 20_000,
        "between queued items": 3_000,
    }


def test_by_cause() -> None:
    table = table_of(waiting(), "cause")
    assert time_by_name(table) == {"sync": 30_000, "allocator": 30_000, "launch": 23_000}
    (launch,) = [row for row in table.rows if row["name"] == "launch"]
    assert (launch["window_count"], launch["root"], launch["max_ns"]) == (3, "launch of mm", 10_000)


def test_by_line() -> None:
    (row,) = table_of(waiting(), "line").rows
    assert (row["name"], row["file"], row["line"], row["function"]) == ("train.py:5", "train.py", 5, "step")
    assert row["window_ns"] == 83_000


def test_gap_by_gap_the_longest_first() -> None:
    rank = Rank(waiting().trace())
    rows = gaps_table(rank, "gap").rows
    assert [(row["name"], row["length_ns"], row["start_ns"], row["cause"]) for row in rows] == [
        ("gap 1", 40_000, 110_000, "sync"),
        ("gap 2", 40_000, 353_000, "allocator"),
        ("gap 3", 3_000, 250_000, "launch"),
    ]
    assert [row["before"] for row in rows] == ["mm", "mm", "mm"]
    assert [row["offset_ns"] for row in rows] == [row["start_ns"] for row in rows]


def test_the_start_of_a_gap_is_in_the_time_of_the_file_whatever_the_clock_of_the_gpu() -> None:
    skewed = TraceBuilder().kernel(GEMM, 10, 100, launch_us=100).kernel(GEMM, 250, 100, launch_us=340)
    rank = Rank(skewed.trace())
    assert rank.clock_shift.shift_ns == 90_000
    (row,) = gaps_table(rank, "gap").rows
    assert row["start_ns"] == 110_000


def test_in_a_long_gap_it_is_what_the_cpu_did() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0)
    b.frame("data/images.py(30): preprocess_batch", 120, 9000)
    b.kernel(GEMM, 9200, 100, launch_us=9190)
    for by in ("root", "gap"):
        assert table_of(b, by).rows[0]["cause" if by == "gap" else "name"] in ("launch", "data preprocessing")
        assert "data preprocessing" in {table_of(b, by).rows[0][name] for name in ("name", "root") if name != by}


def test_work_that_waited_for_nothing_that_is_recorded_is_not_known() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0).kernel(GEMM, 400, 100, launch_us=6)
    assert time_by_name(table_of(b)) == {"not known": 290_000}


def test_waiting_for_a_batch_is_the_loaders() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0)
    b.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 105, 500)
    b.kernel(GEMM, 620, 100, launch_us=610)
    assert time_by_name(table_of(b, "cause"))["dataloader"] == 495_000
    assert "DataLoader" in time_by_name(table_of(b))


def test_a_hidden_name_of_an_op_is_data_and_no_more() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0).op("aten::x\x1b[31m<b>", 120, 40)
    b.kernel(GEMM, 150, 100, launch_us=140)
    assert list(time_by_name(table_of(b))) == ["launch of x\x1b[31m<b>"]


def test_without_gpu_events_or_lines_the_table_says_what_to_record() -> None:
    launched = TraceBuilder()
    launched.call("cudaLaunchKernel", 5)
    assert "ProfilerActivity.CUDA" in table_of(launched).notes[0]
    table = table_of(TraceBuilder().kernel(GEMM, 10, 100, launch_us=0).kernel(GEMM, 150, 100, launch_us=140), "line")
    assert len(table) == 0
    assert any("with_stack=True" in note for note in table.notes)


def test_a_gpu_that_is_never_idle_has_no_gaps() -> None:
    table = table_of(TraceBuilder().kernel(GEMM, 10, 100, launch_us=0))
    assert (len(table), table.notes) == (0, ("the GPU is never idle in the analysed time",))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(any_file())
def test_of_any_trace_they_add_up_to_the_idle_time(file: File) -> None:
    rank = rank_of(file)
    if rank.device_kind != "gpu":
        return
    for by in GROUPINGS:
        table = gaps_table(rank, by)
        if len(table):
            column = "length_ns" if by == "gap" else "window_ns"
            assert sum(row[column] for row in table.rows) == idle_ns_of(rank)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file", ["mi300x-resnet18-ddp.json.gz", "v100-legacy-workers4.json.gz", "h100-timesformer-bf16.json.gz"]
)
def test_of_real_traces_they_add_up_to_the_idle_time(corpus: Path, file: str) -> None:
    rank = Rank(read_once(corpus / file))
    for by in GROUPINGS:
        table = gaps_table(rank, by)
        if by == "line" and not len(rank.trace.frames):
            assert len(table) == 0
            continue
        column = "length_ns" if by == "gap" else "window_ns"
        assert sum(row[column] for row in table.rows) == idle_ns_of(rank)
        step_ns = [row["window_ns" if by != "gap" else "length_ns"] for row in table.rows]
        assert step_ns == sorted(step_ns, reverse=True)
