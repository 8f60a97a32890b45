"""Work on values that are zero, or that nobody uses: PD210 finds it by the recorded sizes of ops."""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import sizes_of
from perfdoctor.analyzers._pd210_calls import Call, Calls
from perfdoctor.rules import Int64Array, Rank, SourceLocation


class WorkKind(NamedTuple):
    """A kind of needless work; what to do about it is the situation "needless matrix work: NAME".

    Attributes:
        name: What it is, for a program with several kinds.
        title: What the program does; {} is the number of rows, classes, slices or differences.
        remaining: The share of their time (0 to 1) that remains: at best, as expected (None where nobody knows), at
            worst.
    """

    name: str
    title: str
    remaining: tuple[float, float | None, float]


class Work(NamedTuple):
    """The ops of a kind.

    Attributes:
        rows: The ops, rows of `trace.ops`.
        number: What the title names.
        place: The ops whose line is the one to change; None where that is the line of `rows`.
        remaining: What remains of it where the sizes say that; None where the kind does.
        location: The line to change, where it is not that of an op.
    """

    rows: Int64Array
    number: int
    place: Int64Array | None = None
    remaining: tuple[float, float, float] | None = None
    location: SourceLocation | None = None


# Measured by CPU time with one thread (torch 2.13), forward and backward pass: one-hot rows of 128 to 4,096 indices of
# 100 to 8,000 classes times a matrix against F.embedding 0.01 to 0.17, against index_add_ 0.03 to 0.07; 8 to 100 slices
# that make up a tensor against split 0.20 to 0.54, 24 to 100 rows against unbind 0.05 to 0.16; a linear layer of whole
# sequences of 20 to 100 steps, of which the last is used, against the layer of the last step 0.04 to 0.17.
_LOOKUP = WorkKind(
    "lookup",
    "One-hot rows of {:,} classes are multiplied with a matrix: all but one number of a row is zero",
    (0.01, 0.04, 0.17),
)
_SUM_BY_INDEX = WorkKind(
    "sum by index",
    "Rows are summed by {:,} classes through a product with a one-hot matrix, which is nearly all zeros",
    (0.03, 0.05, 0.1),
)
_SLICES = WorkKind(
    "slices",
    "A tensor is cut into {:,} slices, one op each: for each of them the backward pass fills a whole tensor with zeros",
    (0.05, 0.25, 0.55),
)
_TAKEN_AFTER = WorkKind(
    "taken after", "A layer computes all of a tensor, of which one part in {:,} is used", (0.04, 0.1, 0.2)
)
# 64 to 1,024 rows, rank 4 to 16, matrices of 512 to 3,072: 0.06 to 0.64 of what the product of the update, the sum and
# the gradient of the whole matrix add to the layer.
_LOW_RANK = WorkKind(
    "low rank",
    "A product of rank {:,} is written out to a whole matrix and added to a weight for each call of the layer",
    (0.06, 0.2, 0.64),
)
# All that computes with a padded batch takes in proportion to its length, at worst half of it.
_PADDING = WorkKind(
    "padding", "Batches are padded to {:,} positions, more than any item of most of them has", (0.0, 0.0, 0.0)
)
_PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm"})
_CUTS = frozenset({"slice", "select", "narrow"})
# A lookup of fewer classes gained little (0.24 and more of 64 classes remained).
_MIN_CLASSES = 96
# From the one-hot rows to their product: a cast, a reshape, a transposition.
_MAX_DISTANCE = 8
_MIN_SLICES = 8
# The share of a tensor that its slices make up: those of tensors that only have one size make up less, or much more.
_MIN_COVERED, _MAX_COVERED = 0.5, 1.05
# A layer whose used part is a larger one gains little.
_MIN_PARTS = 4
# A product is thin where its rank is so much smaller than the matrix, and pays where not many rows are multiplied: of
# 2,048 rows and a matrix of 256 columns nothing was saved.
_MIN_RANKS, _MAX_ROWS_OF_RANK = 8, 8
# Padding that most batches need is none to be saved; of fewer items nobody makes batches.
_MAX_FILLED, _MIN_ITEMS = 0.8, 4
_FILLS = frozenset({"zeros", "full", "zeros_like", "full_like", "ones", "new_zeros", "new_full"})


