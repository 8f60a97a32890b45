"""The collectives of many ranks matched to each other, on one clock: which rank arrived when.

The partners of a collective are the rows of other ranks that record the same collective. They are found by process
group and sequence number where both are recorded, else by kind and end: counts differ between ranks in real traces, so
the k-th rows of two ranks need not be partners. Collectives of a group are matched among its members alone. Ranks are
added in the order given, so the result does not depend on which process read which trace. Each rank takes a look-up,
and all rows one sort, so thousands of ranks take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfdoctor.analysis.communication.clock_alignment import (
    MIN_PARTNERS,
    end_tolerance_ns,
    estimate_offset_ns,
    fit_offset_ns,
)
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables.quantiles import quantiles
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# A key is one number: kind and group of a collective (2^19 of them) in the bits above these, and below its sequence
# number, or its end, counted from the first end of the first rank (an hour either way).
_END_BITS = 44
_SEQ_BITS = 40
# All members put the same amount into these: a row of another size belongs to another collective.
_EQUAL_SIZE_KINDS = np.array(
    [COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")]
)
# Of the rows with group and number so many have partners at nearly the same end, or they are of another run.
_MIN_SAME_RUN_SHARE = 0.5
# With partners for so many of the rows under the expected offset no better offset is searched.
_MIN_FIT_SHARE = 0.9
# Hardly more collectives of one kind than this end within the tolerance.
_MAX_ROUNDS = 3


@frozen_dataclass(eq=False)
class MatchedCollectives:
    """Collectives that several ranks took part in, sorted by end, on the clock of the first rank.

    Attributes:
        tables: The ranks that could be aligned, in the order given.
        offset_ns: For each of them what to add to its times.
        unmatched: Ranks that have collectives, but share none with those.
        collective_of_row: For each of `tables` the collective of each of its rows; -1 for rows without partners.
        kind: Indices into COLLECTIVE_KINDS.
        end_ns: When it was over: the latest end that a rank records.
        rank_count: How many ranks took part.
        step: Index of the analysed step of the last arriver; -1 outside of all.
        in_window: Whether the last arriver arrived in its analysed window.
        has_group: Whether its process group is recorded.
        last_arriver: The rank that arrives last, as an index into `tables`.
        last_arrival_ns: When the last arriver arrives.
        second_arrival_ns: When the second-latest rank arrives.
        total_wait_ns: Sum over ranks of the time from their arrival to the last one, even if they had other work.
        transfer_ns: From the last arrival to the end.
        last_phase_ns: (n, PHASES) what the last arriver did before it, see `CollectiveTable.preceding_phase_ns`.
        others_phase_ns: (n, PHASES) what the other ranks did before it, on average.
        last_once_ns: How long the last arriver idled before it for what happens once.
        others_once_ns: The same of the other ranks, on average.
    """

    tables: tuple[CollectiveTable, ...]
    offset_ns: Int64Array
    unmatched: tuple[CollectiveTable, ...]
    collective_of_row: tuple[Int64Array, ...]
    kind: Int8Array
    end_ns: Int64Array
    rank_count: Int32Array
    step: Int32Array
    in_window: BoolArray
    has_group: BoolArray
    last_arriver: Int32Array
    last_arrival_ns: Int64Array
    second_arrival_ns: Int64Array
    total_wait_ns: Int64Array
    transfer_ns: Int64Array
    last_phase_ns: FloatArray
    others_phase_ns: FloatArray
    last_once_ns: FloatArray
    others_once_ns: FloatArray

    def __len__(self) -> int:
        return len(self.end_ns)


def match_collectives(tables: Sequence[CollectiveTable]) -> MatchedCollectives | None:
    """The collectives of all ranks matched; None when no two ranks have any in common."""
    remaining = [table for table in tables if len(table)]
    largest: _AlignedRanks | None = None
    while remaining and (largest is None or len(remaining) > len(largest.tables)):
        aligned = _AlignedRanks(remaining)
        remaining = aligned.unmatched
        if largest is None or len(aligned.tables) > len(largest.tables):
            largest = aligned
    if largest is None or len(largest.tables) < 2:
        return None
    matched_ids = {id(table) for table in largest.tables}
    matched = _summarize(largest, tuple(t for t in tables if len(t) and id(t) not in matched_ids))
    return matched if len(matched) else None


@dataclass(slots=True)
class _Collectives:
    """The collectives of the ranks aligned so far, sorted by key.

    Attributes:
        key: Kind and group with the sequence number, or with the end, in one number.
        number: Number of the collective.
        end_ns: Its end, by the first rank that took part.
        bytes: What that rank put into it; -1 where not recorded.
    """

    key: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    number: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    end_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    bytes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, key: Int64Array, number: Int64Array, end_ns: Int64Array, size: Int64Array) -> None:
        """Insert collectives, given in any order."""
        if not len(key):
            return
        order = np.argsort(key, kind="stable")
        at = np.searchsorted(self.key, key[order])
        self.key = np.insert(self.key, at, key[order])
        self.number = np.insert(self.number, at, number[order])
        self.end_ns = np.insert(self.end_ns, at, end_ns[order])
        self.bytes = np.insert(self.bytes, at, size[order])


class _AlignedRanks:
    """The first of some ranks, and all whose clocks can be aligned with its clock, directly or through others.

    Attributes:
        tables: These ranks, in the order in which they were aligned.
        offsets: For each of them what to add to its times.
        numbers: For each of them the number of the collective of each row.
        unmatched: The ranks that share too few collectives with them.
        base_ns: The instant that ends are counted from in keys.
    """

    def __init__(self, tables: Sequence[CollectiveTable]) -> None:
        self.tables: list[CollectiveTable] = []
        self.offsets: list[int] = []
        self.numbers: list[Int64Array] = []
        self.unmatched: list[CollectiveTable] = list(tables)
        self.base_ns = int(tables[0].end_ns[0])
        # Collectives with group and sequence number are found by these, the others by their ends.
        self._by_number, self._by_end = _Collectives(), _Collectives()
        self._groups: dict[str, int] = {}
        self._count = 0
        self._clock_errors: dict[str | None, int] = {}
        # A rank that shares no group with the ranks so far may share one with a rank that is added later.
        while self._add_matching():
            pass

    def _add_matching(self) -> bool:
        """Add the unmatched ranks that share collectives; whether another try can add more."""
        unmatched, count_before = [], len(self.tables)
        for table in self.unmatched:
            offset = self._find_offset(table) if self.tables else 0
            if offset is None:
                unmatched.append(table)
            else:
                self._add(table, offset)
        self.unmatched = unmatched
        return bool(unmatched) and len(self.tables) > count_before

    def _find_offset(self, table: CollectiveTable) -> int | None:
        """What to add to the table's times; None when it shares too few collectives with the others."""
        key, has_number = self._number_keys(table)
        at, known = _look_up(self._by_number.key, key[has_number])
        if known.any():
            difference = self._by_number.end_ns[at[known]] - table.end_ns[has_number][known]
            offset = int(np.median(difference))
            fits = np.abs(difference - offset) <= end_tolerance_ns(table)
            return offset if fits.mean() >= _MIN_SAME_RUN_SHARE else None
        reference = self._by_end
        expected = self._expected_offset(table)
        end, kind_and_group = table.end_ns[~has_number], self._kind_and_group(table)[~has_number]
        if not len(end) or not len(reference.key):
            return None
        within = end_tolerance_ns(table)
        partner = _find_partners(reference.key, self._end_keys(kind_and_group, end + expected), within)
        rows = partner >= 0
        same_kinds = np.isin(reference.key >> _END_BITS, kind_and_group)
        possible = _max_partner_count(reference.end_ns[same_kinds], end + expected, within)
        if rows.sum() >= max(_MIN_FIT_SHARE * possible, MIN_PARTNERS):
            return expected + _offset_correction(reference.end_ns[partner[rows]] - end[rows] - expected)
        order = np.argsort(reference.end_ns, kind="stable")
        reference_kinds = reference.key[order] >> _END_BITS
        return fit_offset_ns(reference.end_ns[order], reference_kinds, end, kind_and_group, expected, within)

    def _expected_offset(self, table: CollectiveTable) -> int:
        """The offset by the clock of another rank of the same host, else as estimated from the traces."""
        by_base = table.base_ns - self.tables[0].base_ns
        error = self._clock_errors.get(table.host) if table.host is not None else None
        return by_base + error if error is not None else estimate_offset_ns(self.tables[0], table)

    def _add(self, table: CollectiveTable, offset: int) -> None:
        """Number the rows of a rank: each gets the number of its partners, or a new one."""
        key, has_number = self._number_keys(table)
        end = table.end_ns + offset
        number = np.full(len(table), NONE, np.int64)
        at, known = _look_up(self._by_number.key, key[has_number])
        number[np.flatnonzero(has_number)[known]] = self._by_number.number[at[known]]
        rows = np.flatnonzero(~has_number)
        end_key = self._end_keys(self._kind_and_group(table)[rows], end[rows])
        partner = _find_partners(self._by_end.key, end_key, end_tolerance_ns(table))
        fits = self._has_partner_of_its_size(table, rows, partner)
        number[rows[fits]] = self._by_end.number[partner[fits]]
        # Of kernels with one sequence number, such as those of a coalesced call, only the last one gets partners.
        repeated = has_number.copy()
        repeated[len(number) - 1 - np.unique(key[::-1], return_index=True)[1]] = False
        number[repeated] = NONE
        is_new = number == NONE
        number[is_new] = self._count + np.arange(int(is_new.sum()))
        self._count += int(is_new.sum())
        new = is_new & has_number & ~repeated
        self._by_number.add(key[new], number[new], end[new], table.bytes[new])
        new = is_new[rows]
        self._by_end.add(end_key[new], number[rows][new], end[rows][new], table.bytes[rows][new])
        self._clock_errors.setdefault(table.host, offset - (table.base_ns - (self.tables or [table])[0].base_ns))
        self.tables.append(table)
        self.offsets.append(offset)
        self.numbers.append(number)

    def _has_partner_of_its_size(self, table: CollectiveTable, rows: Int64Array, partner: Int64Array) -> BoolArray:
        """For each of some rows whether it has a partner, and of the same size where all members put in the same."""
        if not len(self._by_end.key):
            return np.zeros(len(rows), bool)
        size, partner_size = table.bytes[rows], self._by_end.bytes[partner]
        differs = (size >= 0) & (partner_size >= 0) & (size != partner_size)
        return np.asarray((partner >= 0) & ~(differs & np.isin(table.kind[rows], _EQUAL_SIZE_KINDS)), bool)

    def _kind_and_group(self, table: CollectiveTable) -> Int64Array:
        """Kind and group of each row as one small number."""
        codes = [self._groups.setdefault(text, len(self._groups) + 1) for text in table.strings]
        group = np.array([*codes, 0], np.int64)[table.group]
        return group * len(COLLECTIVE_KINDS) + table.kind

    def _number_keys(self, table: CollectiveTable) -> tuple[Int64Array, BoolArray]:
        """For each row kind, group and sequence number as one number, and whether the latter two are recorded."""
        has_number: BoolArray = (table.seq >= 0) & (table.group >= 0) & (table.seq < 1 << _SEQ_BITS)
        return (self._kind_and_group(table) << _SEQ_BITS) | np.where(has_number, table.seq, 0), has_number

    def _end_keys(self, kind_and_group: Int64Array, end_ns: Int64Array) -> Int64Array:
        """For each row kind, group and end as one number: ends of two kinds or groups differ by an hour at least."""
        limit = 1 << (_END_BITS - 2)
        relative = np.clip(end_ns - self.base_ns, -limit, limit)
        return (kind_and_group << _END_BITS) + relative + (1 << (_END_BITS - 1))


