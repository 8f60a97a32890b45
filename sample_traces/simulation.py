"""A training process and its GPU in simulated time; what happens is recorded as PyTorch's profiler would record it.

The rules are few. The CPU does one thing at a time, and every op, launch and Python function costs it time. A launch
puts an item into a stream; a stream works through its items in order; an item starts when it was launched, when its
stream is free and when what it waits for is done. So the CPU runs ahead of the GPU or behind it, and gaps, waits and
overlaps come out of the costs instead of being drawn by hand.

Times are whole nanoseconds and jitter comes from one seeded generator: the same program gives the same trace.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perfdoctor.testing import TraceBuilder

MAIN, AUTOGRAD = 1, 2
COMPUTE_STREAM, NCCL_STREAM = 7, 20

_CALL_US = 4.6  # a launch on the CPU, as seen on A100 and H100
_LATENCY_US = 5.5  # from the start of the launch call until an idle stream starts the kernel
_BETWEEN_US = 1.1  # between two kernels that were queued in time
_RETURN_US = 6.0  # from the end of what a synchronize call waited for until it returns
_PCIE_GB_S = 22.0  # of pinned copies over PCIe 4.0 x16
_QUEUE = 1024  # launches that a device takes before the next one has to wait
_START_US = 1000.0  # where the clock of the file begins


@dataclass(frozen=True, slots=True)
class Event:
    """What happened from `start` to `end` (ns): one call of TraceBuilder's method `kind` with `fields`."""

    start: int
    end: int
    kind: str
    name: str
    fields: Mapping[str, Any]


