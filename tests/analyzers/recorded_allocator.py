"""Recordings of memory: snapshots of requests that the model of PyTorch's allocator has served, and traces."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from perfdoctor.memory.caching_allocator import Block, CachingAllocator, round_sizes
from perfdoctor.memory.device_memory import DeviceMemory
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, read
from perfdoctor.trace.tables.model import AllocatorSettings

# Frames that say in which part of the loop something happens.
_FRAMES = {
    "forward": ("/site-packages/torch/nn/modules/module.py", 1, "_call_impl"),
    "backward": ("??", 0, "torch::autograd::Engine::evaluate_function"),
    "optimizer": ("/site-packages/torch/optim/optimizer.py", 1, "profile_hook_step"),
}


class Request(NamedTuple):
    """An allocation: its size in bytes, a private pool or 0, a stream, a line of train.py, and a part of the loop."""

    bytes: int
    pool: int = 0
    stream: int = 0
    line: int = 0
    phase: str = ""


Step: TypeAlias = "tuple[int, int, int] | Request | int | None"
"""An allocation, a free (of which of those that are alive), or empty_cache."""


class Recorder:
    """Runs steps on the model, and writes the snapshot that PyTorch would, from `cut` steps on.

    Of a device with a capacity requests without room are refused, and the steps go on.
    """

    def __init__(self, settings: AllocatorSettings, device: int = 0, capacity_bytes: int | None = None) -> None:
        self.settings, self.device, self.capacity_bytes = settings, device, capacity_bytes
        self.allocator = CachingAllocator(settings, capacity_bytes)
        self.alive: list[tuple[Block, Request]] = []
        self.history: list[dict[str, Any]] = []
        self._held: dict[tuple[int, int], dict[str, Any]] = {}

    def run(self, steps: Sequence[Step], cut: int = 0) -> None:
        for number, step in enumerate(steps):
            entry = None
            if step is None:
                self.allocator.release_cached()
            elif isinstance(step, int):
                if self.alive:
                    block, request = self.alive.pop(step % len(self.alive))
                    entry = self._entry("free_completed", block.address, request.bytes)
                    self.allocator.free(block)
            else:
                request = Request(*step)
                size = int(round_sizes(np.array([request.bytes]), self.settings)[0])
                block_ = self.allocator.allocate(size, pool=request.pool, stream=request.stream)
                if block_ is not None:
                    self.alive.append((block_, request))
                    entry = self._entry("alloc", block_.address, request.bytes)
                else:
                    assert self.capacity_bytes is not None
                    free = {"device_free": self.capacity_bytes - self.allocator.reserved_bytes}
                    entry = self._entry("oom", 0, request.bytes) | free
                entry |= {"stream": request.stream, "frames": _frames(request.line, request.phase)}
            self._note_segments()
            self.history += [entry] if entry else []
            if number + 1 == cut:
                self.history.clear()

    def _entry(self, action: str, address: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size, "stream": 0, "frames": [], "time_us": 1}

    def _note_segments(self) -> None:
        """Add what was reserved and given back: of expandable segments piece by piece of a page."""
        segments_now = {}
        for blocks in self.allocator.segments():
            pool, is_expandable = blocks[0].segment.pool, blocks[0].segment.is_expandable
            step = pool.page_bytes if is_expandable else 1 << 60
            for block in [each for each in blocks if each.is_mapped]:
                at = block.segment.address + (block.address - block.segment.address) // step * step
                while at < block.address + block.size:
                    size = step if is_expandable else sum(each.size for each in blocks)
                    segments_now[at, size] = {"expandable": is_expandable, "stream": pool.stream}
                    at += size
        for key, each in self._held.items():
            if key not in segments_now:
                action = "segment_unmap" if each["expandable"] else "segment_free"
                self.history.append(self._entry(action, *key) | {"stream": each["stream"]})
        for key, each in segments_now.items():
            if key not in self._held:
                action = "segment_map" if each["expandable"] else "segment_alloc"
                self.history.append(self._entry(action, *key) | {"stream": each["stream"]})
        self._held = segments_now

    def snapshot(self) -> dict[str, Any]:
        segments = []
        requests = {block.address: request for block, request in self.alive}
        pools = {id(pool): key for key, pool in self.allocator._pools.items()}
        for blocks in self.allocator.segments():
            key = pools[id(blocks[0].segment.pool)]
            run: list[Block] = []
            for block in [*blocks, None]:
                if block is not None and block.is_mapped:
                    run.append(block)
                    continue
                if run:
                    segments.append(self._segment(key, run, requests))
                run = []
        limit = self.settings.max_split_bytes
        settings = {
            "expandable_segments": self.settings.expandable_segments,
            "max_split_size": -1 if limit is None else limit,
        }
        histories: list[list[dict[str, Any]]] = [[]] * self.device + [self.history]
        return {"segments": segments, "device_traces": histories, "allocator_settings": settings}

    def _segment(self, key: tuple[int, int, bool], run: list[Block], requests: dict[int, Request]) -> dict[str, Any]:
        return {
            "device": self.device,
            "address": run[0].address,
            "total_size": sum(block.size for block in run),
            "stream": key[1],
            "segment_type": "small" if key[2] else "large",
            "segment_pool_id": (0, key[0]),
            "is_expandable": self.settings.expandable_segments,
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": requests[block.address].bytes if block.in_use else 0,
                    "state": "active_allocated" if block.in_use else "inactive",
                    "frames": [],
                }
                for block in run
            ],
        }


def _frames(line: int, phase: str) -> list[dict[str, Any]]:
    frames = [_FRAMES[phase]] if phase else []
    frames += [("/home/me/train.py", line, "train")] if line else []
    return [{"filename": file, "line": at, "name": name} for file, at, name in frames]


class SnapshotBuilder(TraceBuilder):
    """A snapshot where a case of a rule has a trace: what some devices did."""

    def __init__(
        self,
        *devices: Sequence[Step],
        settings: AllocatorSettings | None = None,
        capacity_bytes: int | None = None,
        cut: int = 0,
    ) -> None:
        super().__init__(device=None)
        self._snapshots = []
        for number, steps in enumerate(devices):
            recorder = Recorder(settings or AllocatorSettings(), number, capacity_bytes)
            recorder.run(steps, cut)
            self._snapshots.append(recorder.snapshot())

    def to_bytes(self) -> bytes:
        """The snapshot as torch writes it."""
        value = self._snapshots[-1] | {
            "segments": [segment for each in self._snapshots for segment in each["segments"]],
            "device_traces": [each["device_traces"][number] for number, each in enumerate(self._snapshots)],
        }
        return pickle.dumps(value)

    def trace(self) -> Trace:
        """The Trace that reading the file gives."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            path.write_bytes(self.to_bytes())
            return read(path)


def record_lives(tensors: Sequence[tuple[int, int, int]]) -> DeviceMemory:
    """Tensors in a trace that are made at some instant, live for some time and have some size."""
    b = TraceBuilder(device=None).op("aten::add", 0, 1)
    events = []
    for number, (made, lived, size) in enumerate(tensors):
        events += [(made + number * 0.01, size, number), (made + lived + number * 0.01, -size, number)]
    for at, size, address in sorted(events):
        b.memory(at, size, 100 + address)
    [memory] = Rank(b.trace()).memory
    return memory