def _max_partner_count(reference: Int64Array, other: Int64Array, within: int) -> int:
    """How many partners two lists of ends can have at most: ranks may start and stop recording at different times."""
    if not len(reference):
        return 0
    begin, end = max(reference.min(), other.min()) - within, min(reference.max(), other.max()) + within
    return int(min(((ends >= begin) & (ends <= end)).sum() for ends in (reference, other)))


def _offset_correction(differences: Int64Array) -> int:
    """What to add to the expected offset, given how partners' ends differ under it; 0 where that is only scatter."""
    low, middle, high = quantiles(differences)
    return 0 if low <= 0 <= high else int(middle)


def _look_up(sorted_keys: Int64Array, keys: Int64Array) -> tuple[Int64Array, BoolArray]:
    """For each key its position among the sorted ones, and whether it is there."""
    if not len(sorted_keys):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return at, sorted_keys[at] == keys


def _find_partners(reference: Int64Array, other: Int64Array, within: int) -> Int64Array:
    """For each of `other` (any order) the position of its partner in the sorted reference; -1 where none is near.

    Those nearest to each other become partners first, then the remaining ones, so that two collectives that end at
    nearly the same time both find theirs. For example, within 4::

        reference  10  12  30
        other      13  14      13 takes 12; then 14, whose nearest is taken, takes 10
    """
    found = _find_mutual_nearest(reference, other, within)
    for _ in range(_MAX_ROUNDS):
        is_free = np.ones(len(reference), bool)
        is_free[found[found >= 0]] = False
        remaining, free = np.flatnonzero(found < 0), np.flatnonzero(is_free)
        nearest = _find_mutual_nearest(reference[free], other[remaining], within)
        if not (nearest >= 0).any():
            break
        found[remaining[nearest >= 0]] = free[nearest[nearest >= 0]]
    return found


