"""The offset between the clocks of two ranks, by the ends of the collectives that both took part in.

A collective ends on all ranks at the same instant, to about 0.1 ms within a host. So the difference between the ends
that two ranks record of one collective is the difference of their clocks. The clocks of hosts rarely differ by more
than milliseconds (NTP), but seconds occur, and the GPUs of one host can disagree, too: so each rank gets an offset, the
median over its collectives, and in a long recording a drift (`rank_clocks`).
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.trace.arrays import Int64Array

# With aligned clocks the ends of partners differ by less than this (by 0.1 ms in recordings of one host).
END_TOLERANCE_NS = 500_000
# Threads of the CPU wake up when the scheduler lets them: in a recording with more threads than cores 5 ms late. A
# quarter of a step is the limit, as beyond half a step the collective of the next step would fit as well.
_CPU_END_TOLERANCE_NS = 20_000_000
_STEP_DIVISOR = 4
# With fewer partners than this an offset may be chance.
MIN_PARTNERS = 3
# Maximum number of ends a rank: pairs of ends are compared, at most 360,000 differences.
_MAX_ENDS = 600
# Steps repeat, so a shift by a whole step fits nearly as many ends: with this share of the best such shifts are equal.
_NEAR_BEST_SHARE = 0.9


def end_tolerance_ns(table: CollectiveTable) -> int:
    """By how much the ends of partners differ at most when clocks are aligned."""
    if table.on_gpu:
        return END_TOLERANCE_NS
    return int(np.clip(_step_ns(table) // _STEP_DIVISOR, END_TOLERANCE_NS, _CPU_END_TOLERANCE_NS))


def estimate_offset_ns(reference: CollectiveTable, other: CollectiveTable) -> int:
    """What to add to the times of `other`, estimated without its collectives.

    The difference of the files' time bases. Where steps of one number start further apart by it than a step is long,
    the median difference of these starts.
    """
    by_base = other.base_ns - reference.base_ns
    shared, row, other_row = np.intersect1d(reference.step_numbers, other.step_numbers, return_indices=True)
    if not len(shared):
        return by_base
    by_number = int(np.median(reference.step_start_ns[row] - other.step_start_ns[other_row]))
    return by_number if abs(by_number - by_base) > _step_ns(reference) else by_base


def _step_ns(table: CollectiveTable) -> int:
    """The median time from the start of a step to the next; the window's length where there are fewer than two."""
    distance = np.diff(table.step_start_ns)
    return int(np.median(distance)) if len(distance) else table.window_ns


def fit_offset_ns(
    reference_ns: Int64Array,
    reference_key: Int64Array,
    other_ns: Int64Array,
    other_key: Int64Array,
    expected_ns: int,
    within_ns: int,
) -> int | None:
    """What to add to `other` so that most ends of equal key coincide within `within_ns`; None where too few can.

    All differences between ends of equal key are sorted. Those of partners differ by no more than `within_ns`, so they
    form the largest cluster. For example, within 1::

        reference            10  14  23
        other                7   11  20
        differences          -10 -6 -1  3  3  3  7  12 16
        size of the cluster    1  1  1  3  2  1  1   1  1   that begins there: the offset is 3

    Of clusters that are nearly as large as the largest the one nearest to the expected offset counts.
    """
    a, b = reference_ns[-_MAX_ENDS:], other_ns[-_MAX_ENDS:]
    same_key = reference_key[-_MAX_ENDS:, None] == other_key[None, -_MAX_ENDS:]
    differences = np.sort((a[:, None] - b[None, :])[same_key])
    if len(differences) < MIN_PARTNERS:
        return None
    cluster_end = np.searchsorted(differences, differences + within_ns, side="right")
    count = cluster_end - np.arange(len(differences))
    if count.max() < MIN_PARTNERS:
        return None
    large = np.flatnonzero(count >= _NEAR_BEST_SHARE * count.max())
    # A median of each would be slow: those of the eight clusters that begin nearest to the expected offset will do.
    nearest = large[np.argsort(np.abs(differences[large] - expected_ns), kind="stable")[:8]].tolist()
    offsets = np.array([np.median(differences[i : cluster_end[i]]) for i in nearest])
    return int(offsets[np.argmin(np.abs(offsets - expected_ns))])
