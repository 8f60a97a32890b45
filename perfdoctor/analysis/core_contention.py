"""Whether other programs had the cores that a program asked for, by what its capture measured of threads and cores.

A thread that does not run sleeps, or it waits for a core. The run delay (`queued_ns`) tells them apart::

    step      |== runs ==|.. waits for a core ..|== runs ==|-- sleeps: a loader, a disk, a GPU --|
    cpu_ns     50         queued_ns 300          50          the rest of the step

Such a wait is the program's own doing where its own threads, workers or ranks had the cores, and a quota's where that
stopped it: only the part of other programs is no part of what the program takes on a quiet machine.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.captured_facts import RunSteps, StepTimes, step_times_of
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.trace.arrays import Int64Array

# The training thread of a program that computes and is alone has its core nearly all of the time that it asks for one.
QUIET_SHARE = 0.8
# The longest that a preempted thread waits for its core: schedulers give a program 3 to 6 ms at a turn (EEVDF's base
# slice is 2.8 ms at most), a few others may come first, and the threads of an op then wait for the one that was
# preempted.
LONGEST_TURN_NS = 20_000_000
# In a usual step of a quiet machine others have the core up to once or twice.
_MIN_USUAL_TURNS = 3
# Programs that use less than a quarter of a core take none from anybody for long.
_MIN_OTHERS = 0.25


class CoreContention(NamedTuple):
    """What other programs took from a program.

    Attributes:
        core_share: Of the time for which the training thread could run, or the thread that loads where that lacked more
            of it, the share (0 to 1) for which other programs left it a core.
        others_share: The part (0 to 1) of the waits for a core that is due to other programs; None where no wait was
            measured, so that times cannot be corrected by it.
    """

    core_share: float
    others_share: float | None

    @property
    def is_severe(self) -> bool:
        """Whether times of this recording are those of the machine rather than of the program."""
        return self.core_share < QUIET_SHARE

    @property
    def left_out_share(self) -> float:
        """The part (0 to 1) of the waits for a core that figures leave out; 0 where others took little."""
        return (self.others_share or 0.0) if self.is_severe else 0.0


NO_CONTENTION = CoreContention(1.0, None)


def find_contention(facts: CapturedFacts, run: RunSteps | None = None) -> CoreContention:
    """What other programs took from a captured program; `NO_CONTENTION` where nothing shows that they did.

    Args:
        facts: What was captured.
        run: The steps of the whole run without a profiler, of which older captures without the run delay need all.
    """
    base, fetch = step_times_of(facts.base), facts.main_loader.fetch
    queued_ns = None if base is None else _queued_ns_of(base)
    if base is None or base.cpu_ns is None or queued_ns is None:
        return _guess_contention(facts, [each for each in (base, run) if each is not None])
    others_share = _share_of_others(facts, float(base.cpu_ns.sum() / base.dur_ns.sum()))
    asked = [(int(base.cpu_ns.sum()), int(queued_ns.sum()))]
    if fetch.where == "worker" and fetch.cpu_ns is not None and fetch.queued_ns is not None:
        asked.append((fetch.cpu_ns, fetch.queued_ns))
    return CoreContention(min(1 - others_share * ns / max(had_ns + ns, 1) for had_ns, ns in asked), others_share)


def _share_of_others(facts: CapturedFacts, own_core: float) -> float:
    """The part (0 to 1) of the program's waits for a core that is due to other programs.

    By the cores that they used, against those of all else that the training thread shares its cores with: the other
    threads of its process, its workers, and the other ranks on the machine. It has a core of its own on a quiet machine
    unless its process has more threads than there are cores: then only as much as it ran, `own_core`, is its own.
    """
    cores = facts.cores
    training, workers = cores.training or 0.0, cores.workers or 0.0
    others_ranks = max((cores.local_ranks or 1) - 1, 0) * training
    if cores.others is None:  # the base window was too short to see others: are there own ones?
        threads = (facts.cpu.torch_threads or 1) * (cores.local_ranks or 1)
        has_workers = any(each.num_workers for each in facts.loaders)
        return 1.0 if threads <= (cores.available or 1) and not has_workers else 0.0
    others = cores.others - others_ranks
    if others < _MIN_OTHERS:
        return 0.0
    outnumbers = (facts.cpu.torch_threads or 1) > (cores.available or math.inf)
    own_threads = max(training - (own_core if outnumbers else 1.0), 0.0)
    return others / (others + own_threads + workers + others_ranks + (cores.throttled or 0.0))


def _queued_ns_of(times: StepTimes) -> Int64Array | None:
    """How long the training thread waited for a core in each step; None where nobody measured it.

    The capture reads it right after the step's end, so that it may hold a wait that belongs to no step.
    """
    if times.queued_ns is None or times.cpu_ns is None:
        return None
    away_ns: Int64Array = np.maximum(times.dur_ns - times.cpu_ns, 0)
    return np.minimum(times.queued_ns, away_ns)


def _guess_contention(facts: CapturedFacts, steps: list[StepTimes]) -> CoreContention:
    """The same by CPU time and preemptions alone, which tell it only where every part of the run was shared."""
    has_workers = any(loader.num_workers for loader in facts.loaders)
    if not steps or has_workers or not all(map(is_shared_throughout, steps)):
        return NO_CONTENTION
    cpu_ns, dur_ns = steps[-1].cpu_ns, steps[-1].dur_ns
    share = 1.0 if cpu_ns is None else float(np.median(cpu_ns / np.maximum(dur_ns, 1)))
    return CoreContention(share, None)


def is_shared_throughout(times: StepTimes) -> bool:
    """Whether the training thread lacks a core for a part of the usual step: no step shows what it takes by itself."""
    if times.cpu_ns is None or not len(times):
        return False
    queued_ns = _queued_ns_of(times)
    if queued_ns is not None:
        return bool(np.median(queued_ns / np.maximum(times.cpu_ns + queued_ns, 1)) > 1 - QUIET_SHARE)
    if times.preempted is None:
        return False
    turns, away_ns = float(np.median(times.preempted)), float(np.median(times.dur_ns - times.cpu_ns))
    is_away = away_ns > (1 - QUIET_SHARE) * float(np.median(times.dur_ns))
    # Else it waits for most of that: for a GPU, a disk, a loader that sleeps, with a turn of others now and then.
    return is_away and turns >= _MIN_USUAL_TURNS and 2 * turns * LONGEST_TURN_NS > away_ns


def count_free_cores(facts: CapturedFacts) -> float | None:
    """Cores that nobody uses while the program trains; None where that was not captured.

    Of the ranks of a job on this machine each has its share of the cores. The other ranks are among the others, too.
    """
    cores, loaders = facts.cores, facts.loaders
    available, used, workers, others = cores.available, cores.training, cores.workers, cores.others
    if available is None or used is None or (workers is None and any(each.num_workers for each in loaders)):
        return None
    if find_contention(facts).is_severe:
        return 0.0
    base = step_times_of(facts.base)
    if others is None and (base is not None and base.cpu_ns is not None and lacks_cores(base)):
        return None  # the window was too short to see who else computes
    ranks = cores.local_ranks or facts.world_size or 1
    own = max(used, 1.0) + (workers or 0.0)
    return min(available / ranks - own, available - own - (others or 0.0))


def lacks_cores(times: StepTimes) -> bool:
    """Whether the training thread ran for less of its steps than one that computes on a core of its own."""
    return times.cpu_ns is not None and int(times.cpu_ns.sum()) < QUIET_SHARE * int(times.dur_ns.sum())


def cores_without_others(facts: CapturedFacts, available: float) -> float:
    """Those of `available` cores that other programs and other ranks leave to the program; at least one."""
    ranks, others = facts.cores.local_ranks or facts.world_size or 1, facts.cores.others or 0.0
    if ranks > 1:
        return max(available / ranks, 1.0)
    # Others that use less than half a core come and go.
    return max(available - (others if others >= 2 * _MIN_OTHERS else 0.0), 1.0)


def without_others(times: StepTimes, contention: CoreContention) -> Int64Array:
    """Duration of each step in ns; where others took much, without the waits of the training thread for a core.

    That is what the step takes on a quiet machine, or more: threads of an op wait for each other's cores, too.
    """
    queued_ns = _queued_ns_of(times)
    if queued_ns is None:
        return times.dur_ns
    own_ns: Int64Array = (times.dur_ns - queued_ns * contention.left_out_share).astype(np.int64)
    return np.maximum(own_ns, 1)
