"""What forms.toml says in a word: functions that its expressions call, in the process that measures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

Tensor = torch.Tensor


# --- contractions -----------------------------------------------------------------------------------------------------


def flat(operands: Sequence[Any]) -> list[Any]:
    """The operands of an einsum, which may be given as one list."""
    return list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)


def orders(count: int) -> list[tuple[tuple[int, int], ...]]:
    """All orders in which up to five operands can be contracted, two at a time; the result goes to the end."""
    if count == 2:
        return [((0, 1),)]
    pairs = itertools.combinations(range(count), 2) if count <= 5 else ()
    return [(pair, *rest) for pair in pairs for rest in orders(count - 1)]


def small_orders(equation: str, operands: Sequence[Tensor]) -> list[tuple[tuple[int, int], ...]]:
    """The orders whose results on the way are not much larger than the largest one of the shortest of all."""
    letters = equation.replace(" ", "").partition("->")[0].split(",")
    sizes = {
        letter: size
        for each, x in zip(letters, operands, strict=True)
        for letter, size in zip(each, x.shape, strict=True)
    }

    def largest(order: Sequence[tuple[int, int]]) -> int:
        return max(math.prod(sizes[letter] for letter in step.partition("->")[2]) for step in _steps(equation, order))

    found = {order: largest(order) for order in orders(len(operands))}
    return sorted((order for order in found if found[order] <= 4 * min(found.values())), key=lambda order: found[order])


def contract(equation: str, operands: Sequence[Tensor], order: Sequence[tuple[int, int]]) -> Tensor:
    """An einsum, two operands at a time in an order."""
    left = list(operands)
    for (first, second), step in zip(order, _steps(equation, order), strict=True):
        pair = left[first], left[second]
        left = [each for number, each in enumerate(left) if number not in (first, second)]
        left.append(torch.einsum(step, *pair))
    return left[0]


def _steps(equation: str, order: Sequence[tuple[int, int]]) -> list[str]:
    """The equations of the single contractions: a letter stays as long as an operand to come or the result has it."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    left, steps = inputs.split(","), []
    for first, second in order:
        pair = left[first], left[second]
        left = [each for number, each in enumerate(left) if number not in (first, second)]
        needed = set("".join(left)) | set(output)
        kept = "".join(dict.fromkeys(letter for letter in "".join(pair) if letter in needed))
        kept = kept if left else output
        steps.append(f"{pair[0]},{pair[1]}->{kept}")
        left.append(kept)
    return steps


def write_contraction(equation: str, names: Sequence[str], order: Sequence[tuple[int, int]]) -> str:
    """The source of `contract`."""
    left = list(names)
    for (first, second), step in zip(order, _steps(equation, order), strict=True):
        pair = left[first], left[second]
        left = [each for number, each in enumerate(left) if number not in (first, second)]
        left.append(f'torch.einsum("{step}", {pair[0]}, {pair[1]})')
    return left[0]


def equation_of(x: Tensor, y: Tensor, dim: int | Sequence[int]) -> str:
    """The einsum that multiplies two tensors, which broadcast, and sums over some axes."""
    count = max(x.dim(), y.dim())
    gone = {each % count for each in ([dim] if isinstance(dim, int) else dim)}
    letters = "abcdefghijklmnop"[:count]

    def name(tensor: Tensor) -> str:
        axes = range(count - tensor.dim(), count)
        return "".join(letters[axis] for axis in axes)

    sizes = torch.broadcast_shapes(x.shape, y.shape)
    if any(
        1 in (t.shape[axis - count + t.dim()],) and sizes[axis] > 1
        for t in (x, y)
        for axis in range(count - t.dim(), count)
        if axis in gone
    ):
        raise ValueError("it sums over an axis that one of them repeats")
    return f"{name(x)},{name(y)}->{''.join(letter for axis, letter in enumerate(letters) if axis not in gone)}"


