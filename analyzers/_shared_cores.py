"""Training and loading that share the cores of a machine without a GPU: how long a step takes with so many workers.

Worker processes are not free there: they take cores from the training, and a batch is copied into shared memory and
mapped out of it again. The constants were fitted on 14 programs of 7 shapes on two cores, with 0, 1 and 2 workers in
turns: how well they fit other programs and other machines is not known.
"""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

from perfdoctor.analyzers._cpu_parallel_ops import find_parallel_ops, speedup_of_threads
from perfdoctor.analyzers._loader_model import own_fetch_ns, share_of_sampler
from perfdoctor.analyzers._loader_wait_parts import LoaderWait
from perfdoctor.rules import LoaderFacts, Rank, cores_without_others
from perfdoctor.rules import intervals as iv

# To hand a batch over, in the loop: a message, a file descriptor for each tensor (two took 1.1 to 1.3 ms), and the page
# faults of fresh shared memory (0.8 MB took 1.8 to 2.4 ms in training). The worker pays as much in its own CPU time.
_HANDOVER_NS = 200_000
_HANDOVER_NS_PER_TENSOR = 500_000
_HANDOVER_NS_PER_BYTE = 0.8
# A batch of images and labels: what is taken where a batch is of a type that shows no tensors.
_TENSORS = 2
# Workers that sleep or read need no core, but each is an interpreter with torch, 0.3 GB.
_MAX_WORKERS_PER_CORE = 2
# Batches are uneven: workers that deliver a quarter faster than the training asks keep the queue filled.
_HEADROOM = 1.25
# A setting that is this much slower than the best one is as good where it needs fewer workers.
_AS_GOOD = 1.03
# From this many cores on the training's own threads compute beside each other; below it they wait, too.
_MIN_PARALLEL_CORES = 1.2


class _Assumption(NamedTuple):
    """What beside the measured amounts decides how long a step takes with workers.

    Attributes:
        contention: What an ms of computing in a worker costs the training on another core: caches, memory bandwidth
            and cores that are halves of one (0 to 0.6 ms were measured, mostly 0.3).
        handover: Factor of the time to hand a batch over.
        uses_all_cpu_time: Whether all threads that ran while the loop loaded did so for loading.
    """

    contention: float
    handover: float
    uses_all_cpu_time: bool = False


_ASSUMPTIONS = (_Assumption(0.6, 1.6, True), _Assumption(0.3, 1.0), _Assumption(0.0, 0.6))


class StepRange(NamedTuple):
    """How long a step takes, in ns: under bad, expected and good assumptions."""

    slow_ns: float
    expected_ns: float
    fast_ns: float


class Choice(NamedTuple):
    """A setting of workers and threads with the steps that it would give.

    Attributes:
        workers: Worker processes.
        threads: Threads of the training; None for as many as now.
        step: How long a step would take.
    """

    workers: int
    threads: int | None
    step: StepRange


class SharedCores(NamedTuple):
    """What was measured of a program without a GPU and of its loader; times per step, as the report shows them.

    Attributes:
        step_ns: The step.
        wait_ns: The wait for batches of this loader in it.
        sampler_ns: What of it the sampler takes, which no worker takes over.
        workers: Worker processes there are.
        fetch_ns: What loading takes, in the process that loads, without the sampler.
        fetch_cpu_ns: CPU time of the loading thread in it.
        fetch_process_cpu_ns: CPU time of all threads of that process in it.
        batches: Batches that a step takes.
        batch_bytes: Size of the tensors of one.
        batch_tensors: Their number.
        available_cores: Cores that the program may use.
        cores: Those of them that other programs leave.
        training_cores: Cores that the training process uses while it does not wait.
        threads: Threads of PyTorch.
        large_ops: Share (0 to 1) of the training in ops that several threads share.
        others_have_cores: Whether other programs had the cores that this one asked for; the times are without that.
    """

    step_ns: float
    wait_ns: float
    sampler_ns: float
    workers: int
    fetch_ns: float
    fetch_cpu_ns: float
    fetch_process_cpu_ns: float
    batches: float
    batch_bytes: int
    batch_tensors: int
    available_cores: float
    cores: float
    training_cores: float
    threads: int
    large_ops: float
    others_have_cores: bool = False

    @property
    def computes(self) -> bool:
        """Whether loading computes for half of its time and more; else it waits for a disk, a network or a sleep."""
        return 2 * self.fetch_cpu_ns >= self.fetch_ns

    @property
    def training_ns(self) -> float:
        """The step without what workers take over of the wait."""
        return max(self.step_ns - self.wait_ns + self.sampler_ns, 1.0)

    @property
    def used_cores(self) -> str:
        """How much of its cores the training uses, for sentences; other programs may have taken some since."""
        used, cores = f"{min(self.training_cores, self.cores):.2g}", f"{self.cores:.3g}"
        if cores == "1":
            return "its one core" if used == "1" else f"{used} of its one core"
        return f"{used} of {cores} cores"

    @property
    def handover_ns(self) -> float:
        """What the loop spends to take over the batches of a step that workers have ready."""
        tensors_ns = _HANDOVER_NS_PER_TENSOR * self.batch_tensors
        return self.batches * (_HANDOVER_NS + tensors_ns + _HANDOVER_NS_PER_BYTE * self.batch_bytes)

    @property
    def workers_keep_up(self) -> bool:
        """Whether the workers that there are load as fast as the training asks: the waits are then for handing over."""
        return self.workers > 0 and self.fetch_ns / self.workers <= self.training_ns

    def predict_step(self, workers: int, threads: int | None = None) -> StepRange:
        """How long a step takes with so many workers, and the training with so many threads (None for as many as now).

        The longer of two: the training with what is taken from it, and the workers' time for the batches of a step.
        """
        return StepRange(*(self._predict(workers, threads, each) for each in _ASSUMPTIONS))

    def _predict(self, workers: int, threads: int | None, assumed: _Assumption) -> float:
        handover_ns = assumed.handover * self.handover_ns
        cpu_ns = self.fetch_process_cpu_ns if assumed.uses_all_cpu_time else self.fetch_cpu_ns
        cpu_ns = min(max(cpu_ns, self.fetch_cpu_ns), self.threads * self.fetch_cpu_ns) + handover_ns
        rate_ns = (max(self.fetch_ns, cpu_ns - handover_ns) + handover_ns) / workers
        training_ns, used = self.training_ns, min(max(self.training_cores, 1.0), self.cores)
        if threads == 1 < self.threads:
            training_ns, used = training_ns * self._slowdown_of_one_thread(assumed), 1.0
        if self.workers:  # what they take from the training is in its time already
            busy_ns = (used * training_ns + cpu_ns) / self.cores
            return max(training_ns + handover_ns, rate_ns, busy_ns)
        free_ns = max(self.cores - used, 0.0) * training_ns
        displaced_ns = max(cpu_ns - free_ns, 0.0)
        # Threads that share one op wait for the slowest of them: a core that a worker uses holds up all of them.
        in_lockstep = used >= _MIN_PARALLEL_CORES
        stretch_ns = displaced_ns if in_lockstep else displaced_ns / self.cores
        stretch_ns += assumed.contention * min(cpu_ns, free_ns, training_ns)
        return max(training_ns + handover_ns + stretch_ns, rate_ns)

    def _slowdown_of_one_thread(self, assumed: _Assumption) -> float:
        """How many times as long the training takes with one thread in place of those it has."""
        speedup = speedup_of_threads(min(self.threads, self.cores))
        factor = {0.6: speedup.high, 0.3: speedup.expected, 0.0: speedup.low}[assumed.contention]
        return 1 - self.large_ops + self.large_ops * factor

    def choose_workers(self, threads: int | None = None) -> Choice:
        """The fewest workers that give the shortest step, or nearly."""
        max_workers = max(math.floor(_MAX_WORKERS_PER_CORE * self.available_cores), 1)
        choices = [Choice(each, threads, self.predict_step(each, threads)) for each in range(1, max_workers + 1)]
        choices = [each for each in choices if each.workers > self.workers] or choices
        best_ns = min(each.step.expected_ns for each in choices)
        good = [each for each in choices if each.step.expected_ns <= _AS_GOOD * best_ns]
        roomy = [each for each in good if each.workers * self.training_ns >= _HEADROOM * self.fetch_ns]
        return (roomy or good)[0]


