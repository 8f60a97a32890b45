"""TraceBuilder: a Kineto trace, built event by event for tests of rules and for simulated programs."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from perfdoctor.trace.vocabulary import (
    COPY_DIRECTIONS,
    HOST_MEMORY,
    HTOD,
    PAGEABLE,
    PINNED,
    copy_name,
    profiler_step_name,
)

if TYPE_CHECKING:
    from perfdoctor.trace import Trace

_HOST_PID = 1000


class TraceBuilder:
    """Builds the JSON that PyTorch's profiler writes: the same calls in the same order give the same bytes.

    All times are in microseconds, as in the file, with three decimals. Methods return the builder, so that they chain,
    except `call` and `frame`, which return the id that other events refer to.

    Example::

        trace = (
            TraceBuilder()
            .step(0, 1000)
            .op("aten::mm", 10, 30, shapes=[[64, 64], [64, 64]])
            .kernel("ampere_sgemm_128x64_nn", 50, 400, launch_us=20)
            .trace()
        )

    Args:
        device: Name of the device; None writes no device properties, as for a run on the CPU.
        capability: Compute capability, major and minor.
        sm_count: Streaming multiprocessors of the device.
        memory_bytes: Memory of the device.
        rank: Rank of the process; None writes no `distributedInfo`.
        world_size: Number of ranks; None leaves it out.
    """

    def __init__(
        self,
        device: str | None = "NVIDIA A100-SXM4-80GB",
        capability: tuple[int, int] | None = (8, 0),
        sm_count: int | None = 108,
        memory_bytes: int | None = 85_000_000_000,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._header: dict[str, Any] = {"schemaVersion": 1}
        self._events: list[dict[str, Any]] = []
        self._pid = _HOST_PID + (rank or 0)
        self._allocated: dict[int | None, int] = {}
        self._next_step = self._correlations = self._external_ids = self._frames = 0
        if device is not None:
            self._header["deviceProperties"] = [_device_properties(device, capability, sm_count, memory_bytes)]
        if rank is not None:
            self._header["distributedInfo"] = {"backend": "nccl", "rank": rank}
            if world_size is not None:
                self._header["distributedInfo"]["world_size"] = world_size

    def step(self, start_us: float, dur_us: float, number: int | None = None, thread: int = 1) -> Self:
        """A `ProfilerStep#` range; without a `number` it gets the number after that of the last step, or 0."""
        number = self._next_step if number is None else number
        self._next_step = number + 1
        return self.range(profiler_step_name(number), start_us, dur_us, thread)

    def range(self, name: str, start_us: float, dur_us: float, thread: int = 1) -> Self:
        """An annotation on the CPU: record_function, an optimizer step, a wait in the DataLoader."""
        return self._add_host_event("user_annotation", name, start_us, dur_us, thread, {})

    def gpu_range(self, name: str, start_us: float, dur_us: float, stream: int = 7) -> Self:
        """An annotation on the GPU, which the profiler writes for the kernels of a CPU range."""
        return self._add_event("gpu_user_annotation", name, start_us, dur_us, 0, stream, {})

    def op(
        self,
        name: str,
        start_us: float,
        dur_us: float,
        thread: int = 1,
        shapes: Sequence[object] | None = None,
        types: Sequence[str] | None = None,
        strides: Sequence[object] | None = None,
        concrete: Sequence[str] | None = None,
        comm: Mapping[str, object] | None = None,
        sequence: int | None = None,
    ) -> Self:
        """An operator on the CPU.

        Args:
            name: Its name, such as `aten::mm`.
            start_us: Start.
            dur_us: Duration.
            thread: Thread that runs the op.
            shapes: Shape of each input.
            types: Type of each input.
            strides: Strides of each input.
            concrete: Value of each input that is no tensor, as text.
            comm: Metadata of a collective, as `collective` returns it.
            sequence: Number by which autograd joins a forward op and the node of its backward pass.
        """
        self._external_ids += 1
        recorded = {"Input Dims": shapes, "Input type": types, "Input Strides": strides, "Concrete Inputs": concrete}
        args: dict[str, object] = {"External id": self._external_ids} | {
            key: list(value) for key, value in recorded.items() if value is not None
        }
        if sequence is not None:
            args["Sequence number"] = sequence
        return self._add_host_event("cpu_op", name, start_us, dur_us, thread, args | dict(comm or {}))

    def call(
        self, name: str, start_us: float, dur_us: float = 5, thread: int = 1, correlation: int | None = None
    ) -> int:
        """A runtime or driver call (`cudaLaunchKernel`, `cudaStreamSynchronize`, `hipMemcpyAsync`, ...).

        Returns:
            Its correlation id, for `kernel(..., correlation=...)`: one graph launch can start many kernels.
        """
        if correlation is None:
            correlation = self._correlations + 1
        self._correlations = max(self._correlations, correlation)
        category = "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
        self._add_host_event(category, name, start_us, dur_us, thread, {"cbid": 211, "correlation": correlation})
        return correlation

    def kernel(
        self,
        name: str,
        start_us: float,
        dur_us: float,
        stream: int = 7,
        launch_us: float | None = None,
        correlation: int | None = None,
        thread: int = 1,
        device: int = 0,
        grid: Sequence[int] | None = None,
        comm: Mapping[str, object] | None = None,
        **args: object,
    ) -> Self:
        """A kernel.

        Args:
            name: Name as the profiler writes it.
            start_us: Start on the device.
            dur_us: Duration.
            stream: Stream it runs on.
            launch_us: Start of a `cudaLaunchKernel` of 5 us that is added and linked to it; None adds none.
            correlation: Links it to an earlier `call` instead.
            thread: Thread of the added launch.
            device: Index of the device.
            grid: Its thread blocks in each dimension.
            comm: Metadata of a collective, as `collective` returns it.
            args: Further arguments of the event.
        """
        args |= dict(comm or {}) | ({"grid": list(grid)} if grid is not None else {})
        correlation = self._launch("cudaLaunchKernel", launch_us, thread, correlation)
        return self._add_gpu_item("kernel", name, start_us, dur_us, device, stream, correlation, args)

    def memcpy(
        self,
        kind: str,
        start_us: float,
        dur_us: float,
        size_bytes: int = 1 << 20,
        stream: int = 7,
        launch_us: float | None = None,
        correlation: int | None = None,
        thread: int = 1,
        device: int = 0,
        pinned: bool = False,
    ) -> Self:
        """A copy; `kind` is HtoD, DtoH, DtoD, PtoP or a whole name; `launch_us` adds a linked `cudaMemcpyAsync`."""
        memory = {"H": HOST_MEMORY[PINNED if pinned else PAGEABLE]}
        name = kind
        if kind in COPY_DIRECTIONS[HTOD:]:
            name = copy_name(kind, memory.get(kind[0], "Device"), memory.get(kind[-1], "Device"))
        correlation = self._launch("cudaMemcpyAsync", launch_us, thread, correlation)
        return self._add_gpu_item(
            "gpu_memcpy", name, start_us, dur_us, device, stream, correlation, {"bytes": size_bytes}
        )

    def memset(
        self,
        start_us: float,
        dur_us: float,
        size_bytes: int = 1 << 20,
        stream: int = 7,
        launch_us: float | None = None,
        correlation: int | None = None,
        thread: int = 1,
        device: int = 0,
    ) -> Self:
        """A memset on the device; `launch_us` adds a linked `cudaMemsetAsync`."""
        correlation = self._launch("cudaMemsetAsync", launch_us, thread, correlation)
        return self._add_gpu_item(
            "gpu_memset", "Memset (Device)", start_us, dur_us, device, stream, correlation, {"bytes": size_bytes}
        )

    def sync(
        self, kind: str, start_us: float, dur_us: float, stream: int = -1, wait_stream: int = -1, correlation: int = -1
    ) -> Self:
        """A synchronization record: `Stream Sync`, `Event Sync`, `Stream Wait Event` or `Context Sync`."""
        args = {"cuda_sync_kind": kind, "stream": stream, "correlation": correlation, "wait_on_stream": wait_stream}
        return self._add_event("cuda_sync", kind, start_us, dur_us, 0, stream, args)

    def frame(self, name: str, start_us: float, dur_us: float, thread: int = 1, parent: int | None = None) -> int:
        """A Python function, named ``file(line): function``.

        Returns:
            Its id, for the `parent` of the functions that it calls.
        """
        self._frames += 1
        args = {"Python parent id": parent, "Python id": self._frames}
        self._add_host_event("python_function", name, start_us, dur_us, thread, args)
        return self._frames

    def memory(self, at_us: float, size: int, address: int, thread: int = 1, device: int | None = None) -> Self:
        """An allocation of `size` bytes, or with a negative size a free, on a GPU or (None) on the CPU.

        Totals count on from the event before; nothing is allocated before the first.
        """
        self._allocated[device] = allocated = self._allocated.get(device, 0) + size
        number, kind = (-1, 0) if device is None else (device, 1)
        args = {"Total Reserved": 0 if device is None else 1 << 30, "Total Allocated": allocated, "Bytes": size}
        args |= {"Addr": address, "Device Id": number, "Device Type": kind}
        return self.event(
            ph="i", cat="cpu_instant_event", s="t", name="[memory]", pid=self._pid, tid=self._pid - 1 + thread,
            ts=round(at_us, 3), args=args,
        )  # fmt: skip

    def event(self, **fields: object) -> Self:
        """An event with exactly these fields, for irregular events."""
        self._events.append(dict(fields))
        return self

    def header(self, **fields: object) -> Self:
        """Set keys of the file beside `traceEvents`, such as `deviceProperties`."""
        self._header.update(fields)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The whole file as one new object, which the caller may change."""
        whole: dict[str, Any] = json.loads(json.dumps(self._header | {"traceEvents": self._events}))
        return whole

    def to_bytes(self) -> bytes:
        """The whole file as JSON text with one event per line."""
        head = json.dumps(self._header)[:-1]
        lines = ",\n".join(json.dumps(event) for event in self._events)
        return f'{head}, "traceEvents": [\n{lines}\n]}}'.encode()

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, compressed if the name ends in `.gz`; returns its path."""
        path = Path(path)
        text = self.to_bytes()
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        return path

    def trace(self) -> Trace:
        """The Trace that `perfdoctor.read` returns for the file."""
        from perfdoctor.trace import parse

        return parse(self.to_bytes(), "built.json")

    def _launch(self, name: str, launch_us: float | None, thread: int, correlation: int | None) -> int:
        if launch_us is not None:
            return self.call(name, launch_us, thread=thread, correlation=correlation)
        return correlation or 0

    def _add_gpu_item(
        self,
        category: str,
        name: str,
        start_us: float,
        dur_us: float,
        device: int,
        stream: int,
        correlation: int,
        args: Mapping[str, object],
    ) -> Self:
        link = {"device": device, "context": 1, "stream": stream, "correlation": correlation}
        return self._add_event(category, name, start_us, dur_us, device, stream, link | dict(args))

    def _add_host_event(
        self, category: str, name: str, start_us: float, dur_us: float, thread: int, args: Mapping[str, object]
    ) -> Self:
        return self._add_event(category, name, start_us, dur_us, self._pid, self._pid - 1 + thread, args)

    def _add_event(
        self, category: str, name: str, start_us: float, dur_us: float, pid: int, tid: int, args: Mapping[str, object]
    ) -> Self:
        self._events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
            | {"ts": round(start_us, 3), "dur": round(dur_us, 3), "args": dict(args)}
        )
        return self


def collective(
    name: str = "allreduce",
    in_elements: int = 1 << 20,
    out_elements: int | None = None,
    dtype: str = "Float",
    ranks: Sequence[int] = (0, 1),
    group: str = "0",
    description: str = "default_pg",
    sequence: int | None = None,
) -> dict[str, object]:
    """The metadata that the profiler writes for a collective, on its kernels and its `record_param_comms`.

    Args:
        name: Name of the collective, as the profiler writes it: allreduce, _allgather_base, alltoall, send, wait, ...
        in_elements: Elements of the input tensors on this rank.
        out_elements: Elements of the output tensors; None for as many as in the input.
        dtype: Element type, as c10 names it: Float, BFloat16, Long, ...
        ranks: Ranks of the process group.
        group: Name of the process group.
        description: Description of the process group.
        sequence: Number of earlier collectives of the group; None leaves it out, as older versions of torch do.
    """
    metadata: dict[str, object] = {
        "Collective name": name,
        "In msg nelems": in_elements,
        "Out msg nelems": in_elements if out_elements is None else out_elements,
        "Group size": len(ranks),
        "dtype": dtype,
        "Process Group Name": group,
        "Process Group Description": description,
        "Process Group Ranks": str(list(ranks)),
    }
    return metadata if sequence is None else metadata | {"Seq": sequence}


def _device_properties(
    name: str, capability: tuple[int, int] | None, sm_count: int | None, memory_bytes: int | None
) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": 0, "name": name}
    if memory_bytes is not None:
        entry["totalGlobalMem"] = memory_bytes
    if capability is not None:
        entry["computeMajor"], entry["computeMinor"] = capability
    if sm_count is not None:
        entry["numSms"] = sm_count
    return entry