def is_pairwise(x: Any, y: Any, dim: Any) -> bool:
    """Whether rows [..., n, 1, d] meet rows [..., 1, m, d], all with all, in the last axis."""
    if not (torch.is_tensor(x) and torch.is_tensor(y)) or min(x.dim(), y.dim()) < 2 or not isinstance(dim, int):
        return False
    is_last = dim in (-1, max(x.dim(), y.dim()) - 1)
    sizes = [1] * 3
    return is_last and ((*sizes, *x.shape)[-2], (*sizes, *y.shape)[-3]) == (1, 1) and x.shape[-1] == y.shape[-1]


def sides(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of both, without the axis over which they meet."""
    return x.squeeze(-2), y.squeeze(-3) if y.dim() > 2 else y


def square_distances(a: Tensor, b: Tensor) -> Tensor:
    """The squares of the distances of all rows, by one product."""
    return a.square().sum(-1)[..., :, None] - 2 * (a @ b.mT) + b.square().sum(-1)[..., None, :]


def square_of_cdist(a: Tensor, b: Tensor) -> Tensor:
    """The same by cdist."""
    return torch.cdist(a, b).square()


def cosine_of_pairs(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of all pairs of rows."""
    return F.normalize(a, dim=-1, eps=1e-8) @ F.normalize(b, dim=-1, eps=1e-8).mT


def tiny_product(a: Tensor, b: Tensor) -> Tensor:
    """A batch of products with a vector, or of two vectors, by multiplication and sum."""
    if a.shape[2] == 1:
        return a * b
    if b.shape[2] == 1:
        return (a * b.mT).sum(-1, keepdim=True)
    return (a.mT * b).sum(-2, keepdim=True)


def linear_of_parts(parts: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer on parts that lie side by side; what only repeats in an axis is multiplied once."""
    total: Any = None
    for part, columns in zip(parts, weight.split([each.shape[-1] for each in parts], 1), strict=True):
        for axis in range(part.dim() - 1):
            if part.stride(axis) == 0:
                part = part.narrow(axis, 0, 1)
        product = F.linear(part, columns)
        total = product if total is None else total + product
    total = total if bias is None else total + bias
    return total.expand(*parts[0].shape[:-1], -1)


# --- attention and recurrence -----------------------------------------------------------------------------------------


def _scale_of(scale: Any, divisor: Any) -> float:
    return float(1.0 if scale is None else scale) / float(1.0 if divisor is None else divisor)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: Any, divisor: Any, bias: Any, mask: Any, fill: Any) -> Tensor:
    """Attention by the fused op; `k` has its positions in the last axis."""
    added = bias
    if mask is not None:
        shift = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(mask, float(fill))
        added = shift if bias is None else bias + shift
    if torch.is_tensor(added) and added.dim() < q.dim():
        added = added.reshape((1,) * (q.dim() - added.dim()) + added.shape)
    # With fewer axes than a batch and heads the op has no fast kernel.
    lacking = max(4 - q.dim(), 0)
    q, k, v = (each[(None,) * lacking] for each in (q, k.mT, v))
    if added is not None:
        added = added[(None,) * lacking]
    result = F.scaled_dot_product_attention(q, k, v, added, scale=_scale_of(scale, divisor))
    return result[(0,) * lacking] if lacking else result


def attend_by_letters(first: str, second: str, q: Tensor, k: Tensor, v: Tensor, scale: Any, divisor: Any) -> Tensor:
    """Attention that two equations write out, such as blhd,bshd->bhls and bhls,bshe->blhe."""
    (of_q, of_k), scores = first.replace(" ", "").split("->")[0].split(","), first.replace(" ", "").split("->")[1]
    inputs, output = second.replace(" ", "").split("->")
    of_scores, of_v = inputs.split(",")
    if of_scores != scores:
        mapping = dict(zip(of_scores, scores, strict=True))
        free = iter("zyxwvu")
        mapping = {letter: mapping.get(letter) or next(free) for letter in dict.fromkeys(of_scores + of_v + output)}
        of_v, output = ("".join(mapping[letter] for letter in each) for each in (of_v, output))
    query, key = scores[-2], scores[-1]
    batch = scores[:-2]
    inner, width = (set(of_q) & set(of_k)) - set(scores), set(of_v) - set(scores)
    if len(inner) != 1 or len(width) != 1 or set(batch) - (set(of_q) & set(of_k) & set(of_v)):
        raise ValueError("no attention of this kind")
    (depth,), (value,) = inner, width
    q, k, v = (
        each.permute([letters.index(letter) for letter in wanted])
        for each, letters, wanted in (
            (q, of_q, f"{batch}{query}{depth}"),
            (k, of_k, f"{batch}{key}{depth}"),
            (v, of_v, f"{batch}{key}{value}"),
        )
    )
    result = F.scaled_dot_product_attention(q, k, v, scale=_scale_of(scale, divisor))
    return result.permute([f"{batch}{query}{value}".index(letter) for letter in output])


def write_scale(scale: Any, divisor: Any) -> str:
    """The argument of the fused op."""
    return f", scale={_scale_of(scale, divisor):.6g}"


def write_mask(mask: Any, bias: Any) -> str:
    """The same of what is masked and what is added."""
    return "".join(
        (f", attn_mask=~{mask}" if mask is not None else "", f", attn_mask={bias}" if bias is not None else "")
    )


def run_padded(layer: Callable[..., Any], x: Tensor, sizes: Tensor, hx: Any, weights: Any, *options: Any) -> Tensor:
    """A recurrent layer on the padded batch, and of its output the packed rows."""
    counts = sizes.tolist()
    rows = torch.arange(counts[0])
    is_there = rows[None, :] < sizes[:, None]
    padded = x.new_zeros(len(counts), counts[0], x.shape[-1]).masked_scatter(is_there[..., None], x)
    has_biases, layers, dropout, train = options
    output = layer(padded, hx, weights, has_biases, layers, dropout, train, False, False)[0]
    return output[is_there]


def run_cells(layer: Callable[..., Any], xs: Sequence[Tensor], hx: Any, *weights: Any) -> list[Tensor]:
    """A recurrent layer over all positions, in place of its cell at each."""
    states = hx if isinstance(hx, (tuple, list)) else (hx,)
    start = tuple(each[None] for each in states)
    given = [each for each in weights if each is not None]
    output = layer(
        torch.stack(list(xs)), start if len(start) > 1 else start[0], given, len(given) == 4, 1, 0.0, True, False, False
    )
    return list(output[0].unbind(0))


# --- indexing, counting, sorting --------------------------------------------------------------------------------------


def single_index(x: Tensor, index: Any) -> tuple[int, Tensor] | None:
    """The axis and the rows where one axis is indexed by a vector of whole numbers and the others are whole."""
    parts = index if isinstance(index, tuple) else (index,)
    found = [(axis, each) for axis, each in enumerate(parts) if torch.is_tensor(each)]
    others = [each for each in parts if not torch.is_tensor(each)]
    if len(found) != 1 or any(each != slice(None) for each in others):
        return None
    axis, rows = found[0]
    return (axis, rows) if rows.dtype == torch.int64 and rows.dim() == 1 and x.dim() > axis else None


def write_dim(index: Any) -> int:
    """The axis of `single_index`."""
    parts = index if isinstance(index, (tuple, list)) else (index,)
    return next((axis for axis, each in enumerate(parts) if not isinstance(each, slice)), 0)


def is_expanded(index: Any, dim: Any) -> bool:
    """Whether an index differs along one axis only."""
    if not torch.is_tensor(index) or not isinstance(dim, int) or index.dim() < 2:
        return False
    return all(
        index.stride(axis) == 0 or index.shape[axis] == 1 for axis in range(index.dim()) if axis != dim % index.dim()
    )


def along(index: Tensor, dim: int) -> Tensor:
    """That axis of it."""
    return index[tuple(slice(None) if axis == dim % index.dim() else 0 for axis in range(index.dim()))]


def limit_rows(weight: Tensor, index: Tensor, most: float) -> Tensor:
    """The table after the rows of a batch were given a norm of at most `most`, as max_norm does it row by row."""
    with torch.no_grad():
        rows = index.unique()
        weight.index_copy_(0, rows, weight.index_select(0, rows).renorm(2, 0, most))
    return weight


def unique_rows(x: Tensor) -> Tensor:
    """The different rows of whole numbers in order, by one number for each."""
    low = x.amin(0)
    spans = (x.amax(0) - low + 1).tolist()
    if math.prod(spans) >= 1 << 62:
        raise ValueError("the rows have no number each")
    strides = [math.prod(spans[axis + 1 :]) for axis in range(len(spans))]
    keys = ((x - low) * torch.tensor(strides)).sum(1).unique()
    columns = [keys.div(stride, rounding_mode="floor") % span for stride, span in zip(strides, spans, strict=True)]
    return (torch.stack(columns, 1) + low).to(x.dtype)


def look_up(x: Tensor, y: Tensor, size: int) -> Tensor:
    """Which numbers of `x` are in `y`, by a table of flags."""
    table = torch.zeros(size, dtype=torch.bool)
    table[y] = True
    return table[x]


def first_k(index: Any) -> int | None:
    """How many are taken from the front of the last axis; None for any other index."""
    parts = index if isinstance(index, (tuple, list)) else (index,)
    last, before = parts[-1], parts[:-1]
    if not isinstance(last, slice) or last.start not in (None, 0) or last.step not in (None, 1):
        return None
    is_whole = all(each is Ellipsis or each == slice(None) for each in before)
    return last.stop if is_whole and isinstance(last.stop, int) and last.stop > 0 else None


def quantile_by_rank(x: Tensor, q: float) -> Tensor:
    """A quantile of the last axis from one or two of its ranks."""
    rank = q * (x.shape[-1] - 1)
    low = int(rank)
    first = x.kthvalue(low + 1, -1).values
    return first if low == rank else torch.lerp(first, x.kthvalue(low + 2, -1).values, rank - low)


def is_inner(x: Any, dim: Any) -> bool:
    """Whether the elements along an axis of a large tensor lie apart, each on another line of the cache."""
    if (
        not torch.is_tensor(x)
        or isinstance(dim, bool)
        or not isinstance(dim, int)
        or x.dim() < 2
        or x.numel() < 1 << 14
    ):
        return False
    return x.stride(dim) > 1 and x.shape[dim] > 1


def is_expand(x: Tensor, sizes: Sequence[Any]) -> bool:
    """Whether repeat() only repeats axes of size 1, and adds some in front."""
    counts = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else list(sizes)
    shape = [1] * (len(counts) - x.dim()) + list(x.shape)
    return len(counts) >= x.dim() and all(size == 1 or count == 1 for size, count in zip(shape, counts, strict=True))


def expanded(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    """What repeat() makes, as a view."""
    counts = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else list(sizes)
    shape = [1] * (len(counts) - x.dim()) + list(x.shape)
    return x.expand([max(size, count) for size, count in zip(shape, counts, strict=True)])


def add_up(parts: Iterable[Tensor]) -> Tensor:
    """The sum of some tensors, one after the other."""
    total: Any = None
    for each in parts:
        total = each if total is None else total + each
    return total


# --- convolution and images -------------------------------------------------------------------------------------------


def rest_of(*values: Any) -> list[Any]:
    """The arguments behind the weight, up to the last one that was given."""
    given = list(values)
    while given and given[-1] is None:
        given.pop()
    return [
        default if each is None and number else each
        for number, (each, default) in enumerate(zip(given, (None, 1, 0, 1, 1), strict=False))
    ]


def _is_all(value: Any, wanted: int) -> bool:
    return value is None or all(each == wanted for each in (value if isinstance(value, (tuple, list)) else (value,)))


def is_pointwise(weight: Tensor, stride: Any, padding: Any, groups: Any) -> bool:
    """Whether a convolution is a product: size 1, and nothing is left out, added or grouped."""
    return _is_all(tuple(weight.shape[2:]), 1) and _is_all(stride, 1) and _is_all(padding, 0) and groups in (None, 1)


def is_long_kernel(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: Any) -> bool:
    """Whether FFTs may beat a convolution in one dimension: each channel by itself, or few channels."""
    is_plain = _is_all(stride, 1) and _is_all(dilation, 1) and not isinstance(padding, str) and weight.shape[-1] >= 64
    return is_plain and (
        groups == x.shape[1] == weight.shape[0] or (groups in (None, 1) and weight.shape[0] * weight.shape[1] <= 256)
    )


def convolve_by_fft(x: Tensor, weight: Tensor, bias: Any, padding: Any, groups: Any) -> Tensor:
    """A convolution in one dimension by three transforms."""
    pad = padding[0] if isinstance(padding, (tuple, list)) else padding or 0
    x = F.pad(x, (pad, pad)) if pad else x
    size = fast_lengths(x.shape[-1] + weight.shape[-1] - 1)[0]
    of_x, of_weight = torch.fft.rfft(x, size), torch.fft.rfft(weight.flip(-1), size)
    product = of_x * of_weight[:, 0] if groups not in (None, 1) else torch.einsum("bin,oin->bon", of_x, of_weight)
    result = torch.fft.irfft(product, size)[..., weight.shape[-1] - 1 : x.shape[-1]]
    return result if bias is None else result + bias[:, None]


def is_symmetric(pads: Sequence[int]) -> bool:
    """Whether F.pad adds as much on both sides of each axis."""
    return len(pads) % 2 == 0 and all(first == second for first, second in zip(pads[::2], pads[1::2], strict=True))


def padding_of(pads: Sequence[int], padding: Any) -> list[int]:
    """The padding of a convolution that replaces F.pad before it."""
    own = list(padding) if isinstance(padding, (tuple, list)) else [padding or 0] * (len(pads) // 2)
    return [each + more for each, more in zip(own, pads[::2][::-1], strict=True)]


def whole_factor(x: Tensor, size: Any, factor: Any) -> int | None:
    """By how much an image grows, where both sides grow by the same whole number."""
    sides_of = size if isinstance(size, (tuple, list)) else [size, size]
    if size is None:
        factors = set(factor if isinstance(factor, (tuple, list)) else [factor])
    else:
        factors = {side / old for side, old in zip(sides_of, x.shape[2:], strict=True)}
    found = factors.pop() if len(factors) == 1 else None
    return int(found) if found and found == int(found) and found > 1 else None


def enlarge(x: Tensor, factor: int) -> Tensor:
    """Each pixel as a square of so many."""
    count, channels, height, width = x.shape
    grown = x[:, :, :, None, :, None].expand(-1, -1, -1, factor, -1, factor)
    return grown.reshape(count, channels, height * factor, width * factor)


# --- pointwise --------------------------------------------------------------------------------------------------------


def last_axis(x: Tensor, dim: Any) -> bool:
    """Whether it is the last axis."""
    return dim in (-1, x.dim() - 1, (-1,), [-1], (x.dim() - 1,), [x.dim() - 1])


def write_affine(weight: Any, bias: Any) -> str:
    """The arguments of a norm that has a weight or a bias."""
    return "".join((f", {weight}" if weight is not None else "", f", {bias}" if bias is not None else ""))


def power(x: Tensor, exponent: float) -> Tensor:
    """A power by products, and the root for a half."""
    size = abs(exponent)
    result = x if size >= 2 else None
    for _ in range(int(size) - 1):
        result = result * x if result is not None else x
    if size != int(size):
        root = x.sqrt()
        result = x * root if result is None else result * root
    assert result is not None
    return result.reciprocal() if exponent < 0 else result


def write_power(name: str, exponent: float) -> str:
    """The source of `power`."""
    size = abs(exponent)
    factors = [name] * int(size) + ([f"{name}.sqrt()"] if size != int(size) else [])
    product = " * ".join(factors)
    return f"1 / ({product})" if exponent < 0 else product


# --- transforms -------------------------------------------------------------------------------------------------------


def is_fast_length(length: int) -> bool:
    """Whether a length has no prime factor beyond 7."""
    for prime in (2, 3, 5, 7):
        while length % prime == 0:
            length //= prime
    return length == 1


def fast_lengths(length: int) -> list[int]:
    """The next lengths with small factors, and the next power of two."""
    found = [each for each in range(length, 2 * length + 16) if is_fast_length(each)][:2]
    return [*found, 1 << (length - 1).bit_length()]
