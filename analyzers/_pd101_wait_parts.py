"""Where the waits for batches go: starting workers, copying, pinning, collating, fetching."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.rules import BoolArray, Intervals, Rank, vocabulary
from perfdoctor.rules import intervals as iv
from perfdoctor.trace.tables.model import Calls, Frames, Ops

_COLLATE_OP = r"^aten::(stack|cat)$"
_PIN_OP = r"^aten::_?pin_memory$"
# An epoch begins with a seed for its workers and an order of its samples.
_EPOCH_OP = r"^aten::(random_|randperm)$"
# Starting workers takes 20 to 100 ms each, and a first batch that is only a little late is not theirs.
_MIN_STARTUP_NS = 5_000_000
_MIN_STARTUP_FACTOR = 5


class WaitParts(NamedTuple):
    """What the waits of the window were spent on, in ns a step; together they are all of the waiting."""

    startup_ns: int
    copy_ns: int
    pin_ns: int
    collate_ns: int
    fetch_ns: int


def find_worker_startups(rank: Rank) -> BoolArray:
    """For each of `rank.loader_waits` whether it is the first of an epoch, in which workers start.

    An epoch shows by its seed or its order of samples, which are drawn right before, or is the first that was recorded.
    The start of its workers shows by a wait that is `_MIN_STARTUP_FACTOR` times as long as the median within epochs.
    """
    trace, waits = rank.trace, rank.loader_waits
    dur_ns = waits.end_ns - waits.start_ns
    names = [trace.strings[code] for code in waits.name.tolist()]
    has_workers = np.array([vocabulary.MULTI_PROCESS_LOADER in name for name in names], bool)
    is_first = np.arange(len(waits)) == 0
    previous_end_ns = np.concatenate((waits.start_ns[:1], waits.end_ns))[: len(waits)]
    for events, pattern in ((trace.ops, _EPOCH_OP), (trace.frames, vocabulary.LOADER_EPOCH_FRAME)):
        begin_ns = _time_on_waiting_threads(rank, (events, pattern))[:, 0]
        is_first |= np.searchsorted(begin_ns, waits.start_ns, "right") > np.searchsorted(begin_ns, previous_end_ns)
    within_epochs_ns = dur_ns[~is_first]
    if not len(within_epochs_ns):
        return np.zeros(len(waits), bool)
    min_startup_ns = max(_MIN_STARTUP_NS, _MIN_STARTUP_FACTOR * float(np.median(within_epochs_ns)))
    startups: BoolArray = has_workers & is_first & (dur_ns > min_startup_ns)
    return startups


def split_waits(rank: Rank, startups: BoolArray) -> WaitParts:
    """Where the waits of the window went, as far as ops, calls and frames of the waiting threads show it.

    Args:
        rank: The rank.
        startups: For each of its waits whether workers start in it, see `find_worker_startups`.
    """
    trace, waits = rank.trace, rank.loader_waits
    layers = (
        iv.union(waits.start_ns[startups], waits.end_ns[startups]),
        _time_on_waiting_threads(rank, (trace.calls, vocabulary.COPY_CALL)),
        _time_on_waiting_threads(rank, (trace.ops, _PIN_OP), (trace.calls, vocabulary.PIN_CALL)),
        _time_on_waiting_threads(rank, (trace.ops, _COLLATE_OP), (trace.frames, vocabulary.LOADER_COLLATE_FRAME)),
    )
    parts = iv.partition(iv.intersect(waits.intervals, rank.window), layers)
    return WaitParts(*(rank.per_step(iv.total(part)) for part in parts))


def _time_on_waiting_threads(rank: Rank, *named: tuple[Ops | Calls | Frames, str]) -> Intervals:
    """When events with a matching name, given as tables and patterns, ran on the threads that wait for batches."""
    times = []
    for events, pattern in named:
        rows = rank.trace.match_rows(events, pattern) & np.isin(events.thread, rank.loader_waits.thread)
        times.append(iv.union(events.start_ns[rows], events.end_ns[rows]))
    return iv.union_of(times)