def _find_mutual_nearest(reference: Int64Array, other: Int64Array, within: int) -> Int64Array:
    """For each of `other` the position of the nearest in the sorted reference.

    -1 where that is further away than `within`, or another of `other` is nearer to it.
    """
    if not len(reference) or not len(other):
        return np.full(len(other), NONE, np.int64)
    right = np.minimum(np.searchsorted(reference, other), len(reference) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(np.abs(reference[left] - other) <= np.abs(reference[right] - other), left, right)
    distance = np.abs(reference[nearest] - other)
    order = np.lexsort((distance, nearest))
    is_nearest = np.ones(len(other), bool)
    is_nearest[order[1:]] = nearest[order[1:]] != nearest[order[:-1]]
    return np.where(is_nearest & (distance <= within), nearest, NONE)


def _summarize(aligned: _AlignedRanks, unmatched: tuple[CollectiveTable, ...]) -> MatchedCollectives:
    """The collectives that at least two ranks took part in, by the numbers of their rows.

    All rows are sorted by collective, then by arrival, for example::

        row     0  1  2  3  4
        number  0  0  0  1  2
        start   5  7  9  8  6      collective 0 has three ranks: row 0 is the earliest, row 2 the last
    """
    tables = aligned.tables
    rank = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
    number = np.concatenate(aligned.numbers)
    start = np.concatenate([table.start_ns + offset for table, offset in zip(tables, aligned.offsets, strict=True)])
    end = np.concatenate([table.end_ns + offset for table, offset in zip(tables, aligned.offsets, strict=True)])
    # Of ranks that arrive at the same instant the first one counts as the last arriver.
    order = np.lexsort((-rank, start, number))
    number, rank, start, end = number[order], rank[order], start[order], end[order]
    first = np.flatnonzero(np.diff(number, prepend=-1))
    count = np.diff(first, append=len(number)).astype(np.int32)
    shared = count > 1
    earliest, last = first[shared], (first + count - 1)[shared]
    after_earliest = np.add.reduceat(start - np.repeat(start[first], count), first)[shared]
    before = np.concatenate([np.column_stack((each.preceding_phase_ns, each.preceding_once_ns)) for each in tables])
    before = before[order].astype(np.float64)
    others_before = (np.add.reduceat(before, first, axis=0)[shared] - before[last]) / (count[shared] - 1)[:, None]
    latest_end = np.maximum.reduceat(end, first)[shared]
    by_end = np.argsort(latest_end, kind="stable")
    row_of_number = np.full(int(number[-1]) + 1, NONE, np.int64)
    row_of_number[number[earliest][by_end]] = np.arange(len(by_end))
    of_last = order[last]
    fields = {
        "kind": np.concatenate([table.kind for table in tables])[of_last],
        "end_ns": latest_end,
        "rank_count": count[shared],
        "step": np.concatenate([table.step for table in tables])[of_last],
        "in_window": np.concatenate([table.in_window for table in tables])[of_last],
        "has_group": np.concatenate([table.group >= 0 for table in tables])[of_last],
        "last_arriver": rank[last],
        "last_arrival_ns": start[last],
        "second_arrival_ns": start[last - 1],
        "total_wait_ns": count[shared] * (start[last] - start[earliest]) - after_earliest,
        "transfer_ns": np.maximum(latest_end - start[last], 0),
        "last_phase_ns": before[last, :-1],
        "others_phase_ns": others_before[:, :-1],
        "last_once_ns": before[last, -1],
        "others_once_ns": others_before[:, -1],
    }
    return MatchedCollectives(
        tables=tuple(tables),
        offset_ns=np.array(aligned.offsets, np.int64),
        unmatched=unmatched,
        collective_of_row=tuple(row_of_number[numbers] for numbers in aligned.numbers),
        **{name: column[by_end] for name, column in fields.items()},
    )