def measure_shared_cores(rank: Rank, captured: LoaderFacts, wait: LoaderWait) -> SharedCores | None:
    """What was measured of a rank and of its loader; None where its cores or what loading takes were not captured.

    The step and the wait are those of the report. Without workers the loop waits as long as loading takes, so that
    what was measured of a batch is stretched to that.

    Args:
        rank: The rank.
        captured: What was captured of the loader.
        wait: What the waits for batches cost.
    """
    fetch, workers = captured.fetch, captured.num_workers
    available, used = rank.facts.cores.available, rank.facts.cores.training
    if fetch.median_ns is None or fetch.cpu_ns is None or fetch.process_cpu_ns is None:
        return None
    if workers is None or not available or used is None or rank.device_kind != "cpu":
        return None
    steps, waits = rank.facts.base.timed_ns, [ns for ns in rank.facts.base.loader_wait_ns if ns is not None]
    if not steps or len(waits) != len(steps):
        return None
    # One step in which the machine did something else moves a mean.
    timed_ns = step_ns = float(median(steps))
    fetch_ns, wait_ns = float(fetch.median_ns), wait.share * timed_ns * sum(waits) / sum(steps)
    others_share = rank.contention.left_out_share
    if others_share:
        step_ns = float(rank.unprofiled_step_ns or timed_ns)
        fetch_ns = own_fetch_ns(fetch, others_share) or fetch_ns
        # Without workers the loop waits for what it loads itself; with workers both lack cores alike.
        wait_ns = min(wait_ns * (step_ns / timed_ns if workers else fetch_ns / max(fetch.median_ns, 1)), step_ns)
    batches = max(wait.batches, 1.0 if len(rank.facts.loaders) == 1 else 0.0)
    sampler = share_of_sampler(captured)
    moved = 1.0 if workers else 1 - sampler
    loaded_here = 0 if workers else moved * batches * fetch.process_cpu_ns
    training_ns = max(step_ns - (1 - sampler) * wait_ns, 1)
    threads = rank.facts.cpu.torch_threads
    threads = 1 if threads is None else threads
    recorded_training_ns = max(rank.per_step(rank.window_ns - iv.total(rank.loader_waits.intervals)), 1)
    stretch = rank.mean_step_ns / step_ns if workers else wait.own_ns / max(batches * fetch_ns, 1)
    loaded = moved * stretch * batches
    return SharedCores(
        rank.mean_step_ns,
        wait.own_ns,
        sampler * wait.own_ns,
        workers,
        loaded * fetch_ns,
        loaded * fetch.cpu_ns,
        loaded * fetch.process_cpu_ns,
        batches,
        captured.batch_bytes or 0,
        captured.batch_tensors or _TENSORS,
        available,
        cores_without_others(rank.facts, available),
        min(max((used * timed_ns - loaded_here) / training_ns, 0.0), available),
        max(threads or 1, 1),
        min(find_parallel_ops(rank, threads or 1).time_ns / recorded_training_ns, 1.0),
        rank.contention.is_severe,
    )
