"""The steps by rows: on any trace every table adds up to every step."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from trace_strategies import any_file, rank_of

from perfdoctor.analysis.step_breakdown import BACKWARD, OUTSIDE_OF_MODULES, StepBreakdown
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder, collective
from perfdoctor.trace.tables import intervals as iv

GEMM = "ampere_sgemm_128x64_nn"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def rows_of(breakdown: StepBreakdown, table: str) -> dict[tuple[str, str, str], int]:
    found = breakdown.tables[table]
    return {
        (key.name, key.op, key.shape): int(row.sum()) // 1000
        for key, row in zip(found.keys, found.time_ns, strict=True)
    }


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(any_file())
def test_every_table_adds_up_to_every_step(file: dict[str, Any]) -> None:
    rank = rank_of(file)
    assert int(rank.breakdown.step_ns.sum()) == rank.window_ns
    for name, table in rank.breakdown.tables.items():
        assert (table.time_ns >= 0).all(), name
        assert table.time_ns.sum(axis=0).tolist() == rank.breakdown.step_ns.tolist(), name
        assert len(set(table.keys)) == len(table.keys), name


def test_the_idle_rows_are_those_of_the_account() -> None:
    trace = TraceBuilder().step(0, 100).step(100, 100).op("aten::mm", 10, 10).kernel(GEMM, 20, 150, launch_us=12)
    rank = Rank(trace.trace())
    table = rank.breakdown.tables["kernels"]
    idle = {
        key.name: int(row.sum()) for key, row in zip(table.keys, table.time_ns, strict=True) if key.kind[:4] == "idle"
    }
    assert idle == {name: ns for name, ns in rank.account.detail.items() if name.startswith("idle_") and ns}


def test_of_overlapping_items_the_instant_goes_to_one() -> None:
    trace = TraceBuilder().step(0, 100).op("aten::mm", 0, 8, shapes=[[4, 4], [4, 4]])
    trace.kernel(GEMM, 10, 60, launch_us=2, stream=7)
    trace.kernel(ALL_REDUCE, 40, 50, launch_us=9, stream=20, comm=collective(in_elements=1024, ranks=range(2)))
    breakdown = Rank(trace.trace()).breakdown
    kernels = rows_of(breakdown, "kernels")
    assert kernels[GEMM, "mm", "[[4,4],[4,4]]"] + kernels[ALL_REDUCE, "", ""] == 80
    assert sum(kernels.values()) == 100
    collectives = rows_of(breakdown, "collectives")
    assert any(name == "all_reduce" and "4096 bytes" in sizes for name, _, sizes in collectives)
    assert sum(collectives.values()) == 100


def test_modules_have_the_time_of_their_launches() -> None:
    trace = TraceBuilder().step(0, 100)
    trace.frame("nn.Module: Linear_0", 0, 20)
    trace.op("aten::mm", 1, 10).kernel(GEMM, 20, 30, launch_us=2)
    trace.op("aten::add", 30, 10).kernel("add_kernel", 60, 10, launch_us=31)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 50, 20, thread=2)
    trace.op("aten::mm", 51, 10, thread=2).kernel(GEMM, 80, 15, launch_us=52)
    modules = {name: us for (name, _, _), us in rows_of(Rank(trace.trace()).breakdown, "modules").items()}
    assert modules["Linear_0"] == 30
    assert modules[OUTSIDE_OF_MODULES] + modules.get(BACKWARD, 0) == 25


def test_ops_of_a_program_on_the_cpu_have_their_shapes() -> None:
    trace = TraceBuilder(device=None)
    for step in range(2):
        at = 100 * step
        trace.step(at, 100).op("aten::addmm", at + 10, 40, shapes=[[8, 4], [4, 2]])
        trace.op("aten::addmm", at + 60, 20, shapes=[[8, 2], [2, 2]])
    breakdown = Rank(trace.trace()).breakdown
    ops = rows_of(breakdown, "ops")
    assert ops["addmm", "", "[[8,4],[4,2]]"] == 80
    assert ops["addmm", "", "[[8,2],[2,2]]"] == 40
    assert breakdown.matrix_ops == {("aten::addmm", "[[8,4],[4,2]]"): 1.0, ("aten::addmm", "[[8,2],[2,2]]"): 1.0}
    assert not breakdown.has_varying_shapes


def test_shapes_that_change_from_step_to_step_are_seen() -> None:
    trace = TraceBuilder(device=None)
    for step in range(4):
        trace.step(100 * step, 100).op("aten::addmm", 100 * step + 10, 40, shapes=[[8, 4 + step], [4 + step, 2]])
    assert Rank(trace.trace()).breakdown.has_varying_shapes


def test_work_of_a_step_is_counted_where_its_kernels_run() -> None:
    """The CPU is ahead by more than a step: its ops lie before the step whose kernels they launched."""
    trace = TraceBuilder().step(0, 100).op("aten::mm", 5, 10, shapes=[[4, 4], [4, 4]])
    trace.kernel(GEMM, 20, 500, launch_us=6)
    trace.step(100, 100).op("aten::mm", 105, 10, shapes=[[4, 4], [4, 4]]).kernel(GEMM, 520, 500, launch_us=106)
    rank = Rank(trace.trace())
    assert iv.total(rank.window) >= 1_000_000
    assert rank.breakdown.matrix_ops == {("aten::mm", "[[4,4],[4,4]]"): 1.0}
