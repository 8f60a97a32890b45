"""The table of lines: time of what they launch, backward work at the line of its forward op, and idle time."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import read_once

from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.lines import lines_table
from perfdoctor.testing import TraceBuilder

GEMM = "ampere_sgemm_128x64_nn"
ENGINE = "autograd::engine::evaluate_function: "


def marked() -> TraceBuilder:
    """A step as `perfdoctor run` records it: two lines of a forward pass, backward(), and an optimizer's step."""
    b = TraceBuilder().step(0, 1000)
    for name, start, dur in (
        ("@/home/me/model.py:11 forward", 5, 40),
        ("@/home/me/model.py:12 forward", 50, 40),
        ("@/home/me/train.py:30 main", 100, 200),
        ("@/home/me/train.py:31 main", 310, 40),
    ):
        b.range(name, start, dur)
    b.op("aten::mm", 10, 20, sequence=1).kernel(GEMM, 20, 100, launch_us=12)
    b.op("aten::mm", 60, 20, sequence=2).kernel(GEMM, 120, 100, launch_us=62)
    for at, number in ((110, 2), (150, 1)):
        b.op(f"{ENGINE}MmBackward0", at, 30, thread=2, sequence=number)
        b.kernel(GEMM, at + 200, 40, launch_us=at + 5, thread=2)
    b.op(f"{ENGINE}torch::autograd::AccumulateGrad", 190, 20, thread=2)
    b.kernel("add", 390, 10, launch_us=195, thread=2)
    return b.kernel("sgd", 420, 50, launch_us=320)


def table_of(b: TraceBuilder, by: str = "line") -> Table:
    return lines_table(Rank(b.trace()), by)


def cells(table: Table, *columns: str) -> dict[object, tuple[object, ...]]:
    return {row["name"]: tuple(row[column] for column in columns) for row in table.rows}


def test_backward_work_belongs_to_the_line_of_its_forward_op() -> None:
    assert cells(table_of(marked()), "step_ns", "forward_ns", "backward_ns", "count") == {
        "model.py:11": (140_000, 100_000, 40_000, 2.0),
        "model.py:12": (140_000, 100_000, 40_000, 2.0),
        "train.py:31": (50_000, 50_000, 0, 1.0),
        "train.py:30": (10_000, 0, 10_000, 1.0),  # gradients are accumulated for no op
    }


def test_a_line_has_its_file_and_function() -> None:
    row = table_of(marked()).rows[0]
    assert (row["file"], row["line"], row["function"], row["source"]) == ("/home/me/model.py", 11, "forward", None)


def test_without_sequence_numbers_the_table_says_that_it_cannot_join() -> None:
    b = TraceBuilder().step(0, 500).range("@/home/me/train.py:30 main", 5, 400)
    b.op(f"{ENGINE}MmBackward0", 10, 50, thread=2)
    table = table_of(b.kernel(GEMM, 70, 40, launch_us=20, thread=2))
    assert cells(table, "backward_ns") == {"train.py:30": (40_000,)}
    assert any("sequence numbers" in note for note in table.notes)
    assert not any("sequence numbers" in note for note in table_of(marked()).notes)


def test_by_function_and_by_file() -> None:
    assert cells(table_of(marked(), "function"), "step_ns") == {
        "model.py:forward": (280_000,),
        "train.py:main": (60_000,),
    }
    assert cells(table_of(marked(), "file"), "step_ns", "line") == {
        "model.py": (280_000, None),
        "train.py": (60_000, None),
    }


def test_a_backward_function_of_the_users_own_keeps_its_work() -> None:
    b = marked()
    b.op(f"{ENGINE}MyFunctionBackward", 400, 30, thread=2, sequence=2)
    b.range("@/home/me/ops.py:77 backward", 405, 20, thread=2)
    b.kernel(GEMM, 480, 40, launch_us=410, thread=2)
    assert cells(table_of(b), "backward_ns")["ops.py:77"] == (40_000,)


def test_the_gpu_waits_for_the_line_that_launches_late() -> None:
    b = TraceBuilder().range("@/home/me/model.py:11 forward", 0, 40).range("@/home/me/train.py:30 main", 50, 400)
    b.op("aten::mm", 10, 20, sequence=1).kernel(GEMM, 20, 100, launch_us=12)
    b.op(f"{ENGINE}MmBackward0", 60, 140, thread=2, sequence=1).kernel(GEMM, 195, 40, launch_us=190, thread=2)
    b.kernel("sgd", 300, 50, launch_us=290)
    # The engine launches the work of line 11 late, and the loop launches late in backward().
    assert cells(table_of(b), "idle_ns") == {"model.py:11": (75_000,), "train.py:30": (65_000,)}


def test_stacks_give_the_line_of_the_function() -> None:
    b = TraceBuilder().op("aten::mm", 10, 20).kernel(GEMM, 20, 100, launch_us=12)
    outer = b.frame("train.py(5): step", 0, 100)
    b.frame("torch/nn/modules/linear.py(114): forward", 8, 50, parent=outer)
    assert cells(table_of(b), "function", "line") == {"train.py:5": ("step", 5)}


def test_a_file_that_stacks_and_lines_name_differently_is_one() -> None:
    b = marked()
    b.frame("train.py(31): main", 600, 20)
    b.kernel("late", 700, 10, launch_us=610)
    assert cells(table_of(b), "step_ns")["train.py:31"] == (60_000,)


def test_what_has_no_line_is_a_row_of_its_own() -> None:
    b = marked()
    b.kernel("orphan", 500, 30)
    assert cells(table_of(b), "window_ns", "file")["line not known"] == (30_000, None)


def test_without_lines_the_table_says_what_to_record() -> None:
    table = table_of(TraceBuilder().op("aten::mm", 0, 9).kernel(GEMM, 20, 5, launch_us=2))
    assert len(table) == 0
    assert any("with_stack=True" in note for note in table.notes)


def test_a_program_on_the_cpu_has_the_time_of_its_ops() -> None:
    b = TraceBuilder(device=None).step(0, 1000).range("@/home/me/model.py:11 forward", 20, 200)
    b.op("aten::mm", 20, 200, sequence=1).op(f"{ENGINE}MmBackward0", 400, 300, sequence=1)
    found = cells(table_of(b), "step_ns", "forward_ns", "backward_ns", "idle_ns")
    assert found["model.py:11"] == (500_000, 200_000, 300_000, None)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file",
    [
        "mi300x-resnet-ddp.json.gz",
        "h100-timesformer-bf16.json.gz",
        "gtx1650-clock-skew.json.gz",
        "h100-qwen-bf16.json.gz",
    ],
)
def test_lines_hold_all_time_and_agree_with_the_places(corpus: Path, file: str) -> None:
    rank = Rank(read_once(corpus / file))
    rows = lines_table(rank, "line").rows
    assert sum(row["window_ns"] for row in rows) == rank.trace.gpu.dur_ns[rank.in_window].sum()
    # The account cuts items at the ends of the window, and gives an instant in which several run to one.
    known = {(row["file"], row["line"]): row for row in rows}
    for place, causes in rank.places.window_ns.items():
        work_ns = sum(ns for name, ns in causes.items() if not name.startswith("idle_"))
        if place.kind == "line" and work_ns:
            assert work_ns <= known[place.file, place.line]["window_ns"]
