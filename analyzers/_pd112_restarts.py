"""When the workers of DataLoaders end and start again, and what it costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    Evidence,
    Int64Array,
    Intervals,
    LoaderFacts,
    Rank,
    distinct,
    find_worker_starts,
    find_worker_stops,
)
from perfdoctor.rules import intervals as iv

# What a step contains in which workers are started, in steps.jsonl.
WORKER_START = "worker_start"
# What persistent workers take at the start of an epoch besides the first batch: a message to each and its answer.
_RESUME_NS = 1_000_000
# Steps of either kind that a difference of medians needs.
_MIN_STEPS = 3


class Restarts(NamedTuple):
    """Ends and starts of workers in the window.

    Attributes:
        waits: For each of the rank's waits whether workers end or start in it.
        idle: When nothing but that happened: no kernel ran, in a program without a GPU no step went on.
        epochs: How many began.
        steps: The steps in which they began.
    """

    waits: BoolArray
    idle: Intervals
    epochs: int
    steps: Int64Array


class CapturedRestarts(NamedTuple):
    """What a capture measured of a loader's restarts, in ns, in the median.

    Attributes:
        times: How often workers were started again.
        stop_ns, start_ns, first_batch_ns: Ending them, `iter(loader)`, and the wait for the first batch.
        remains_ns: What persistent workers leave of it.
    """

    times: int
    stop_ns: int
    start_ns: int
    first_batch_ns: int
    remains_ns: int

    @property
    def own_ns(self) -> int:
        """All of it in which the loop does nothing else."""
        return self.stop_ns + self.start_ns + self.first_batch_ns

    def evidence(self) -> tuple[Evidence, ...]:
        """The parts."""
        return (
            Evidence("starts of workers after the first", self.times, "count"),
            Evidence("ending the workers of an epoch", self.stop_ns, "ns"),
            Evidence("starting workers in iter(loader)", self.start_ns, "ns"),
            Evidence("wait for the first batch", self.first_batch_ns, "ns"),
        )


class Excess(NamedTuple):
    """By how much steps that start workers are longer than others.

    Attributes:
        restart_ns: The difference, for one start.
        rate: Share (0 to 1) of the steps of the run that start workers.
        time: When the recorded steps are longer: while workers end and start, and right after it.
    """

    restart_ns: float
    rate: float
    time: Intervals

    @property
    def per_step_ns(self) -> int:
        """The same, spread over all steps."""
        return round(self.restart_ns * self.rate)


def find_restarts(rank: Rank) -> Restarts:
    """The ends and starts of workers in the window of a rank."""
    waits, starts = rank.loader_waits, find_worker_starts(rank.trace)
    startups = rank.worker_startups & waits.within(rank.window)
    rows = startups | (find_worker_stops(waits, starts, rank.steps) & waits.within(rank.window))
    time = iv.union_of((starts, iv.union(waits.start_ns[rows], waits.end_ns[rows])))
    steps = distinct(rank.steps.at(waits.start_ns[startups]))
    idle = iv.intersect(rank.account.parts["idle_dataloader"], time)
    return Restarts(rows, idle, int(startups.sum()), steps[steps >= 0])


def captured_restarts(loader: LoaderFacts) -> CapturedRestarts | None:
    """What was measured of a loader's restarts; None where it had none, or nothing was measured."""
    restarts, fetch_ns = loader.restarts, loader.fetch.median_ns
    if restarts.start_ns is None or not restarts.count:
        return None
    first_ns = restarts.first_batch_ns or 0
    remains_ns = _RESUME_NS + (first_ns if fetch_ns is None else fetch_ns)
    return CapturedRestarts(restarts.count, restarts.stop_ns or 0, restarts.start_ns, first_ns, remains_ns)


def measure_excess(rank: Rank, restarts: Restarts) -> Excess | None:
    """By how much the unprofiled steps of the run that start workers are longer; None where too few were timed."""
    steps = rank.run_steps
    if steps is None or not steps.contains:
        return None
    has = steps.which_contain(WORKER_START)
    if has.sum() < _MIN_STEPS or (~has).sum() < _MIN_STEPS:
        return None
    excess_ns = float(np.median(steps.dur_ns[has]) - np.median(steps.dur_ns[~has]))
    if excess_ns <= 0:
        return None
    return Excess(excess_ns, float(has.mean()), iv.union_of((restarts.idle, _time_after(rank, restarts))))


def _time_after(rank: Rank, restarts: Restarts) -> Intervals:
    """In each recorded step that starts workers, the time after it by which it is longer than the others."""
    spans = rank.steps.intervals
    dur_ns = spans[:, 1] - spans[:, 0]
    others = np.ones(len(spans), bool)
    others[restarts.steps] = False
    if not others.any():
        return iv.EMPTY
    usual_ns = float(np.median(dur_ns[others]))
    parts = []
    for step in restarts.steps:
        inside = iv.intersect(restarts.idle, spans[step : step + 1])
        if len(inside):
            longer_ns = max(int(dur_ns[step] - usual_ns) - iv.total(inside), 0)
            end_ns = int(inside[-1, 1])
            parts.append((end_ns, min(end_ns + longer_ns, int(spans[step, 1]))))
    pairs = np.array(parts, np.int64).reshape(-1, 2)
    return iv.union(pairs[:, 0], pairs[:, 1])
