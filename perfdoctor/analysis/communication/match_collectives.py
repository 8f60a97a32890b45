"""The collectives of many ranks matched to each other, on one clock: who was there when.

Partners are found by process group and sequence number where both are recorded, else by kind and end: counts differ
between ranks in real traces, so the k-th of each are not partners. A group's collectives are matched among its members
alone. Ranks join one after the other, in the order given, which makes the result independent of who read which trace;
the work is a look-up a rank and one sort over all rows, so thousands of ranks take seconds.
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
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# Ends count from the first of the first rank; an hour either way fits in so many bits. What is above tells kinds and
# groups apart: 2^19 of them.
_END_BITS = 44
_SEQ_BITS = 40
# All members put the same amount into these: another size is another collective.
_EVEN = np.array([COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")])


@dataclass(frozen=True, slots=True, eq=False)
class MatchedCollectives:
    """Collectives that several ranks took part in, sorted by end, on the clock of the first rank.

    Attributes:
        tables: The ranks that could be aligned, in the order given.
        offset_ns: For each of them what was added to its times.
        unmatched: Ranks with collectives that fit with none of theirs.
        collective_of_row: For each of `tables` the collective of each of its rows; -1 for rows without partners.
        kind: Indices into COLLECTIVE_KINDS.
        end_ns: When it was over, by the first rank that took part.
        rank_count: How many ranks took part.
        step: The analysed step it belongs to, of the last to arrive; -1 outside of all.
        in_window: Whether the last to arrive came within its analysed window.
        has_group: Whether its process group is recorded.
        last, second: Index into `tables` of the last and of the second-latest to arrive.
        last_ns, second_ns: When they did.
        total_wait_ns: What the ranks waited for the last, all together, whether or not they had other work meanwhile.
        transfer_ns: From the last arrival to the end.
        last_before_ns, others_before_ns: (n, PHASES) what the last to arrive did before it, and the others on average.
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
    second_arriver: Int32Array
    last_arrival_ns: Int64Array
    second_arrival_ns: Int64Array
    total_wait_ns: Int64Array
    transfer_ns: Int64Array
    last_phase_ns: FloatArray
    others_phase_ns: FloatArray

    def __len__(self) -> int:
        return len(self.end_ns)


def match_collectives(tables: Sequence[CollectiveTable]) -> MatchedCollectives | None:
    """The collectives of all ranks matched; None when no two ranks have any in common."""
    remaining = [table for table in tables if len(table)]
    best: _Island | None = None
    while remaining and (best is None or len(remaining) > len(best.tables)):
        island = _Island(remaining)
        remaining = island.strangers
        if best is None or len(island.tables) > len(best.tables):
            best = island
    if best is None or len(best.tables) < 2:
        return None
    together = {id(table) for table in best.tables}
    matched = _gathered(best, tuple(t for t in tables if len(t) and id(t) not in together))
    return matched if len(matched) else None


@dataclass(slots=True)
class _Rows:
    """Collectives seen so far, sorted by `key`: group, kind and sequence or end in one number; with id and end."""

    key: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    number: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    end_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    bytes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, key: Int64Array, number: Int64Array, end_ns: Int64Array, size: Int64Array) -> None:
        if not len(key):
            return
        order = np.argsort(key, kind="stable")
        at = np.searchsorted(self.key, key[order])
        self.key = np.insert(self.key, at, key[order])
        self.number = np.insert(self.number, at, number[order])
        self.end_ns = np.insert(self.end_ns, at, end_ns[order])
        self.bytes = np.insert(self.bytes, at, size[order])


