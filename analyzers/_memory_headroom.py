"""How much memory a program has left, by what a capture read at the ends of its windows."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.rules import CapturedFacts, NvmlFacts, Rank

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
    if rank.device_kind == "gpu":
        return _read_gpu_memory(rank.facts)
    return _read_host_memory(rank.facts) if rank.device_kind == "cpu" else None


def _read_gpu_memory(facts: CapturedFacts) -> Memory | None:
    total, windows = facts.memory.device_bytes, facts.memory.windows.values()
    reserved = max((each.reserved_peak_bytes or 0 for each in windows), default=0)
    allocated = max((each.allocated_peak_bytes or 0 for each in windows), default=0)
    known = [each.allocated_bytes for each in windows if each.allocated_bytes is not None]
    if not total or not reserved or not allocated or not known:
        return None
    # The context, libraries and other processes hold what NVML counts beyond the allocator of this process.
    used = max(reserved, used_by_nvml(facts.nvml) or 0)
    growing = max(allocated - min(known), 0) * max(reserved / allocated, 1.0)
    return Memory("GPU memory", total, reserved, max(int(USABLE_SHARE * (total - used)), 0), int(growing))


def used_by_nvml(nvml: NvmlFacts) -> float | None:
    """The most memory in use on the GPU while NVML was sampled; None where several GPUs were, as nobody knows which."""
    return nvml.devices[0].memory_used_bytes.max if len(nvml.devices) == 1 else None


def _read_host_memory(facts: CapturedFacts) -> Memory | None:
    total, available = facts.memory.host_bytes, facts.memory.available_bytes
    peak = max((each.rss_peak_bytes or 0 for each in facts.memory.windows.values()), default=0)
    if not total or available is None or not peak:
        return None
    ranks = facts.cores.local_ranks or facts.world_size or 1
    return Memory("RAM", total, peak, int(USABLE_SHARE * available / ranks), peak)
