"""How a DataLoader keeps up with training: where the waits for it go, and how many workers would hide them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Calls, Frames, Ops

# Batches are uneven: half as many workers again keep the queue filled through the slow ones.
_HEADROOM = 1.5
# Workers that sleep or read need no core, but memory: each is an interpreter with torch, about 0.3 GB.
_MOST_PER_CORE = 8
# What the loop itself does for a batch that a worker has ready: it maps the memory of the tensors. For two of them
# 0.28 ms of CPU time were measured; where a thread pins, it does that, and 0.07 to 0.15 ms are left in real traces.
_TAKING_OVER_NS = 300_000


class Loading(NamedTuple):
    """How a loader kept up: per step, all of it, the wait in `__next__`, the idle time that the wait caused.

    `cpu_share` is how much of the loading computes (0 to 1), the rest sleeps or waits for a disk or a network; None
    when nobody measured it. `batches` are those of a step.
    """

    workers: int | None
    step_ns: int
    wait_ns: int
    idle_ns: int
    cores: int | None
    cpu_share: float | None = None
    batches: float = 1.0

    @property
    def rest_ns(self) -> int:
        """How long a step takes when nobody waits for batches.

        Not the step less the wait: while the loop waits, the GPU may still work on what was launched before.
        """
        return self.step_ns - self.idle_ns

    @property
    def batch_ns(self) -> int:
        """Time that one worker spends on a batch.

        The wait itself without workers; with workers that are all busy, workers x step.
        """
        return self.wait_ns if not self.workers else self.workers * self.step_ns

    @property
    def batch_cpu_ns(self) -> int:
        """CPU time of it; all of it when nobody measured."""
        return round(self.batch_ns * (1.0 if self.cpu_share is None else self.cpu_share))

    @property
    def taking_over_ns(self) -> int:
        """What is left of the wait with workers that are always ahead, on a CPU where nothing else hides it."""
        return round(self.batches * _TAKING_OVER_NS)

    @property
    def mostly_waits(self) -> bool:
        """Whether loading computes so little that memory bounds the workers, not the cores."""
        return self.batch_ns >= _MOST_PER_CORE * self.batch_cpu_ns

    @property
    def useful(self) -> int | None:
        """The most workers that help: those that keep all cores busy. None when the cores are not known."""
        if self.cores is None:
            return None
        per_core = min(self.batch_ns / max(self.batch_cpu_ns, 1), _MOST_PER_CORE)
        return max(math.floor(self.cores * per_core), 1)

    def delivery_ns(self, workers: int) -> int:
        """How long after a batch the next one is there: workers share the batches, and cores share the computing."""
        return max(round(self.batch_ns / workers), round(self.batch_cpu_ns / (self.cores or workers)))

    @property
    def enough(self) -> int:
        """Workers that deliver a batch before a step without the wait is over, with room for slow batches."""
        return max((self.workers or 0) + 1, 2, math.ceil(_HEADROOM * self.batch_ns / max(self.rest_ns, 1)))


# What a wait spends beside fetching items: putting them together, pinning the batch, copying it to the GPU.
_COLLATE_OP = r"^aten::(stack|cat)$"
_PIN_OP = r"^aten::_?pin_memory$"
# An epoch begins with a seed for its workers and an order of its samples.
_EPOCH_OP = r"^aten::(random_|randperm)$"
# Starting workers takes 20 to 100 ms each, and a first batch that is only a little late is not theirs.
_STARTUP_NS = 5_000_000
_STARTUP_FACTOR = 5


class WaitParts(NamedTuple):
    """What the waits of the window were spent on, in ns a step; together they are all of the waiting."""

    startup_ns: int
    copy_ns: int
    pin_ns: int
    collate_ns: int
    fetch_ns: int


def worker_startups(run: Rank) -> BoolArray:
    """For each of `run.loader_waits` whether it is the first of an epoch, in which workers start.

    An epoch shows by its seed or its order of samples, drawn right before, or is the first that was recorded; its
    workers by a wait that is `_STARTUP_FACTOR` times as long as those within epochs.
    """
    trace, waits = run.trace, run.loader_waits
    many = np.array([vocabulary.MULTI_PROCESS_LOADER in trace.strings[code] for code in waits.name.tolist()], bool)
    before = np.concatenate((waits.start_ns[:1], waits.end_ns))[: len(waits)]
    first = np.arange(len(waits)) == 0
    for spans in (_spans(run, _EPOCH_OP, "ops"), _spans(run, vocabulary.LOADER_EPOCH_FRAME, "frames")):
        at = spans[:, 0]
        first |= np.searchsorted(at, waits.start_ns, "right") > np.searchsorted(at, before, "left")
    within = (waits.end_ns - waits.start_ns)[~first]
    if not len(within):
        return np.zeros(len(waits), bool)
    long = max(_STARTUP_NS, _STARTUP_FACTOR * float(np.median(within)))
    result: BoolArray = many & first & (waits.end_ns - waits.start_ns > long)
    return result


def wait_parts(run: Rank) -> WaitParts:
    """Where the waits of the window went, as far as ops, calls and frames of the waiting thread show it."""
    waits = run.loader_waits
    started = worker_startups(run)
    layers = (
        iv.union(waits.start_ns[started], waits.end_ns[started]),
        _spans(run, vocabulary.COPY_CALL, "calls"),
        iv.union_of((_spans(run, _PIN_OP, "ops"), _spans(run, vocabulary.PIN_CALL, "calls"))),
        iv.union_of((_spans(run, _COLLATE_OP, "ops"), _spans(run, vocabulary.LOADER_COLLATE_FRAME, "frames"))),
    )
    parts = iv.partition(iv.intersect(waits.intervals, run.window), layers)
    return WaitParts(*(run.per_step(iv.total(part)) for part in parts))


def _spans(run: Rank, pattern: str, table: str) -> Intervals:
    """Events of the waiting threads by name."""
    tables: dict[str, Ops | Calls | Frames] = {
        "ops": run.trace.ops,
        "calls": run.trace.calls,
        "frames": run.trace.frames,
    }
    events = tables[table]
    rows = run.trace.match_rows(events, pattern) & np.isin(events.thread, run.loader_waits.thread)
    return iv.union(events.start_ns[rows], events.end_ns[rows])
