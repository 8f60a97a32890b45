"""PD205: attention computed as product, softmax, product, with the scores written to memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from perfdoctor.analyzers._attention import (
    Attentions,
    attention_of_items,
    costs_of_first_products,
    find_attentions,
    find_fused_float32,
    fused_durations,
    half_remedy_of_attention,
)
from perfdoctor.analyzers._cpu_evidence import report_work
from perfdoctor.analyzers._kernel_ranges import apply_remedy
from perfdoctor.analyzers._matrix_remedies import MIN_TIME_NS
from perfdoctor.analyzers._pd205_cpu_attention import find_cpu_attention
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    GpuRows,
    Int64Array,
    Rank,
    RankAnalyzer,
    advise,
    distinct,
    nesting,
    top_kernels,
)
from perfdoctor.rules import intervals as iv

# A frame of a module's call, such as "nn.Module: BertSelfAttention_3": its class, and which of its instances.
_MODULE_FRAME = r"^nn\.Module: "
_FUSED_OP = "scaled_dot_product_attention"
_HALF_NAMES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16"}


class UnfusedAttention(RankAnalyzer):
    """Attention writes its scores to memory instead of using one fused kernel."""

    rule = "PD205"
    name = "unfused-attention"
    needs = frozenset({"work", "work_launches"})
    # min_sequence: from 512 on the scores of a head (float16) outgrow what fits beside the operands on a
    # multiprocessor; FlashAttention's measurements show 2 times and more from there. min_share_short: below it
    # the gain is small, and within what fusing pointwise work gains. min_cpu_sequence, min_cpu_saving: on a CPU shorter
    # ones gain nothing in training, see _pd205_cpu_attention; below a low finding nobody rewrites an attention.
    defaults = {
        "min_share": 0.01,
        "min_share_short": 0.05,
        "min_sequence": 512,
        "min_cpu_sequence": 256,
        "min_cpu_saving": 0.02,
    }
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        "https://arxiv.org/abs/2205.14135",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding when such attention takes at least the least share of the step, one for fused float32 attention."""
        if rank.device_kind == "cpu":
            work = find_cpu_attention(rank, self.settings["min_cpu_sequence"])
            yield from report_work(self, rank, work, self.settings["min_cpu_saving"], by_table=True)
            return
        yield from self._find_unfused(rank)
        yield from self._find_fused_float32(rank)

    def _find_unfused(self, rank: Rank) -> Iterator[Finding]:
        attentions = find_attentions(rank)
        if not len(attentions):
            return
        attention = attention_of_items(rank, attentions)
        rows = attention >= 0
        time = rank.time_in_window(rows)
        if iv.total(time) < MIN_TIME_NS:
            return
        cost_ns = rank.per_step(iv.total(time))
        sequence = _sequence_length(rank, attentions, attention)
        is_long = sequence is not None and sequence >= self.settings["min_sequence"]
        if not self.exceeds_min_share(rank, cost_ns, 0 if is_long else self.settings["min_share_short"]):
            return
        # Kernels of matrix products, no helpers of one.
        products = rank.kernel_classes.match_rows(lambda k: k.category == "gemm" and k.tensor_core != "na")
        after = fused_durations(rank, attentions, attention, products)
        trace = rank.trace
        between_ns = int(trace.gpu.dur_ns[rows & ~products].sum())
        callers = nesting.outermost(trace.ops.parent, attentions.first_product.astype(np.int32))
        fell_back = any(_FUSED_OP in trace.strings[code] for code in distinct(trace.ops.name[callers]).tolist())
        situation = "attention fell back" if fell_back else "unfused attention"
        yield self.finding(
            rank,
            title="Attention is not fused: product, softmax and product"
            + (f" over a sequence of {sequence}" if sequence else ""),
            cost_ns=cost_ns,
            saving=after.saving(cost_ns),
            advice=advise(situation, rank.context, where=_name_module(rank, attentions) or "the model's attention"),
            claim=Claim(time, kernels=True),
            confidence=0.8 if sequence else 0.6,
            location=rank.places.line_of_ops(callers.astype(np.int64)),
            evidence=(
                Evidence("attentions", rank.count_per_step(len(distinct(attention[rows]))), "count"),
                Evidence("sequence", sequence, "count"),
                Evidence("all but the products", rank.per_step(between_ns), "ns"),
                *top_kernels(rank, rows),
            ),
            edit=after.edit(GpuRows(trace.gpu, rows)),
        )

    def _find_fused_float32(self, rank: Rank) -> Iterator[Finding]:
        """Fused attention in float32, where the device has a faster kernel for half precision."""
        half, kernels = half_remedy_of_attention(rank), find_fused_float32(rank)
        time_ns = kernels.time_ns
        cost_ns = rank.per_step(time_ns)
        if half is None or time_ns < MIN_TIME_NS or not self.exceeds_min_share(rank, cost_ns):
            return
        after = apply_remedy(rank, kernels, "attention", half)
        yield self.finding(
            rank,
            title=f"Fused attention runs in float32: {rank.count_per_step(len(kernels)):,} kernels {rank.per_unit}",
            cost_ns=cost_ns,
            saving=after.saving(cost_ns),
            advice=advise(f"attention in float32: {_HALF_NAMES[half.peak_type or '']}", rank.context),
            claim=Claim(kernels.time, kernels=True),
            confidence=0.8,
            location=kernels.location,
            evidence=(
                Evidence("kernels whose work is known", round(100 * after.known_share), "%"),
                *top_kernels(rank, kernels.mask),
            ),
            subject="float32",
            edit=after.edit(kernels.rows),
        )


def _sequence_length(rank: Rank, attentions: Attentions, attention: Int64Array) -> int | None:
    """The number of keys in the attention that takes the most time; None without shapes."""
    cost = costs_of_first_products(rank, attentions)
    has_length = np.append(~attentions.is_backward & (cost >= 0), False)[attention]  # the last is for other items
    time_ns = np.bincount(cost[attention[has_length]], weights=rank.trace.gpu.dur_ns[has_length])
    totals_ns: dict[int, float] = {}
    for index in np.flatnonzero(time_ns).tolist():
        length = rank.kernel_costs.op_costs[index].n or 0
        totals_ns[length] = totals_ns.get(length, 0) + float(time_ns[index])
    return max(totals_ns, key=lambda length: (totals_ns[length], length), default=None)


def _name_module(rank: Rank, attentions: Attentions) -> str | None:
    """The class of the module that computes most of the attentions' forward passes; None where none is recorded."""
    frames = rank.trace.frames
    modules = np.flatnonzero(rank.trace.match_rows(frames, _MODULE_FRAME))
    forward = ~attentions.is_backward
    found = nesting.innermost(
        frames.start_ns[modules],
        frames.end_ns[modules],
        frames.thread[modules],
        attentions.start_ns[forward],
        attentions.thread[forward],
    )
    names = rank.trace.frames.name[modules[found[found >= 0]]]
    if not len(names):
        return None
    text = rank.trace.strings[int(np.argmax(np.bincount(names)))]
    return re.sub(_MODULE_FRAME, "", text).rpartition("_")[0]
