"""Memory-bound kernels on float32: in half precision they move half of the bytes."""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._kernel_ranges import DurationRange, efficiencies_on, roof_times_ns
from perfdoctor.rules import ANY_KERNEL, GpuQuery, Rank

_BYTES_RATIO = 0.5


def find_float32_traffic(rank: Rank) -> GpuQuery:
    """The kernels of the window that only move float32, and are long enough to be bound by that."""
    costs = rank.kernel_costs
    on_float32 = costs.match_op_costs(lambda cost: cost.kind == "memory" and cost.dtype == "fp32")[costs.op_cost]
    is_bound = costs.is_main_kernel & on_float32 & ~rank.bounds.match_rows("latency", "invalid")
    return rank.kernels.where(rank.in_window & is_bound)


def halve_traffic(rank: Rank, kernels: GpuQuery) -> DurationRange:
    """How long such kernels take on half as many bytes: at best half as long.

    Shorter kernels reach less of the bandwidth, and one that reaches less than its like today will then, too.
    """
    no_maths = np.full(len(kernels), np.inf)
    now_ns = np.maximum(rank.trace.gpu.dur_ns[kernels.mask].astype(np.float64), 1)
    roof_ns = roof_times_ns(rank, kernels, no_maths, 1.0)
    half_roof_ns = roof_times_ns(rank, kernels, no_maths, _BYTES_RATIO)
    fraction = np.fmin(roof_ns / now_ns / efficiencies_on(rank, "memory", ANY_KERNEL, roof_ns)[:, 1], 1.0)
    low, expected, _ = efficiencies_on(rank, "memory", ANY_KERNEL, half_roof_ns).T
    best_ns = now_ns * _BYTES_RATIO
    known = ~np.isnan(half_roof_ns / expected)
    slowest_ns, expected_ns = (
        np.where(known, np.clip(half_roof_ns / (share * fraction), best_ns, now_ns), now_ns)
        for share in (low, expected)
    )
    return DurationRange(
        now_ns, slowest_ns, expected_ns, best_ns, known_share=float(now_ns[known].sum() / max(now_ns.sum(), 1))
    )
