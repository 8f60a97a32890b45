"""How much memory a program has left, by what a capture read at the ends of its windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perfdoctor.rules import Rank, captured_list, captured_part

# Of what is left a tenth stays: caches of libraries grow, and memory of blocks that are too small for a request
# (fragmentation) is a few per cent of what the caching allocator holds.
USABLE_SHARE = 0.9


class Memory(NamedTuple):
    """The memory that batches and activations live in.

    Attributes:
        name: "GPU memory" or "RAM".
        total_bytes: All of it.
        peak_bytes: The most that the process had in use.
        left_bytes: What it could still get, with a reserve.
        growing_bytes: What it had in use at most beyond what stays between two steps: at most so much grows with the
            batch. Of a program on the CPU all that it holds, because nothing tells libraries from activations.
    """

    name: str
    total_bytes: int
    peak_bytes: int
    left_bytes: int
    growing_bytes: int

    @property
    def free_share(self) -> float:
        """What is left, as a share (0 to 1) of all."""
        return self.left_bytes / self.total_bytes

    @property
    def largest_batch_ratio(self) -> float:
        """How many times as large a batch may be, at least."""
        return 1 + self.left_bytes / max(self.growing_bytes, 1)


def read_memory(rank: Rank) -> Memory | None:
    """The memory of the device that computes; None where it was not captured."""
    memory = captured_part(rank.facts, "memory")
    if rank.device_kind == "gpu":
        return _read_gpu_memory(rank, memory)
    return _read_host_memory(rank, memory) if rank.device_kind == "cpu" else None


def _read_gpu_memory(rank: Rank, memory: Mapping[str, Any]) -> Memory | None:
    total = _number(memory, "device_bytes")
    reserved, allocated = _largest(memory, "reserved_peak_bytes"), _largest(memory, "allocated_peak_bytes")
    stays = [_number(each, "allocated_bytes") for each in _windows(memory)]
    known = [each for each in stays if each is not None]
    if not total or not reserved or not allocated or not known:
        return None
    # The context, libraries and other processes hold what NVML counts beyond the allocator of this process.
    used = max(reserved, _used_by_nvml(rank) or 0)
    growing = max(allocated - min(known), 0) * max(reserved / allocated, 1.0)
    return Memory("GPU memory", total, reserved, max(int(USABLE_SHARE * (total - used)), 0), int(growing))


def _used_by_nvml(rank: Rank) -> int | None:
    """The most memory in use on the GPU while NVML was sampled; None where several GPUs were, as nobody knows which."""
    devices = captured_list(captured_part(rank.facts, "nvml"), "devices")
    return _number(captured_part(devices[0], "memory_used_bytes"), "max") if len(devices) == 1 else None


def _read_host_memory(rank: Rank, memory: Mapping[str, Any]) -> Memory | None:
    total, available = _number(memory, "host_bytes"), _number(memory, "available_bytes")
    peak = _largest(memory, "rss_peak_bytes")
    if not total or available is None or not peak:
        return None
    ranks = captured_part(rank.facts, "cores").get("local_ranks") or captured_world_size(rank)
    return Memory("RAM", total, peak, int(USABLE_SHARE * available / max(ranks, 1)), peak)


def captured_world_size(rank: Rank) -> int:
    """Ranks of the job; 1 where not captured."""
    size = (rank.facts or {}).get("world_size")
    return size if isinstance(size, int) and size > 0 else 1


def _windows(memory: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    windows = captured_part(memory, "windows")
    return [each for each in windows.values() if isinstance(each, dict)]


def _largest(memory: Mapping[str, Any], name: str) -> int | None:
    known = [_number(each, name) for each in _windows(memory)]
    return max((each for each in known if each is not None), default=None)


def _number(part: Mapping[str, Any], name: str) -> int | None:
    value = part.get(name)
    return value if type(value) is int and 0 <= value < 1 << 62 else None
