"""PD205: attention computed as product, softmax, product, with the scores written to memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.diagnosis.analyzer import RankAnalyzer
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.matrix import WORTH_NS, top_kernels
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.diagnosis.source import commonest, places
from perfdoctor.gpu.op_cost import OpCost
from perfdoctor.trace import intervals as iv
from perfdoctor.trace import nesting
from perfdoctor.trace.intervals import Int64Array
from perfdoctor.trace.model import BoolArray, Int8Array

_BATCHED = r"^aten::(bmm|baddbmm)(_out)?$"
_SOFTMAX = r"(?i)^aten::_?(softmax|safe_softmax|masked_softmax)$|scaled_(masked|upper_triang)\w*softmax"
_SOFTMAX_BACKWARD = r"(?i)^aten::_(masked_)?softmax_backward"
# Any other op with a product of its own between them: then they belong to no attention.
_OTHER = r"^aten::(mm|addmm|_addmm_activation|_scaled_mm|cudnn_convolution|miopen_convolution|convolution_backward)"
_NOTHING, _PRODUCT, _SOFT, _SOFT_BACKWARD, _ELSE = range(5)
_FORWARD = (_PRODUCT, _SOFT, _PRODUCT)
# Gradients of the second product, of softmax, of the first.
_BACKWARD = (_PRODUCT, _PRODUCT, _SOFT_BACKWARD, _PRODUCT, _PRODUCT)
_MATH = "scaled_dot_product_attention"
_THREE_TIMES_TF32 = 3.0  # fused kernels compute float32 as three products in TF32
_ITEM_BYTES: Mapping[str, int] = MappingProxyType({"fp64": 8, "fp32": 4})  # two for all others
_ENOUGH = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Attentions:
    """Groups of ops that are one attention each; arrays of one length.

    `thread`, `start_ns`, `end_ns` say when they were called; `product` is the row of the first product's op;
    `backward` tells gradients.
    """

    thread: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    product: Int64Array
    backward: BoolArray


class UnfusedAttention(RankAnalyzer):
    """Attention writes its scores to memory instead of using one fused kernel.

    What it finds:
        A batched product, a softmax and a batched product, called one after the other on one thread with no other
        product between them, and the same of the backward pass.

    Why it costs time:
        The scores, of size heads x sequence x sequence, are written and read four to five times: by the products, by
        scaling, mask, softmax and dropout. A fused kernel keeps them on the chip; for long sequences it is several
        times as fast, and needs memory only for the result.

    How it is measured:
        Time of all that was launched from the first product's call to the last one's return. It is told from
        `min_share` of the step on where the sequence has at least `min_sequence` elements by the recorded shapes,
        else from `min_share_short` on: short scores stay in the cache. The saving is bounded by the roofline of fused
        attention (FLOPs of both products; queries, keys, values and result moved once) where shapes are recorded;
        without them by all but the products themselves.

    How to fix:
        torch.nn.functional.scaled_dot_product_attention, with is_causal instead of a mask where that is meant; in
        Hugging Face models attn_implementation="sdpa".

    When it is wrong:
        Where the attention weights are needed (need_weights=True, relative positions added to the scores), or for
        head sizes over 256.

    Needs:
        Kernels, their launches, and ops; shapes for the length of the sequence.

    References:
        PyTorch, "scaled_dot_product_attention"; Dao et al., "FlashAttention".
    """

    rule: ClassVar[str] = "PD205"
    name: ClassVar[str] = "unfused-attention"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches"})
    # min_sequence: from 512 on the scores of a head (float16) outgrow what fits beside the operands on a
    # multiprocessor; FlashAttention's measurements show 2 times and more from there. min_share_short: below it
    # the gain is small, and within what fusing pointwise work gains.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.01, "min_share_short": 0.05, "min_sequence": 512}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        "https://arxiv.org/abs/2205.14135",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding when such attention takes at least the least share of the step."""
        found = _find(rank)
        if not len(found.thread):
            return
        group = _group_of_items(rank, found)
        rows = group >= 0
        time = rank.within_window(rows)
        if iv.total(time) < WORTH_NS:
            return
        sequence = _sequence(rank, found, group)
        long = sequence is not None and sequence >= self.settings["min_sequence"]
        cost = rank.per_step(iv.total(time))
        least = self.settings["min_share"]
        if (rank.share(cost) or 0) < (least if long else max(least, self.settings["min_share_short"])):
            return
        saved = _saved_share(rank, found, group)
        calls = len(np.unique(group[rows]))
        top = nesting.outermost(rank.trace.ops.parent, found.product.astype(np.int32))
        outer = {rank.trace.strings[code] for code in np.unique(rank.trace.ops.name[top]).tolist()}
        fell_back = any(_MATH in name for name in outer)
        yield self.finding(
            rank,
            title="Attention is not fused: product, softmax and product"
            + (f" over a sequence of {sequence}" if sequence else ""),
            cost_ns=cost,
            saving=Saving(0, None, round(cost * saved), "bounded"),
            advice=_FELL_BACK if fell_back else _ADVICE,
            fix=None if fell_back else "x = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=...)",
            claim=Claim(time, kernels=True),
            confidence=0.8 if sequence else 0.6,
            location=commonest(
                places(rank.trace, rank.trace.ops.thread[top[:_ENOUGH]], rank.trace.ops.start_ns[top[:_ENOUGH]])
            ),
            evidence=(
                Evidence("attentions", rank.per_step(calls), "count"),
                Evidence("sequence", sequence, "count"),
                Evidence("all but the products", rank.per_step(_between_ns(rank, rows)), "ns"),
                *top_kernels(rank, rows),
            ),
        )


