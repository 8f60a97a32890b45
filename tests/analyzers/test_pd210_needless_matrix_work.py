"""PD210 needless-matrix-work: as many cases that fire as cases that stay quiet."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from all_cases import cases_of
from cases_cpu_ops import Steps

from perfdoctor.analyzers.pd210_needless_matrix_work import NeedlessMatrixWork
from perfdoctor.testing import TraceBuilder, check_rule

Sizes = tuple[int, ...]


def ops(*calls: tuple[str, float, tuple[Sizes, ...]]) -> TraceBuilder:
    """Two equal steps with these ops on float32: a name, us and the sizes of the arguments."""
    steps = Steps()
    for name, us, sizes in calls:
        steps.op(f"aten::{name}", us, *(("float", each) for each in sizes))
    return steps.build("train.py(3): main")


def slices(cuts: Sequence[tuple[str, Sizes, Sizes]], steps: int = 2) -> TraceBuilder:
    """Steps with these cuts, 2 us each and 20 us of its gradient: a name, sizes of the whole and of the slice."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, steps * 1000)
    for step in range(steps):
        for number, (name, whole, part) in enumerate(cuts):
            sequence = 100 * step + number
            trace.op(f"aten::{name}", 1000 * step + 2 * number, 2, shapes=[whole, [], []], sequence=sequence)
            at, node = 1000 * step + 500 + 20 * number, f"{name.title()}Backward0"
            trace.op(f"autograd::engine::evaluate_function: {node}", at, 20, sequence=sequence)
            trace.op(f"aten::{name}_backward", at + 2, 15, shapes=[part, []])
        trace.step(1000 * step, 1000)
    return trace


