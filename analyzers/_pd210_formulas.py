"""Formulas and ops in place of which others do less: PD210 finds them by the recorded sizes of ops."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._pd210_calls import Call, Calls, Sight, Sizes

_PRODUCTS = frozenset({"mm", "matmul", "mv", "linalg_matmul"})
_INVERSES = frozenset({"inverse", "linalg_inv", "linalg_inv_ex"})
_DETERMINANTS = frozenset({"logdet", "slogdet", "linalg_slogdet", "det", "linalg_det"})
_SUMS = frozenset({"sum", "mean"})
# Views compute nothing and may stand between the others.
_VIEWS = frozenset(
    {"unsqueeze", "transpose", "t", "permute", "view", "reshape", "expand", "numpy_T", "to", "contiguous"}
)
# Smaller matrices gained less, and cost little (a diagonal one of 64 rows kept 0.3 to 0.63 of its time).
_MIN_ROWS = 200
# Fewer differences fit into a cache, and take less than 0.1 ms.
_MIN_DIFFERENCES = 100_000
# A product with more columns than this share of the rows may be as well with the inverse.
_MAX_COLUMNS = 0.25
_MAX_SUM_DISTANCE = 3
_MIN_SORTED, _MIN_UNUSED = 1_000, 8
# The layer and the gather, forward and backward pass, against the layer before the gather: 0.23, 0.31, 0.35 and 0.47 of
# it for a twelfth, a tenth, a quarter and a half of the rows.
_MIN_REPEATS, _MAX_REST = 2, 0.25
_MIN_TAPS = 256
# How many calls lie between a sort and the cut of its result, or a gather and the layer, at most.
_MAX_DISTANCE = 6
_REDUCTIONS = frozenset({"mean", "amax", "max"})
_MIN_WINDOW, _MAX_WINDOW_DISTANCE = 8, 3
_SQUARES = ("pow", "square")
_WEIGHTS = {"linear": 1, "conv1d": 1, "conv2d": 1, "conv3d": 1, "addmm": 2, "mm": 1}
# Fewer of the weights may be results that happen to have the size of one.
_MIN_WEIGHTS, _MIN_SHARE_OF_WEIGHTS = 3, 0.5


def find_formulas(calls: Calls) -> Iterator[Sight]:
    """The calls of such formulas and ops."""
    yield from _find_matrix_formulas(calls)
    yield from _find_sorts_gathers_filters(calls)
    yield from _find_sliding_windows(calls)
    yield from _find_weight_penalty(calls)


def _find_matrix_formulas(calls: Calls) -> Iterator[Sight]:
    found: dict[str, list[Call]] = {}
    determinants = [calls[at] for at in calls.named(*_DETERMINANTS)]
    for at in calls.named("diag", "diag_embed", "sub", "rsub", *_INVERSES):
        call, after = calls[at], calls.behind(at, _MAX_SUM_DISTANCE, _VIEWS)
        name, sizes = call.name, call.sizes
        if name in ("diag", "diag_embed") and len(sizes) and len(sizes[0]) == 1 and sizes[0][0] >= _MIN_ROWS:
            found.setdefault("diagonal", []).extend(_products_with(sizes[0][0], after))
        elif name in _INVERSES and (length := _rows_of_square(sizes)) >= _MIN_ROWS:
            same = [each for each in determinants if _rows_of_square(each.sizes) == length]
            if same:
                found.setdefault("determinant", []).extend([call, *same])
            elif after and _is_narrow_product(length, after[0]):
                found.setdefault("inverse", []).extend([call, after[0]])
        elif name in ("sub", "rsub") and after and after[0].name in (*_SQUARES, "mul") and _is_of_all_pairs(sizes):
            last = next((i for i, each in enumerate(after) if each.name in _SUMS), None)
            if last is not None:
                found.setdefault("pairs", []).extend([call, *after[: last + 1]])
    for kind, each in found.items():
        if each:
            each.sort()
            sizes = each[0].sizes
            yield Sight(kind, each, _count(sizes) if kind == "pairs" else max(size[0] for size in sizes if size))


def _products_with(length: int, after: list[Call]) -> list[Call]:
    """Which of the next ops are products with the diagonal matrix: the first, and a second one from the right."""
    square = (length, length)
    if not after or after[0].name not in _PRODUCTS or square not in after[0].sizes:
        return []
    has_second = len(after) > 1 and after[1].name in _PRODUCTS and after[1].sizes[1:2] == (square,)
    return after[: 1 + has_second]


def _is_narrow_product(length: int, call: Call) -> bool:
    """Whether an op multiplies a square matrix of so many rows with a vector or few columns."""
    tensors = [size for size in call.sizes if size]
    if call.name not in _PRODUCTS or len(tensors) < 2 or (length, length) not in tensors:
        return False
    other = tensors[1] if tensors[0] == (length, length) else tensors[0]
    return len(other) == 1 or _count((other,)) <= _MAX_COLUMNS * length * length


def _is_of_all_pairs(sizes: Sizes) -> bool:
    """Whether two tensors are broadcast against each other in one dimension each, and share the last one."""
    if len(sizes) < 2 or not sizes[0] or not sizes[1] or _count(sizes) < _MIN_DIFFERENCES:
        return False
    dims = max(len(sizes[0]), len(sizes[1]))
    a, b = ((1,) * (dims - len(size)) + size for size in sizes[:2])
    pairs = list(zip(a, b, strict=True))
    return a[-1] == b[-1] > 1 and any(x == 1 < y for x, y in pairs) and any(y == 1 < x for x, y in pairs)


def _count(sizes: Sizes) -> int:
    """The number of elements of the tensors broadcast against each other."""
    dims = max(len(size) for size in sizes)
    padded = [(1,) * (dims - len(size)) + size for size in sizes if size]
    return int(np.prod([max(each) for each in zip(*padded, strict=True)], dtype=np.int64))


def _rows_of_square(sizes: Sizes) -> int:
    """The rows of an op's first argument where that is one square matrix; 0 elsewhere."""
    first = sizes[0] if sizes else ()
    return first[0] if len(first) == 2 and first[0] == first[1] else 0


