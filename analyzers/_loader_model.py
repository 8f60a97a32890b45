"""How a DataLoader keeps up with training, and how many workers would hide the waits for it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import BatchFetch, LoaderFacts, Rank, Saving, cores_without_others, vocabulary
from perfdoctor.rules import intervals as iv

# Batches are uneven: half as many workers again keep the queue filled through the slow ones.
_HEADROOM = 1.5
# Workers that sleep or read need no core, but memory: each is an interpreter with torch, about 0.3 GB. Nobody has
# measured that more of them than so many for each core help.
_MAX_WORKERS_PER_CORE = 2
# Loading that computes for less than half of its time leaves its core to others.
_MIN_WAIT_RATIO = 2
# Where the cores were not captured: machines that are rented with GPUs have 4 to 26 cores a GPU, most of them 8 to 12.
_USUAL_MAX_WORKERS = 8
HANDOVER_NS = 300_000
"""What the loop itself does for a batch that a worker has ready: it maps the memory of the tensors.

For two of them 0.28 ms of CPU time were measured; where a thread pins, it does that, and 0.07 to 0.15 ms are left in
real traces.
"""


def split_batch(captured: LoaderFacts) -> tuple[float, ...] | None:
    """Where the wait for a batch goes that the training process loads itself, as shares of it that add up to 1.

    They are for making the items, putting them together, choosing them, which the training process does however many
    workers there are, and the rest, such as pinning. None where that was not captured.

    Captures without the time of the sampler have it in what is left of a wait that pins nothing.
    """
    fetch = captured.fetch
    if fetch.where != "main" or not fetch.median_ns or fetch.items_ns is None or fetch.collate_ns is None:
        return None
    parts_ns = [fetch.items_ns, fetch.collate_ns, fetch.sampler_ns or 0]
    left_ns = max(fetch.median_ns - sum(parts_ns), 0)
    if fetch.sampler_ns is None and not captured.pin_memory:
        parts_ns[2], left_ns = left_ns, 0
    whole_ns = sum(parts_ns) + left_ns
    return tuple(each / whole_ns for each in (*parts_ns, left_ns))


def share_of_sampler(captured: LoaderFacts) -> float:
    """The share (0 to 1) of the waits that the sampler takes, in the training process; 0 where that is not known."""
    shares = split_batch(captured)
    if shares is not None:
        return shares[2]
    return min((captured.fetch.sampler_ns or 0) / max(captured.wait_median_ns or captured.fetch.median_ns or 1, 1), 1.0)


class LoaderModel(NamedTuple):
    """How a loader kept up, in amounts per step.

    Attributes:
        workers: Processes that load; 0 where the training process does, None where their number is not known.
        step_ns: The step, without what starting workers takes of it.
        wait_ns: The wait in `__next__`.
        idle_ns: The idle time that the wait causes.
        cores: CPU cores that the process may use; None where they were not captured.
        cpu_share: How much of the loading computes (0 to 1), the rest sleeps or waits for a disk or a network; None
            where nobody measured it.
        batches: Batches that a step takes.
        threads: Threads that compute in the training itself; None where they were not captured.
        max_workers: The most workers that the program's framework starts; None for no limit.
        fetch_ns: Time that a worker spends on the batches of a step, measured in the workers; None without that.
        others_have_cores: Whether other programs had the cores that this one asked for.
        unhidden_ns: The part of `idle_ns` that no worker hides, see `find_unhidden`.
        is_made_anew: Whether each batch is the first of an iterator, which no worker has loaded ahead.
        sampler: The share (0 to 1) of the wait that the sampler takes, which stays in the training process.
    """

    workers: int | None
    step_ns: int
    wait_ns: int
    idle_ns: int
    cores: int | None
    cpu_share: float | None = None
    batches: float = 1.0
    threads: int | None = None
    max_workers: int | None = None
    fetch_ns: int | None = None
    others_have_cores: bool = False
    unhidden_ns: int = 0
    is_made_anew: bool = False
    sampler: float = 0.0

    @property
    def unstalled_step_ns(self) -> int:
        """How long a step takes when nobody waits for batches that workers can load.

        Not the step less the wait: while the loop waits, the GPU may still work on what was launched before.
        """
        return self.step_ns - self.idle_ns + self.unhidden_ns

    @property
    def batch_ns(self) -> int:
        """Time that one worker spends on a batch.

        The wait itself without workers, but for the sampler; what was measured in the workers, else workers x step, as
        if all were busy.
        """
        if self.workers and self.fetch_ns is not None:
            return self.fetch_ns
        return round((1 - self.sampler) * self.wait_ns) if not self.workers else self.workers * self.step_ns

    @property
    def batch_cpu_ns(self) -> int:
        """CPU time that one worker spends on a batch; all of its time where nobody measured it."""
        return round(self.batch_ns * (1.0 if self.cpu_share is None else self.cpu_share))

    @property
    def is_memory_bound(self) -> bool:
        """Whether loading mostly waits, so that memory limits the number of workers rather than the cores."""
        return self.batch_ns > _MIN_WAIT_RATIO * self.batch_cpu_ns

    @property
    def workers_to_keep_up(self) -> int:
        """Workers that deliver a batch before a step without the wait is over, with room for slow batches."""
        needed = math.ceil(_HEADROOM * self.batch_ns / max(self.unstalled_step_ns, 1))
        return max((self.workers or 0) + 1, 2, needed)

    @property
    def keeps_up(self) -> bool:
        """Whether workers were measured to load faster than the loop asks: then more of them hide nothing."""
        if not self.workers or self.fetch_ns is None:
            return False
        return self.fetch_ns <= self.workers * self.unstalled_step_ns

    @property
    def max_useful_workers(self) -> int | None:
        """The most workers that help: those that keep all cores busy but one, which the training process needs.

        More of them only where somebody measured that loading mostly waits, and at most two a core. An only core is
        shared. Where the cores are not known, as many as a machine with a GPU usually has; none where other programs
        have them and loading computes.
        """
        if self.others_have_cores and not self.is_memory_bound:
            return 0
        if self.cores is None:
            return _USUAL_MAX_WORKERS if self.max_workers is None else self.max_workers
        limit = max(self.cores - 1, 1)
        if self.is_memory_bound:
            limit = min(
                math.floor(limit * self.batch_ns / max(self.batch_cpu_ns, 1)), _MAX_WORKERS_PER_CORE * self.cores
            )
        return limit if self.max_workers is None else min(limit, self.max_workers)

    @property
    def lacks_cores(self) -> bool:
        """Whether the cores are too few for the workers that would keep up."""
        return self.max_useful_workers is not None and self.workers_to_keep_up > self.max_useful_workers

    @property
    def takes_cores(self) -> bool:
        """Whether the training itself computes with as many threads as there are cores: workers take some from it."""
        return self.cores is not None and self.threads is not None and self.threads >= self.cores

    @property
    def recommended_workers(self) -> int:
        """Workers that keep up, as far as they help; not fewer than there are."""
        limit = self.max_useful_workers
        wanted = self.workers_to_keep_up if limit is None else min(self.workers_to_keep_up, limit)
        return max(wanted, self.workers or 0)

    @property
    def batch_interval_ns(self) -> int:
        """How long after a batch the next one is there with the recommended workers.

        The workers share the batches, and the cores share the computing.
        """
        workers = max(self.recommended_workers, 1)
        return max(round(self.batch_ns / workers), round(self.batch_cpu_ns / (self.cores or workers)))

    def saving(self, *, on_cpu: bool) -> Saving:
        """What the recommended workers save of a step, which takes the longer of its own work and `batch_interval_ns`.

        Args:
            on_cpu: Whether the program computes on the CPU alone. Then taking over a batch is part of the step, which a
                GPU would hide, and training and loading share the cores.
        """
        remaining_ns = round(self.batches * HANDOVER_NS) if on_cpu else 0
        max_ns = max(self.idle_ns - self.unhidden_ns - remaining_ns, 0)
        if self.workers is None or self.is_made_anew or not self.recommended_workers:
            if self.max_workers is not None and self.recommended_workers:
                max_ns = min(max_ns, max(self.step_ns - self.batch_interval_ns, 0))
            return Saving(0, None, max_ns, "bounded")
        step_ns = max(self.unstalled_step_ns, self.batch_interval_ns)
        if on_cpu:
            # Work is only spread over the cores, never removed: the rest of the step takes one for each thread.
            computed_ns = round(self.wait_ns * (1.0 if self.cpu_share is None else self.cpu_share))
            cores = self.cores or self.workers_to_keep_up
            threads = min(self.threads or cores, cores)
            step_ns = max(step_ns, round((computed_ns + threads * self.unstalled_step_ns) / cores))
            if self.takes_cores:
                max_ns = min(max_ns, max(self.step_ns - step_ns - remaining_ns, 0))
        return Saving(0, min(max(self.step_ns - step_ns - remaining_ns, 0), max_ns), max_ns, "bounded")


def model_loader(
    rank: Rank,
    captured: LoaderFacts,
    idle_ns: int,
    startup_ns: int,
    unhidden_ns: int = 0,
    *,
    is_made_anew: bool = False,
) -> LoaderModel:
    """How the loader of a rank kept up.

    Args:
        rank: The rank.
        captured: What was captured of its loader; may be empty.
        idle_ns: The idle time that waits for batches cause, per step.
        startup_ns: What the start of workers takes of a step; it is left out.
        unhidden_ns: The part of `idle_ns` that no worker hides.
        is_made_anew: Whether each batch is the first of an iterator.
    """
    waits = rank.loader_waits
    workers = captured.num_workers
    names = {rank.trace.strings[code] for code in set(waits.name.tolist())}
    if workers is None and any(vocabulary.SINGLE_PROCESS_LOADER in name for name in names):
        workers = 0
    batches = int(np.count_nonzero(waits.within(rank.window))) / max(rank.steps.count, 1)
    fetch = captured.fetch if captured.fetch.where == "worker" else BatchFetch()
    others_share = rank.contention.left_out_share
    fetch_ns, sampler = own_fetch_ns(fetch, others_share), share_of_sampler(captured)
    return LoaderModel(
        workers=workers,
        step_ns=rank.mean_step_ns - startup_ns,
        wait_ns=rank.per_step(iv.total(iv.intersect(waits.intervals, rank.window))) - startup_ns,
        idle_ns=idle_ns,
        cores=_count_cores(rank),
        cpu_share=_captured_cpu_share(captured, others_share) if workers == 0 else _cpu_share(fetch, others_share),
        batches=batches,
        threads=rank.facts.cpu.torch_threads or None,
        # Chunked pipelines set num_workers to 1, as their order of chunks needs it, and warn.
        max_workers=1 if "Hugging Face pipeline" in rank.context.frameworks else None,
        fetch_ns=None if fetch_ns is None else round(batches * fetch_ns),
        others_have_cores=rank.contention.is_severe,
        unhidden_ns=unhidden_ns + round(sampler * max(idle_ns - unhidden_ns, 0)),
        is_made_anew=is_made_anew,
        sampler=sampler,
    )


def _count_cores(rank: Rank) -> int | None:
    """Cores that the process may use, by its affinity and the quota of its control groups, and that others leave it."""
    cores, quota = rank.facts.cpu.affinity or None, rank.facts.cores.available
    if not quota:
        return cores
    return max(min(cores or math.ceil(quota), math.floor(cores_without_others(rank.facts, quota))), 1)


def own_fetch_ns(fetch: BatchFetch, others_share: float) -> float | None:
    """Time in ns for a batch in the process that loads, without what others took; None where nobody measured it.

    No less than its CPU time: the two are medians, and of different batches where few of them wait for a core.
    """
    if fetch.median_ns is None:
        return None
    return max(fetch.median_ns - (fetch.queued_ns or 0) * others_share, min(fetch.cpu_ns or 0, fetch.median_ns))


def _cpu_share(fetch: BatchFetch, others_share: float) -> float | None:
    """The share of the time for a batch in which the process computed; None where nobody measured it."""
    own_ns, cpu_ns = own_fetch_ns(fetch, others_share), fetch.process_cpu_ns
    return min(cpu_ns / own_ns, 1.0) if own_ns and cpu_ns is not None else None


def _captured_cpu_share(captured: LoaderFacts, others_share: float) -> float | None:
    """The share of the wait in which the training thread itself computed; None when not captured.

    In the whole run; where others had the cores, in the batches whose waits for a core were measured.
    """
    wait_ns, cpu_ns = captured.wait_ns, captured.wait_cpu_ns
    if others_share and captured.fetch.queued_ns is not None:
        return _cpu_share(captured.fetch, others_share)
    return min(cpu_ns / wait_ns, 1.0) if wait_ns and cpu_ns is not None else None
