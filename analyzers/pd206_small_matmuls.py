"""PD206: many matrix products that are too small for the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._matrix_remedies import MIN_TIME_NS, topics_of_op
from perfdoctor.rules import (
    SHORTEST_KERNEL_NS,
    BoolArray,
    Claim,
    Evidence,
    Finding,
    FloatArray,
    GpuQuery,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    find_matrix_kernels,
    read_advice,
    top_kernels,
    top_op,
)

_CELL_OP = r"(?i)(lstm|gru|rnn_tanh|rnn_relu)_cell"
# A product whose maths and traffic take at most twice the shortest time of a kernel is bound by neither.
_MAX_ROOFLINE_NS = 2 * SHORTEST_KERNEL_NS


class SmallMatmuls(RankAnalyzer):
    """Many matrix products in a step are so small that latency, not maths, sets their time."""

    rule = "PD206"
    name = "small-matmuls"
    needs = frozenset({"kernels"})
    # min_share, min_kernels: of 43 recorded traces a small vision transformer comes nearest, with 49 such products in
    # 5 % of its step; steps with a hundred or more of them spend under 3 % there. Two layers of cells over a sequence
    # of 50 have more. min_of_products: so that they are the rule in this step, not the exception. max_kernel_ns: a grid
    # that leaves the GPU half empty runs up to 20 us (gpu/roofline/kernel_bounds.py).
    defaults = {"min_share": 0.05, "min_kernels": 100, "min_of_products": 0.5, "max_kernel_ns": 20_000}
    references = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-recurrent/",
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such products take at least `min_share` of the step."""
        roofline_ns = _roofline_ns(rank)
        products = find_matrix_kernels(rank, "gemm").of_class(lambda k: not k.gemv_like)
        small = products.where(self._match_short(rank, roofline_ns))
        count, time_ns = len(small), small.time_ns
        cost_ns = rank.per_step(time_ns)
        if rank.count_per_step(count) < self.settings["min_kernels"]:
            return
        if count < self.settings["min_of_products"] * len(products):
            return
        if time_ns < MIN_TIME_NS or not self.exceeds_min_share(rank, cost_ns):
            return
        op = top_op(rank, small.mask)
        cells = _count_recurrent_cells(rank, small)
        advice = advise("small products", rank.context)
        if cells:
            advice = read_advice("cells of recurrent networks")
        saved = _saved_share(rank, small, roofline_ns)
        median_ns = int(np.median(rank.trace.gpu.dur_ns[small.mask]))
        yield self.finding(
            rank,
            title=f"{rank.count_per_step(count):,} matrix products {rank.per_unit} are too small for the GPU, half "
            f"of them shorter than {median_ns / 1e3:.1f} us",
            cost_ns=cost_ns,
            saving=Saving() if saved is None else Saving(0, None, round(cost_ns * saved), "bounded"),
            advice=advice,
            claim=Claim(small.time, kernels=True),
            confidence=0.7 if cells else 0.5,
            location=small.location,
            topics=topics_of_op(op),
            evidence=(
                Evidence("share of the step's matrix products", round(100 * count / max(len(products), 1), 1), "%"),
                Evidence("median kernel", median_ns, "ns"),
                Evidence("cells of recurrent networks", cells, "count"),
                Evidence("launched by", op),
                *top_kernels(rank, small.mask),
            ),
        )

    def _match_short(self, rank: Rank, roofline_ns: FloatArray | None) -> BoolArray:
        """For each GPU item whether it is so short that nothing but latency can bound it."""
        by_latency: BoolArray = rank.bounds.match_rows("latency")
        if roofline_ns is None:
            return by_latency
        is_short = by_latency | (rank.trace.gpu.dur_ns <= self.settings["max_kernel_ns"])
        with np.errstate(invalid="ignore"):
            does_little = roofline_ns <= _MAX_ROOFLINE_NS
        return np.where(np.isnan(roofline_ns), by_latency, does_little & is_short)


def _count_recurrent_cells(rank: Rank, kernels: GpuQuery) -> int:
    """How many cells of recurrent networks a step calls; 0 where no op is known to have launched the kernels."""
    if not (rank.trace.gpu.op[kernels.mask] >= 0).any():
        return 0
    return rank.count_per_step(len(rank.ops.named(_CELL_OP).in_steps()))


def _roofline_ns(rank: Rank) -> FloatArray | None:
    """Time of each GPU item's maths and traffic at attainable rates, without latency; None for an unknown device."""
    device, costs, verdicts = rank.device, rank.kernel_costs, rank.verdicts
    bandwidth = device.attainable_bandwidth_bytes_per_s if device else None
    if device is None or not bandwidth:
        return None
    rates = np.array([device.attainable_flops(device.matrix_peak_type(t)) or np.nan for t in verdicts.operands])
    result: FloatArray = np.maximum(costs.flops / rates[verdicts.operand[costs.kind]], costs.bytes / bandwidth) * 1e9
    return result


def _saved_share(rank: Rank, kernels: GpuQuery, roofline_ns: FloatArray | None) -> float | None:
    """The share of the kernels' time above their roofline; None unless that is known of at least half of the time."""
    if roofline_ns is None:
        return None
    dur_ns, best_ns = rank.trace.gpu.dur_ns[kernels.mask], roofline_ns[kernels.mask]
    known = ~np.isnan(best_ns)
    if 2 * dur_ns[known].sum() < dur_ns.sum():
        return None
    return float(np.maximum(dur_ns[known] - best_ns[known], 0).sum() / max(dur_ns.sum(), 1))