class _Island:
    """Ranks whose clocks can be aligned, directly or through others: the first table and all that fit to it."""

    def __init__(self, tables: Sequence[CollectiveTable]) -> None:
        self.tables: list[CollectiveTable] = []
        self.offsets: list[int] = []
        self.rows: list[Int64Array] = []
        self.strangers: list[CollectiveTable] = list(tables)
        self.base_ns = int(tables[0].end_ns[0])
        self._named, self._unnamed = _Rows(), _Rows()
        self._groups: dict[str, int] = {}
        self._numbers = 0
        self._hosts: dict[str | None, int] = {}
        # Who shares no group with those so far may share one with those to come.
        while self._grow():
            pass

    def _grow(self) -> bool:
        """Take in every table that fits; whether any did that could help others to."""
        waiting, before = [], len(self.tables)
        for table in self.strangers:
            offset = self._offset(table) if self.tables else 0
            if offset is None:
                waiting.append(table)
            else:
                self._join(table, offset)
        self.strangers = waiting
        return bool(waiting) and len(self.tables) > before

    def _offset(self, table: CollectiveTable) -> int | None:
        """What to add to the table's times; None when it has too little in common with the others."""
        key, named = self._keys(table)
        at, hit = _found(self._named.key, key[named])
        if hit.any():
            difference = self._named.end_ns[at[hit]] - table.end_ns[named][hit]
            offset = int(np.median(difference))
            # The same names with ends that no clock makes meet: another run of the program.
            return offset if (np.abs(difference - offset) <= end_tolerance_ns(table)).mean() >= _MOST else None
        reference = self._unnamed
        expected = self._expected(table)
        end, kinds = table.end_ns[~named], self._lane(table)[~named]
        if not len(end) or not len(reference.key):
            return None
        within = end_tolerance_ns(table)
        shifted = self._by_end(kinds, end + expected)
        near = _partners(reference.key, shifted, within)
        alike = np.isin(reference.key >> _END_BITS, kinds)
        if (near >= 0).sum() >= max(
            _ENOUGH * _in_common(reference.end_ns[alike], end + expected, within), MIN_PARTNERS
        ):
            rows = near >= 0
            return expected + _correction(reference.end_ns[near[rows]] - end[rows] - expected)
        order = np.argsort(reference.end_ns, kind="stable")
        lanes = reference.key[order] >> _END_BITS
        return fit_offset_ns(reference.end_ns[order], lanes, end, kinds, expected, within)

    def _expected(self, table: CollectiveTable) -> int:
        """The offset to be expected: that of another rank of the same host, else by what the traces say."""
        by_clock = table.base_ns - self.tables[0].base_ns
        known = self._hosts.get(table.host) if table.host is not None else None
        return by_clock + known if known is not None else estimate_offset_ns(self.tables[0], table)

    def _join(self, table: CollectiveTable, offset: int) -> None:
        """Give each row of a table its partner, or a number of its own."""
        key, named = self._keys(table)
        end = table.end_ns + offset
        number = np.full(len(table), NONE, np.int64)
        at, hit = _found(self._named.key, key[named])
        number[np.flatnonzero(named)[hit]] = self._named.number[at[hit]]
        rows = np.flatnonzero(~named)
        by_end = self._by_end(self._lane(table)[rows], end[rows])
        near = _partners(self._unnamed.key, by_end, end_tolerance_ns(table))
        same_size = self._same_size(table, rows, near)
        number[rows[same_size]] = self._unnamed.number[near[same_size]]
        # Kernels that share a number, such as those of one coalesced call, have partners only as a whole: the last.
        again = named.copy()
        again[len(number) - 1 - np.unique(key[::-1], return_index=True)[1]] = False
        number[again] = NONE
        fresh = number == NONE
        number[fresh] = self._numbers + np.arange(int(fresh.sum()))
        self._numbers += int(fresh.sum())
        new = fresh & named & ~again
        self._named.add(key[new], number[new], end[new], table.bytes[new])
        new = fresh[rows]
        self._unnamed.add(by_end[new], number[rows][new], end[rows][new], table.bytes[rows][new])
        self._hosts.setdefault(table.host, offset - (table.base_ns - (self.tables or [table])[0].base_ns))
        self.tables.append(table)
        self.offsets.append(offset)
        self.rows.append(number)

    def _same_size(self, table: CollectiveTable, rows: Int64Array, near: Int64Array) -> BoolArray:
        """Whether each of some rows has a partner that can be one by its size, too."""
        if not len(self._unnamed.key):
            return np.zeros(len(rows), bool)
        size, partner = table.bytes[rows], self._unnamed.bytes[near]
        differs = (size >= 0) & (partner >= 0) & (size != partner) & np.isin(table.kind[rows], _EVEN)
        return np.asarray((near >= 0) & ~differs, bool)

    def _lane(self, table: CollectiveTable) -> Int64Array:
        """Kind and group of each row as one small number."""
        codes = [self._groups.setdefault(text, len(self._groups) + 1) for text in table.strings]
        group = np.array([*codes, 0], np.int64)[table.group]
        return group * len(COLLECTIVE_KINDS) + table.kind

    def _keys(self, table: CollectiveTable) -> tuple[Int64Array, BoolArray]:
        """What names each collective across ranks, and whether group and sequence are recorded, so that it does."""
        named: BoolArray = (table.seq >= 0) & (table.group >= 0) & (table.seq < 1 << _SEQ_BITS)
        return (self._lane(table) << _SEQ_BITS) | np.where(named, table.seq, 0), named

    def _by_end(self, lane: Int64Array, end_ns: Int64Array) -> Int64Array:
        """Lane and end in one number, so that rows of different lanes lie far apart."""
        far = 1 << (_END_BITS - 2)
        relative = np.clip(end_ns - self.base_ns, -far, far)
        return (lane << _END_BITS) + relative + (1 << (_END_BITS - 1))


