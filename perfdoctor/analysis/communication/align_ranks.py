"""The ranks whose clocks can be aligned with that of the first one, and which of their collectives are the same.

The partners of a collective are the rows of other ranks that record the same collective. They are found by process
group and sequence number where both are recorded, else by kind and end: counts differ between ranks in real traces, so
the k-th rows of two ranks need not be partners. Collectives of a group are matched among its members alone. A rank
takes a look-up in each of its groups; one whose groups and numbers are those of a rank before it takes none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfdoctor.analysis.communication.clock_alignment import (
    MIN_PARTNERS,
    end_tolerance_ns,
    estimate_offset_ns,
    fit_offset_ns,
)
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.rank_clocks import RankClock, fit_clock
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables.quantiles import quantiles
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# A key is one number: kind and group of a collective (2^19 of them) in the bits above these, and below its end, counted
# from the first end of the first rank (an hour either way).
_END_BITS = 44
# All members put the same amount into these: a row of another size belongs to another collective.
_EQUAL_SIZE_KINDS = np.array(
    [COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")]
)
# Share of the rows with group and number that have partners at nearly the same end; with fewer it is another run.
_MIN_SAME_RUN_SHARE = 0.5
# Where this share of the rows has partners under the expected offset, no better offset is searched.
_MIN_FIT_SHARE = 0.9
# Hardly more collectives of one kind than this end within the tolerance.
_MAX_ROUNDS = 3
# Each round of fitting a drift to ends finds partners further away in time; the fourth hardly finds more.
_MAX_DRIFT_ROUNDS = 4
# Cache size: ranks of one program have the same rows, and their keys are kept.
_MAX_KNOWN_KEYS = 256


@dataclass(slots=True)
class _Collectives:
    """Collectives of the ranks aligned so far, sorted by key.

    Attributes:
        key: The sequence number, or kind, group and end in one number.
        number: Number of the collective.
        bytes: What the first rank that took part put into it; -1 where not recorded.
    """

    key: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    number: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    bytes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, key: Int64Array, number: Int64Array, size: Int64Array) -> None:
        """Insert collectives, given in any order."""
        if not len(key):
            return
        order = np.argsort(key, kind="stable")
        at = np.searchsorted(self.key, key[order])
        self.key = np.insert(self.key, at, key[order])
        self.number = np.insert(self.number, at, number[order])
        self.bytes = np.insert(self.bytes, at, size[order])


@dataclass(slots=True, eq=False)
class _Keys:
    """What the rows of a table are found by; tables with the same kinds, groups and sequence numbers share one.

    Attributes:
        kind_and_group: For each row one small number.
        seq: Its sequence number.
        has_number: Whether group and sequence number are recorded.
        rows_of: By kind and group the rows with a number.
        is_repeated: Rows with the sequence number of a later one, such as the kernels of a coalesced call: only the
            last one gets partners.
        numbers: The numbers of the collectives, once all of them are known by their sequence numbers.
    """

    kind_and_group: Int64Array
    seq: Int64Array
    has_number: BoolArray
    rows_of: dict[int, Int64Array]
    is_repeated: BoolArray
    numbers: Int64Array | None = None


class AlignedRanks:
    """The first of some ranks, and all whose clocks can be aligned with its clock, directly or through others.

    Attributes:
        tables: These ranks, in the order in which they were aligned.
        clocks: For each of them its clock.
        numbers: For each of them the number of the collective of each row. Ranks whose rows are all known by their
            sequence numbers, and the same, share one array.
        unmatched: The ranks that share too few collectives with them.
        count: How many numbers there are.
    """

    def __init__(self, tables: Sequence[CollectiveTable]) -> None:
        self.tables: list[CollectiveTable] = []
        self.clocks: list[RankClock] = []
        self.numbers: list[Int64Array] = []
        self.unmatched: list[CollectiveTable] = list(tables)
        self.count = 0
        self._base_ns = int(tables[0].end_ns[0])
        # Collectives with group and sequence number are found by these, the others by their ends.
        self._by_number: dict[int, _Collectives] = {}
        self._by_end = _Collectives()
        self._end_ns = np.empty(0, np.int64)  # by number, by the first rank that took part; longer than `count`
        self._groups: dict[str, int] = {}
        self._clock_errors: dict[str | None, int] = {}
        self._known_keys: dict[Hashable, _Keys] = {}
        # A rank that shares no group with the ranks so far may share one with a rank that is added later.
        while self._add_matching():
            pass

    def _add_matching(self) -> bool:
        """Add the unmatched ranks that share collectives; whether another try can add more."""
        unmatched, count_before = [], len(self.tables)
        for table in self.unmatched:
            keys = self._keys_of(table)
            clock = self._find_clock(table, keys) if self.tables else RankClock()
            if clock is None:
                unmatched.append(table)
            else:
                self._add(table, keys, clock)
        self.unmatched = unmatched
        return bool(unmatched) and len(self.tables) > count_before

    def _find_clock(self, table: CollectiveTable, keys: _Keys) -> RankClock | None:
        """The table's clock; None when it shares too few collectives with the others."""
        number = self._look_up(keys)
        known = number >= 0
        if not known.any():
            return self._find_clock_by_ends(table, keys)
        rows = slice(None) if known.all() else known
        own_ns = table.end_ns[rows]
        difference_ns = self._end_ns[number[rows]] - own_ns
        clock = fit_clock(own_ns, difference_ns)
        fits = np.abs(own_ns + difference_ns - clock.to_common(own_ns)) <= end_tolerance_ns(table)
        return clock if fits.mean() >= _MIN_SAME_RUN_SHARE else None

    def _find_clock_by_ends(self, table: CollectiveTable, keys: _Keys) -> RankClock | None:
        """The same by rows without sequence numbers."""
        reference, rows = self._by_end, ~keys.has_number
        end, kind_and_group = table.end_ns[rows], keys.kind_and_group[rows]
        if not len(end) or not len(reference.key):
            return None
        expected, within = self._expected_offset(table), end_tolerance_ns(table)
        reference_end = self._end_ns[reference.number]
        partner = _find_partners(reference.key, self._end_keys(kind_and_group, end + expected), within)
        found = partner >= 0
        same_kinds = np.isin(reference.key >> _END_BITS, kind_and_group)
        possible = _max_partner_count(reference_end[same_kinds], end + expected, within)
        if found.sum() >= max(_MIN_FIT_SHARE * possible, MIN_PARTNERS):
            offset: int | None = expected + _offset_correction(reference_end[partner[found]] - end[found] - expected)
        else:
            order = np.argsort(reference_end, kind="stable")
            reference_kinds = reference.key[order] >> _END_BITS
            offset = fit_offset_ns(reference_end[order], reference_kinds, end, kind_and_group, expected, within)
        return None if offset is None else self._fit_drift_by_ends(end, kind_and_group, offset, within)

    def _fit_drift_by_ends(self, end: Int64Array, kind_and_group: Int64Array, offset: int, within: int) -> RankClock:
        """The clock with that offset; with a drift where the ends of more and more partners show one."""
        reference, clock, count = self._by_end, RankClock(offset), 0
        for _ in range(_MAX_DRIFT_ROUNDS):
            partner = _find_partners(reference.key, self._end_keys(kind_and_group, clock.to_common(end)), within)
            found = partner >= 0
            if found.sum() <= count:
                break
            count = int(found.sum())
            fitted = fit_clock(end[found], self._end_ns[reference.number[partner[found]]] - end[found])
            if not fitted.drift:
                break
            clock = fitted
        return clock

    def _expected_offset(self, table: CollectiveTable) -> int:
        """The offset by the clock of another rank of the same host, else as estimated from the traces."""
        by_base = table.base_ns - self.tables[0].base_ns
        error = self._clock_errors.get(table.host) if table.host is not None else None
        return by_base + error if error is not None else estimate_offset_ns(self.tables[0], table)

    def _add(self, table: CollectiveTable, keys: _Keys, clock: RankClock) -> None:
        """Number the rows of a rank: each gets the number of its partners, or a new one."""
        self._clock_errors.setdefault(
            table.host, clock.offset_ns - (table.base_ns - (self.tables or [table])[0].base_ns)
        )
        self.tables.append(table)
        self.clocks.append(clock)
        if keys.numbers is not None:
            self.numbers.append(keys.numbers)
            return
        end = clock.to_common(table.end_ns)
        number = self._look_up(keys)
        rows = np.flatnonzero(~keys.has_number)
        end_key = self._end_keys(keys.kind_and_group[rows], end[rows])
        partner = _find_partners(self._by_end.key, end_key, end_tolerance_ns(table))
        fits = self._has_partner_of_its_size(table, rows, partner)
        number[rows[fits]] = self._by_end.number[partner[fits]]
        number[keys.is_repeated] = NONE
        is_new = number == NONE
        number[is_new] = self._number_new(end[is_new])
        for kind_and_group, numbered in keys.rows_of.items():
            new = numbered[is_new[numbered] & ~keys.is_repeated[numbered]]
            self._by_number.setdefault(kind_and_group, _Collectives()).add(keys.seq[new], number[new], table.bytes[new])
        new = is_new[rows]
        self._by_end.add(end_key[new], number[rows][new], table.bytes[rows][new])
        if not len(rows) and not keys.is_repeated.any():
            keys.numbers = number
        self.numbers.append(number)

    def _number_new(self, end_ns: Int64Array) -> Int64Array:
        """Numbers for new collectives, given by their ends."""
        first, self.count = self.count, self.count + len(end_ns)
        if self.count > len(self._end_ns):
            self._end_ns = np.concatenate((self._end_ns, np.empty(self.count, np.int64)))
        self._end_ns[first : self.count] = end_ns
        return np.arange(first, self.count)

    def _has_partner_of_its_size(self, table: CollectiveTable, rows: Int64Array, partner: Int64Array) -> BoolArray:
        """For each of some rows whether it has a partner, and of the same size where all members put in the same."""
        if not len(self._by_end.key):
            return np.zeros(len(rows), bool)
        size, partner_size = table.bytes[rows], self._by_end.bytes[partner]
        differs = (size >= 0) & (partner_size >= 0) & (size != partner_size)
        return np.asarray((partner >= 0) & ~(differs & np.isin(table.kind[rows], _EQUAL_SIZE_KINDS)), bool)

    def _keys_of(self, table: CollectiveTable) -> _Keys:
        """What the rows of a table are found by."""
        content = (table.strings, table.content_of("kind", "group", "seq"))
        keys = self._known_keys.get(content)
        if keys is None:
            if len(self._known_keys) >= _MAX_KNOWN_KEYS:
                self._known_keys.clear()
            keys = self._known_keys[content] = self._make_keys(table)
        return keys

    def _make_keys(self, table: CollectiveTable) -> _Keys:
        codes = [self._groups.setdefault(text, len(self._groups) + 1) for text in table.strings]
        group = np.array([*codes, 0], np.int64)[table.group]
        kind_and_group = group * len(COLLECTIVE_KINDS) + table.kind
        seq, has_number = table.seq, np.asarray((table.seq >= 0) & (table.group >= 0), bool)
        rows_of = {each: np.flatnonzero(has_number & (kind_and_group == each)) for each in set(kind_and_group.tolist())}
        is_repeated = has_number.copy()
        for rows in rows_of.values():
            is_repeated[rows[len(rows) - 1 - np.unique(seq[rows][::-1], return_index=True)[1]]] = False
        return _Keys(kind_and_group, seq, has_number, rows_of, is_repeated)

    def _look_up(self, keys: _Keys) -> Int64Array:
        """For each row the number of the collective with its group and sequence number; -1 where there is none yet."""
        if keys.numbers is not None:
            return keys.numbers
        number = np.full(len(keys.seq), NONE, np.int64)
        for kind_and_group, rows in keys.rows_of.items():
            known = self._by_number.get(kind_and_group)
            if known is not None and len(known.key):
                at = np.minimum(np.searchsorted(known.key, keys.seq[rows]), len(known.key) - 1)
                number[rows] = np.where(known.key[at] == keys.seq[rows], known.number[at], NONE)
        return number

    def _end_keys(self, kind_and_group: Int64Array, end_ns: Int64Array) -> Int64Array:
        """For each row kind, group and end as one number: ends of two kinds or groups differ by an hour at least."""
        limit = 1 << (_END_BITS - 2)
        relative = np.clip(end_ns - self._base_ns, -limit, limit)
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
