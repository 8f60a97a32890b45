"""Work on values that are zero, or that nobody uses: PD210 finds it by the recorded sizes of ops."""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._cpu_evidence import sizes_of
from perfdoctor.analyzers._pd210_calls import Call, Calls, Sight

_PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm"})
_CUTS = ("slice", "select", "narrow")
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
_FILLS = ("zeros", "full", "zeros_like", "full_like", "ones", "new_zeros", "new_full")
# Measured by CPU time with one thread, forward and backward pass (torch 2.13; 4 to 16 experts of two layers, 256 to
# 2,048 tokens of 64 to 256 numbers): what remains is the share that is used, and so much of all for gathering.
_GATHERING = (0.06, 0.1, 0.21)
# From the choice of the gate to the first expert, and from one layer of the experts to the next.
_MAX_EXPERT_DISTANCE = 12
_MIN_EXPERTS, _MAX_USED = 4, 0.5
# Of `cross_entropy_loss(input, target, weight, reduction, ignore_index, ...)`; the index that it has by itself.
_IGNORE_INDEX = 4
# Logits of fewer classes cost little beside the network.
_MIN_LOGITS = 1_000


def find_unused_values(calls: Calls) -> Iterator[Sight]:
    """The calls that work on zeros, or on values that nobody uses."""
    yield from _find_one_hot_products(calls)
    yield from _find_slices(calls)
    yield from _find_taken_after(calls)
    yield from _find_low_rank(calls)
    yield from _find_padding(calls)
    yield from _find_dense_experts(calls)
    yield from _find_ignored_labels(calls)


def _find_one_hot_products(calls: Calls) -> Iterator[Sight]:
    """One-hot rows, what stands between, and the product that takes them."""
    for at in calls.named("one_hot"):
        call, after = calls[at], calls.after(at, _MAX_DISTANCE)
        classes = _classes_of(call, after)
        for distance, product in enumerate(after, 1) if classes >= _MIN_CLASSES else ():
            kind = _kind_of_product(math.prod(call.sizes[0]), classes, product)
            if kind is not None:
                yield Sight(kind, calls[at : at + distance + 1], classes)
                break


def _classes_of(call: Call, after: list[Call]) -> int:
    """How many classes one-hot rows have, by the op that takes them, such as their cast; 0 where none does."""
    if not call.sizes or not after or not after[0].sizes:
        return 0
    *indices, classes = after[0].sizes[0] or (0,)
    return classes if tuple(indices) == call.sizes[0] else 0


def _kind_of_product(indices: int, classes: int, product: Call) -> str | None:
    """What a product does with the one-hot rows of so many indices; None where it takes something else.

    A lookup sums over the classes, the last dimension from the left; a sum by index keeps them.
    """
    if product.name not in _PRODUCTS or len(product.sizes) < 2:
        return None
    left, right = product.sizes[:2]
    if left[-1:] == (classes,) and math.prod(left) == indices * classes and classes in right[-2:]:
        return "lookup"
    return "sum by index" if left == (classes, indices) and right[:1] == (indices,) else None


def _find_slices(calls: Calls) -> Iterator[Sight]:
    """Slices of one size of tensor, but for the first dimension, whose gradients make up that tensor."""
    shaped, trace, ops = calls.rank, calls.rank.trace, calls.rank.trace.ops
    gradient_numel: dict[int, int] = {}
    backward = np.flatnonzero(trace.match_rows(ops, r"^aten::(slice|select)_backward$"))
    for row, forward in zip(backward.tolist(), shaped.forward_ops.forward[backward].tolist(), strict=True):
        sizes = sizes_of(trace.text(int(ops.dims[row])))
        if forward >= 0 and sizes:
            gradient_numel[forward] = math.prod(sizes[0])
    cuts: dict[tuple[int, ...], list[Call]] = defaultdict(list)
    for at in calls.named(*_CUTS) if gradient_numel else ():
        call = calls[at]
        if call.sizes and call.row in gradient_numel:
            cuts[call.sizes[0][1:]].append(call)
    steps = max(shaped.steps.count, 1)
    for alike in cuts.values():
        count = len(alike) // steps
        whole = sum(math.prod(call.sizes[0]) for call in alike) / len(alike)
        covered = sum(gradient_numel[call.row] for call in alike) / steps / max(whole, 1)
        if count >= _MIN_SLICES and _MIN_COVERED <= covered <= _MAX_COVERED:
            yield Sight("slices", alike, count)


