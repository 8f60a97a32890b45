"""Where the waits for batches go: starting workers, copying, pinning, collating, fetching."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.rules import BoolArray, Intervals, Rank, vocabulary
from perfdoctor.rules import intervals as iv
from perfdoctor.trace.tables.model import Calls, Frames, Ops

_COLLATE_OP = r"^aten::(stack|cat)$"
_PIN_OP = r"^aten::_?pin_memory$"


class WaitParts(NamedTuple):
    """What the waits of the window were spent on, in ns a step; together they are all of the waiting."""

    startup_ns: int
    copy_ns: int
    pin_ns: int
    collate_ns: int
    fetch_ns: int


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
