"""The roofline, the series of step lengths, and the steps of every rank."""

from __future__ import annotations

import numpy as np
import pytest
from trace_strategies import POINTWISE, TENSOR_GEMM

from perfdoctor.analysis.captured_facts import parse_run_steps
from perfdoctor.analysis.timeline.account import Account
from perfdoctor.charts.rank_charts import rank_charts_of
from perfdoctor.charts.rank_heat_map import rank_heat_map_of
from perfdoctor.charts.roofline import roofline_of
from perfdoctor.charts.step_series import _shown, step_series_of
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.model import Trace

US = 1_000


def products(launches: int = 3, device: str | None = "NVIDIA A100-SXM4-80GB") -> TraceBuilder:
    """Products of two sizes in bf16 on Tensor Cores, 100 us each, and an addition."""
    trace = TraceBuilder(device=device)
    for number in range(launches):
        at, size = 1000 * number, 1024 if number % 2 else 2048
        trace.op("aten::mm", at, 20, shapes=[[size, 512], [512, size]], types=["c10::BFloat16", "c10::BFloat16"])
        trace.kernel(TENSOR_GEMM, at + 50, 100, launch_us=at + 5)
    trace.op("aten::add", 9000, 20, shapes=[[1 << 20], [1 << 20], []], types=["float", "float", "Scalar"])
    return trace.kernel(POINTWISE, 9050, 10, launch_us=9005)


def test_launches_of_one_kernel_and_shape_are_a_point_with_their_work_and_time() -> None:
    roofline = roofline_of(Rank(products().trace()))
    assert roofline is not None
    assert [name.split(" (")[-1] for name in roofline.names] == [
        "2048 x 2048 x 512, bf16)",
        "1024 x 1024 x 512, bf16)",
        "12,582,912 bytes, fp32)",
    ]
    assert roofline.time_ns.tolist() == [200 * US, 100 * US, 10 * US]
    assert roofline.flops.tolist()[:2] == [2 * 2 * 2048 * 2048 * 512, 2 * 1024 * 1024 * 512]
    assert roofline.bytes.tolist()[:2] == [2 * 2 * (2 * 2048 * 512 + 2048 * 2048), 2 * (2 * 1024 * 512 + 1024 * 1024)]
    assert roofline.category == ("gemm", "gemm", "elementwise")
    assert roofline.tensor_core == ("yes", "yes", "na")


def test_the_roofs_are_the_memory_and_the_types_in_use() -> None:
    roofline = roofline_of(Rank(products().trace()))
    assert roofline is not None
    assert [(roof.name, roof.kind) for roof in roofline.roofs] == [("memory", "bytes"), ("bf16", "flops")]
    assert roofline.roofs[1].per_s == 312e12


def test_an_unknown_device_has_points_and_no_roofs() -> None:
    roofline = roofline_of(Rank(products(device="NVIDIA Z9000").trace()))
    assert roofline is not None
    assert (len(roofline.names), roofline.roofs) == (3, ())


def test_only_kernels_of_the_window_count() -> None:
    trace = products(1).step(2000, 500).step(2500, 500).step(8000, 2000)
    roofline = roofline_of(Rank(trace.trace()))
    assert roofline is not None
    assert roofline.category == ("elementwise",)


def test_a_capture_has_the_shapes_of_its_evidence_window() -> None:
    timing = TraceBuilder().kernel(TENSOR_GEMM, 50, 100, launch_us=5).trace()
    roofline = roofline_of(Rank(timing, evidence_trace=products(1).trace()))
    assert roofline is not None
    assert roofline.time_ns.tolist() == [100 * US, 10 * US]


@pytest.mark.parametrize(
    "trace",
    [
        TraceBuilder().kernel(TENSOR_GEMM, 50, 100, launch_us=5).trace(),
        TraceBuilder(device=None).op("aten::mm", 0, 20, shapes=[[64, 64], [64, 64]], types=["float"] * 2).trace(),
        Trace("empty.json"),
    ],
)
def test_without_known_work_of_kernels_there_is_no_roofline(trace: Trace) -> None:
    assert roofline_of(Rank(trace)) is None


def test_recorded_steps_have_their_number_in_the_run() -> None:
    trace = TraceBuilder().step(0, 100, number=40).step(100, 120).step(220, 90).kernel(POINTWISE, 0, 300)
    series = step_series_of(Rank(trace.trace(), step_slice=slice(1, None)))
    assert series is not None
    assert (series.recorded_ns.tolist(), series.first) == ([120 * US, 90 * US], 41)
    assert not len(series.unprofiled_ns)