def decoded(lengths: Sequence[int], us_per_row: float = 5, layers: int = 1) -> TraceBuilder:
    """A step for each length: pairs of layers of so many tokens, which take 10 us and so much for each."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, len(lengths) * 1000)
    for step, length in enumerate(lengths):
        us = 10 + us_per_row * length
        for at in (1000 * step + layer * 900 // layers for layer in range(layers)):
            trace.op("aten::linear", at + 1, us, shapes=[[1, length, 64], [64, 64], [64]])
            trace.op("aten::addmm", at + 460 // layers, us, shapes=[[64], [length, 64], [64, 64], [], []])
        trace.step(1000 * step, 1000)
    return trace


def low_rank(rank: int = 4, rows: int = 64, added: Sizes = (512, 512)) -> list[tuple[str, float, tuple[Sizes, ...]]]:
    """A product of two thin matrices, added to a weight, and the layer that takes the sum."""
    return [
        ("matmul", 100, ((512, rank), (rank, 512))),
        ("mul", 100, ((512, 512), ())),
        ("add", 100, (added, added)),
        ("linear", 200, ((rows, 512), (512, 512), (512,))),
    ]


def padded(lengths: Sequence[int], whole: Sizes = (8, 100, 4)) -> list[tuple[str, float, tuple[Sizes, ...]]]:
    """A batch into which items of some lengths are copied, and a layer that computes with it."""
    copies: list[tuple[str, float, tuple[Sizes, ...]]] = [("zeros", 5, ())]
    for length in lengths:
        item = (length, *whole[2:])
        copies += [("select", 1, (whole, (), ())), ("slice", 1, (whole[1:], ())), ("copy_", 1, (item, item))]
    return [*copies, ("linear", 300, (whole, (64, whole[-1]), (64,)))]


SCORES = (64, 20_000)


def sorted_rows(
    *cut: str, sort: str = "argsort", dim: str = "1", between: Sizes | None = None, size: Sizes = SCORES
) -> TraceBuilder:
    """Rows that are sorted and cut: the dimension, the first and the end; an op of the sorted size may lie between."""
    steps = Steps().op(f"aten::{sort}", 300, ("float", size), concrete=["", dim, "True"])
    if between is not None:
        steps.op("aten::cumsum", 10, ("float", between))
    return steps.op("aten::slice", 2, ("float", size), concrete=["", *cut, "1"]).build("train.py(3): main")


def experts(
    number: int = 8, *, used: int | None = 2, tokens: int = 512, called: int = 8, before: int = 0
) -> TraceBuilder:
    """A gate that chooses of so many experts for 512 tokens, and the two layers of those that are called."""
    steps = Steps().op("aten::topk", 10, ("float", (8, 64, number)), concrete=["", str(used), "-1", "True", "True"])
    for _ in range(before):
        steps.op("aten::mul", 1, ("float", (512, 64)))
    for _ in range(called):
        steps.op("aten::linear", 40, ("float", (tokens, 64)), ("float", (256, 64)), ("float", (256,)))
        steps.op("aten::linear", 40, ("float", (tokens, 256)), ("float", (64, 256)), ("float", (64,)))
    return steps.build("train.py(3): main")


def ignored_labels(
    fill: str = "-100", *, classes: int = 8000, positions: int = 512, name: str = "masked_fill", ignored: str = "-100"
) -> TraceBuilder:
    """Labels that are filled with a number, a last layer of 512 positions, and the loss."""
    steps = Steps().op(f"aten::{name}", 5, ("long", (4, 128)), ("bool", (4, 128)), concrete=["", "", fill])
    steps.op("aten::linear", 200, ("float", (4, positions // 4, 128)), ("float", (classes, 128)))
    logits = (("float", (positions, classes)), ("long", (positions,)))
    steps.op("aten::cross_entropy_loss", 100, *logits, concrete=["", "", "", "1", ignored, "0."])
    return steps.build("train.py(3): main")


def windows(size: int = 25, reduce: str = "mean", dims: str = "[-1]", step: str = "1") -> TraceBuilder:
    """Windows of a tensor of 32 by 192 by 64 numbers, and what reduces them."""
    steps = Steps().op("aten::unfold", 10, ("float", (32, 192, 64)), concrete=["", "1", str(size), step])
    whole = ("float", (32, 193 - size, 64, size))
    return steps.op(f"aten::{reduce}", 300, whole, concrete=["", dims, "False"]).build("train.py(3): main")


def penalized(layers: int = 4, *, op: str = "pow", backward: bool = True, size: int = 64) -> TraceBuilder:
    """Layers of so many rows each, and the squares of tensors of 64 columns."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 2000)
    for start in (0, 1000):
        trace.step(start, 1000)
        for layer in range(4):
            trace.op("aten::linear", start + 50 * layer, 50, shapes=[[32, 64], [100 + layer, 64], []])
        for layer in range(layers):
            at, number = start + 300 + 50 * layer, 4 * start + layer
            trace.op(f"aten::{op}", at, 30, shapes=[[100 + layer, size], []], sequence=number)
            trace.op("aten::sum", at + 30, 20, shapes=[[100 + layer, size], []])
            if backward:
                node = "autograd::engine::evaluate_function: PowBackward0"
                trace.op(node, start + 600 + 50 * layer, 50, sequence=number)
    return trace


def on_gpu(rows: int) -> TraceBuilder:
    """A layer of gathered rows of a table of 2,000, 300 us on a GPU, in two steps."""
    trace = TraceBuilder()
    trace.frame("train.py(3): main", 0, 2000)
    for start in (0, 1000):
        trace.step(start, 1000)
        trace.op("aten::index_select", start + 10, 20, shapes=[[2000, 64], [], [rows]])
        trace.kernel("indexSelectLargeIndex", start + 40, 100, launch_us=start + 15)
        trace.op("aten::linear", start + 40, 20, shapes=[[rows, 64], [64, 64], [64]])
        trace.kernel("ampere_sgemm_128x64_tn", start + 150, 200, launch_us=start + 45)
    return trace