def find_unused_values(shaped: Rank, calls: Calls) -> dict[WorkKind, Work]:
    """The calls that work on zeros, or on values that nobody uses, by kind."""
    return {
        **_find_one_hot_products(calls),
        **_find_slices(shaped, calls),
        **_find_taken_after(calls),
        **_find_low_rank(calls),
        **_find_padding(calls),
    }


def _find_one_hot_products(calls: Calls) -> dict[WorkKind, Work]:
    """One-hot rows, what stands between, and the product that takes them; the most classes of any."""
    found: dict[WorkKind, tuple[list[int], int]] = {}
    for at in calls.named("one_hot"):
        call = calls[at]
        after = calls[at + 1 : at + 1 + _MAX_DISTANCE]
        classes = _classes_of(call, after)
        for distance, product in enumerate(after, 1) if classes >= _MIN_CLASSES else ():
            kind = _kind_of_product(math.prod(call.sizes[0]), classes, product)
            if kind is not None:
                rows, most = found.get(kind, ([], 0))
                found[kind] = ([*rows, *(each.row for each in calls[at : at + distance + 1])], max(most, classes))
                break
    return {kind: Work(np.array(sorted(set(rows)), np.int64), classes) for kind, (rows, classes) in found.items()}


def _classes_of(call: Call, after: list[Call]) -> int:
    """How many classes one-hot rows have, by the op that takes them, such as their cast; 0 where none does."""
    if not call.sizes or not after or not after[0].sizes:
        return 0
    *indices, classes = after[0].sizes[0] or (0,)
    return classes if tuple(indices) == call.sizes[0] else 0


def _kind_of_product(indices: int, classes: int, product: Call) -> WorkKind | None:
    """What a product does with the one-hot rows of so many indices; None where it takes something else.

    A lookup sums over the classes, the last dimension from the left; a sum by index keeps them.
    """
    if product.name not in _PRODUCTS or len(product.sizes) < 2:
        return None
    left, right = product.sizes[:2]
    if left[-1:] == (classes,) and math.prod(left) == indices * classes and classes in right[-2:]:
        return _LOOKUP
    return _SUM_BY_INDEX if left == (classes, indices) and right[:1] == (indices,) else None


def _find_slices(shaped: Rank, calls: Calls) -> dict[WorkKind, Work]:
    """Slices of one size of tensor whose gradients make up that tensor."""
    trace, ops, steps = shaped.trace, shaped.trace.ops, max(shaped.steps.count, 1)
    gradient_numel: dict[int, int] = {}
    backward = np.flatnonzero(trace.match_rows(ops, r"^aten::(slice|select)_backward$"))
    for row, forward in zip(backward.tolist(), shaped.forward_ops.forward[backward].tolist(), strict=True):
        sizes = sizes_of(trace.text(int(ops.dims[row])))
        if forward >= 0 and sizes:
            gradient_numel[forward] = math.prod(sizes[0])
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at in calls.named(*_CUTS) if gradient_numel else ():
        call = calls[at]
        if call.sizes and call.row in gradient_numel:
            groups[call.sizes[0]].append(call.row)
    kept: list[int] = []
    most = 0
    for rows in _join_ragged(groups).values():
        count = len(rows) // steps
        whole = sum(math.prod(size) for size, _ in rows) / len(rows)
        covered = sum(gradient_numel[row] for _, row in rows) / steps / max(whole, 1)
        if count >= _MIN_SLICES and _MIN_COVERED <= covered <= _MAX_COVERED:
            kept += [row for _, row in rows]
            most = max(most, count)
    return {_SLICES: Work(np.array(sorted(kept), np.int64), most)} if kept else {}


def _join_ragged(groups: dict[tuple[int, ...], list[int]]) -> dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]]:
    """Cut tensors by their size but for the first dimension, which may differ from step to step."""
    joined: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    for size, rows in groups.items():
        joined[size[1:]] += [(size, row) for row in rows]
    return joined