def test_steps_that_a_capture_timed_stand_beside_the_recorded_ones() -> None:
    lines = b"\n".join(
        b'{"step":%d,"window":"base","dur_ns":%d,"loader_wait_ns":0}' % (number, 1000 + number) for number in (3, 4, 5)
    )
    run_steps = parse_run_steps(lines)
    trace = TraceBuilder().step(0, 100, number=6).step(100, 100).kernel(POINTWISE, 0, 10)
    series = step_series_of(Rank(trace.trace(), run_steps=run_steps))
    assert series is not None
    assert (series.first, series.unprofiled_number.tolist()) == (6, [3, 4, 5])
    assert series.unprofiled_ns.tolist() == [1003, 1004, 1005]


def test_of_very_many_steps_the_shortest_and_longest_of_each_part_are_kept() -> None:
    values = np.full(100_000, 50)
    values[[12_345, 77_777]] = 1, 999
    shown = _shown(values)
    assert len(shown) <= 4_000
    assert {12_345, 77_777} <= set(shown.tolist())
    assert (np.diff(shown) > 0).all()


def test_without_steps_there_is_no_series() -> None:
    assert step_series_of(Rank(TraceBuilder().kernel(POINTWISE, 0, 10).trace())) is None


def account(rank: int | None, *steps_us: float) -> Account:
    ends = np.cumsum(np.array(steps_us) * US).astype(np.int64)
    steps = np.column_stack((np.append(0, ends[:-1]), ends)) if len(ends) else np.empty((0, 2), np.int64)
    return Account(rank, 7 * US, {}, {}, steps=steps)


def test_the_heat_map_has_the_steps_of_each_rank() -> None:
    heat_map = rank_heat_map_of([account(0, 10, 12), account(1, 11, 30, 9)], {1: 5 * US})
    assert heat_map is not None
    assert heat_map.step_ns.tolist() == [[10 * US, 12 * US, -1], [11 * US, 30 * US, 9 * US]]
    assert (heat_map.ranks, heat_map.late_ns) == ((0, 1), (None, 5 * US))


def test_very_many_steps_are_averaged() -> None:
    heat_map = rank_heat_map_of([account(0, 10, 20, 30, 40, 50), account(1, 1, 3)], {}, max_cells=6)
    assert heat_map is not None
    assert heat_map.steps_per_cell == 2
    assert heat_map.step_ns.tolist() == [[15 * US, 35 * US, 50 * US], [2 * US, -1, -1]]
    assert heat_map.late_ns is None


def test_ranks_without_steps_show_their_window_and_one_rank_has_no_map() -> None:
    heat_map = rank_heat_map_of([account(0), account(None)], {})
    assert heat_map is not None
    assert heat_map.step_ns.tolist() == [[7 * US], [7 * US]]
    assert rank_heat_map_of([account(0, 10)], {}) is None
    assert rank_heat_map_of([], {}) is None


def tree(rank: Rank) -> Table:
    """A module with 300 small ones in it, of which the last is large, and a module beside it."""
    paths = ["top", *(f"top.{number}" for number in range(300)), "side"]
    columns = (
        Column("name", "module", "text", tuple(paths)),
        Column("step_ns", "time", "ns", (900, *(1 for _ in range(299)), 500, 700)),
    )
    return Table("modules", "module", columns, rank=rank.rank)


def test_of_a_long_table_the_rows_with_most_time_stay_in_their_order() -> None:
    rank = Rank(Trace("empty.json"))
    (table,) = rank_charts_of(rank, {"modules": tree}).tables
    names = table.column("name").values
    assert len(names) == 200
    assert (names[0], names[-2], names[-1]) == ("top", "top.299", "side")
    assert names[1:4] == ("top.0", "top.1", "top.2")


def test_a_table_without_rows_is_left_out() -> None:
    assert rank_charts_of(Rank(Trace("empty.json")), {"none": lambda _: Table("none", "name", ())}).tables == ()


def test_what_fails_costs_only_itself_and_is_said() -> None:
    def broken(rank: Rank) -> Table:
        raise ZeroDivisionError(f"rank {rank.rank}")

    charts = rank_charts_of(Rank(products().trace()), {"broken": broken, "modules": tree})
    assert charts.timeline is not None
    assert [table.name for table in charts.tables] == ["modules"]
    assert charts.notes == ("the table of broken could not be made, which is our fault: ZeroDivisionError: rank None",)


def test_an_empty_trace_has_no_charts() -> None:
    charts = rank_charts_of(Rank(Trace("empty.json")))
    assert (charts.timeline, charts.flames, charts.roofline, charts.steps) == (None, None, None, None)