def _find_taken_after(calls: Calls) -> Iterator[Sight]:
    """Products of which the next op takes a part, and no other op of the window anything."""
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
        if uses[size] == len(products):
            parts = min(_parts_of(size, calls[at + 2 : at + 3]) for at in products)
            if parts >= _MIN_PARTS:
                yield Sight("taken after", [calls[at] for at in products], parts)


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
    if len(call.sizes) < 2 or len(call.sizes[1]) != 2:
        return ()
    left, right = call.sizes[:2]
    return (*left[:-1], right[0] if call.name == "linear" else right[1])


def _find_low_rank(calls: Calls) -> Iterator[Sight]:
    """Products of two thin matrices that are added to a matrix of their size, and the product that takes the sum."""
    for at in calls.named("matmul", "mm"):
        call = calls[at]
        if [len(size) for size in call.sizes[:2]] != [2, 2]:
            continue
        (rows, inner), (_, columns) = call.sizes[:2]
        whole = (rows, columns)
        if inner * _MIN_RANKS > min(whole):
            continue
        after = calls.after(at, _MAX_DISTANCE)
        adds = (i for i, each in enumerate(after) if each.name == "add" and each.sizes[:2] == (whole, whole))
        added = next(adds, len(after))
        layer = next((each for each in after[added + 1 :] if each.name in _PRODUCTS and whole in each.sizes[1:2]), None)
        if layer is not None and math.prod(layer.sizes[0][:-1]) * inner <= _MAX_ROWS_OF_RANK * min(whole):
            yield Sight("low rank", calls[at : at + added + 2], inner)


def _find_padding(calls: Calls) -> Iterator[Sight]:
    """What computes with batches into which items of less than the batch's length are copied, one by one."""
    lengths: dict[tuple[int, ...], list[int]] = defaultdict(list)
    places: dict[tuple[int, ...], list[Call]] = defaultdict(list)
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
            places[whole].append(calls[fills[filled - 1]] if filled else select)
    found = None
    for whole, each in lengths.items():
        items, length = whole[:2]
        batches = [each[first : first + items] for first in range(0, len(each), items)]
        share = sum(map(max, batches)) / len(batches) / length
        if items >= _MIN_ITEMS and len(each) % items == 0 and share <= _MAX_FILLED:
            padded = [call for call in calls if any({items, length} <= set(size) for size in call.sizes)]
            found = Sight("padding", padded, length, tuple(places[whole]), (share, share, (1 + share) / 2))
    if found is not None:
        yield found


def _find_dense_experts(calls: Calls) -> Iterator[Sight]:
    """The linear layers of experts: as many with one size of weight as the gate has choices, behind its topk."""
    for at in calls.named("topk"):
        gate = calls[at]
        if not gate.sizes:
            continue
        (*tokens, experts), arguments = gate.sizes[0] or (0,), calls.arguments(gate)
        used = arguments[1] if len(arguments) > 1 else None
        if experts < _MIN_EXPERTS or used is None or used > _MAX_USED * experts:
            continue
        layers, last = defaultdict(list), at
        for position in range(at + 1, len(calls)):
            call = calls[position]
            is_far = position - last > _MAX_EXPERT_DISTANCE or calls.step[position] != calls.step[at]
            if call.name == "topk" or is_far:
                break
            if call.name == "linear" and math.prod(call.sizes[0][:-1]) == math.prod(tokens):
                layers[call.sizes[1]].append(call)
                last = position
        found = [call for each in layers.values() if len(each) == experts for call in each]
        if found:
            low, expected, high = (used / experts + gathering for gathering in _GATHERING)
            yield Sight("experts", found, experts, (), (low, expected, high))


def _find_ignored_labels(calls: Calls) -> Iterator[Sight]:
    """The last layer and the loss of each step in which the program itself sets labels to what the loss ignores."""
    for at in calls.named("cross_entropy_loss"):
        loss = calls[at]
        if not loss.sizes or len(loss.sizes[0]) != 2 or loss.sizes[0][1] < _MIN_LOGITS:
            continue
        (number, classes), arguments = loss.sizes[0], calls.arguments(loss)
        ignored = arguments[_IGNORE_INDEX] if len(arguments) > _IGNORE_INDEX else None
        first = at
        while first and calls.step[first - 1] == calls.step[at]:
            first -= 1
        before = calls[first:at]
        marks = any(
            call.name in ("masked_fill", "masked_fill_", "where")
            and math.prod(call.sizes[0]) == number
            and ignored in calls.arguments(call)
            for call in before
            if call.sizes
        )
        heads = [call for call in before if call.name == "linear" and call.sizes[1:2] and call.sizes[1][0] == classes]
        if ignored is not None and marks and heads and math.prod(heads[-1].sizes[0][:-1]) == number:
            yield Sight("ignored labels", [heads[-1], loss], number, (heads[-1],), (0.0, None, 1.0))