# So many of the ends near each other under the expected offset need no search for a better one.
_ENOUGH = 0.9
_MOST = 0.5
# More than so many collectives of one kind hardly end within the tolerance.
_ROUNDS = 3


def _in_common(reference: Int64Array, other: Int64Array, within: int) -> int:
    """How many partners two lists of ends can have at most: ranks may begin and stop to record at different times."""
    if not len(reference):
        return 0
    begin, end = max(reference.min(), other.min()) - within, min(reference.max(), other.max()) + within
    return int(min(((ends >= begin) & (ends <= end)).sum() for ends in (reference, other)))


def _correction(differences: Int64Array) -> int:
    """What partners' ends say against the expected offset: nothing, where it lies amid what they say."""
    low, middle, high = np.percentile(differences, (25, 50, 75))
    return 0 if low <= 0 <= high else int(middle)


def _found(sorted_keys: Int64Array, keys: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Where each key stands among sorted ones, and whether it is there."""
    if not len(sorted_keys):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return at, sorted_keys[at] == keys


def _partners(reference: Int64Array, other: Int64Array, within: int) -> Int64Array:
    """For each of `other` (any order) the position of its partner in the sorted reference, -1 where none is left.

    The nearest to each other become partners first, and then those that are left: two that end at nearly the same
    time are both found.
    """
    found = _mutual(reference, other, within)
    for _ in range(_ROUNDS):
        alone = np.ones(len(reference), bool)
        alone[found[found >= 0]] = False
        left, free = np.flatnonzero(found < 0), np.flatnonzero(alone)
        more = _mutual(reference[free], other[left], within)
        if not (more >= 0).any():
            break
        found[left[more >= 0]] = free[more[more >= 0]]
    return found


def _mutual(reference: Int64Array, other: Int64Array, within: int) -> Int64Array:
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
    first = np.ones(len(other), bool)
    first[order[1:]] = nearest[order[1:]] != nearest[order[:-1]]
    return np.where(first & (distance <= within), nearest, NONE)


def _gathered(island: _Island, apart: tuple[CollectiveTable, ...]) -> MatchedCollectives:
    """What happened at each collective that at least two ranks took part in."""
    tables = island.tables
    who = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
    number = np.concatenate(island.rows)
    start = np.concatenate([table.start_ns + offset for table, offset in zip(tables, island.offsets, strict=True)])
    end = np.concatenate([table.end_ns + offset for table, offset in zip(tables, island.offsets, strict=True)])
    # By collective, then by arrival; of ranks that arrive together the first in order counts as the last.
    order = np.lexsort((-who, start, number))
    number, who, start, end = number[order], who[order], start[order], end[order]
    first = np.flatnonzero(np.diff(number, prepend=-1))
    count = np.diff(first, append=len(number)).astype(np.int32)
    shared = count > 1
    tail = (first + count - 1)[shared]
    earliest = first[shared]
    sums = np.add.reduceat(start - np.repeat(start[first], count), first)[shared]
    before = np.concatenate([table.preceding_phase_ns for table in tables])[order].astype(np.float64)
    by_last = before[tail]
    others = (np.add.reduceat(before, first, axis=0)[shared] - by_last) / (count[shared] - 1)[:, None]
    over = np.maximum.reduceat(end, first)[shared]
    step = np.concatenate([table.step for table in tables])[order]
    inside = np.concatenate([table.in_window for table in tables])[order]
    by_end = np.argsort(over, kind="stable")
    place = np.full(int(number[-1]) + 1, NONE, np.int64)
    place[number[earliest][by_end]] = np.arange(len(by_end))
    kind = np.concatenate([table.kind for table in tables])[order]
    fields = {
        "kind": kind[tail],
        "end_ns": over,
        "rank_count": count[shared],
        "step": step[tail],
        "in_window": inside[tail],
        "has_group": np.concatenate([table.group >= 0 for table in tables])[order][tail],
        "last_arriver": who[tail],
        "second_arriver": who[tail - 1],
        "last_arrival_ns": start[tail],
        "second_arrival_ns": start[tail - 1],
        "total_wait_ns": count[shared] * (start[tail] - start[earliest]) - sums,
        "transfer_ns": np.maximum(over - start[tail], 0),
        "last_phase_ns": by_last,
        "others_phase_ns": others,
    }
    return MatchedCollectives(
        tables=tuple(tables),
        offset_ns=np.array(island.offsets, np.int64),
        unmatched=apart,
        collective_of_row=tuple(place[rows] for rows in island.rows),
        **{name: column[by_end] for name, column in fields.items()},
    )
