"""When the training loop waits for its next batch: inside a DataLoader's `__next__`."""

from __future__ import annotations

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps

# An epoch begins with a seed for its workers and an order of its samples, with hardly an op between these and the first
# batch. A loop that draws numbers for each batch (a time of diffusion, the pairs of mixup) goes on to train with them.
_EPOCH_OP = r"^aten::(random_|randperm)$"
_MAX_OPS_OF_EPOCH = 12
# Starting workers takes 20 to 100 ms each, and a first batch that is only a little late is not theirs.
_MIN_STARTUP_NS = 5_000_000
_MIN_STARTUP_FACTOR = 5


@frozen_dataclass(eq=False)
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


def find_epoch_starts(trace: Trace, waits: LoaderWaits) -> BoolArray:
    """For each wait whether it is the first of an epoch: its seed or its order of samples is drawn right before.

    No worker has loaded its batch ahead, since nobody asked for it before.
    """
    is_first = np.zeros(len(waits), bool)
    previous_end_ns = np.concatenate(([np.iinfo(np.int64).min], waits.end_ns))[: len(waits)]
    ops_ns = np.sort(trace.ops.start_ns[np.isin(trace.ops.thread, waits.thread)])
    for events, pattern in ((trace.ops, _EPOCH_OP), (trace.frames, vocabulary.LOADER_EPOCH_FRAME)):
        rows = np.flatnonzero(trace.match_rows(events, pattern))
        begin_ns = np.sort(events.start_ns[rows[np.isin(events.thread[rows], waits.thread)]])
        began = np.searchsorted(begin_ns, waits.start_ns, "right")
        last_ns = np.append(begin_ns, 0)[began - 1]
        ops = np.searchsorted(ops_ns, waits.start_ns) - np.searchsorted(ops_ns, last_ns)
        is_first |= (began > np.searchsorted(begin_ns, previous_end_ns)) & (ops <= _MAX_OPS_OF_EPOCH)
    return is_first


def find_worker_starts(trace: Trace) -> Intervals:
    """When `iter(loader)` starts processes, before the first wait for them; only `perfdoctor run` records it."""
    rows = trace.match_rows(trace.ranges, vocabulary.LOADER_START)
    return iv.union(trace.ranges.start_ns[rows], trace.ranges.end_ns[rows])


def find_worker_stops(waits: LoaderWaits, starts: Intervals, steps: Steps) -> BoolArray:
    """For each wait whether it finds an epoch over and ends its workers, before others are started.

    A wait without a batch is in one step with the first wait of the next epoch; after a batch, a training step lies
    between them. `starts` is what `find_worker_starts` returns.
    """
    after = np.searchsorted(waits.start_ns, starts[:, 1])
    before = np.searchsorted(waits.end_ns, starts[:, 0], "right") - 1
    known = (before >= 0) & (after < len(waits))
    before, after = before[known], after[known]
    same = steps.at(waits.start_ns[before]) == steps.at(waits.start_ns[after])
    stops = np.zeros(len(waits), bool)
    stops[before[same & (waits.thread[before] == waits.thread[after])]] = True
    return stops


def find_worker_startups(trace: Trace, waits: LoaderWaits) -> BoolArray:
    """For each wait whether it is the first of an epoch, in which workers start.

    It follows what `find_worker_starts` finds. Else the first wait of a recording may be the first of an epoch, too,
    and the start of the workers shows by a wait `_MIN_STARTUP_FACTOR` times as long as the median within epochs.
    """
    dur_ns = waits.end_ns - waits.start_ns
    starts = find_worker_starts(trace)
    marked = np.zeros(len(waits), bool)
    first = np.searchsorted(waits.start_ns, starts[:, 1])
    marked[first[first < len(waits)]] = True
    names = [trace.strings[code] for code in waits.name.tolist()]
    has_workers = np.array([vocabulary.MULTI_PROCESS_LOADER in name for name in names], bool)
    if not has_workers.any():
        return marked
    is_first = find_epoch_starts(trace, waits) | (np.arange(len(waits)) == 0)
    within_epochs_ns = dur_ns[~is_first]
    if not len(within_epochs_ns):
        return marked
    min_startup_ns = max(_MIN_STARTUP_NS, _MIN_STARTUP_FACTOR * float(np.median(within_epochs_ns)))
    startups: BoolArray = marked | (has_workers & is_first & (dur_ns > min_startup_ns))
    return startups