def called_again(
    mark: str = "again @train.py:5 main", *, backward: bool = True, outer: int = 9, within: str = ""
) -> TraceBuilder:
    """Two steps that train a model and then call it at a line, 200 us, with the marks of its parts at line 20."""
    trace = TraceBuilder(device=None)
    main = trace.frame("train.py(3): main", 0, 2000)
    if within:
        trace.frame(within, 1, 1998, parent=main)
    for step, start in enumerate((0, 1000)):
        trace.step(start, 1000)
        trace.range("perfdoctor::module_call @train.py:5 main", start, 202)
        trace.range("@train.py:20 forward", start, 200)
        trace.op("aten::linear", start, 200, shapes=[[32, 64], [64, 64], [64]], sequence=step)
        if backward:
            trace.op("autograd::engine::evaluate_function: AddmmBackward0", start + 300, 200, sequence=step)
        if outer:
            trace.range(f"perfdoctor::module_call @train.py:{outer} main", start + 600, 203)
        trace.range("@train.py:20 forward", start + 600, 200)
        trace.op("aten::linear", start + 600, 200, shapes=[[32, 64], [64, 64], [64]])
        if mark:
            trace.range(f"perfdoctor::{mark}", start + 801, 1)
    return trace


def unchanged(first_us: float = 200, *, mark: str = "unchanged", called: bool = False) -> TraceBuilder:
    """Three steps with a kernel matrix at line 4 that is marked as the same, and then a product of it, 200 us."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 3000)
    for start in (0, 1000, 2000):
        trace.step(start, 1000)
        if called:
            trace.range("perfdoctor::module_call @train.py:9 main", start, first_us + 10)
        trace.range("@train.py:4 kernel", start, first_us)
        trace.op("aten::exp", start, first_us, shapes=[[300, 300]])
        trace.range(f"perfdoctor::{mark}", start + first_us + 1, 1)
        trace.range("@train.py:6 main", start + 700, 200)
        trace.op("aten::mm", start + 700, 200, shapes=[[300, 300], [300, 8]])
    return trace


def looked_at(rows: int = 1024, caller: str = "train.py(3): main") -> TraceBuilder:
    """Two steps of two layers, 100 us and 200 us, whose rows were looked at: numbers 1 and 2 in the last step."""
    trace = TraceBuilder(device=None)
    main = trace.frame("train.py(3): main", 0, 2000)
    trace.frame(caller, 1, 1998, parent=main)
    for start, numbers in ((0, (11, 12)), (1000, (1, 2))):
        trace.step(start, 1000)
        for at, us, number in ((start + 10, 100, numbers[0]), (start + 200, 200, numbers[1])):
            trace.range(f"perfdoctor::rows {number} @net.py:{number % 10} forward", at, us)
            trace.op("aten::linear", at, us, shapes=[[rows, 64], [64, 64], [64]])
    return trace


def needed(kind: str, **share: float | None) -> dict[str, list[dict[str, object]]]:
    """Facts of these calls, `_1=0.1` for call 1, and the same ones of the step before."""
    calls = {int(name[1:]): value for name, value in share.items()}
    return {
        "needed_rows": [
            {"call": tens + number, "kind": kind, "share": value} for tens in (0, 10) for number, value in calls.items()
        ]
    }


def zeros(mark: str, *, product: str = "matmul", us: float = 200) -> TraceBuilder:
    """Two steps with scores of 700 x 700 pairs and their softmax, 100 us each, and a marked product with them."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 2000)
    for start in (0, 1000):
        trace.step(start, 1000)
        trace.op("aten::where", start, 100, shapes=[[700, 700], [700, 700], []])
        trace.op("aten::softmax", start + 100, 100, shapes=[[700, 700], [], []])
        trace.op(f"aten::{product}", start + 200, us, shapes=[[700, 700], [700, 64]])
        trace.range(f"perfdoctor::{mark}", start + 200 + us, 1)
        trace.op("aten::relu", start + 700, 10, shapes=[[700, 64]])
    return trace


IDS, ONE_HOT = (128, 8), (128, 8, 500)
A, POINTS = (300, 300), (300, 300, 8)
SQUARE = ("mm", 100, (A, A))
CASES = list(cases_of(sys.modules[__name__]))


def test_needless_matrix_work() -> None:
    check_rule(NeedlessMatrixWork, CASES)
