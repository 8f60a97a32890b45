"""PD205: attention computed as product, softmax, product, with the scores written to memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analysis.host.locations import most_common_location
from perfdoctor.analyzers._pd205_attention import (
    Attentions,
    attention_of_items,
    find_attentions,
    fused_ns,
    product_costs,
)
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.matrix_kernels import LEAST_TIME_NS
from perfdoctor.rules.top_kernels import top_kernels
from perfdoctor.savings.edits import scale_durations
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.rows import GpuRows

_MATH = "scaled_dot_product_attention"
_ENOUGH = 256  # places: more add nothing to a majority


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

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such attention takes at least the least share of the step."""
        found = find_attentions(rank)
        if not len(found.thread):
            return
        group = attention_of_items(rank, found)
        rows = group >= 0
        time = rank.time_in_window(rows)
        if iv.total(time) < LEAST_TIME_NS:
            return
        sequence = _sequence(rank, found, group)
        long = sequence is not None and sequence >= self.settings["min_sequence"]
        cost = rank.per_step(iv.total(time))
        if not self.exceeds_min_share(rank, cost, 0 if long else self.settings["min_share_short"]):
            return
        saved = _saved_share(rank, found, group)
        calls = len(distinct(group[rows]))
        top = nesting.outermost(rank.trace.ops.parent, found.product.astype(np.int32))
        outer = {rank.trace.strings[code] for code in distinct(rank.trace.ops.name[top]).tolist()}
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
            location=most_common_location(
                rank.locations.at(rank.trace.ops.thread[top[:_ENOUGH]], rank.trace.ops.start_ns[top[:_ENOUGH]])
            ),
            evidence=(
                Evidence("attentions", rank.per_step(calls), "count"),
                Evidence("sequence", sequence, "count"),
                Evidence("all but the products", rank.per_step(_between_ns(rank, rows)), "ns"),
                *top_kernels(rank, rows),
            ),
            edit=scale_durations(GpuRows(rank.trace.gpu, rows), saved),
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


def _sequence(rank: Rank, found: Attentions, group: Int64Array) -> int | None:
    """The length of the keys in the attention that takes the most time; None without shapes."""
    index = product_costs(rank, found)
    forward = np.append(~found.backward & (index >= 0), False)[group] & (group >= 0)
    time_ns = np.bincount(index[group[forward]], weights=rank.trace.gpu.dur_ns[forward])
    totals: dict[int, float] = {}
    for i in np.flatnonzero(time_ns).tolist():
        length = rank.kernel_costs.op_costs[i].n or 0
        totals[length] = totals.get(length, 0) + float(time_ns[i])
    return max(totals, key=lambda n: (totals[n], n), default=None)


def _products(rank: Rank) -> BoolArray:
    return rank.kernel_classes.match_rows(lambda k: k.category == "gemm" and k.tensor_core != "na")


def _between_ns(rank: Rank, rows: BoolArray) -> int:
    """Time of what is no product."""
    return int(rank.trace.gpu.dur_ns[rows & ~_products(rank)].sum())


def _saved_share(rank: Rank, found: Attentions, group: Int64Array) -> float:
    """Which share of the time fused attention could save at most."""
    dur, rows, index = rank.trace.gpu.dur_ns, group >= 0, product_costs(rank, found)
    product, size = _products(rank) & rows, len(found.thread)
    time_ns = np.bincount(group[rows], weights=dur[rows], minlength=size)
    best_ns = np.bincount(group[product], weights=dur[product], minlength=size)
    fused = [(fused_ns(rank, c, backward=False), fused_ns(rank, c, backward=True)) for c in rank.kernel_costs.op_costs]
    roof = np.array([*fused, (np.nan, np.nan)], np.float64)[index, found.backward.astype(np.int8)]
    best_ns = np.where(np.isnan(roof), best_ns, roof)
    return float(np.maximum(time_ns - best_ns, 0).sum() / max(time_ns.sum(), 1))
