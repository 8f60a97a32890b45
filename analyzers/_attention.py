"""Attention computed as product, softmax, product: where a trace has it, and what it would take in one kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoctor.analyzers._kernel_ranges import (
    TRIPLE_TF32,
    DurationRange,
    clamp_to_shortest_kernel,
    efficiencies_on,
    peak_rate,
)
from perfdoctor.analyzers._matrix_remedies import Remedy
from perfdoctor.rules import (
    NONE,
    BoolArray,
    GpuQuery,
    Int8Array,
    Int32Array,
    Int64Array,
    OpCost,
    Rank,
    Trace,
    frozen_dataclass,
    nesting,
    occurring,
)

_IGNORED, _PRODUCT, _SOFTMAX, _SOFTMAX_BACKWARD, _OTHER_PRODUCT = range(5)
_OP_PATTERNS: Mapping[int, str] = {
    # Products that belong to no attention: they interrupt a sequence, as ops that match nothing do not.
    _OTHER_PRODUCT: r"^aten::(mm|addmm|_addmm_activation|_scaled_mm|cudnn_convolution|miopen_convolution"
    r"|convolution_backward)",
    _PRODUCT: r"^aten::(bmm|baddbmm)(_out)?$",
    _SOFTMAX: r"(?i)^aten::_?(softmax|safe_softmax|masked_softmax)$|scaled_(masked|upper_triang)\w*softmax",
    _SOFTMAX_BACKWARD: r"(?i)^aten::_(masked_)?softmax_backward",
}
_FORWARD_SEQUENCE = (_PRODUCT, _SOFTMAX, _PRODUCT)
# Gradients of the second product, of softmax, of the first product.
_BACKWARD_SEQUENCE = (_PRODUCT, _PRODUCT, _SOFTMAX_BACKWARD, _PRODUCT, _PRODUCT)
# Ops that call a product, and bring its operands into one piece of memory first: a fused kernel reads them as they are.
_CALLERS = r"^aten::(matmul|einsum|scaled_dot_product_attention|_scaled_dot_product_attention_math)$"
# Ops that copy a tensor into another layout or type, by way of copy_.
_COPIES = r"^aten::(clone|contiguous|reshape|to|_to_copy)$"
_ELEMENT_BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4}  # two for all others


@frozen_dataclass(eq=False)
class Attentions:
    """Groups of ops that are one attention each, or its backward pass; arrays of one length.

    Attributes:
        thread: The thread that called the ops.
        start_ns: When the first product was called, with the copies of its operands.
        end_ns: When the last product returned, and the copies of the result right after it, where they ran on a GPU:
            into the layout that a fused kernel writes at once, or back into half precision.
        first_product: The first product's op, a row of `trace.ops`.
        is_backward: Whether it is a backward pass.
    """

    thread: Int32Array
    start_ns: Int64Array
    end_ns: Int64Array
    first_product: Int64Array
    is_backward: BoolArray

    def __len__(self) -> int:
        return len(self.thread)


def find_attentions(rank: Rank) -> Attentions:
    """The attentions of a trace, forward passes before backward passes.

    For example, on one thread::

        bmm  mul  _softmax  bmm                              a forward pass
        bmm  addmm  _softmax  bmm                            none: another product between them
        bmm  bmm  _softmax_backward_data  bmm  bmm           a backward pass
    """
    trace, ops = rank.trace, rank.trace.ops
    kind_of_name = _kinds_of_names(trace)
    if len(trace.gpu):
        launching = occurring(trace.gpu.op)  # outer ops of the same name launch nothing
        rows = launching[kind_of_name[ops.name[launching]] != _IGNORED]
    else:
        rows = _innermost_parts(trace, kind_of_name)
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    kinds = kind_of_name[ops.name[rows]]
    firsts, lasts, is_backward = [], [], []
    for sequence, backward in ((_FORWARD_SEQUENCE, False), (_BACKWARD_SEQUENCE, True)):
        begin = _find_sequence(kinds, sequence)
        first, last = rows[begin], rows[begin + len(sequence) - 1]
        on_one_thread = ops.thread[first] == ops.thread[last]
        firsts.append(first[on_one_thread])
        lasts.append(last[on_one_thread])
        is_backward.append(np.full(int(on_one_thread.sum()), backward))
    first, last = np.concatenate(firsts), np.concatenate(lasts)
    start_ns, end_ns, thread = ops.start_ns[first], ops.end_ns[last], ops.thread[first]
    if len(trace.gpu):
        calling = trace.match_rows(ops, _CALLERS)
        start_ns = ops.start_ns[nesting.outermost(ops.parent, first.astype(np.int32), calling)]
        end_ns = ops.end_ns[nesting.outermost(ops.parent, last.astype(np.int32), calling)]
        for _ in range(2):  # the layout, and the type
            end_ns = _end_of_copy_after(rank, launching, thread, end_ns)
    return Attentions(thread, start_ns, end_ns, first, np.concatenate(is_backward))


def _end_of_copy_after(rank: Rank, launching: Int64Array, thread: Int32Array, end_ns: Int64Array) -> Int64Array:
    """For each instant of a thread the end of the copy that it launches next, or the instant where it launches another.

    Only a copy of a tensor by a kernel counts, into another layout or type; none into a part of another tensor or to
    the CPU.
    """
    trace, ops = rank.trace, rank.trace.ops
    rows = launching[np.lexsort((ops.start_ns[launching], ops.thread[launching]))]
    after = nesting.count_preceding(thread, end_ns - 1, ops.thread[rows], ops.start_ns[rows])
    next_op = np.append(rows, NONE)[after].astype(np.int32)
    copy = nesting.outermost(ops.parent, next_op, trace.match_rows(ops, _COPIES))
    by_kernel = np.zeros(len(ops) + 1, bool)
    by_kernel[trace.gpu.op[rank.kernels.mask]] = True
    is_copy = (copy != next_op) & (ops.thread[next_op] == thread) & by_kernel[next_op]
    return np.where(is_copy, ops.end_ns[copy], end_ns)


def _innermost_parts(trace: Trace, kind_of_name: Int8Array) -> Int64Array:
    """The ops on a CPU that are parts of an attention, without those that only call another one: softmax."""
    ops = trace.ops
    is_part = kind_of_name[ops.name] != _IGNORED
    is_part[ops.parent[is_part & (ops.parent >= 0)]] = False
    return np.flatnonzero(is_part)


def _kinds_of_names(trace: Trace) -> Int8Array:
    """For each string of the trace which part of an attention an op of that name is."""
    kinds = np.full(len(trace.strings), _IGNORED, np.int8)
    for kind, pattern in _OP_PATTERNS.items():
        kinds[trace.match_strings(trace.ops, pattern)] = kind
    return kinds


def _find_sequence(kinds: Int8Array, sequence: tuple[int, ...]) -> Int64Array:
    """The positions at which a sequence of kinds begins."""
    count = max(len(kinds) - len(sequence) + 1, 0)
    matches = np.logical_and.reduce([kinds[i : i + count] == kind for i, kind in enumerate(sequence)])
    return np.flatnonzero(matches)


def attention_of_items(rank: Rank, attentions: Attentions) -> Int64Array:
    """For each GPU item of the window the attention that launched it, or -1."""
    gpu, calls = rank.trace.gpu, rank.trace.calls
    attention = np.full(len(gpu), -1, np.int64)
    rows = np.flatnonzero((gpu.call >= 0) & rank.in_window)
    call = gpu.call[rows]
    attention[rows] = nesting.innermost(
        attentions.start_ns, attentions.end_ns, attentions.thread, calls.start_ns[call], calls.thread[call]
    )
    return attention


def costs_of_first_products(rank: Rank, attentions: Attentions) -> Int64Array:
    """For each attention the cost of its first product: an index into `rank.kernel_costs.op_costs`, or -1."""
    cost_of_op = np.full(len(rank.trace.ops), -1, np.int64)
    has_op = rank.trace.gpu.op >= 0
    cost_of_op[rank.trace.gpu.op[has_op]] = rank.kernel_costs.op_cost[has_op]
    result: Int64Array = cost_of_op[attentions.first_product]
    return result


def fused_roof_ns(rank: Rank, product: OpCost, *, is_backward: bool) -> float:
    """The time of fused attention at the peaks of the device, from the cost of one of its products.

    The smallest dimension of a product is the size of a head. A forward pass has two such products, and moves queries,
    keys, values and result; a backward pass has five, and moves twice the tensors. NaN where the device or the
    product's sizes are unknown.
    """
    device = rank.device
    bandwidth = device.memory_bandwidth_bytes_per_s if device else None
    if device is None or not bandwidth or not (product.m and product.n and product.k and product.batch):
        return float("nan")
    rate = peak_rate(device, fused_unit(rank, product.dtype))
    head, *lengths = sorted((product.m, product.n, product.k))
    tensors_bytes = product.batch * head * 2 * sum(lengths) * _ELEMENT_BYTES.get(product.dtype, 2)
    flops, moved_bytes = (5, 2 * tensors_bytes) if is_backward else (2, tensors_bytes)
    return max(flops * product.flops / rate, moved_bytes / bandwidth) * 1e9


def fused_unit(rank: Rank, dtype: str) -> str:
    """The unit on which a fused kernel computes a type: a key of `Device.peaks_flops`, or TRIPLE_TF32."""
    device = rank.device
    if device is None or dtype != "fp32":
        return dtype
    # Fused kernels compute float32 as three products in TF32 where that is faster.
    has_faster = np.nan_to_num(peak_rate(device, TRIPLE_TF32)) > np.nan_to_num(peak_rate(device, "fp32"))
    return TRIPLE_TF32 if has_faster else "fp32"


def fused_durations(rank: Rank, attentions: Attentions, attention: Int64Array, products: BoolArray) -> DurationRange:
    """How long the kernels of the attentions take together in fused kernels; each remains, and gets a share shorter.

    Args:
        rank: The rank.
        attentions: The attentions.
        attention: For each GPU item its attention, or -1.
        products: Which items are kernels of matrix products: they remain where the sizes are unknown.
    """
    dur_ns, rows, cost = rank.trace.gpu.dur_ns, attention >= 0, costs_of_first_products(rank, attentions)
    time_ns = np.bincount(attention[rows], weights=dur_ns[rows], minlength=len(attentions))
    products = products & rows
    products_ns = np.bincount(attention[products], weights=dur_ns[products], minlength=len(attentions))
    op_costs, unknown = rank.kernel_costs.op_costs, (np.nan, np.nan)
    table = [(fused_roof_ns(rank, c, is_backward=False), fused_roof_ns(rank, c, is_backward=True)) for c in op_costs]
    roof_ns = clamp_to_shortest_kernel(
        np.array([*table, unknown], np.float64)[cost, attentions.is_backward.astype(np.int8)]
    )
    after_ns = np.full((len(attentions), 3), np.nan)
    units = np.array([*(fused_unit(rank, c.dtype) for c in op_costs), ""])[cost]
    for unit in sorted(set(units.tolist())):
        at = units == unit
        after_ns[at] = roof_ns[at, None] / efficiencies_on(rank, "attention", unit, roof_ns[at])
    shares = np.minimum(after_ns / np.maximum(time_ns, 1)[:, None], 1.0)
    known = ~np.isnan(shares[:, 0])
    products_share = np.minimum(products_ns / np.maximum(time_ns, 1), 1.0)
    usual = float((shares[known, 1] * time_ns[known]).sum() / max(time_ns[known].sum(), 1))
    slowest, expected, fastest = shares.T
    now_ns, of_item = dur_ns[rows].astype(np.float64), attention[rows]
    return DurationRange(
        now_ns,
        now_ns * np.where(known, slowest, 1.0)[of_item],
        now_ns * np.where(known, expected, np.maximum(usual, products_share))[of_item],
        now_ns * np.where(known, fastest, products_share)[of_item],
        float(time_ns[known].sum() / max(time_ns.sum(), 1)),
    )


def find_fused_float32(rank: Rank) -> GpuQuery:
    """The kernels of the window that compute attention, forward or backward, from float32."""
    operand = np.array([name == "fp32" for name in rank.verdicts.operands], bool)
    is_float32 = operand[rank.verdicts.operand[rank.kernel_costs.kind]] & ~rank.verdicts.match_rows("na")
    return rank.kernels.of_category("attention").where(rank.in_window & is_float32)


def half_remedy_of_attention(rank: Rank) -> Remedy | None:
    """Half precision for fused float32 attention, by its peak over that of float32; None where rates are unknown."""
    device = rank.device
    if device is None:
        return None
    half = next((name for name in ("bf16", "fp16") if device.matrix_peak_flops(name)), None)
    now = peak_rate(device, fused_unit(rank, "fp32"))
    if half is None or np.isnan(now):
        return None
    return Remedy(f"{half} autocast", peak_rate(device, half) / now, 0.5, half)
