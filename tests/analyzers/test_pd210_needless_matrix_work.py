"""PD210 needless-matrix-work: as many cases that fire as cases that stay quiet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cases_cpu_ops import Steps

from perfdoctor.analyzers.pd210_needless_matrix_work import NeedlessMatrixWork
from perfdoctor.testing import ExpectedFinding, RuleCase, TraceBuilder, check_rule

Sizes = tuple[int, ...]


def ops(*calls: tuple[str, float, tuple[Sizes, ...]]) -> Steps:
    """Two equal steps with these ops on float32: a name, us and the sizes of the arguments."""
    steps = Steps()
    for name, us, sizes in calls:
        steps.op(f"aten::{name}", us, *(("float", each) for each in sizes))
    return steps


def fires(
    why: str, cost_us: float, *calls: tuple[str, float, tuple[Sizes, ...]], fix: str, severity: str = "medium"
) -> RuleCase:
    expected = ExpectedFinding(severity, round(1000 * cost_us), location="train.py:3", fix=fix)
    return RuleCase("PD210", why, lambda: ops(*calls).build("train.py(3): main"), (expected,))


def stays_quiet(why: str, *calls: tuple[str, float, tuple[Sizes, ...]]) -> RuleCase:
    return RuleCase("PD210", why, lambda: ops(*calls).build("train.py(3): main"))


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


def fires_of_slices(why: str, cuts: Sequence[tuple[str, Sizes, Sizes]]) -> RuleCase:
    expected = ExpectedFinding("medium", 22_000 * len(cuts), location="train.py:3", fix="split(lengths)")
    return RuleCase("PD210", why, lambda: slices(cuts), (expected,))


def slices_stay_quiet(why: str, cuts: Sequence[tuple[str, Sizes, Sizes]]) -> RuleCase:
    return RuleCase("PD210", why, lambda: slices(cuts))


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


def decodes(
    why: str, lengths: Sequence[int], cost_us: float, us_per_row: float = 5, severity: str = "medium", layers: int = 1
) -> RuleCase:
    expected = ExpectedFinding(severity, round(1000 * cost_us), location="train.py:3", fix="past_key_values")
    return RuleCase("PD210", why, lambda: decoded(lengths, us_per_row, layers), (expected,))


def decodes_quietly(why: str, lengths: Sequence[int], layers: int = 1) -> RuleCase:
    return RuleCase("PD210", why, lambda: decoded(lengths, layers=layers))


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


def sorts(why: str, trace: TraceBuilder, *, severity: str = "medium") -> RuleCase:
    return RuleCase(
        "PD210", why, lambda: trace, (ExpectedFinding(severity, 300_000, location="train.py:3", fix="topk"),)
    )


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


def computes_experts(why: str, trace: TraceBuilder, cost_us: float = 640, severity: str = "medium") -> RuleCase:
    expected = ExpectedFinding(severity, round(1000 * cost_us), location="train.py:3", fix="index_add_")
    return RuleCase("PD210", why, lambda: trace, (expected,))


def ignored_labels(
    fill: str = "-100", *, classes: int = 8000, positions: int = 512, name: str = "masked_fill", ignored: str = "-100"
) -> TraceBuilder:
    """Labels that are filled with a number, a last layer of 512 positions, and the loss."""
    steps = Steps().op(f"aten::{name}", 5, ("long", (4, 128)), ("bool", (4, 128)), concrete=["", "", fill])
    steps.op("aten::linear", 200, ("float", (4, positions // 4, 128)), ("float", (classes, 128)))
    logits = (("float", (positions, classes)), ("long", (positions,)))
    steps.op("aten::cross_entropy_loss", 100, *logits, concrete=["", "", "", "1", ignored, "0."])
    return steps.build("train.py(3): main")


def ignores_labels(why: str, trace: TraceBuilder) -> RuleCase:
    expected = ExpectedFinding("medium", 300_000, (0, None, 300_000), location="train.py:3", fix="head(h[keep])")
    return RuleCase("PD210", why, lambda: trace, (expected,))


def windows(size: int = 25, reduce: str = "mean", dims: str = "[-1]", step: str = "1") -> TraceBuilder:
    """Windows of a tensor of 32 by 192 by 64 numbers, and what reduces them."""
    steps = Steps().op("aten::unfold", 10, ("float", (32, 192, 64)), concrete=["", "1", str(size), step])
    whole = ("float", (32, 193 - size, 64, size))
    return steps.op(f"aten::{reduce}", 300, whole, concrete=["", dims, "False"]).build("train.py(3): main")


def cuts_windows(why: str, trace: TraceBuilder) -> RuleCase:
    return RuleCase(
        "PD210", why, lambda: trace, (ExpectedFinding("medium", 310_000, location="train.py:3", fix="pool"),)
    )


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


def penalizes(why: str, trace: TraceBuilder, cost_us: float) -> RuleCase:
    expected = ExpectedFinding("medium", round(1000 * cost_us), location="train.py:3", fix="weight_decay")
    return RuleCase("PD210", why, lambda: trace, (expected,))


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


def called_again(mark: str = "module_call_again", *, backward: bool = True) -> TraceBuilder:
    """Two steps that train a model and then call it at line 9, 200 us."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 2000)
    for step, start in enumerate((0, 1000)):
        trace.step(start, 1000)
        trace.range("perfdoctor::module_call @train.py:5 main", start, 200)
        trace.op("aten::linear", start, 200, shapes=[[32, 64], [64, 64], [64]], sequence=step)
        if backward:
            trace.op("autograd::engine::evaluate_function: AddmmBackward0", start + 300, 200, sequence=step)
        trace.range(f"perfdoctor::{mark} @train.py:9 main", start + 600, 200)
        trace.op("aten::linear", start + 600, 200, shapes=[[32, 64], [64, 64], [64]])
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


