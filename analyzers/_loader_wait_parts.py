"""Where the waits for batches go: starting workers, copying, pinning, collating, fetching."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    Calls,
    Evidence,
    Frames,
    Int64Array,
    Intervals,
    LoaderWaits,
    Ops,
    Rank,
    SourceLocation,
    Trace,
    activity_kinds,
    find_epoch_starts,
    find_hot_path,
    find_locations,
    find_worker_starts,
    find_worker_stops,
    loader_waits_of,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_COLLATE_OP = r"^aten::(stack|cat)$"
# The loader's own ranges and frames, which are around all that it does, and those of the recorder around them.
_LOADER = rf"{vocabulary.LOADER_NEXT}|{vocabulary.DATALOADER_NEXT}|torch/utils/data/|perfdoctor/capture/"
_PIN_OP = r"^aten::_?pin_memory$"
# A line with less of the time that lines take in the loader than that is one of many.
_MIN_PART_OF_LOADING = 0.25
# Less of a step than that is too few of the 2,048 instants at which lines are looked up.
_MIN_LINE_SHARE = 0.02


class WaitParts(NamedTuple):
    """What the waits of the window were spent on, in ns a step; together they are all of the waiting."""

    startup_ns: int
    copy_ns: int
    pin_ns: int
    collate_ns: int
    sampler_ns: int
    fetch_ns: int


class LoaderWait(NamedTuple):
    """What waits for batches cost, without the start of workers: the one figure that all texts on loaders are made of.

    Attributes:
        idle: The idle time.
        startups: For each of the rank's waits whether workers start in it.
        cost_ns: The idle time per step.
        share: The part (0 to 1) of it that is for the loader that the loop waited for longest.
        batches: Batches of that loader in a step.
    """

    idle: Intervals
    startups: BoolArray
    cost_ns: int
    share: float
    batches: float

    @property
    def own_ns(self) -> float:
        """What of the cost is for the loader that the loop waited for longest."""
        return self.share * self.cost_ns


def measure_loader_wait(rank: Rank) -> LoaderWait:
    """What waits for batches cost a rank; of several loaders each has the part that a capture measured in its run."""
    waits, captured = rank.loader_waits, rank.facts.main_loader
    starts = find_worker_starts(rank.trace)
    startups = rank.worker_startups | find_worker_stops(waits, starts, rank.steps)
    beginning = iv.union_of((starts, iv.union(waits.start_ns[startups], waits.end_ns[startups])))
    idle = iv.subtract(rank.account.parts["idle_dataloader"], beginning)
    batches = int(np.count_nonzero(waits.within(rank.window))) / max(rank.steps.count, 1)
    all_wait_ns = sum(each.wait_ns or 0 for each in rank.facts.loaders)
    all_batches = sum(each.batches or 0 for each in rank.facts.loaders)
    share = (captured.wait_ns or 0) / all_wait_ns if all_wait_ns else 1.0
    batches *= (captured.batches or 0) / all_batches if all_batches else 1.0
    return LoaderWait(idle, startups, rank.per_step(iv.total(idle)), share, batches)


class LoadingWork(NamedTuple):
    """What the training process itself does to load a batch.

    Attributes:
        name: The function, op or range that takes most of it.
        kind: Its kind of work, of `activity_kinds`; None where its name says none.
        time_ns: What it takes of a step.
        location: The line of the user's code in which it runs; None where that is not recorded.
    """

    name: str
    kind: str | None
    time_ns: int
    location: SourceLocation | None = None


def evidence_of_work(work: LoadingWork | None) -> tuple[Evidence, ...]:
    """What the training process does to load a batch; empty where that is not known."""
    if work is None:
        return ()
    return (
        Evidence("what loading does", activity_kinds.short_name(work.name)),
        Evidence("time in that per {unit}", work.time_ns, "ns"),
        Evidence("called at", str(work.location) if work.location else None),
    )


def find_loading_work(rank: Rank, wait: LoaderWait) -> LoadingWork | None:
    """What the training process does in the waits of the window; None where nothing within them is recorded.

    Where a capture has recorded stacks in another window, those of that window tell it.
    """
    waits, evidence = rank.loader_waits, rank.evidence_trace
    rows = np.flatnonzero(waits.within(rank.window) & ~wait.startups)
    if not len(rows):
        return None
    if evidence is not None:
        others = loader_waits_of(evidence)
        work = _find_work(evidence, others, np.arange(len(others.start_ns)), wait.cost_ns)
        if work is not None:
            return work._replace(location=_find_busiest_line(rank, evidence, others))
    work = _find_work(rank.trace, waits, rows, wait.cost_ns)
    return work and work._replace(location=_find_busiest_line(rank, rank.trace, waits))


def _find_busiest_line(rank: Rank, evidence: Trace, waits: LoaderWaits) -> SourceLocation | None:
    """The line of the user's data set, transform or collate function that takes most of the waits.

    None where no line takes `_MIN_PART_OF_LOADING`, or lines were not recorded. The hot path often ends in a library,
    such as pandas; what the user can change is the line that calls it.
    """
    loop = find_locations(evidence, waits.thread[:1], waits.start_ns[:1])[0]
    loading = rank.places.in_phase("loader")
    min_ns = max(_MIN_LINE_SHARE * rank.window_ns, _MIN_PART_OF_LOADING * sum(ns for _, ns in loading))
    lines = ((place.location, ns) for place, ns in loading if place.kind == "line")
    return next((line for line, ns in lines if line and ns >= min_ns and not _is_same_function(line, loop)), None)


def _is_same_function(place: SourceLocation, other: SourceLocation | None) -> bool:
    """Whether two locations are in one function; a file may be named from different folders on."""
    return other is not None and (place.function, place.file_name) == (other.function, other.file_name)


def _find_work(trace: Trace, waits: LoaderWaits, rows: Int64Array, wait_ns: int) -> LoadingWork | None:
    """What one thread does in some waits of a trace, as a part of `wait_ns`."""
    if not len(rows):
        return None
    thread = int(np.bincount(waits.thread[rows]).argmax())
    rows = rows[waits.thread[rows] == thread]
    path = find_hot_path(trace, iv.union(waits.start_ns[rows], waits.end_ns[rows]), thread)
    is_loader = [bool(re.search(_LOADER, activity.name)) for activity in path.activities]
    inside = path.activities[is_loader.index(True) + 1 :] if any(is_loader) else path.activities
    inside = tuple(each for each in inside if not re.search(_LOADER, each.name))
    if not inside:
        return None
    time_ns = iv.total(path.kind_time) if path.kind is not None else inside[-1].time_ns
    return LoadingWork(inside[-1].name, path.kind, round(wait_ns * time_ns / max(path.time_ns, 1)))


def find_unhidden(rank: Rank, idle: Intervals) -> tuple[bool, Intervals]:
    """What of the waits no worker hides: the first wait of each iterator, which nobody asked for before, and copies.

    Args:
        rank: The rank.
        idle: The time that the waits cost.

    Returns:
        Whether the loop makes an iterator for each batch, or nearly so: then a single one would do. And that time.
    """
    waits = rank.loader_waits
    first = find_epoch_starts(rank.trace, waits)
    first_time = iv.union(waits.start_ns[first], waits.end_ns[first])
    is_made_anew = 2 * iv.total(iv.intersect(first_time, idle)) > iv.total(idle)
    copying = _time_on_waiting_threads(rank, (rank.trace.calls, vocabulary.COPY_CALL))
    return is_made_anew, (copying if is_made_anew else iv.union_of((first_time, copying)))


def split_waits(rank: Rank, startups: BoolArray, sampler: float) -> WaitParts:
    """Where the waits of the window went, as far as ops, calls and frames of the waiting threads show it.

    Args:
        rank: The rank.
        startups: For each of its waits whether workers start in it, such as `Rank.worker_startups`.
        sampler: The share (0 to 1) of the other waits that the sampler takes, as captured.
    """
    trace, waits = rank.trace, rank.loader_waits
    layers = (
        iv.union(waits.start_ns[startups], waits.end_ns[startups]),
        _time_on_waiting_threads(rank, (trace.calls, vocabulary.COPY_CALL)),
        _time_on_waiting_threads(rank, (trace.ops, _PIN_OP), (trace.calls, vocabulary.PIN_CALL)),
        _time_on_waiting_threads(rank, (trace.ops, _COLLATE_OP), (trace.frames, vocabulary.LOADER_COLLATE_FRAME)),
    )
    parts = iv.partition(iv.intersect(waits.intervals, rank.window), layers)
    startup, *known, left = (iv.total(part) for part in parts)
    chosen = min(round(sampler * (sum(known) + left)), left)
    return WaitParts(*(rank.per_step(ns) for ns in (startup, *known, chosen, left - chosen)))


def _time_on_waiting_threads(rank: Rank, *named: tuple[Ops | Calls | Frames, str]) -> Intervals:
    """When events with a matching name, given as tables and patterns, ran on the threads that wait for batches."""
    times = []
    for events, pattern in named:
        rows = np.flatnonzero(rank.trace.match_rows(events, pattern))
        rows = rows[np.isin(events.thread[rows], rank.loader_waits.thread)]
        times.append(iv.union(events.start_ns[rows], events.end_ns[rows]))
    return iv.union_of(times)
