"""Collectives of several ranks, matched to each other, on one clock.

On one host the ends of one collective agree across ranks to about 0.1 ms, while counts and positions differ: so
partners are found by end time, after the offset between the clocks was found from the ends themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfdoctor.trace.intervals import Int64Array

if TYPE_CHECKING:
    from perfdoctor.diagnosis.run import RankRun

# Ends of partners lie this close together once clocks are aligned (seen: 0.1 ms on one host).
_SAME_END_NS = 500_000
# The offset is searched over pairs of ends: this many a rank give at most 360,000 differences.
_SAMPLE = 600
# With fewer partners than this an offset may be chance.
_LEAST_PARTNERS = 3


@dataclass(frozen=True, slots=True, eq=False)
class MatchedCollectives:
    """Collectives that all ranks took part in.

    `start_ns` and `end_ns` of shape (ranks, n), on the clock of the first rank.

    `offset_ns` holds, for each rank, what was added to its times.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    offset_ns: Int64Array

    def __len__(self) -> int:
        return int(self.start_ns.shape[1])


def match_collectives(ranks: Sequence[RankRun]) -> MatchedCollectives | None:
    """The collectives of all ranks matched by their ends; None when a rank has none or they do not fit together."""
    times = [_collectives(rank) for rank in ranks]
    if any(len(start) < _LEAST_PARTNERS for start, _ in times):
        return None
    reference = times[0][1]
    columns = np.arange(len(reference))
    offsets, partners = [0], [columns]
    for rank, (_, end) in zip(ranks[1:], times[1:], strict=True):
        offset = _offset(reference, end, rank.trace.base_ns - ranks[0].trace.base_ns)
        if offset is None:
            return None
        offsets.append(offset)
        partners.append(_nearest(reference, end + offset))
    shared = np.all([p >= 0 for p in partners], axis=0)
    if shared.sum() < _LEAST_PARTNERS:
        return None
    rows = [p[shared] for p in partners]
    start = np.stack([t[0][r] + o for t, r, o in zip(times, rows, offsets, strict=True)])
    end = np.stack([t[1][r] + o for t, r, o in zip(times, rows, offsets, strict=True)])
    return MatchedCollectives(start, end, np.array(offsets, np.int64))


def _collectives(rank: RankRun) -> tuple[Int64Array, Int64Array]:
    """Start and end of the collective kernels, by end."""
    rows = rank.kernels_where(lambda k: k.category == "communication")
    start, end = rank.trace.gpu.start_ns[rows], rank.trace.gpu.end_ns[rows]
    order = np.argsort(end, kind="stable")
    return start[order], end[order]


def _offset(reference: Int64Array, other: Int64Array, base_ns: int) -> int | None:
    """What to add to `other` so that most ends coincide: the densest cluster of pairwise differences.

    Steps repeat, so a shift by a whole step fits nearly as well: of clusters with at least nine tenths of the best
    count the one nearest to what the files' base times say wins.
    """
    a, b = reference[-_SAMPLE:], other[-_SAMPLE:]
    differences = np.sort((a[:, None] - b[None, :]).ravel())
    reach = np.searchsorted(differences, differences + _SAME_END_NS, side="right")
    count = reach - np.arange(len(differences))
    if count.max() < min(_LEAST_PARTNERS, len(a), len(b)):
        return None
    good = np.flatnonzero(count >= 0.9 * count.max())
    best = good[np.argmin(np.abs(differences[good] - base_ns))]
    return int(np.median(differences[best : reach[best]]))


def _nearest(reference: Int64Array, other: Int64Array) -> Int64Array:
    """For each reference end the row of the other rank's nearest end.

    -1 where none is near or another reference is nearer to it.
    """
    right = np.clip(np.searchsorted(other, reference), 0, len(other) - 1)
    left = np.maximum(right - 1, 0)
    row = np.where(np.abs(other[left] - reference) <= np.abs(other[right] - reference), left, right)
    back = np.clip(np.searchsorted(reference, other[row]), 0, len(reference) - 1)
    before = np.maximum(back - 1, 0)
    mutual = np.where(np.abs(reference[before] - other[row]) <= np.abs(reference[back] - other[row]), before, back)
    near = (np.abs(other[row] - reference) <= _SAME_END_NS) & (reference[mutual] == reference)
    return np.where(near, row, -1)
