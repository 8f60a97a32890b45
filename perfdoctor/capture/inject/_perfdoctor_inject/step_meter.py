"""What the running step costs and does: CPU time, preemption, page faults, and the calls that the hooks have seen.

CPU time tells work from waiting, and involuntary context switches tell a slow step from a step that other programs
kept off its core. The calls tell steps of unequal work apart: micro-batches, checkpoints, evaluation in between.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import torch

from .core_usage import read_queued_ns, subtract_queued
from .host_calls import HostCalls
from .process_memory import MAXRSS_UNIT, HeldMemory, PacedLook, read_allocated_bytes

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# A collection that takes less is no event of the step.
LONG_COLLECTION_NS = 1_000_000
# An evaluation takes this many batches without a backward pass beyond those that every step takes.
EVALUATION_BATCHES = 2
# Forward passes without gradients (blocks of `no_grad`) in a step without a loader that count as a rollout.
ROLLOUT_BLOCKS = 8
# Events of the profiler for each node of autograd's graph: a forward op, its backward op, and the calls inside them.
EVENTS_PER_NODE = 12
GETRUSAGE_THREAD = getattr(resource, "RUSAGE_THREAD", None)


@dataclass(frozen=True)
class StepWork:
    """The cost and the work of one step; None where the system does not tell.

    Attributes:
        cpu_ns: CPU time of the training thread.
        process_cpu_ns: CPU time of all threads of the process.
        preempted: How often the system took the core from the training thread (involuntary context switches).
        queued_ns: How long the training thread could have run and had no core.
        system_cpu_ns: CPU time that the system spent for all threads of the process: page faults, reads, switches.
        minor_faults: Pages that the process touched for the first time since the system gave them to it.
        batches: Batches that loaders returned.
        backwards: Backward passes: micro-batches, for gradient accumulation.
        optimizer_steps: Calls of `Optimizer.step`.
        gc_ns: Time in which garbage was collected: the oldest generation, and calls of `gc.collect`.
        host_call_ns: Time in calls that wait for a disk or copy models, see `HostCalls`.
        contains: What else was seen in the step: save, evaluation, epoch, worker_start, rollout, compile, gc.
        samples: Samples in these batches, by the first dimension of each; None where batches have no tensors.
        held_bytes: What the program holds of the host's memory at the end of the step; None between two looks.
        allocated_bytes: The same of what the allocator has handed out on the current GPU; None before CUDA is
            initialised, too.
    """

    cpu_ns: int | None = None
    process_cpu_ns: int | None = None
    preempted: int | None = None
    queued_ns: int | None = None
    system_cpu_ns: int | None = None
    minor_faults: int | None = None
    batches: int = 0
    backwards: int = 0
    optimizer_steps: int = 0
    gc_ns: int = 0
    host_call_ns: int = 0
    contains: tuple[str, ...] = ()
    samples: int | None = None
    held_bytes: int | None = None
    allocated_bytes: int | None = None

    @property
    def amount(self) -> int:
        """Micro-batches of the step, by which steps of unequal work are compared; at least 1."""
        return self.backwards or self.batches or 1

    def to_dict(self) -> dict[str, Any]:
        """The work as it stands in a row of steps.jsonl; an ordinary step contains nothing else."""
        return {name: value for name, value in vars(self).items() if value != ()}


def count_graph_nodes() -> int:
    """Nodes that the calling thread has added to autograd's graph so far; 0 where this torch does not tell."""
    count = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return 0 if count is None else int(count())


def count_preemptions() -> int | None:
    """Involuntary context switches of the calling thread so far; None where the system does not count them."""
    return None if GETRUSAGE_THREAD is None else int(resource.getrusage(GETRUSAGE_THREAD).ru_nivcsw)


def read_memory_work() -> tuple[int, int, int] | None:
    """Of the process so far: system CPU time in ns, minor page faults, and the most memory in RAM, in bytes.

    None where the system does not count them.

    The system knows its share by ticks of 4 to 10 ms: of many steps it is right on average, of one it is not.
    """
    if GETRUSAGE_THREAD is None:  # Windows has no resource, others count less
        return None
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int(usage.ru_stime * 1e9), int(usage.ru_minflt), usage.ru_maxrss * MAXRSS_UNIT


