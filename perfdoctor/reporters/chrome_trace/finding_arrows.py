"""Arrows from a finding to the calls and the GPU items behind it: a few for each finding, the dearest.

Viewers follow an arrow forward in time, so its points come in that order. For idle time that is from the finding over
the late launch to the kernel that ended it; for the time of kernels, which were launched before they ran, from the
launch over the finding to the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.reporters.chrome_trace.slices import SLICE, Slices, TrackId
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.intervals import Intervals, overlap

_ARROWS = 3  # for each finding: more hide what they point to


@frozen_dataclass
class ArrowPoint:
    """A point of an arrow: within the slice on this track that is open then; None is the track of the finding."""

    time_ns: int
    track: tuple[TrackId, TrackId] | None = None


@frozen_dataclass
class Arrow:
    """An arrow of a finding, through two or three slices in the order of time."""

    finding: Finding
    points: tuple[ArrowPoint, ...]


def find_arrows(
    findings: tuple[Finding, ...], rank: Rank, slices: Slices, moved: Mapping[int, int | str]
) -> tuple[Arrow, ...]:
    """The arrows of the findings that claim time; empty where the trace has no GPU items.

    `slices` are what viewers draw of its file, `moved` the new thread ids of those that move, by place.
    """
    wanted = [(finding, item, at) for finding in findings for item, at in _dearest_items(finding, rank)]
    places = _SlicePlaces(rank, slices, moved, [item for _, item, _ in wanted])
    arrows = []
    for finding, item, at in wanted:
        ends = places.of_item(item)
        if ends:
            points = [(at, 0, ArrowPoint(at)), *((point.time_ns, 1 + i, point) for i, point in enumerate(ends))]
            arrows.append(Arrow(finding, tuple(point for *_, point in sorted(points, key=lambda each: each[:2]))))
    return tuple(arrows)


def _dearest_items(finding: Finding, rank: Rank) -> list[tuple[int, int]]:
    """GPU items behind a finding, with a time of its claim for each, the dearest first."""
    gpu, claimed = rank.trace.gpu, finding.claim.intervals
    if not len(claimed) or not len(gpu):
        return []
    if finding.edit is not None and len(finding.edit.items):
        rows = finding.edit.items.index
    elif finding.claim.kernels:
        rows = np.arange(len(gpu))
    else:
        return _items_after_longest(claimed, gpu.start_ns)
    cost = overlap(gpu.start_ns[rows], gpu.end_ns[rows], claimed)
    best = rows[np.argsort(-cost, kind="stable")[:_ARROWS]]
    best = best[overlap(gpu.start_ns[best], gpu.end_ns[best], claimed) > 0]
    if not len(best):
        return _items_after_longest(claimed, gpu.start_ns)
    first = np.searchsorted(claimed[:, 1], gpu.start_ns[best], side="right")
    times = np.maximum(claimed[first, 0], gpu.start_ns[best])
    return list(zip(best.tolist(), times.tolist(), strict=True))


def _items_after_longest(claimed: Intervals, start_ns: Int64Array) -> list[tuple[int, int]]:
    """The items that start when the longest intervals end, with the beginning of each."""
    longest = np.argsort(claimed[:, 0] - claimed[:, 1], kind="stable")[:_ARROWS]
    items = np.searchsorted(start_ns, claimed[longest, 1], side="left")
    inside = items < len(start_ns)
    return list(zip(items[inside].tolist(), claimed[longest[inside], 0].tolist(), strict=True))


class _SlicePlaces:
    """Where the slices of some GPU items and of their launching calls are drawn."""

    def __init__(self, rank: Rank, slices: Slices, moved: Mapping[int, int | str], items: list[int]) -> None:
        self._trace = trace = rank.raw_trace
        self._moved = moved
        self._slices = slices
        calls = [call for call in trace.gpu.call[items].tolist() if call >= 0]
        starts = np.concatenate((trace.gpu.start_ns[items], trace.calls.start_ns[calls]))
        rows = np.flatnonzero((slices.kind == SLICE) & np.isin(slices.start_ns, starts))
        keys = zip(slices.start_ns[rows].tolist(), slices.end_ns[rows].tolist(), slices.id[rows].tolist(), strict=True)
        self._rows = dict(zip(keys, rows.tolist(), strict=True))

    def of_item(self, item: int) -> list[ArrowPoint]:
        """The launching call, if it is known, and the item; empty where the item is not found."""
        gpu, calls = self._trace.gpu, self._trace.calls
        at_item = self._point(int(gpu.start_ns[item]), int(gpu.end_ns[item]), int(gpu.correlation[item]))
        if at_item is None:
            return []
        call = int(gpu.call[item])
        at_call = None
        if call >= 0:
            at_call = self._point(int(calls.start_ns[call]), int(calls.end_ns[call]), int(calls.correlation[call]))
        return [at_item] if at_call is None else [at_call, at_item]

    def _point(self, start: int, end: int, correlation: int) -> ArrowPoint | None:
        row = self._rows.get((start, end, correlation))
        if row is None:
            return None
        pid, tid = self._slices.tracks[int(self._slices.track[row])]
        # At the very start the point may come before the slice: viewers know the times of day to a quarter of a us.
        return ArrowPoint((start + end) // 2, (pid, self._moved.get(int(self._slices.index[row]), tid)))
