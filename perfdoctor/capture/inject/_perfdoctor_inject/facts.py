"""What is worth knowing besides the trace: an allow-list, so that no secret can slip in.

Never the environment (two named thread counts excepted), never arguments, never tensor values.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from . import compiling, models

if TYPE_CHECKING:
    from .recorder import Recorder

SCHEMA = "perfdoctor.facts/1"
# Windows whose step times are kept in facts.json; steps.jsonl has all of them.
KEPT_WINDOWS = ("base", "timing", "evidence")
ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
MEMORY_FIGURES = (
    "allocated_bytes.all.peak",
    "reserved_bytes.all.peak",
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
)


class Tally:
    """Counts and times that the hooks add up as the program runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.step_ns: dict[str, list[int]] = {window: [] for window in KEPT_WINDOWS}
        self.wait_ns: dict[str, list[int]] = {window: [] for window in KEPT_WINDOWS}
        self.optimizers: dict[int, dict[str, Any]] = {}
        self.compiled = compiling.CompileLog()
        self._scaled = False
        self._recent_ns = 0

    def count(self, what: str) -> None:
        """One more call; clipping between scaling and unscaling is counted by itself."""
        self.counts[what] += 1
        if what == "scaled":
            self._scaled = True
        elif what == "unscaled":
            self._scaled = False
        elif what == "clipped" and self._scaled:
            self.counts["clipped_before_unscale"] += 1

    def step(self, window: str, dur_ns: int, wait_ns: int) -> None:
        """One step has ended."""
        self._recent_ns = dur_ns
        self.compiled.step(window)
        if window in self.step_ns:
            self.step_ns[window].append(dur_ns)
            self.wait_ns[window].append(wait_ns)

    def optimizer_stepped(self, optimizer: Any) -> None:
        """One `Optimizer.step`; the first one describes the optimizer."""
        known = self.optimizers.get(id(optimizer))
        if known is None:
            known = self.optimizers[id(optimizer)] = models.describe_optimizer(optimizer)
        known["steps"] += 1

    def median_step_ns(self) -> int:
        """The usual step: of the base window when there was one, else the last step."""
        base = self.step_ns["base"]
        return int(statistics.median(base)) if base else self._recent_ns


def describe_program() -> dict[str, Any]:
    """The slow part, gathered once, between two steps: models and libraries."""
    return {"models": models.describe_models(), "libraries": libraries()}


def collect(recorder: Recorder, program: dict[str, Any]) -> dict[str, Any]:
    """The whole of facts.json.

    Args:
        recorder: Steps, windows, loaders and counts so far.
        program: What `describe_program` returned, empty before it was called.
    """
    tally = recorder.tally
    return {
        "schema": SCHEMA,
        "rank": recorder.rank,
        "world_size": recorder.world_size,
        "pid": recorder.pid,
        "script": os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "exit": recorder.why,
        "steps_seen": recorder.step,
        "step_source": recorder.detector.source if recorder.automatic else "session",
        "windows": recorder.windows,
        "base_step_ns": tally.step_ns["base"],
        "base_loader_wait_ns": tally.wait_ns["base"],
        "timing_step_ns": tally.step_ns["timing"],
        "evidence_step_ns": tally.step_ns["evidence"],
        "loaders": [record.to_dict() for record in recorder.loaders.records],
        "optimizers": list(tally.optimizers.values()),
        "models": program.get("models"),
        "amp": amp(tally.counts),
        "zero_grad_to_zero": tally.counts["zero_grad_to_zero"],
        "compile": compiling.compilation(tally.compiled),
        "flags": flags(),
        "cpu": cpu(),
        "libraries": program.get("libraries"),
        "devices": devices(),
        "cuda_memory": cuda_memory(),
        "nvml": None if recorder.sampler is None else recorder.sampler.facts(),
        "notes": recorder.notes,
    }


def flags() -> dict[str, Any]:
    """Switches of torch that decide how fast or how exact its kernels are."""
    backends = torch.backends
    return {
        "cudnn_benchmark": backends.cudnn.benchmark,
        "cudnn_allow_tf32": backends.cudnn.allow_tf32,
        "matmul_allow_tf32": backends.cuda.matmul.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "anomaly_detection": torch.is_anomaly_enabled(),
        "default_dtype": str(torch.get_default_dtype()),
    }


def amp(counts: Counter[str]) -> dict[str, int]:
    """How often mixed precision was used, and clipping in the wrong place."""
    names = ("autocast", "scaled", "unscaled", "clipped", "clipped_before_unscale")
    return {name: counts[name] for name in names}


def cpu() -> dict[str, Any]:
    """Cores, and the threads that torch and its libraries may use."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "count": os.cpu_count(),
        "affinity": affinity,
        "torch_threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "mkl_num_threads": os.environ.get("MKL_NUM_THREADS"),
        "numa_nodes": numa_nodes(),
    }


def numa_nodes() -> int | None:
    """Number of NUMA nodes, None where the system does not say."""
    try:
        return sum(name.startswith("node") and name[4:].isdigit() for name in os.listdir("/sys/devices/system/node"))
    except OSError:
        return None


def libraries() -> dict[str, Any] | None:
    """Memory allocator and OpenMP libraries that are loaded, None where the system does not say."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            loaded = {os.path.basename(line.rsplit(None, 1)[-1]) for line in file if "/" in line}
    except OSError:
        return None
    return {
        "allocators": [name for name in ALLOCATORS if any(name in library for library in loaded)],
        "openmp": sorted(library for library in loaded if library.startswith(("libgomp", "libiomp", "libomp"))),
    }


def cuda_in_use() -> bool:
    """Whether the program has initialised CUDA; asking does not."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def devices() -> list[dict[str, Any]]:
    """The GPUs, asked only after the program has initialised CUDA; an empty list says that it has not."""
    if not cuda_in_use():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "index": index,
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
                "current": index == torch.cuda.current_device(),
            }
        )
    return found


def cuda_memory() -> dict[str, int] | None:
    """Allocator statistics of the current device, None without CUDA."""
    if not cuda_in_use():
        return None
    figures = torch.cuda.memory_stats()
    return {name: int(figures[name]) for name in MEMORY_FIGURES if name in figures}