class StepMeter:
    """The clocks and counts of the running step.

    Attributes:
        batches: Batches in this step so far.
        backwards: Backward passes in this step so far.
        optimizer_steps: Calls of `Optimizer.step` in this step so far.
        no_grad_blocks: Blocks without gradients entered in this step.
        host_calls: Garbage collections, and calls that wait for a disk or copy models.
        memory: Reads what the program holds of the host's memory.
        rss_peak_bytes: The most memory in RAM that the process has had at the end of the last step.
    """

    def __init__(self) -> None:
        self.batches = self.backwards = self.optimizer_steps = self.no_grad_blocks = 0
        self._samples: int | None = None
        self._unused_batches = 0
        self._batch_is_unused = False
        self._usual_unused_batches: int | None = None
        self._seen: list[str] = []
        self._thread: int | None = None
        self._clocks: tuple[int, int, int | None, int | None] = (0, 0, None, None)
        self.host_calls = HostCalls()
        self.memory = HeldMemory()
        self._allocated = PacedLook(read_allocated_bytes)  # the allocator's statistics are a hundred numbers
        self._memory_work: tuple[int, int, int] | None = None
        self.rss_peak_bytes: int | None = None
        self._first_node = 0
        self._evaluation_since: tuple[int, int] | None = None
        self._evaluates_later = False

    def begin_step(self) -> None:
        """Begin a step in the calling thread."""
        self.batches = self.backwards = self.optimizer_steps = self.no_grad_blocks = 0
        self._samples = None
        self._unused_batches = 0
        self.host_calls.begin_step()
        self._seen = ["evaluation"] if self._evaluates_later else []
        self._evaluates_later = False
        self._evaluation_since = None
        self._thread = threading.get_ident()
        self._first_node = count_graph_nodes()
        self._memory_work = read_memory_work()
        self._clocks = time.thread_time_ns(), time.process_time_ns(), count_preemptions(), read_queued_ns()

    def estimate_events(self) -> int:
        """About how many events the profiler has for the running step so far, ops without gradients left out."""
        return (count_graph_nodes() - self._first_node) * EVENTS_PER_NODE

    def end_step(self, *, compiled: bool, may_roll_out: bool) -> StepWork:
        """What the running step has cost and done.

        `compiled`: dynamo compiled something in it. `may_roll_out`: blocks without gradients may be a rollout.
        """
        cpu_ns = process_cpu_ns = preempted = queued_ns = None
        if self._thread == threading.get_ident():  # clocks of two threads cannot be subtracted
            cpu_ns = time.thread_time_ns() - self._clocks[0]
            process_cpu_ns = time.process_time_ns() - self._clocks[1]
            before, now = self._clocks[2], count_preemptions()
            preempted = None if before is None or now is None else now - before
            queued_ns = subtract_queued(read_queued_ns(), self._clocks[3])
        system_cpu_ns = minor_faults = None
        first, last = self._memory_work, read_memory_work()
        if first is not None and last is not None:
            system_cpu_ns, minor_faults = max(last[0] - first[0], 0), last[1] - first[1]
            self.rss_peak_bytes = last[2]
        return StepWork(
            cpu_ns=cpu_ns,
            process_cpu_ns=process_cpu_ns,
            preempted=preempted,
            queued_ns=queued_ns,
            system_cpu_ns=system_cpu_ns,
            minor_faults=minor_faults,
            batches=self.batches,
            backwards=self.backwards,
            optimizer_steps=self.optimizer_steps,
            gc_ns=self.host_calls.gc_ns,
            host_call_ns=self.host_calls.call_ns,
            contains=self._list_contents(compiled, may_roll_out),
            samples=self._samples,
            held_bytes=self.memory.read(),
            allocated_bytes=self._allocated.read(),
        )

    def add_batch(self) -> None:
        """A loader has returned a batch."""
        self.batches += 1
        self._batch_is_unused = True

    def add_samples(self, samples: int | None) -> None:
        """Note the number of samples of a loader's batch; None where it has no tensors."""
        if samples is not None:
            self._samples = (self._samples or 0) + samples

    def on_loader_next(self) -> None:
        """The loop asks for the next batch: a batch that saw no backward pass was evaluated, or belongs to a pair."""
        if self._batch_is_unused:
            self._unused_batches += 1
            self._batch_is_unused = False

    def add_backward(self) -> None:
        """A backward pass begins."""
        self.backwards += 1
        self._batch_is_unused = False

    def see(self, content: str) -> None:
        """The step contains this, too: save, evaluation, epoch."""
        if content not in self._seen:
            self._seen.append(content)
        if content == "evaluation":
            self._evaluation_since = (self.batches, self.no_grad_blocks)

    def _list_contents(self, compiled: bool, may_roll_out: bool) -> tuple[str, ...]:
        contents = list(self._seen)
        since = self._evaluation_since
        if since is not None and since[0] == self.batches and (not may_roll_out or since[1] == self.no_grad_blocks):
            # The model was put to evaluation right before the boundary: its batches come in the next step.
            contents.remove("evaluation")
            self._evaluates_later = True
        self._evaluation_since = None
        usual = self._usual_unused_batches
        if usual is not None and self._unused_batches >= usual + EVALUATION_BATCHES:
            contents.append("evaluation")
        if usual is None or self._unused_batches < usual:
            # The least of all steps: two loaders in one loop leave batches without a backward pass in every step.
            self._usual_unused_batches = self._unused_batches
        if may_roll_out and self.no_grad_blocks >= ROLLOUT_BLOCKS * max(self.optimizer_steps, 1):
            contents.append("rollout")
        if compiled:
            contents.append("compile")
        if self.host_calls.gc_ns >= LONG_COLLECTION_NS:
            contents.append("gc")
        return tuple(dict.fromkeys(contents))