@dataclass(slots=True)
class Machine:
    """One process with one GPU.

    Args:
        seed: Of the jitter.
        meetings: When each collective of the job ends, by its number; one that is missing meets nobody.
        stacks: Whether Python functions are recorded.
    """

    seed: int
    meetings: Sequence[int] = ()
    stacks: bool = True
    now: int = round(_START_US * 1000)
    thread: int = MAIN
    joined: list[int] = field(default_factory=list)  # when this process came to each collective
    events: list[Event] = field(default_factory=list)
    _free: dict[int, int] = field(default_factory=dict)
    _queued: deque[int] = field(default_factory=deque)
    _frames: list[int] = field(default_factory=list)
    _frame_count: int = 0
    _correlation: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def jittered(self, us: float, spread: float = 0.06) -> int:
        """A duration in ns that varies by up to `spread` to either side."""
        # random() alone is promised to give the same numbers in every version of Python.
        return max(1, int(us * 1000 * (1 - spread + 2 * spread * self._random.random())))

    def work(self, us: float) -> None:
        """The CPU is busy with something that the profiler does not see."""
        self.now += self.jittered(us, 0.25)

    @contextmanager
    def op(self, name: str, us: float = 5.0, shapes: Sequence[object] | None = None, dtype: str = "") -> Iterator[None]:
        """An operator that takes `us` of its own beside what happens inside."""
        start = self.now
        self.work(us * 0.7)
        yield
        self.work(us * 0.3)
        types = None if shapes is None else [dtype if shape else "Scalar" for shape in shapes]
        self._add(start, self.now, "op", name, thread=self.thread, shapes=shapes, types=types)

    def ops(self, *names: str, us: float = 2.5) -> None:
        """Operators one after the other with nothing inside: views, allocations."""
        for name in names:
            with self.op(name, us):
                pass

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """A range on the CPU: a step, the optimizer, the DataLoader."""
        start = self.now
        self.work(1.5)
        yield
        self.work(1.5)
        self._add(start, self.now, "range", name, thread=self.thread)

    @contextmanager
    def frame(self, *names: str) -> Iterator[None]:
        """Python functions, each called by the one before."""
        if not self.stacks:
            yield
            return
        start = self.now
        outside = self._frames
        opened = [(self._frame_count + i + 1, name) for i, name in enumerate(names)]
        self._frame_count += len(names)
        self._frames = [*outside, *(number for number, _ in opened)]
        self.work(1.0 * len(names))
        yield
        self.work(0.5 * len(names))
        self._frames = outside
        chain = [outside[-1] if outside else None, *(number for number, _ in opened)]
        for i, (number, name) in enumerate(opened):
            # A function begins after its caller and ends before it, by at least a nanosecond.
            self._add(start + 2 * i, self.now - 2 * i, "frame", name, parent=chain[i], number=number)

    @contextmanager
    def autograd_thread(self) -> Iterator[None]:
        """What happens inside runs on the thread of the autograd engine, while the main thread waits."""
        self.work(25.0)
        self.thread, outside = AUTOGRAD, self.thread
        yield
        self.thread = outside
        self.work(15.0)

    def call(self, name: str, us: float, until: int = 0) -> int:
        """A runtime call that takes `us` and does not return before `until`; its correlation id."""
        self._correlation += 1
        start = self.now
        self.now = max(start + self.jittered(us, 0.25), until)
        self._add(start, self.now, "call", name, thread=self.thread, correlation=self._correlation)
        return self._correlation

    def kernel(
        self,
        name: str,
        us: float,
        stream: int = COMPUTE_STREAM,
        after: int = 0,
        until: int = 0,
        call: str = "cudaLaunchKernel",
    ) -> int:
        """Launch a kernel that starts no earlier than `after` and ends no earlier than `until`; when it ends."""
        launched = self.now
        correlation = self.call(call, _CALL_US, until=self._room())
        start = self._start(launched, stream, after)
        end = max(start + self.jittered(us), until)
        return self._item("kernel", start, end, stream, name, correlation=correlation)

    def copy(self, kind: str, size_bytes: int) -> int:
        """Copy between pinned memory and the device, without waiting for it; when it ends."""
        launched = self.now
        correlation = self.call("cudaMemcpyAsync", 6.0, until=self._room())
        start = self._start(launched, COMPUTE_STREAM, 0)
        end = start + self.jittered(1.5 + size_bytes / _PCIE_GB_S / 1000)
        fields = {"size_bytes": size_bytes, "pinned": True, "correlation": correlation}
        return self._item("memcpy", start, end, COMPUTE_STREAM, kind, **fields)

    def collective(self, name: str, us: float) -> None:
        """A collective on a stream of its own, once everything launched before is done; it ends when all have met."""
        number = len(self.joined)
        until = self.meetings[number] + self.jittered(5.0, 0.9) if number < len(self.meetings) else 0
        self.call("cudaEventRecord", 1.2)
        self.call("cudaStreamWaitEvent", 1.0)
        ready = self._free.get(COMPUTE_STREAM, 0)
        self.kernel(name, us, NCCL_STREAM, ready, until, "cudaLaunchKernelExC")
        self.joined.append(self.events[-1].start)

    def wait_for_collectives(self) -> None:
        """What is launched from here on starts when the collectives are done; the CPU goes on."""
        self.call("cudaStreamWaitEvent", 1.0)
        self._free[COMPUTE_STREAM] = self.drained()

    def synchronize(self, call: str = "cudaStreamSynchronize") -> None:
        """Wait until the GPU has done everything."""
        self.call(call, 8.0, until=self.drained() + round(_RETURN_US * 1000))

    def drained(self) -> int:
        """When the GPU will have done what was launched so far."""
        return max(self._free.values(), default=0)

    def write(self, builder: TraceBuilder) -> TraceBuilder:
        """Hand the events to a TraceBuilder in the order of their starts, as the profiler writes them."""
        numbers: dict[int, int] = {}
        for event in sorted(self.events, key=lambda event: (event.start, -event.end)):
            fields = dict(event.fields)
            number = fields.pop("number", None)
            if number is not None and fields["parent"] is not None:
                fields["parent"] = numbers[fields["parent"]]
            made = getattr(builder, event.kind)(
                event.name, event.start / 1000, (event.end - event.start) / 1000, **fields
            )
            if number is not None:
                numbers[number] = made
        return builder

    def _add(self, start: int, end: int, kind: str, name: str, **fields: object) -> None:
        self.events.append(Event(start, end, kind, name, fields))

    def _room(self) -> int:
        """When the queue of launches has room for one more."""
        while self._queued and self._queued[0] <= self.now:
            self._queued.popleft()
        return self._queued[-_QUEUE] if len(self._queued) >= _QUEUE else 0

    def _start(self, launched: int, stream: int, after: int) -> int:
        ready = self._free.get(stream, 0) + self.jittered(_BETWEEN_US, 0.3)
        return max(ready, launched + self.jittered(_LATENCY_US, 0.2), after)

    def _item(self, kind: str, start: int, end: int, stream: int, name: str, **fields: object) -> int:
        self._free[stream] = end
        self._queued.append(end)
        self._add(start, end, kind, name, stream=stream, **fields)
        return end