def _find_sorts_gathers_filters(calls: Calls) -> Iterator[Sight]:
    """Sorts of which the first few are used, layers of gathered rows, long filters."""
    for at in calls.named("sort", "argsort", "index", "index_select", "conv1d"):
        call, after = calls[at], calls.after(at, _MAX_DISTANCE)
        size, *others = call.sizes or ((),)
        if call.name in ("sort", "argsort") and _uses_first_few(calls, call, after):
            yield Sight("sort", [call], size[_dim_of(calls, call)])
        elif call.name in ("index", "index_select") and len(size) == 2:
            for layer in [each for each in after if _computes_gathered(size, each)][:1]:
                rows = layer.sizes[0][0]
                share = size[0] / rows
                remaining = (share, min(share + _MAX_REST / 2, 1.0), min(share + _MAX_REST, 1.0))
                yield Sight("gather", [call, layer], rows, (layer,), remaining)
        elif call.name == "conv1d" and others and others[0][1] == 1 and others[0][2] >= _MIN_TAPS:
            yield Sight("filter", [call], others[0][2])


def _uses_first_few(calls: Calls, sort: Call, after: list[Call]) -> bool:
    """Whether the first call that takes something of the size of what was sorted cuts few of each row off."""
    size, dim = sort.sizes[0], _dim_of(calls, sort)
    user = next((call for call in after if size in call.sizes), None)
    if not size or size[dim] < _MIN_SORTED or user is None or user.name != "slice":
        return False
    values = calls.arguments(user)
    if len(values) < 4 or values[1] is None or values[1] % len(size) != dim % len(size):
        return False
    start, stop, _ = slice(values[2], values[3]).indices(size[dim])
    return stop - start <= size[dim] / _MIN_UNUSED


def _computes_gathered(size: tuple[int, ...], layer: Call) -> bool:
    """Whether a linear layer computes many more rows than a table of this size has, of as many numbers each."""
    rows = layer.sizes[0] if layer.name == "linear" and layer.sizes else ()
    return len(rows) == 2 and rows[1] == size[1] and rows[0] >= _MIN_REPEATS * size[0]


def _dim_of(calls: Calls, sort: Call) -> int:
    """The dimension that a sort sorts: its second argument, the last one where it is left out."""
    values = calls.arguments(sort)
    return values[1] if len(values) > 1 and values[1] is not None else -1


def _find_sliding_windows(calls: Calls) -> Iterator[Sight]:
    """Means and maxima of windows that `unfold` cuts."""
    trace = calls.rank.trace
    for at in calls.named("unfold"):
        unfold = calls[at]
        _, _, size, step = (calls.arguments(unfold) + [None] * 4)[:4]
        if size is None or size < _MIN_WINDOW or step != 1 or not unfold.sizes:
            continue
        dims = len(unfold.sizes[0])
        wholes = (
            call
            for call in calls.after(at, _MAX_WINDOW_DISTANCE)
            if call.name in _REDUCTIONS and call.sizes and len(call.sizes[0]) == dims + 1 and call.sizes[0][-1] == size
        )
        reduction = next(wholes, None)
        last = {f'"{before}{dim}{behind}"' for dim in (-1, dims) for before, behind in (("", ""), ("[", "]"))}
        if reduction is not None:
            concrete = trace.text(int(trace.ops.concrete[reduction.row])) or ""
            if any(each in concrete for each in last):
                yield Sight("windows", [unfold, reduction], size, (reduction,))


def _find_weight_penalty(calls: Calls) -> Iterator[Sight]:
    """The squares, with a gradient, of tensors of the sizes of the layers' weights, as many as layers have.

    A sum that follows one goes with it.
    """
    squares = calls.named(*_SQUARES)
    layers = [calls[at] for at in calls.named(*_WEIGHTS)] if squares else []
    weights = {size for call in layers for size in call.sizes[_WEIGHTS[call.name] :][:1]}
    squares = [at for at in squares if calls[at].sizes[:1] and calls[at].sizes[0] in weights]
    has_gradient = np.isin(calls.rows[squares], calls.rank.forward_ops.forward).tolist()
    kept = [calls[at] for at, has in zip(squares, has_gradient, strict=True) if has]
    if len({call.sizes[0] for call in kept}) >= max(_MIN_WEIGHTS, _MIN_SHARE_OF_WEIGHTS * len(weights)):
        sums = [call for at in squares for call in calls.after(at, 1) if call.name == "sum"]
        yield Sight("penalty", [*kept, *sums], calls.rank.count_per_step(len(kept)))
