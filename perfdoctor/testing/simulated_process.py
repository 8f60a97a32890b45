"""SimulatedProcess: a training process and its GPU in simulated time, recorded as PyTorch's profiler records them.

The model is simple. The CPU does one thing at a time, and every op, launch and Python function costs it time. A launch
puts an item into a stream. A stream works through its items in order. An item starts when it is launched, its stream is
free and everything that it waits for is done. So the CPU runs ahead of the GPU or behind it, and gaps, waits and
overlaps follow from costs.

    CPU     op [launch a][launch b]                      [synchronize           ]
    GPU                  [a          ][b          ]

Times are whole nanoseconds and jitter comes from one seeded generator: the same program gives the same trace.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.testing.trace_builder import TraceBuilder

MAIN_THREAD, AUTOGRAD_THREAD = 1, 2
COMPUTE_STREAM, NCCL_STREAM = 7, 20

_LAUNCH_US = 4.6  # a launch on the CPU, as seen on A100 and H100
_LATENCY_US = 5.5  # from the start of the launch call until an idle stream starts the kernel
_BETWEEN_KERNELS_US = 1.1  # between two kernels that were queued in time
_SYNCHRONIZE_RETURN_US = 6.0  # from the end of the item that a synchronize call waits for until the call returns
_PCIE_GB_PER_S = 22.0  # of pinned copies over PCIe 4.0 x16
_QUEUE_LENGTH = 1024  # items that a device queues before the next launch has to wait
_START_US = 1000.0  # where the clock of the trace begins
_CPU_SPREAD, _GPU_SPREAD = 0.25, 0.06  # jitter to either side, as a share of the duration


@frozen_dataclass
class _Event:
    """One call of TraceBuilder's method `method`, for an event from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int
    method: str
    name: str
    fields: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class SimulatedProcess:
    """One process with one GPU: its methods are what the program does, and `write` gives the trace of it.

    Example::

        process = SimulatedProcess(seed=0)
        for step in range(3):
            with process.annotation(f"ProfilerStep#{step}"):
                with process.op("aten::mm", shapes=[[64, 64], [64, 64]], dtype="float"):
                    process.kernel("ampere_sgemm_128x64_nn", 400)
                process.synchronize()
        trace = process.write(TraceBuilder()).trace()

    A collective of several processes ends when the last process has arrived and the data has moved. There are two ways
    to set its end: `launch_collective` in all processes and then `end_collective`, or `collective_ends_ns`.

    Args:
        seed: Seed of the jitter.
        collective_ends_ns: When each collective of the job ends, in order. Collectives beyond this list meet no other
            process.
        record_stacks: Whether Python functions are recorded.
        jitter: Scales the variation of durations; 0 for none.

    Attributes:
        now_ns: The present time on the CPU.
        collective_starts_ns: When the kernel of each collective started in this process.
    """

    seed: int
    collective_ends_ns: Sequence[int] = ()
    record_stacks: bool = True
    jitter: float = 1.0
    now_ns: int = field(default=round(_START_US * 1000), init=False)
    collective_starts_ns: list[int] = field(default_factory=list, init=False)
    _thread: int = field(default=MAIN_THREAD, init=False)
    _events: list[_Event] = field(default_factory=list, init=False)
    _stream_free_ns: dict[int, int] = field(default_factory=dict, init=False)
    _queued_ends_ns: deque[int] = field(default_factory=deque, init=False)
    _open_frames: list[int] = field(default_factory=list, init=False)
    _frames: int = field(default=0, init=False)
    _correlation: int = field(default=0, init=False)
    _open_collective: tuple[str, int, dict[str, object]] | None = field(default=None, init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run_cpu(self, us: float, spread: float = _CPU_SPREAD) -> None:
        """Spend CPU time on something that the profiler does not record."""
        self.now_ns += self._vary_ns(us, spread)

    @contextmanager
    def op(self, name: str, us: float = 5.0, shapes: Sequence[object] | None = None, dtype: str = "") -> Iterator[None]:
        """An operator that takes `us` plus the time of everything inside it."""
        start_ns = self.now_ns
        self.run_cpu(us * 0.7)
        yield
        self.run_cpu(us * 0.3)
        types = None if shapes is None else [dtype if shape else "Scalar" for shape in shapes]
        self._record(start_ns, self.now_ns, "op", name, thread=self._thread, shapes=shapes, types=types)

    def ops(self, *names: str, us: float = 2.5) -> None:
        """Operators in a row with nothing inside them, such as views and allocations."""
        for name in names:
            with self.op(name, us):
                pass

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """A range on the CPU: a step, the optimizer, the DataLoader."""
        start_ns = self.now_ns
        self.run_cpu(1.5)
        yield
        self.run_cpu(1.5)
        self._record(start_ns, self.now_ns, "range", name, thread=self._thread)

    @contextmanager
    def frame(self, *names: str) -> Iterator[None]:
        """Python functions, each called by the previous one."""
        if not self.record_stacks:
            yield
            return
        start_ns = self.now_ns
        callers = self._open_frames
        numbered = [(self._frames + i + 1, name) for i, name in enumerate(names)]
        self._frames += len(names)
        self._open_frames = [*callers, *(number for number, _ in numbered)]
        self.run_cpu(1.0 * len(names))
        yield
        self.run_cpu(0.5 * len(names))
        self._open_frames = callers
        parents = [callers[-1] if callers else None, *(number for number, _ in numbered)]
        for i, (number, name) in enumerate(numbered):
            # A function begins after its caller and ends before it, by at least a nanosecond.
            times_ns = start_ns + 2 * i, self.now_ns - 2 * i
            self._record(*times_ns, "frame", name, parent=parents[i], number=number)

    @contextmanager
    def autograd_thread(self) -> Iterator[None]:
        """Run everything inside on the thread of the autograd engine, while the main thread waits."""
        self.run_cpu(25.0)
        self._thread, caller = AUTOGRAD_THREAD, self._thread
        yield
        self._thread = caller
        self.run_cpu(15.0)

    def call(self, name: str, us: float, until_ns: int = 0) -> int:
        """A runtime call that takes `us` and does not return before `until_ns`; returns its correlation id."""
        self._correlation += 1
        start_ns = self.now_ns
        self.now_ns = max(start_ns + self._vary_ns(us, _CPU_SPREAD), until_ns)
        self._record(start_ns, self.now_ns, "call", name, thread=self._thread, correlation=self._correlation)
        return self._correlation

    def kernel(self, name: str, us: float, stream: int = COMPUTE_STREAM) -> int:
        """Launch a kernel; returns when it ends, in ns."""
        start_ns, correlation = self._launch("cudaLaunchKernel", _LAUNCH_US, stream)
        end_ns = start_ns + self._vary_ns(us)
        return self._run_on_gpu("kernel", name, start_ns, end_ns, stream, correlation=correlation)

    def copy(self, kind: str, size_bytes: int) -> int:
        """Copy between pinned memory and the device asynchronously; returns when the copy ends, in ns."""
        start_ns, correlation = self._launch("cudaMemcpyAsync", 6.0, COMPUTE_STREAM)
        end_ns = start_ns + self._vary_ns(1.5 + size_bytes / _PCIE_GB_PER_S / 1000)
        fields = {"size_bytes": size_bytes, "pinned": True, "correlation": correlation}
        return self._run_on_gpu("memcpy", kind, start_ns, end_ns, COMPUTE_STREAM, **fields)

    def collective(self, name: str, us: float) -> None:
        """A collective that ends at its time in `collective_ends_ns`, or after `us` when it has none."""
        number = len(self.collective_starts_ns)
        end_ns = 0
        if number < len(self.collective_ends_ns):
            end_ns = self.collective_ends_ns[number] + self._vary_ns(5.0, 0.9)
        start_ns = self.launch_collective(name)
        self.end_collective(max(start_ns + self._vary_ns(us), end_ns))

    def launch_collective(self, name: str, comm: Mapping[str, object] | None = None) -> int:
        """Launch a collective on its own stream, after all kernels launched before; returns its start in ns.

        `end_collective` has to follow before the next collective. `comm` is its metadata as `trace_builder.collective`
        returns it.
        """
        self.call("cudaEventRecord", 1.2)
        self.call("cudaStreamWaitEvent", 1.0)
        after_ns = self._stream_free_ns.get(COMPUTE_STREAM, 0)
        start_ns, correlation = self._launch("cudaLaunchKernelExC", _LAUNCH_US, NCCL_STREAM, after_ns)
        fields: dict[str, object] = {"correlation": correlation} | ({} if comm is None else {"comm": comm})
        self._open_collective = name, start_ns, fields
        self.collective_starts_ns.append(start_ns)
        return start_ns

    def end_collective(self, end_ns: int) -> None:
        """End the last launched collective at this time.

        Raises:
            ValueError: No collective is open.
        """
        if self._open_collective is None:
            raise ValueError("no collective was launched: call launch_collective first")
        name, start_ns, fields = self._open_collective
        self._open_collective = None
        self._run_on_gpu("kernel", name, start_ns, end_ns, NCCL_STREAM, **fields)

    def wait_for_collectives(self) -> None:
        """Make later kernels start after the collectives; the CPU does not wait."""
        self.call("cudaStreamWaitEvent", 1.0)
        self._stream_free_ns[COMPUTE_STREAM] = self.gpu_done_ns()

    def synchronize(self, call: str = "cudaStreamSynchronize") -> None:
        """Block the CPU until the GPU is done with everything."""
        self.call(call, 8.0, until_ns=self.gpu_done_ns() + round(_SYNCHRONIZE_RETURN_US * 1000))

    def gpu_done_ns(self) -> int:
        """When the GPU is done with everything launched so far; 0 before the first launch."""
        return max(self._stream_free_ns.values(), default=0)

    def write(self, builder: TraceBuilder, clock_offset_ns: int = 0) -> TraceBuilder:
        """Add the events to a TraceBuilder by start, in the order of the profiler; returns the builder.

        Args:
            builder: The trace to add the events to.
            clock_offset_ns: How far the clock of this process is ahead of simulated time.
        """
        ids: dict[int, int] = {}
        for event in sorted(self._events, key=lambda event: (event.start_ns, -event.end_ns)):
            fields = dict(event.fields)
            number = fields.pop("number", None)
            if number is not None and fields["parent"] is not None:
                fields["parent"] = ids[fields["parent"]]
            start_us, dur_us = (event.start_ns + clock_offset_ns) / 1000, (event.end_ns - event.start_ns) / 1000
            added = getattr(builder, event.method)(event.name, start_us, dur_us, **fields)
            if number is not None:
                ids[number] = added
        return builder

    def _vary_ns(self, us: float, spread: float = _GPU_SPREAD) -> int:
        """A duration in ns that varies by up to `spread`, scaled by `jitter`, to either side; at least 1."""
        spread *= self.jitter
        # random() alone is promised to give the same numbers in every version of Python.
        return max(1, int(us * 1000 * (1 - spread + 2 * spread * self._random.random())))

    def _record(self, start_ns: int, end_ns: int, method: str, name: str, **fields: object) -> None:
        self._events.append(_Event(start_ns, end_ns, method, name, fields))

    def _launch(self, call: str, us: float, stream: int, after_ns: int = 0) -> tuple[int, int]:
        """Launch an item; returns its start, which is not before `after_ns`, and its correlation id."""
        launch_ns = self.now_ns
        correlation = self.call(call, us, until_ns=self._queue_room_ns())
        free_ns = self._stream_free_ns.get(stream, 0) + self._vary_ns(_BETWEEN_KERNELS_US, 0.3)
        return max(free_ns, launch_ns + self._vary_ns(_LATENCY_US, 0.2), after_ns), correlation

    def _queue_room_ns(self) -> int:
        """When the launch queue has room for one more item; 0 when it has room now."""
        while self._queued_ends_ns and self._queued_ends_ns[0] <= self.now_ns:
            self._queued_ends_ns.popleft()
        return self._queued_ends_ns[-_QUEUE_LENGTH] if len(self._queued_ends_ns) >= _QUEUE_LENGTH else 0

    def _run_on_gpu(self, method: str, name: str, start_ns: int, end_ns: int, stream: int, **fields: object) -> int:
        self._stream_free_ns[stream] = end_ns
        self._queued_ends_ns.append(end_ns)
        self._record(start_ns, end_ns, method, name, stream=stream, **fields)
        return end_ns