def fires_of_unchanged(why: str, trace: Callable[[], TraceBuilder], line: int = 4) -> RuleCase:
    saving = (0, 190_000, 200_000)
    expected = ExpectedFinding("medium", 200_000, saving, location=f"train.py:{line}", fix="before the loop")
    return RuleCase("PD210", why, trace, (expected,))


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


def fires_of_zeros(why: str, trace: Callable[[], TraceBuilder], cost_us: int, fix: str) -> RuleCase:
    saving = (0, round(700 * cost_us), round(900 * cost_us))
    expected = ExpectedFinding("medium", 1000 * cost_us, saving, location="train.py:3", fix=fix)
    return RuleCase("PD210", why, trace, (expected,))


IDS, ONE_HOT = (128, 8), (128, 8, 500)
A, POINTS = (300, 300), (300, 300, 8)
SQUARE = ("mm", 100, (A, A))
CASES = [
    fires(
        "a diagonal from the left",
        100,
        ("diag", 10, ((300,), ())),
        SQUARE,
        ("mm", 100, (A, (300, 8))),
        fix="d[:, None]",
        severity="medium",
    ),
    fires("from both sides", 200, ("diag_embed", 10, ((300,),)), SQUARE, SQUARE, SQUARE, fix="d[:, None]"),
    fires(
        "inverse and determinant",
        300,
        *(("linalg_inv_ex", 200, (A,)), ("mv", 10, (A, (300,))), ("logdet", 100, (A,))),
        fix="cholesky",
    ),
    fires("inverse for a vector", 210, ("linalg_inv_ex", 200, (A,)), ("mv", 10, (A, (300,))), fix="solve"),
    fires("inverse for two columns", 210, ("inverse", 200, (A,)), ("mm", 10, (A, (300, 2))), fix="solve"),
    fires("a vector from the left", 210, ("inverse", 200, (A,)), ("matmul", 10, ((300,), A)), fix="solve"),
    fires(
        "all pairs",
        300,
        *(("unsqueeze", 1, ((300, 8),)), ("sub", 100, ((300, 1, 8), (300, 8)))),
        *(("pow", 100, (POINTS, ())), ("sum", 100, (POINTS, ()))),
        fix="b.mT",
    ),
    fires(
        "all pairs in a batch",
        300,
        ("sub", 100, ((4, 100, 1, 3), (4, 1, 100, 3))),
        *(("mul", 100, ((4, 100, 100, 3),) * 2), ("sum", 100, ((4, 100, 100, 3),))),
        fix="b.mT",
    ),
    fires(
        "a square on the right",
        100,
        ("diag", 10, ((300,), ())),
        ("matmul", 100, ((300, 8), A)),
        fix="d[:, None]",
        severity="medium",
    ),
    fires(
        "a mean over all pairs",
        200,
        ("sub", 100, ((300, 8), (300, 1, 8))),
        ("square", 50, (POINTS,)),
        ("mean", 50, (POINTS,)),
        fix="b.mT",
    ),
    fires(
        "slogdet, and no product",
        200,
        ("linalg_inv_ex", 100, (A,)),
        ("add", 5, (A, A)),
        ("linalg_slogdet", 100, (A,)),
        fix="cholesky",
    ),
    stays_quiet("the diagonal of a matrix", ("diag", 10, (A, ())), SQUARE),
    stays_quiet("a small diagonal matrix", ("diag", 10, ((64,), ())), ("mm", 100, ((64, 64), (64, 64)))),
    stays_quiet("a product with another matrix", ("diag", 10, ((300,), ())), ("mm", 100, ((200, 200), (200, 200)))),
    stays_quiet("an inverse for many columns", ("linalg_inv_ex", 200, (A,)), SQUARE),
    stays_quiet("a small inverse", ("linalg_inv_ex", 200, ((8, 8),)), ("mv", 100, ((8, 8), (8,)))),
    stays_quiet("an inverse of another matrix", ("linalg_inv_ex", 200, (A,)), ("logdet", 100, ((200, 200),))),
    stays_quiet(
        "differences of pairs one by one", ("sub", 100, (POINTS, POINTS)), ("pow", 100, (POINTS,)), ("sum", 9, ())
    ),
    stays_quiet("a mean is subtracted", ("sub", 100, (POINTS, (300, 1, 8))), ("pow", 100, (POINTS,)), ("sum", 9, ())),
    stays_quiet(
        "all pairs that are kept",
        ("sub", 100, ((300, 1, 8), (300, 8))),
        ("pow", 100, (POINTS,)),
        ("exp", 100, (POINTS,)),
    ),
    stays_quiet("few pairs", ("sub", 100, ((8, 1, 8), (8, 8))), ("pow", 100, ((8, 8, 8),)), ("sum", 9, ((8, 8, 8),))),
    fires(
        "one-hot rows through a linear layer",
        310,
        *(("one_hot", 100, (IDS, ())), ("to", 10, (ONE_HOT,)), ("linear", 200, (ONE_HOT, (64, 500), ()))),
        fix="embedding(",
    ),
    fires(
        "one-hot rows, flattened, times a matrix",
        310,
        *(("one_hot", 100, (IDS, ())), ("to", 10, (ONE_HOT,)), ("mm", 200, ((1024, 500), (500, 64)))),
        fix="embedding(",
    ),
    fires(
        "rows summed through a one-hot matrix",
        310,
        *(("one_hot", 100, ((1024,), ())), ("t", 10, ((1024, 500),)), ("mm", 200, ((500, 1024), (1024, 64)))),
        fix="index_add_",
    ),
    fires(
        "the last step of all that a layer computes",
        200,
        ("linear", 200, ((32, 50, 64), (100, 64), (100,))),
        *(("select", 5, ((32, 50, 100), (), ())), ("log_softmax", 50, ((32, 100), ()))),
        fix="layer(x[:, -1])",
    ),
    fires(
        "the last five steps",
        200,
        ("matmul", 200, ((32, 50, 64), (64, 100))),
        *(("slice", 5, ((32, 50, 100), ())), ("softmax", 50, ((32, 5, 100), ()))),
        fix="layer(x[:, -1])",
    ),
    fires(
        "one-hot rows of a vector of indices",
        210,
        *(("one_hot", 100, ((1024,), ())), ("to", 10, ((1024, 500),)), ("linear", 100, ((1024, 500), (64, 500), ()))),
        fix="embedding(",
    ),
    fires(
        "one-hot rows in a batched product",
        210,
        *(("one_hot", 100, (IDS, ())), ("to", 10, (ONE_HOT,)), ("matmul", 100, (ONE_HOT, (500, 8)))),
        fix="embedding(",
    ),
    fires(
        "the first position of all",
        200,
        ("linear", 200, ((32, 50, 64), (100, 64))),
        *(("select", 5, ((32, 50, 100), (), ())), ("linear", 50, ((32, 100), (8, 100)))),
        fix="layer(x[:, -1])",
    ),
    fires_of_slices("slices that make up a tensor", [("slice", (300, 8), (30, 8))] * 10),
    fires_of_slices("rows of a tensor", [("select", (4, 10, 8), (4, 8))] * 10),
    fires_of_slices("slices of two sizes", [("slice", (300, 8), (20, 8)), ("slice", (300, 8), (40, 8))] * 5),
    slices_stay_quiet("few slices", [("slice", (300, 8), (75, 8))] * 4),
    slices_stay_quiet("windows that overlap", [("slice", (300, 8), (100, 8))] * 10),
    slices_stay_quiet("the first row of a tensor in each layer", [("select", (4, 50, 8), (4, 8))] * 12),
    fires("an adapter that is written out", 300, *low_rank(), fix="F.linear(F.linear(x, A), B)"),
    fires("one of rank 64", 300, *low_rank(64), fix="F.linear(F.linear(x, A), B)"),
    fires("padded to the longest of all data", 308, *padded([20, 30, 50] + [40] * 5), fix="pad_sequence"),
    fires("in two batches", 316, *padded([20] * 15 + [60]), fix="pad_sequence"),
    fires("padded to four times the items", 308, *padded([25] * 8), fix="pad_sequence"),
    fires("an adapter for few rows", 300, *low_rank(8, 16), fix="F.linear(F.linear(x, A), B)"),
    stays_quiet("a thin product for so many rows that merging pays", *low_rank(rows=8192)),
    stays_quiet("a product that is not thin", *low_rank(128)),
    stays_quiet("a thin product that is added to nothing of its size", *low_rank(added=(64, 512))),
    stays_quiet("padded to the longest of the batch", *padded([100] + [20] * 7)),
    stays_quiet("copies of a part of the batch", *padded([20] * 5)),
    stays_quiet("items that fill it", *padded([90] * 8)),
    stays_quiet("slices without a gradient", *([("slice", 20, ((300, 8), ()))] * 10)),
    stays_quiet(
        "few classes",
        *(("one_hot", 100, (IDS, ())), ("to", 9, ((128, 8, 10),)), ("linear", 200, ((128, 8, 10), (64, 10), ()))),
    ),
    stays_quiet("one-hot rows in a loss", ("one_hot", 100, (IDS, ())), ("mul", 200, (ONE_HOT, ONE_HOT))),
    stays_quiet(
        "a product beside one-hot rows",
        *(("one_hot", 100, (IDS, ())), ("to", 9, (ONE_HOT,)), ("linear", 200, ((128, 8, 300), (500, 300), ()))),
    ),
    stays_quiet(
        "a product that keeps the classes", *(("one_hot", 100, ((1024,), ())), ("mm", 200, ((64, 1024), (1024, 500))))
    ),
    stays_quiet(
        "a part of what another op uses, too",
        ("linear", 200, ((32, 50, 64), (100, 64), (100,))),
        *(("select", 5, ((32, 50, 100), (), ())), ("log_softmax", 50, ((32, 100), ())), ("sum", 9, ((32, 50, 100),))),
    ),
    stays_quiet(
        "gates that are cut apart",
        ("linear", 200, ((32, 4, 64), (100, 64), (100,))),
        *(("select", 5, ((32, 4, 100), (), ())), ("sigmoid", 50, ((32, 100),))) * 4,
    ),
    stays_quiet(
        "a half is taken",
        ("linear", 200, ((32, 50, 64), (100, 64), (100,))),
        *(("slice", 5, ((32, 50, 100), ())), ("tanh", 50, ((32, 25, 100), ()))),
    ),
    decodes("text without a cache", range(40, 50), 2 * (10 + 5 * 44.5)),
    decodes("two requests one after the other", [*range(40, 46), *range(30, 36)], 2 * (10 + 5 * 37.5)),
    decodes("four tokens at a time", range(40, 64, 4), 2 * (10 + 5 * 50)),
    decodes("a longer text", range(80, 90), 2 * (10 + 5 * 84.5)),
    decodes("tokens that cost little each", range(40, 60), 2 * (10 + 49.5), us_per_row=1, severity="medium"),
    decodes("the three steps of a capture", range(40, 43), 4 * (10 + 5 * 41), layers=2),
    decodes_quietly("three batches of other lengths", [40, 41, 40], layers=2),
    decodes_quietly("text with a cache", [1] * 10),
    decodes_quietly("batches of one length", [40] * 10),
    decodes_quietly("lengths that vary", [40, 44, 37, 45, 38, 41, 50, 42]),
    decodes_quietly("four lengths", range(40, 44)),
    decodes_quietly("mostly new rows", range(10, 60, 10)),
    cuts_windows("means of sliding windows", windows()),
    cuts_windows("maxima of sliding windows", windows(reduce="max", dims="3")),
    cuts_windows("maxima over the last dimension", windows(reduce="amax")),
    cuts_windows("windows of eight values", windows(8)),
    cuts_windows("windows of half of the series", windows(96)),
    penalizes("squares by square", penalized(op="square"), 400),
    RuleCase("PD210", "windows of few values", lambda: windows(3)),
    RuleCase("PD210", "windows side by side", lambda: windows(step="25")),
    RuleCase("PD210", "means over the windows", lambda: windows(dims="[1]")),
    RuleCase("PD210", "sums of windows", lambda: windows(reduce="sum")),
    penalizes("squares of all weights", penalized(), 400),
    penalizes("squares of three of four weights", penalized(3, op="square"), 300),
    RuleCase("PD210", "squares of weights without a gradient", lambda: penalized(backward=False)),
    RuleCase("PD210", "squares of one weight", lambda: penalized(1)),
    RuleCase("PD210", "squares of results", lambda: penalized(size=32)),
    RuleCase("PD210", "norms of weights", lambda: penalized(op="norm")),
    sorts("the first few of sorted rows", sorted_rows("1", "0", "20")),
    sorts("the last few", sorted_rows("-1", "-20", "9223372036854775807", sort="sort", dim="-1")),
    sorts("the first of sorted rows of another order", sorted_rows("1", "0", "20", between=(64, 20))),
    sorts("columns that are sorted", sorted_rows("0", "0", "100", dim="0", size=(20_000, 64))),
    RuleCase("PD210", "a half of sorted rows", lambda: sorted_rows("1", "0", "10000")),
    RuleCase("PD210", "rows of another dimension", lambda: sorted_rows("0", "0", "2")),
    RuleCase("PD210", "all that is sorted is summed", lambda: sorted_rows("1", "0", "20", between=SCORES)),
    ignores_labels("labels that are masked", ignored_labels()),
    ignores_labels("labels that are masked in place", ignored_labels(name="masked_fill_")),
    ignores_labels("labels of another number", ignored_labels("-1", ignored="-1")),
    RuleCase("PD210", "tokens that are masked", lambda: ignored_labels("103")),
    RuleCase("PD210", "labels of few classes", lambda: ignored_labels(classes=100)),
    RuleCase("PD210", "positions that were selected", lambda: ignored_labels(positions=80)),
    computes_experts("experts that compute all tokens", experts()),
    computes_experts("experts of one choice", experts(used=1)),
    computes_experts("experts of half of the choices", experts(used=4)),
    computes_experts("four experts", experts(4, called=4), 320),
    RuleCase("PD210", "experts that get their tokens", lambda: experts(tokens=128)),
    RuleCase("PD210", "most of the experts are used", lambda: experts(used=6)),
    RuleCase("PD210", "as many layers as no gate has", lambda: experts(called=6)),
    RuleCase("PD210", "layers far behind a choice", lambda: experts(before=20)),
    RuleCase("PD210", "few numbers", lambda: sorted_rows("1", "0", "20", size=(64, 500))),
    fires(
        "a layer of gathered rows",
        400,
        ("index", 100, ((2000, 64), ())),
        ("linear", 20, ((24_000, 1), (1, 1), (1,))),
        ("linear", 300, ((24_000, 64), (64, 64), (64,))),
        fix="layer(h)[index]",
    ),
    fires(
        "a layer of rows selected by index",
        400,
        *(("index_select", 100, ((500, 64), (), (9000,))), ("linear", 300, ((9000, 64), (8, 64), (8,)))),
        fix="layer(h)[index]",
    ),
    stays_quiet("few rows twice", ("index", 100, ((2000, 64), ())), ("linear", 300, ((3000, 64), (64, 64), (64,)))),
    stays_quiet("other rows", ("index", 100, ((2000, 64), ())), ("linear", 300, ((24_000, 32), (64, 32), (64,)))),
    fires("a long filter", 300, ("conv1d", 300, ((32, 1, 18_000), (1, 1, 2000))), fix="irfft(rfft(x)"),
    fires("long filters by channel", 300, ("conv1d", 300, ((32, 8, 9000), (8, 1, 512))), fix="irfft(rfft(x)"),
    stays_quiet("a short filter", ("conv1d", 300, ((32, 1, 18_000), (1, 1, 64)))),
    stays_quiet("many channels", ("conv1d", 300, ((32, 40, 18_000), (64, 40, 300)))),
    RuleCase(
        "PD210",
        "on a GPU",
        lambda: on_gpu(24_000),
        (ExpectedFinding("medium", 300_000, (0, None, 145_000), location="train.py:3", fix="layer(h)[index]"),),
    ),
    RuleCase(
        "PD210",
        "a model called again with the same",
        called_again,
        (ExpectedFinding("medium", 200_000, (0, 190_000, 200_000), location="train.py:9", fix="out = model(x)"),),
    ),
    RuleCase("PD210", "a model called with something else", lambda: called_again("module_call")),
    fires_of_unchanged("a matrix that no step changes", unchanged),
    fires_of_unchanged("a module whose result no step changes", lambda: unchanged(called=True), 9),
    RuleCase("PD210", "no result was seen unchanged", lambda: unchanged(mark="other")),
    RuleCase("PD210", "an unchanged result of little work", lambda: unchanged(10)),
    RuleCase(
        "PD210",
        "copies of rows",
        looked_at,
        (
            ExpectedFinding(
                "medium", 300_000, (0, 225_000, 240_000), location="net.py:1", fix="encoder(x).repeat", title="80 %"
            ),
        ),
        facts=needed("equal", _1=0.2, _2=0.2),
    ),
    RuleCase(
        "PD210",
        "rows without a gradient",
        looked_at,
        (
            ExpectedFinding(
                "medium", 300_000, (0, 195_000, 210_000), location="net.py:2", fix="layer(x[mask])", title="70 %"
            ),
        ),
        facts=needed("used", _1=0.5, _2=0.2),
    ),
    RuleCase(  # the kind that knows more keeps the work
        "PD210",
        "masked labels whose rows were looked at",
        lambda: ignored_labels().range("perfdoctor::rows 1 @net.py:1 forward", 0, 1000),
        (ExpectedFinding("medium", 300_000, (0, None, 300_000), location="train.py:3", fix="head(h[keep])"),),
        facts=needed("used", _1=0.1),
    ),
    RuleCase(  # its user does not write the model
        "PD210",
        "rows of a model of a library",
        lambda: looked_at(caller="/x/site-packages/transformers/models/bert/modeling_bert.py(9): forward"),
        (ExpectedFinding("low", 300_000, (0, 195_000, 210_000), location="net.py:2", fix="layer(x[mask])"),),
        facts=needed("used", _1=0.5, _2=0.2),
    ),
    RuleCase("PD210", "rows that were looked at without an answer", looked_at, facts=needed("used", _1=None, _2=None)),
    RuleCase("PD210", "rows outside of the window", lambda: called_again("rows 7"), facts=needed("used", _1=0.1)),
    RuleCase("PD210", "rows of which nothing was found", looked_at, facts={"needed_rows": []}),
    RuleCase("PD210", "rows of calls of another window", looked_at, facts=needed("equal", _5=0.1)),
    fires_of_zeros("a product with zeros", lambda: zeros("zeros 0 990"), 200, "to_sparse"),
    fires_of_zeros("scores that a mask makes zeros", lambda: zeros("masked_zeros 0 990"), 400, "index_add"),
    RuleCase("PD210", "zeros of another op", lambda: zeros("zeros 0 990", product="mul")),
    RuleCase("PD210", "a short product with zeros", lambda: zeros("zeros 0 990", us=20)),
    RuleCase("PD210", "few rows on a GPU", lambda: on_gpu(3000)),
    RuleCase("PD210", "unknown sizes", lambda: Steps().op("aten::diag").op("aten::mm", 300).build()),
]


def test_needless_matrix_work() -> None:
    check_rule(NeedlessMatrixWork, CASES)