_ADVICE = (
    "Use scaled_dot_product_attention: one kernel that never writes the scores. Hugging Face models take "
    'attn_implementation="sdpa".'
)
_FELL_BACK = (
    "scaled_dot_product_attention fell back to its unfused form: no fused kernel takes these inputs. Use half "
    "precision, head sizes that are multiples of 8 up to 256, and is_causal instead of a mask; "
    "torch.nn.attention.sdpa_kernel says why a kernel was refused."
)


def _find(rank: RankRun) -> _Attentions:
    """The attentions of the window, forward and backward."""
    ops = rank.trace.ops
    kind = np.zeros(len(ops), np.int8)
    for value, pattern in (
        (_ELSE, _OTHER),
        (_PRODUCT, _BATCHED),
        (_SOFT, _SOFTMAX),
        (_SOFT_BACKWARD, _SOFTMAX_BACKWARD),
    ):
        kind[rank.trace.named(ops, pattern)] = value
    launched = np.unique(rank.trace.gpu.op[rank.trace.gpu.op >= 0])  # outer ops of the same name launch nothing
    rows = launched[kind[launched] != _NOTHING]
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    firsts, lasts, backward = [], [], []
    for pattern_, back in ((_FORWARD, False), (_BACKWARD, True)):
        first = _runs(kind[rows], pattern_)
        last = first + len(pattern_) - 1
        same = ops.thread[rows[first]] == ops.thread[rows[last]]
        firsts.append(rows[first[same]])
        lasts.append(rows[last[same]])
        backward.append(np.full(int(same.sum()), back))
    first, last = np.concatenate(firsts), np.concatenate(lasts)
    return _Attentions(
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


def _group_of_items(rank: RankRun, found: _Attentions) -> Int64Array:
    """For each GPU item of the window the attention that launched it, or -1."""
    gpu, calls = rank.trace.gpu, rank.trace.calls
    group = np.full(len(gpu), -1, np.int64)
    rows = np.flatnonzero((gpu.call >= 0) & iv.contains(rank.window, gpu.start_ns))
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


def _costs(rank: RankRun, found: _Attentions) -> Int64Array:
    """For each attention the index into `work.costs` of its first product's cost, or -1."""
    by_op = np.full(len(rank.trace.ops), -1, np.int64)
    linked = rank.trace.gpu.op >= 0
    by_op[rank.trace.gpu.op[linked]] = rank.work.cost[linked]
    result: Int64Array = by_op[found.product]
    return result


def _sequence(rank: RankRun, found: _Attentions, group: Int64Array) -> int | None:
    """The length of the keys in the attention that takes the most time; None without shapes."""
    index = _costs(rank, found)
    forward = np.append(~found.backward & (index >= 0), False)[group] & (group >= 0)
    time_ns = np.bincount(index[group[forward]], weights=rank.trace.gpu.dur_ns[forward])
    totals: dict[int, float] = {}
    for i in np.flatnonzero(time_ns).tolist():
        length = rank.work.costs[i].n or 0
        totals[length] = totals.get(length, 0) + float(time_ns[i])
    return max(totals, key=lambda n: (totals[n], n), default=None)


def _products(rank: RankRun) -> BoolArray:
    return rank.kernels_where(lambda k: k.category == "gemm" and k.tensor_core != "na")


def _between_ns(rank: RankRun, rows: BoolArray) -> int:
    """Time of what is no product."""
    return int(rank.trace.gpu.dur_ns[rows & ~_products(rank)].sum())


def _saved_share(rank: RankRun, found: _Attentions, group: Int64Array) -> float:
    """Which share of the time fused attention could save at most."""
    dur, rows, index = rank.trace.gpu.dur_ns, group >= 0, _costs(rank, found)
    product, size = _products(rank) & rows, len(found.thread)
    time_ns = np.bincount(group[rows], weights=dur[rows], minlength=size)
    best_ns = np.bincount(group[product], weights=dur[product], minlength=size)
    fused = [(_fused_ns(rank, c, backward=False), _fused_ns(rank, c, backward=True)) for c in rank.work.costs]
    roof = np.array([*fused, (np.nan, np.nan)], np.float64)[index, found.backward.astype(np.int8)]
    best_ns = np.where(np.isnan(roof), best_ns, roof)
    return float(np.maximum(time_ns - best_ns, 0).sum() / max(time_ns.sum(), 1))


def _fused_ns(rank: RankRun, product: OpCost, *, backward: bool) -> float:
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