def _find_taken_after(calls: Calls) -> dict[WorkKind, Work]:
    """Products of which the next op takes a part, and no other op of the window anything."""
    found: list[int] = []
    most = 0
    made: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at in calls.named("linear", "matmul"):
        size = _product_size(calls[at])
        if len(size) >= 3:
            made[size].append(at)
    cuts = set(calls.named(*_CUTS)) if made else set()
    made = {
        size: products
        for size, products in made.items()
        if all(at + 1 in cuts and calls[at + 1].sizes[:1] == (size,) for at in products)
    }
    uses = Counter(size for call in calls for size in set(call.sizes)) if made else Counter()
    for size, products in made.items():
        if uses[size] != len(products):
            continue
        parts = min(_parts_of(size, calls[at + 2 : at + 3]) for at in products)
        if parts >= _MIN_PARTS:
            found += [calls[at].row for at in products]
            most = max(most, parts)
    return {_TAKEN_AFTER: Work(np.array(sorted(found), np.int64), most)} if found else {}


def _parts_of(size: tuple[int, ...], after: list[Call]) -> int:
    """One part in how many the op after a cut takes of a tensor of this size; 0 where its input is none."""
    taken = after[0].sizes[0] if after and after[0].sizes else ()
    for dim, length in enumerate(size):
        rest = size[:dim] + size[dim + 1 :]
        is_shorter = len(taken) == len(size) and taken[:dim] + taken[dim + 1 :] == rest and 0 < taken[dim] < length
        if taken == rest or is_shorter:
            return length if taken == rest else length // taken[dim]
    return 0


def _product_size(call: Call) -> tuple[int, ...]:
    """The size of what a product of a tensor and a matrix computes; empty for other ops."""
    if call.name not in ("linear", "matmul") or len(call.sizes) < 2 or len(call.sizes[1]) != 2:
        return ()
    left, right = call.sizes[:2]
    return (*left[:-1], right[0] if call.name == "linear" else right[1])


def _find_low_rank(calls: Calls) -> dict[WorkKind, Work]:
    """Products of two thin matrices that are added to a matrix of their size, and the product that takes the sum."""
    found: list[int] = []
    rank = 0
    for at in calls.named("matmul", "mm"):
        call = calls[at]
        if [len(size) for size in call.sizes[:2]] != [2, 2]:
            continue
        (rows, inner), (_, columns) = call.sizes[:2]
        whole = (rows, columns)
        if inner * _MIN_RANKS > min(whole):
            continue
        after = calls[at + 1 : at + 1 + _MAX_DISTANCE]
        added = next(
            (i for i, each in enumerate(after) if each.name == "add" and each.sizes[:2] == (whole, whole)), None
        )
        if added is None:
            continue
        layer = next((each for each in after[added + 1 :] if each.name in _PRODUCTS and whole in each.sizes[1:2]), None)
        if layer is not None and math.prod(layer.sizes[0][:-1]) * inner <= _MAX_ROWS_OF_RANK * min(whole):
            found += [each.row for each in calls[at : at + added + 2]]
            rank = max(rank, inner)
    return {_LOW_RANK: Work(np.array(sorted(set(found)), np.int64), rank)} if found else {}


def _find_padding(calls: Calls) -> dict[WorkKind, Work]:
    """What computes with batches into which items of less than the batch's length are copied, one by one."""
    lengths: dict[tuple[int, ...], list[int]] = defaultdict(list)
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    fills, copies = calls.named(*_FILLS), set(calls.named("copy_"))
    for at in calls.named("select"):
        if at + 2 not in copies:
            continue
        select, cut, copy = calls[at : at + 3]
        if cut.name != "slice" or not select.sizes or not copy.sizes:
            continue
        filled = bisect(fills, at)
        whole, item = select.sizes[0], copy.sizes[0]
        if len(whole) >= 2 and cut.sizes[:1] == (whole[1:],) and item[1:] == whole[2:] and len(item) == len(whole) - 1:
            lengths[whole].append(item[0])
            places[whole].append(int(calls.rows[fills[filled - 1]]) if filled else select.row)
    found = {}
    for whole, each in lengths.items():
        items, length = whole[:2]
        batches = [each[first : first + items] for first in range(0, len(each), items)]
        share = sum(map(max, batches)) / len(batches) / length
        if items >= _MIN_ITEMS and len(each) % items == 0 and share <= _MAX_FILLED:
            rows = [call.row for call in calls if any({items, length} <= set(size) for size in call.sizes)]
            remaining = (share, share, (1 + share) / 2)
            found[_PADDING] = Work(np.array(rows, np.int64), length, np.array(places[whole], np.int64), remaining)
    return found
