"""Attention computed as product, softmax, product: where a trace has it, and what it would take in one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.rules import BoolArray, Int8Array, Int32Array, Int64Array, Rank, Trace, nesting, occurring

_IGNORED, _PRODUCT, _SOFTMAX, _SOFTMAX_BACKWARD, _OTHER_PRODUCT = range(5)
_OP_PATTERNS: Mapping[int, str] = MappingProxyType(
    {
        # Products that belong to no attention: they interrupt a sequence, as ops that match nothing do not.
        _OTHER_PRODUCT: r"^aten::(mm|addmm|_addmm_activation|_scaled_mm|cudnn_convolution|miopen_convolution"
        r"|convolution_backward)",
        _PRODUCT: r"^aten::(bmm|baddbmm)(_out)?$",
        _SOFTMAX: r"(?i)^aten::_?(softmax|safe_softmax|masked_softmax)$|scaled_(masked|upper_triang)\w*softmax",
        _SOFTMAX_BACKWARD: r"(?i)^aten::_(masked_)?softmax_backward",
    }
)
_FORWARD_SEQUENCE = (_PRODUCT, _SOFTMAX, _PRODUCT)
# Gradients of the second product, of softmax, of the first product.
_BACKWARD_SEQUENCE = (_PRODUCT, _PRODUCT, _SOFTMAX_BACKWARD, _PRODUCT, _PRODUCT)
_TF32_PRODUCTS_PER_FP32 = 3.0  # fused kernels compute float32 as three products in TF32
_ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({"fp64": 8, "fp32": 4})  # two for all others


@dataclass(frozen=True, slots=True, eq=False)
class Attentions:
    """Groups of ops that are one attention each, or its backward pass; arrays of one length.

    Attributes:
        thread: The thread that called the ops.
        start_ns: When the first product's op was called.
        end_ns: When the last product's op returned.
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
    launching = occurring(trace.gpu.op)  # outer ops of the same name launch nothing
    rows = launching[kind_of_name[ops.name[launching]] != _IGNORED]
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
    return Attentions(ops.thread[first], ops.start_ns[first], ops.end_ns[last], first, np.concatenate(is_backward))


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


def fused_attention_ns(rank: Rank, product: OpCost, *, is_backward: bool) -> float:
    """The best time of fused attention by its roofline, from the cost of one of its products.

    The smallest dimension of a product is the size of a head. A forward pass has two such products, and moves queries,
    keys, values and result; a backward pass has five, and moves twice the tensors. NaN where the device or the
    product's sizes are unknown.
    """
    device = rank.device
    bandwidth = device.attainable_bandwidth_bytes_per_s if device else None
    if device is None or not bandwidth or not (product.m and product.n and product.k and product.batch):
        return float("nan")
    rate = device.attainable_flops(product.dtype) or float("nan")
    if product.dtype == "fp32":
        rate = max(rate, (device.attainable_flops("tf32") or 0) / _TF32_PRODUCTS_PER_FP32)
    head, *lengths = sorted((product.m, product.n, product.k))
    tensors_bytes = product.batch * head * 2 * sum(lengths) * _ELEMENT_BYTES.get(product.dtype, 2)
    flops, moved_bytes = (5, 2 * tensors_bytes) if is_backward else (2, tensors_bytes)
    return max(flops * product.flops / rate, moved_bytes / bandwidth) * 1e9
