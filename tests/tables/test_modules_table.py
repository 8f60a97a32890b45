"""The table of modules: own and inclusive time, forward and backward, idle time, calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import read_once

from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.modules import modules_table
from perfdoctor.testing import TraceBuilder

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ENGINE = "autograd::engine::evaluate_function: "
SHAPES = {"shapes": [[64], [512, 256], [256, 64]], "types": ["c10::BFloat16"] * 3}


def training(steps: int = 2) -> TraceBuilder:
    """Steps of 1 ms: two layers, their backward pass, an optimizer; the second layer is launched late."""
    b = TraceBuilder()
    for number in range(steps):
        at = 1000 * number
        b.step(at, 1000)
        for name, start, dur in (("Net_0", 5, 300), ("Linear_0", 10, 80), ("Linear_1", 190, 80)):
            b.frame(f"nn.Module: {name}", at + start, dur)
        b.op("aten::addmm", at + 20, 50, sequence=2 * number, **SHAPES)
        b.kernel(GEMM, at + 40, 100, launch_us=at + 30)
        b.op("aten::addmm", at + 195, 50, sequence=2 * number + 1, **SHAPES)
        b.kernel(GEMM, at + 210, 200, launch_us=at + 200)
        b.op(f"{ENGINE}AddmmBackward0", at + 320, 40, thread=2, sequence=2 * number + 1)
        b.kernel(GEMM, at + 410, 150, launch_us=at + 330, thread=2)
        b.op(f"{ENGINE}torch::autograd::AccumulateGrad", at + 370, 20, thread=2)
        b.kernel("add", at + 560, 30, launch_us=at + 375, thread=2)
        b.kernel("sgd", at + 590, 60, launch_us=at + 450)
    return b


def table_of(b: TraceBuilder, by: str = "module", **options: object) -> Table:
    return modules_table(Rank(b.trace(), **options), by)


def cells(table: Table, *columns: str) -> dict[object, tuple[object, ...]]:
    return {row["name"]: tuple(row[column] for column in columns) for row in table.rows}


def test_each_module_has_its_time_and_that_of_what_is_in_it() -> None:
    table = table_of(training())
    assert cells(table, "step_ns", "own_ns", "forward_ns", "backward_ns", "window_ns") == {
        "Net_0": (450_000, 0, 300_000, 150_000, 900_000),
        "Linear_1": (350_000, 350_000, 200_000, 150_000, 700_000),
        "Linear_0": (100_000, 100_000, 100_000, 0, 200_000),
        "outside of modules": (60_000, 60_000, 60_000, 0, 120_000),
        "backward pass": (30_000, 30_000, 0, 30_000, 60_000),
    }


def test_the_tree_is_in_its_order_with_depth_parent_and_path() -> None:
    rows = table_of(training()).rows
    assert [(row["name"], row["depth"], row["parent"], row["path"]) for row in rows[:3]] == [
        ("Net_0", 0, None, "Net_0"),
        ("Linear_1", 1, "Net_0", "Net_0/Linear_1"),
        ("Linear_0", 1, "Net_0", "Net_0/Linear_0"),
    ]


def test_flops_bytes_and_calls() -> None:
    flops = 2 * 512 * 256 * 64
    assert cells(table_of(training()), "count", "window_count", "flops", "launches") == {
        "Net_0": (1.0, 2, 4 * flops, 3.0),
        "Linear_1": (1.0, 2, 2 * flops, 2.0),
        "Linear_0": (1.0, 2, 2 * flops, 1.0),
        "outside of modules": (None, None, None, 1.0),
        "backward pass": (None, None, None, 1.0),
    }


def test_the_gpu_waits_for_the_module_that_launches_late() -> None:
    idle = cells(table_of(training()), "idle_ns")
    # From 140 to 210 us it waits for the second layer; the first step of a trace begins with an empty queue.
    assert idle["Linear_1"] == (70_000,)
    assert idle["Net_0"][0] >= 70_000
    assert idle["backward pass"] == (0,)


def test_all_modules_of_a_class_are_one_row_whatever_is_in_them() -> None:
    b = training()
    for number in range(2):
        b.frame("nn.Module: Block_0", 1000 * number + 6, 290)
        b.frame("nn.Module: Block_1", 1000 * number + 7, 280)
    table = table_of(b, "class")
    assert cells(table, "step_ns", "own_ns", "modules", "count") == {
        "Net": (450_000, 0, 1, 1.0),
        "Block": (450_000, 0, 2, 2.0),
        "Linear": (450_000, 450_000, 2, 2.0),
        "outside of modules": (60_000, 60_000, None, None),
        "backward pass": (30_000, 30_000, None, None),
    }
    assert table.sorted_by == "step_ns"


def test_without_stacks_the_table_says_what_to_record() -> None:
    table = table_of(TraceBuilder().op("aten::mm", 0, 9).kernel(GEMM, 20, 5, launch_us=2))
    assert len(table) == 0
    assert any("with_stack=True" in note for note in table.notes)


def test_stacks_without_modules_are_no_missing_stacks() -> None:
    b = TraceBuilder().op("aten::mm", 0, 9).kernel(GEMM, 20, 5, launch_us=2)
    b.frame("train.py(3): main", 0, 50)
    table = table_of(b)
    assert len(table) == 0
    assert not any("with_stack=True" in note for note in table.notes)
    assert any("nn.Module" in note for note in table.notes)


def test_the_evidence_window_of_a_capture_has_the_modules_of_steps_without_stacks() -> None:
    plain = TraceBuilder()
    for number in range(2):
        plain.step(500 * number, 500).kernel(GEMM, 500 * number + 40, 400, launch_us=500 * number + 30)
    table = modules_table(Rank(plain.trace(), evidence_trace=training().trace()), "module")
    # 450 of 1000 us there are 225 of 500 here.
    assert cells(table, "step_ns", "share")["Net_0"] == (225_000, 0.45)
    assert any("evidence" in note for note in table.notes)


def test_a_program_on_the_cpu_has_the_time_of_its_ops_and_of_python() -> None:
    b = TraceBuilder(device=None).step(0, 1000)
    b.frame("nn.Module: Net_0", 15, 295)
    b.op("aten::addmm", 20, 200, sequence=1)
    b.op(f"{ENGINE}AddmmBackward0", 400, 300, sequence=1)
    found = cells(table_of(b), "step_ns", "forward_ns", "backward_ns", "idle_ns", "count")
    # Of the Python from 220 to 400 us half is the module's, by instants in it.
    assert found["Net_0"] == (590_000, 290_000, 300_000, None, 1.0)
    assert found["outside of modules"] == (410_000, 410_000, 0, None, None)


def test_a_work_whose_launch_is_not_recorded_has_a_row_of_its_own() -> None:
    b = training()
    b.kernel("orphan", 700, 40)
    assert cells(table_of(b), "window_ns")["launch not recorded"] == (40_000,)


def test_collectives_that_no_module_launches_are_no_work_of_the_backward_pass() -> None:
    b = training()
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    b.kernel(reduce, 660, 50, stream=20, launch_us=385, thread=2)
    b.kernel(reduce, 720, 40, stream=20, launch_us=25)
    found = cells(table_of(b), "window_ns", "own_ns")
    assert found["collectives"] == (50_000, 25_000)
    assert found["backward pass"] == (60_000, 30_000)
    assert found["Linear_0"] == (240_000, 120_000)  # it launched the other one


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file",
    ["mi300x-resnet-ddp.json.gz", "mi300x-resnet18-ddp.json.gz", "h100-timesformer-bf16.json.gz", "b200-eager.json.gz"],
)
def test_the_tree_holds_all_time_of_real_traces(corpus: Path, file: str) -> None:
    rank = Rank(read_once(corpus / file))
    table = modules_table(rank, "module")
    rows = table.rows
    busy_ns = int(rank.trace.gpu.dur_ns[rank.in_window].sum())
    assert sum(row["window_ns"] for row in rows if row["depth"] == 0) == busy_ns
    by_path = {row["path"]: row for row in rows if row["path"]}
    for path, row in by_path.items():
        inside = [each for each in rows if each["parent"] == path]
        assert sum(each["step_ns"] for each in inside) + row["own_ns"] == pytest.approx(row["step_ns"], abs=len(rows))
        assert row["forward_ns"] + row["backward_ns"] == pytest.approx(row["step_ns"], abs=1)
    classes = modules_table(rank, "class").rows
    assert sum(row["own_ns"] for row in classes) == pytest.approx(sum(row["own_ns"] for row in rows), abs=len(rows))
