"""The table of annotations: time on the GPU of what is launched in a range, on the CPU, and idle time."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import read_once

from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.annotations import annotations_table
from perfdoctor.testing import TraceBuilder

GEMM = "ampere_sgemm_128x64_nn"
ENGINE = "autograd::engine::evaluate_function: "


def training() -> TraceBuilder:
    """Two steps of 1 ms with ranges around forward pass, a block in it, and backward pass, which the engine runs."""
    b = TraceBuilder()
    for number in range(2):
        at = 1000 * number
        b.step(at, 1000).range("forward", at + 5, 200).range("block", at + 60, 80)
        b.op("aten::mm", at + 10, 20, sequence=2 * number).kernel(GEMM, at + 30, 100, launch_us=at + 15)
        b.op("aten::mm", at + 70, 20, sequence=2 * number + 1).kernel(GEMM, at + 130, 150, launch_us=at + 75)
        b.range("backward", at + 210, 200)
        b.op(f"{ENGINE}MmBackward0", at + 220, 50, thread=2, sequence=2 * number + 1)
        b.kernel(GEMM, at + 280, 300, launch_us=at + 230, thread=2)
        b.gpu_range("block", at + 130, 150)
        b.range("@train.py:7 step", at + 1, 900)
    return b


def table_of(b: TraceBuilder) -> Table:
    return annotations_table(Rank(b.trace()), "name")


def cells(table: Table, *columns: str) -> dict[object, tuple[object, ...]]:
    return {row["name"]: tuple(row[column] for column in columns) for row in table.rows}


def test_a_range_has_the_time_of_what_is_launched_in_it() -> None:
    assert cells(table_of(training()), "step_ns", "window_ns", "cpu_ns", "count") == {
        "ProfilerStep#*": (550_000, 1_100_000, 1_000_000, 1.0),
        "backward": (300_000, 600_000, 200_000, 1.0),  # the engine launches it, while the loop is in this range
        "forward": (250_000, 500_000, 200_000, 1.0),
        "block": (150_000, 300_000, 80_000, 1.0),
    }


def test_the_backward_work_of_the_ops_in_a_range_stands_beside_it() -> None:
    assert cells(table_of(training()), "backward_ns") == {
        "ProfilerStep#*": (0,),  # that is within the step already
        "backward": (0,),
        "forward": (300_000,),
        "block": (300_000,),
    }


def test_the_span_on_the_gpu_is_that_of_the_profiler() -> None:
    spans = cells(table_of(training()), "gpu_span_ns", "kind")
    assert spans["block"] == (150_000, "user")
    assert spans["forward"] == (None, "user")
    assert spans["ProfilerStep#*"] == (None, "step")


def test_lines_are_no_annotations() -> None:
    assert not any(str(name).startswith("@") for name in cells(table_of(training())))


def test_a_range_in_a_range_of_its_name_counts_its_time_once() -> None:
    b = TraceBuilder().range("block", 0, 100).range("block", 10, 50).kernel(GEMM, 30, 40, launch_us=20)
    assert cells(table_of(b), "window_ns", "cpu_ns", "window_count") == {"block": (40_000, 100_000, 2)}


def test_numbered_steps_are_one_row() -> None:
    b = TraceBuilder()
    for number in range(3):
        b.range(f"train_step {number}", 100 * number, 90).kernel(
            GEMM, 100 * number + 20, 40, launch_us=100 * number + 5
        )
    assert cells(table_of(b), "window_count", "window_ns") == {"train_step *": (3, 120_000)}


def test_the_gpu_waits_for_the_range_that_launches_late() -> None:
    b = TraceBuilder().kernel(GEMM, 10, 100, launch_us=0).range("slow", 90, 100)
    b.kernel(GEMM, 150, 100, launch_us=145)
    assert cells(table_of(b), "idle_ns", "step_ns") == {"slow": (40_000, 100_000)}


def test_what_launches_nothing_counts_with_the_range_around_it() -> None:
    # The CPU is a step ahead of the GPU: what it does in the step is outside of the analysed time of the GPU.
    b = TraceBuilder()
    b.range("outer", 0, 50).range("nothing", 10, 20).kernel(GEMM, 200, 40, launch_us=5)
    assert cells(table_of(b), "window_count") == {"outer": (1,), "nothing": (1,)}


def test_a_program_on_the_cpu_has_the_time_of_its_ranges() -> None:
    b = TraceBuilder(device=None).step(0, 1000).range("forward", 10, 300).op("aten::mm", 20, 200)
    assert cells(table_of(b), "step_ns", "idle_ns", "backward_ns")["forward"] == (300_000, None, None)


def test_without_annotations_the_table_says_how_to_add_some() -> None:
    table = table_of(TraceBuilder().op("aten::mm", 0, 9).kernel(GEMM, 20, 5, launch_us=2))
    assert len(table) == 0
    assert any("record_function" in note for note in table.notes)


@pytest.mark.corpus
@pytest.mark.parametrize("file", ["mi300x-resnet-ddp.json.gz", "a100-nccl-config/rank0.json.gz"])
def test_the_ranges_of_real_steps_run_once_a_step(corpus: Path, file: str) -> None:
    found = cells(annotations_table(Rank(read_once(corpus / file)), "name"), "count", "kind")
    assert found["ProfilerStep#*"] == (1.0, "step")
    assert found["DistributedDataParallel.forward"] == (1.0, "parallel")
    assert found["Optimizer.step#SGD.step"] == (1.0, "optimizer")
    assert found["Optimizer.zero_grad#SGD.zero_grad"] == (1.0, "optimizer")
