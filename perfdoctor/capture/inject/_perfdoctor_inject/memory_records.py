"""How much memory the program holds at the end of each window, and how much there is; samples in a batch.

Nothing is reset: the peak statistics of the allocator are the program's own, so that each peak is that of the run so
far. `memory_stats` reads counters of the allocator and waits for no kernel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from .host_memory import read_available_bytes, read_host_bytes
from .machine_facts import cuda_is_initialized

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CUDA_STATISTICS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "allocated_peak_bytes": "allocated_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
    "reserved_peak_bytes": "reserved_bytes.all.peak",
}
# ru_maxrss is in KiB, but on macOS in bytes.
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryRecords:
    """Memory at the ends of windows, by window: the last one of each name counts."""

    def __init__(self) -> None:
        self.windows: dict[str, dict[str, int | None]] = {}

    def end_window(self, window: str | None, step: int) -> None:
        """A window has ended before this step: between two steps activations are free, what is left stays."""
        if window is not None:
            self.windows[window] = {"step": step, **read_process_memory()}

    def to_dict(self, last_step_peak_bytes: int | None) -> dict[str, Any]:
        """The memory as it stands in facts.json, with the peak in RAM at the end of the last step."""
        peak_bytes, before_bytes = read_rss_peak_bytes(), last_step_peak_bytes
        return {
            "rise_after_steps_bytes": None if peak_bytes is None or before_bytes is None else peak_bytes - before_bytes,
            "device_bytes": read_device_bytes(),
            "host_bytes": read_host_bytes("MemTotal"),
            "available_bytes": read_available_bytes(),
            "windows": self.windows,
        }


def read_process_memory() -> dict[str, int | None]:
    """What the process holds now, and its peaks so far; None where the system or torch does not tell."""
    statistics = torch.cuda.memory_stats() if cuda_is_initialized() else {}
    cuda = {name: statistics.get(source) for name, source in CUDA_STATISTICS.items()}
    return {**cuda, "rss_bytes": read_rss_bytes(), "rss_peak_bytes": read_rss_peak_bytes()}


def read_rss_bytes() -> int | None:
    """Memory of the process in RAM."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def read_rss_peak_bytes() -> int | None:
    """The most memory in RAM that the process has had."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def read_device_bytes() -> int | None:
    """Memory of the current GPU; None without one, because the question would initialise CUDA."""
    if not cuda_is_initialized():
        return None
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def count_samples(batch: Any, depth: int = 4) -> int | None:
    """The samples of a batch: the first dimension of its first tensor that has one; None where there is none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    if not depth:
        return None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for each in parts:
        samples = count_samples(each, depth - 1)
        if samples is not None:
            return samples
    return None
