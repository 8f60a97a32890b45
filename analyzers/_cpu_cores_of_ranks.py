"""Whether ranks on the CPU have different work or only different cores, by the CPU time that a capture recorded."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

import numpy as np

from perfdoctor.rules import Int64Array, LateRank, RankSummary, quantiles, step_times_of

# Of the lateness so much has to be CPU time that the late rank needs more than the others, or its work is theirs.
_MIN_WORK_SHARE = 0.5
# Where others take the cores a rank is late by more than the CPU time of its work: then the part of its step in which
# it had a core counts. Ranks with equal work differ by less than this share of their CPU time.
_MIN_CPU_EXCESS = 0.15
# Cores that are shared make CPU time longer, too, in some steps: the quicker ones show the work.
_QUICK_STEPS = 0.25
# Where fewer of the cores are busy, no rank lacks one.
_MIN_BUSY_SHARE = 0.75


def does_equal_work(summaries: Sequence[RankSummary], late: LateRank, lateness_ns: int) -> bool:
    """Whether the late rank's training thread needs no more CPU time a step than those of the other ranks.

    Then it is late because it lacks a core. False where the CPU time of the unprofiled steps was not captured of every
    rank, where the collectives run on GPUs, or where cores idle.
    """
    cpu_ns = _cpu_times_of(summaries)
    if late.table.on_gpu or cpu_ns is None or len(cpu_ns) != len(late.matched.tables):
        return False
    index = next(i for i, each in enumerate(summaries) if each.rank == late.rank)
    quick_ns = [quantiles(each, (_QUICK_STEPS,))[0] for each in cpu_ns]
    own_ns = quick_ns.pop(index)
    excess_ns = own_ns - median_low(quick_ns)
    recorded = step_times_of(summaries[index].facts.base)
    step_ns = float(np.median(recorded.dur_ns)) if recorded is not None else own_ns
    if excess_ns >= _MIN_CPU_EXCESS * median_low(quick_ns):
        lateness_ns = round(lateness_ns * min(own_ns / step_ns, 1.0))
    return _are_cores_busy(summaries[index]) and excess_ns < _MIN_WORK_SHARE * lateness_ns


def do_equal_work(summaries: Sequence[RankSummary], late: LateRank, waiting_ns: int) -> bool:
    """Whether in each step all ranks need about the same CPU time, so that none waits for the work of another.

    False where that was not captured, where the collectives run on GPUs, or where cores idle.
    """
    cpu_ns = _cpu_times_of(summaries)
    if late.table.on_gpu or cpu_ns is None or len({len(each) for each in cpu_ns}) != 1:
        return False
    if not all(map(_are_cores_busy, summaries)):
        return False
    together = np.stack(cpu_ns)
    return float((together.max(axis=0) - np.median(together, axis=0)).mean()) < _MIN_WORK_SHARE * waiting_ns


def has_spare_core(rank: RankSummary) -> bool | None:
    """Whether a core is free for collectives beside the threads of all ranks on this machine; None if not captured."""
    cores, threads = rank.facts.cores, rank.facts.cpu.torch_threads
    ranks = cores.local_ranks or rank.facts.world_size
    if cores.available is None or threads is None or ranks is None:
        return None
    return cores.available >= ranks * threads + 1


def _are_cores_busy(rank: RankSummary) -> bool:
    """Whether the ranks and other programs used most of the cores; False where that was not captured."""
    cores = rank.facts.cores
    known = [each for each in (cores.training, cores.workers, cores.others) if each is not None]
    return cores.available is not None and len(known) > 0 and sum(known) >= _MIN_BUSY_SHARE * cores.available


def _cpu_times_of(summaries: Sequence[RankSummary]) -> list[Int64Array] | None:
    """By rank the CPU time of the training thread in each step of the base window; None where one has none."""
    recorded = [step_times_of(each.facts.base) for each in summaries]
    times = [None if each is None else each.cpu_ns for each in recorded]
    return [each for each in times if each is not None] if all(each is not None for each in times) else None
