"""Attention computed as product, softmax, product: where a trace has it, and what it would take in one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import BoolArray, Int8Array, Int64Array
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import occurring

_BATCHED = r"^aten::(bmm|baddbmm)(_out)?$"
_SOFTMAX = r"(?i)^aten::_?(softmax|safe_softmax|masked_softmax)$|scaled_(masked|upper_triang)\w*softmax"
_SOFTMAX_BACKWARD = r"(?i)^aten::_(masked_)?softmax_backward"
# Any other op with a product of its own between them: then they belong to no attention.
_OTHER = r"^aten::(mm|addmm|_addmm_activation|_scaled_mm|cudnn_convolution|miopen_convolution|convolution_backward)"
_NOTHING, _PRODUCT, _SOFT, _SOFT_BACKWARD, _ELSE = range(5)
_FORWARD = (_PRODUCT, _SOFT, _PRODUCT)
# Gradients of the second product, of softmax, of the first.
_BACKWARD = (_PRODUCT, _PRODUCT, _SOFT_BACKWARD, _PRODUCT, _PRODUCT)
_THREE_TIMES_TF32 = 3.0  # fused kernels compute float32 as three products in TF32
_ITEM_BYTES: Mapping[str, int] = MappingProxyType({"fp64": 8, "fp32": 4})  # two for all others


class Attentions(NamedTuple):
    """Groups of ops that are one attention each; arrays of one length.

    `thread`, `start_ns`, `end_ns` say when they were called; `product` is the row of the first product's op;
    `backward` tells gradients.
    """

    thread: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    product: Int64Array
    backward: BoolArray


def find_attentions(rank: Rank) -> Attentions:
    """The attentions of the window, forward and backward."""
    trace, ops = rank.trace, rank.trace.ops
    kind = np.zeros(len(trace.strings), np.int8)
    for value, pattern in (
        (_ELSE, _OTHER),
        (_PRODUCT, _BATCHED),
        (_SOFT, _SOFTMAX),
        (_SOFT_BACKWARD, _SOFTMAX_BACKWARD),
    ):
        kind[trace.match_strings(ops, pattern)] = value
    launched = occurring(trace.gpu.op)  # outer ops of the same name launch nothing
    rows = launched[kind[ops.name[launched]] != _NOTHING]
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    kinds = kind[ops.name[rows]]
    firsts, lasts, backward = [], [], []
    for pattern_, back in ((_FORWARD, False), (_BACKWARD, True)):
        first = _runs(kinds, pattern_)
        last = first + len(pattern_) - 1
        same = ops.thread[rows[first]] == ops.thread[rows[last]]
        firsts.append(rows[first[same]])
        lasts.append(rows[last[same]])
        backward.append(np.full(int(same.sum()), back))
    first, last = np.concatenate(firsts), np.concatenate(lasts)
    return Attentions(
        ops.thread[first].astype(np.int64),
        ops.start_ns[first],
        ops.end_ns[last],
        first.astype(np.int64),
        np.concatenate(backward),
    )


def _runs(kinds: Int8Array, pattern: tuple[int, ...]) -> Int64Array:
    """Where a pattern of kinds begins."""
    count = len(kinds) - len(pattern) + 1
    if count <= 0:
        return np.empty(0, np.int64)
    hits = np.logical_and.reduce([kinds[i : i + count] == kind for i, kind in enumerate(pattern)])
    return np.flatnonzero(hits).astype(np.int64)


def attention_of_items(rank: Rank, found: Attentions) -> Int64Array:
    """For each GPU item of the window the attention that launched it, or -1."""
    gpu, calls = rank.trace.gpu, rank.trace.calls
    group = np.full(len(gpu), -1, np.int64)
    rows = np.flatnonzero((gpu.call >= 0) & rank.in_window)
    call = gpu.call[rows]
    inside = nesting.innermost(
        found.start_ns,
        found.end_ns,
        found.thread.astype(np.int32),
        calls.start_ns[call],
        calls.thread[call],
    )
    group[rows] = inside
    return group


def product_costs(rank: Rank, found: Attentions) -> Int64Array:
    """For each attention the index into `work.costs` of its first product's cost, or -1."""
    by_op = np.full(len(rank.trace.ops), -1, np.int64)
    linked = rank.trace.gpu.op >= 0
    by_op[rank.trace.gpu.op[linked]] = rank.kernel_costs.op_cost[linked]
    result: Int64Array = by_op[found.product]
    return result


def fused_ns(rank: Rank, product: OpCost, *, backward: bool) -> float:
    """The best time of fused attention, from one of its products, whose smallest dimension is the size of a head.

    Forward it has two such products, and moves queries, keys, values and result; backward five, and twice the tensors.
    NaN where the device or the product is not known.
    """
    device = rank.device
    bandwidth = device.attainable_bandwidth_bytes_per_s if device else None
    if device is None or not bandwidth or not (product.m and product.n and product.k and product.batch):
        return float("nan")
    rate = device.attainable_flops(product.dtype) or float("nan")
    if product.dtype == "fp32":
        rate = max(rate, (device.attainable_flops("tf32") or 0) / _THREE_TIMES_TF32)
    head, *lengths = sorted((product.m, product.n, product.k))
    moved = product.batch * head * 2 * sum(lengths) * _ITEM_BYTES.get(product.dtype, 2) * (2 if backward else 1)
    return max((5 if backward else 2) * product.flops / rate, moved / bandwidth) * 1e9
