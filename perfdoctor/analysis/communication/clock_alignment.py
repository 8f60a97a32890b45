"""The clock of one rank against that of others: found from the ends of collectives that they shared.

A collective is over for all ranks at the same instant, to about 0.1 ms within a host. So the difference between what
two ranks call the end of one collective is the difference of their clocks. Hosts are rarely more than milliseconds
apart (NTP), but seconds are seen, and one host's GPUs can disagree, too: so each rank gets an offset of its own, a
median over its collectives. Clocks drift apart by some 10 us a second at most, which a window of seconds leaves far
below the spread of the ends: no drift is fitted.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.trace.arrays import Int64Array

# Ends of partners lie this close together once clocks are aligned (seen: 0.1 ms on one host).
END_TOLERANCE_NS = 500_000
# Threads of the CPU wake up when the scheduler lets them: seen, 5 ms apart on a machine with more threads than cores.
# Never so far that the next step's would do as well.
_SAME_END_ON_CPU_NS = 20_000_000
_OF_A_STEP = 4
# With fewer partners than this an offset may be chance.
MIN_PARTNERS = 3
# The offset is searched over pairs of ends: this many a rank give at most 360,000 differences.
_SAMPLE = 600
# Steps repeat, so a shift by a whole step fits nearly as well: such clusters of differences count as equals.
_NEARLY = 0.9


def end_tolerance_ns(table: CollectiveTable) -> int:
    """How far the ends of partners lie apart at most once clocks are aligned."""
    if table.on_gpu:
        return END_TOLERANCE_NS
    return int(np.clip(_step_ns(table) // _OF_A_STEP, END_TOLERANCE_NS, _SAME_END_ON_CPU_NS))


def estimate_offset_ns(reference: CollectiveTable, other: CollectiveTable) -> int:
    """What to add to the times of `other` by all that is known but its collectives.

    By what the files say of their clocks, unless the numbers of the steps tell that these are further apart than a
    step is long: then by the numbers.
    """
    by_clock = other.base_ns - reference.base_ns
    shared, mine, yours = np.intersect1d(reference.step_numbers, other.step_numbers, return_indices=True)
    if not len(shared):
        return by_clock
    begun = reference.step_start_ns[mine] - other.step_start_ns[yours]
    by_number = int(np.median(begun))
    return by_number if abs(by_number - by_clock) > _step_ns(reference) else by_clock


def _step_ns(table: CollectiveTable) -> int:
    """From the start of a step to the next, in the median; the window where there are fewer than two."""
    length = np.diff(table.step_start_ns)
    return int(np.median(length)) if len(length) else table.window_ns


def fit_offset_ns(
    reference_ns: Int64Array,
    reference_key: Int64Array,
    other_ns: Int64Array,
    other_key: Int64Array,
    expected_ns: int,
    within_ns: int,
) -> int | None:
    """What to add to `other` so that most ends of equal key coincide within `within_ns`; None when none stands out.

    Of offsets that fit nearly equally well the one nearest to the expected one counts.
    """
    a, b = reference_ns[-_SAMPLE:], other_ns[-_SAMPLE:]
    same = reference_key[-_SAMPLE:, None] == other_key[None, -_SAMPLE:]
    differences = np.sort((a[:, None] - b[None, :])[same])
    if len(differences) < MIN_PARTNERS:
        return None
    reach = np.searchsorted(differences, differences + within_ns, side="right")
    count = reach - np.arange(len(differences))
    if count.max() < MIN_PARTNERS:
        return None
    good = np.flatnonzero(count >= _NEARLY * count.max())
    middle = np.array([np.median(differences[i : reach[i]]) for i in _candidates(differences, good, expected_ns)])
    return int(middle[np.argmin(np.abs(middle - expected_ns))])


def _candidates(differences: Int64Array, good: Int64Array, expected_ns: int) -> list[int]:
    """The clusters next to the expected offset: a handful, since a median of each is worth computing."""
    nearest = np.argsort(np.abs(differences[good] - expected_ns), kind="stable")[:8]
    return [int(i) for i in good[nearest]]
