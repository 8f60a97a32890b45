"""When the training loop waits for its next batch: inside a DataLoader's `__next__`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace


@dataclass(frozen=True, slots=True, eq=False)
class LoaderWaits:
    """Every call of a loader's `__next__`, sorted by start.

    Attributes:
        start_ns: When the loop asked for a batch.
        end_ns: When it got the batch.
        name: Code of the name of the range or frame.
        thread: Index into `Trace.threads`.
        from_frames: Whether they are Python frames, because no range marks them.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    name: Int32Array
    thread: Int32Array
    from_frames: bool = False

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def intervals(self) -> Intervals:
        """When any loop waits."""
        return iv.union(self.start_ns, self.end_ns)

    def within(self, window: Intervals) -> BoolArray:
        """For each wait whether it began in the window."""
        return iv.contains(window, self.start_ns)


def loader_waits_of(trace: Trace) -> LoaderWaits:
    """The waits for batches: PyTorch's ranges, else the Python frames of `__next__`.

    Of nested frames (a wrapper around a DataLoader) the outermost counts.
    """
    ranges = trace.ranges
    rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.LOADER_NEXT))
    if len(rows):
        return LoaderWaits(ranges.start_ns[rows], ranges.end_ns[rows], ranges.name[rows], ranges.thread[rows])
    frames = trace.frames
    loading = trace.match_rows(frames, vocabulary.LOADER_NEXT_FRAME)
    rows = np.flatnonzero(loading)
    outer = frames.parent[rows]
    while len(rows) and (outer >= 0).any():
        is_inner = (outer >= 0) & loading[np.maximum(outer, 0)]
        rows, outer = rows[~is_inner], outer[~is_inner]
        outer = np.where(outer >= 0, frames.parent[np.maximum(outer, 0)], outer)
    return LoaderWaits(
        frames.start_ns[rows], frames.end_ns[rows], frames.name[rows], frames.thread[rows], from_frames=True
    )
