"""Faster ways to compute a product, the kernels that they help, and the topics of its op: the rules PD201 to PD206."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import orjson

from perfdoctor.rules import NONE, GpuQuery, Rank, frozen_dataclass, occurring

MIN_TIME_NS = 10_000
"""Kernels that take less than this in total are not reported."""

# A dimension this small leaves a Tensor Core tile (16 x 8 x 16) mostly empty: such a product is bandwidth-bound.
_SMALL_DIMENSION = 16
# Ops that compute one product or convolution, and launch nothing else.
_SINGLE_OP = r"^aten::(\w*conv(olution|_|\d)\w*|mm|bmm|addmm|baddbmm)$"
_LAYER_SIGNS = {"convolution": "conv", "recurrent": "lstm|gru|rnn|cell"}


@frozen_dataclass
class Remedy:
    """A faster way to compute the same product.

    Attributes:
        name: Its name in a report, such as "tf32".
        peak_ratio: Its peak FLOP/s over the peak of the unit that is used now; None if unknown.
        bytes_ratio: Its memory traffic over the present one: a half where operands get half as wide.
        peak_type: The unit that it uses, a key of `Device.peaks_flops`; None if unknown.
    """

    name: str | None = None
    peak_ratio: float | None = None
    bytes_ratio: float = 1.0
    peak_type: str | None = None

    @property
    def best_share(self) -> float:
        """The share of its present time that a kernel takes at best, by the ratio of peaks; 0 where that is unknown."""
        return min(1 / self.peak_ratio, 1.0) if self.peak_ratio else 0.0


def find_helpers(rank: Rank, kernels: GpuQuery) -> GpuQuery:
    """What the ops of some matrix kernels launched besides: Winograd transforms, im2col, other layouts, split-K sums.

    A product or convolution costs that as well. None of an op that launched Tensor Core kernels too: what helps which
    of them is unknown.
    """
    ops, op = rank.trace.ops, rank.trace.gpu.op
    launched = np.zeros(len(ops) + 1, bool)
    launched[op[kernels.mask]] = True
    launched[op[rank.in_window & rank.verdicts.match_rows("yes")]] = False
    helped = launched & np.append(rank.trace.match_rows(ops, _SINGLE_OP), False)  # the last is for no op
    return rank.kernels.where(rank.in_window & rank.verdicts.match_rows("na") & helped[op])


def exclude_small_products(rank: Rank, kernels: GpuQuery) -> GpuQuery:
    """The kernels whose op multiplies no matrices with a dimension of 16 or less; all of them without shapes."""
    trace, costs = rank.trace, rank.kernel_costs
    rows = np.flatnonzero(kernels.mask)
    dims = np.append(trace.ops.dims, np.int32(NONE))[trace.gpu.op[rows]]
    has_small_dims = np.zeros(len(trace.strings) + 1, bool)  # the last is for ops without shapes
    has_small_dims[[code for code in occurring(dims).tolist() if _has_small_dimension(trace.strings[code])]] = True
    has_small_cost = costs.match_op_costs(
        lambda c: c.kind == "gemm" and min(c.m or 0, c.n or 0, c.k or 0) <= _SMALL_DIMENSION
    )
    is_large = kernels.mask.copy()
    is_large[rows] = ~(has_small_dims[dims] | has_small_cost[costs.op_cost[rows]])
    return kernels.where(is_large)


@lru_cache(maxsize=4096)  # three rules ask
def _has_small_dimension(dims: str) -> bool:
    """Whether an op's recorded input sizes are two matrices with M, N or K <= 16; False where they are unreadable."""
    try:
        sizes = orjson.loads(dims)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(sizes, list):
        return False
    matrices = [
        s[-2:] for s in sizes if isinstance(s, list) and 2 <= len(s) <= 3 and all(isinstance(n, int) for n in s)
    ]
    return len(matrices) == 2 and min(*matrices[0], *matrices[1]) <= _SMALL_DIMENSION


def topics_of_op(op: str | None) -> tuple[str, ...]:
    """What kind of layer an op's name tells, as topics of a finding: "convolution", "recurrent"; often none."""
    return tuple(topic for topic, sign in _LAYER_SIGNS.items() if op is not None and re.search(sign, op, re.IGNORECASE))
