"""What page faults take of the steps of a program without a GPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.rules import Rank, StepTimes, step_times_of

# Of the smallest pages; a batch from a worker lies in fresh shared memory.
_PAGE_BYTES = 4096
# The system counts its time by ticks of 4 to 10 ms: shorter sums say nothing.
_MIN_TIME_NS = 50_000_000
# From so many cores on that other programs use, less than a core of ours is no sign of waiting for something else.
_MIN_OTHERS = 0.5


class PageFaults(NamedTuple):
    """Page faults of steps without a profiler.

    Attributes:
        pages: Minor faults per step.
        system_ns: CPU time of the system per step, of all threads.
        step_ns: The step.
        cores: Cores that the process uses; where other programs use some, it might use more.
        threads: Threads of PyTorch.
    """

    pages: float
    system_ns: float
    step_ns: float
    cores: float
    threads: int

    @property
    def ns_per_fault(self) -> float:
        """CPU time of the system for a fault."""
        return self.system_ns / max(self.pages, 1)

    @property
    def share(self) -> float:
        """Share (0 to 1) of the step that faults take: threads that share an op fault beside each other."""
        return min(self.system_ns / max(self.cores, 1e-3) / max(self.step_ns, 1.0), 1.0)


def measure_page_faults(rank: Rank) -> PageFaults | None:
    """The page faults of a rank's steps; None where they were not captured, or steps are too few or too short."""
    steps: StepTimes | None = rank.run_steps
    usual = None
    if rank.run_steps is not None:
        usual = np.array([not each for each in rank.run_steps.contains], bool)
    if steps is None or steps.minor_faults is None:
        steps, usual = step_times_of(rank.facts.base), None
    if steps is None or steps.minor_faults is None or steps.system_cpu_ns is None or steps.process_cpu_ns is None:
        return None
    rows = np.ones(len(steps), bool) if usual is None else usual
    dur_ns = steps.dur_ns[rows]
    if not len(dur_ns) or dur_ns.sum() < _MIN_TIME_NS:
        return None
    pages = float(np.median(steps.minor_faults[rows])) - _pages_of_batches(rank)
    used = float(steps.process_cpu_ns[rows].sum() / dur_ns.sum())
    is_shared = (rank.facts.cores.others or 0.0) >= _MIN_OTHERS
    return PageFaults(
        max(pages, 0.0),
        float(steps.system_cpu_ns[rows].mean()),
        float(dur_ns.mean()),
        used if is_shared else max(used, 1.0),
        rank.facts.cpu.torch_threads or 1,
    )


def _pages_of_batches(rank: Rank) -> float:
    """Pages of shared memory in which workers hand over the batches of a step."""
    return sum(each.batch_bytes or 0 for each in rank.facts.loaders if each.num_workers) / _PAGE_BYTES
