"""The machine as facts: CPU, GPUs, libraries, allocator statistics, torch's switches for speed, and the environment's.

Of the environment only a named list of switches, whose values say how fast a program can be and are no secrets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from .proc_files import read_text

# Instructions of x86 CPUs for products in bfloat16; without them autocast is slower than float32.
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")
ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
MEMORY_STATISTICS = (
    *("allocated_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries"),
    *("num_ooms", "num_device_alloc", "num_device_free"),
)


def cuda_is_initialized() -> bool:
    """Whether the program has initialised CUDA; the question does not initialise it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def describe_torch_flags() -> dict[str, Any]:
    """Switches of torch that decide how fast or how exact its kernels are."""
    backends, fills = torch.backends, getattr(torch.utils, "deterministic", None)
    return {
        "cudnn_benchmark": backends.cudnn.benchmark,
        "cudnn_allow_tf32": allows_tf32(backends.cudnn, getattr(backends.cudnn, "conv", None)),
        "matmul_allow_tf32": allows_tf32(backends.cuda.matmul, backends.cuda.matmul),
        "float32_matmul_precision": read_or_none(torch.get_float32_matmul_precision),
        "cudnn_deterministic": backends.cudnn.deterministic,
        "fill_uninitialized_memory": getattr(fills, "fill_uninitialized_memory", None),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "anomaly_detection": torch.is_anomaly_enabled(),
        "default_dtype": str(torch.get_default_dtype()),
    }


def allows_tf32(switches: Any, precision: Any) -> bool | None:
    """Whether float32 maths may use TF32.

    Torch refuses to say `switches.allow_tf32` once a program has set the newer `precision.fp32_precision`, which exists
    from PyTorch 2.9 on.
    """
    allowed: bool | None = read_or_none(lambda: switches.allow_tf32)
    if allowed is None:
        newer = read_or_none(lambda: precision.fp32_precision)
        return None if newer is None else newer == "tf32"
    return allowed


def read_or_none(read: Callable[[], Any]) -> Any:
    """What a function of torch returns; None where it raises."""
    try:
        return read()
    except (RuntimeError, AttributeError):
        return None


def describe_cpu() -> dict[str, Any]:
    """Cores, and the threads that torch and its libraries may use."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "count": os.cpu_count(),
        "affinity": affinity,
        "torch_threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "mkl_num_threads": os.environ.get("MKL_NUM_THREADS"),
        "numa_nodes": count_numa_nodes(),
        "bfloat16": has_bfloat16(),
    }


def has_bfloat16() -> bool | None:
    """Whether the CPU has instructions for products in bfloat16; None where the system does not say."""
    lines = (read_text("/proc/cpuinfo") or "").splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    return None if flags is None else any(flag in flags for flag in BFLOAT16_FLAGS)


def count_numa_nodes() -> int | None:
    """Number of NUMA nodes, None where the system does not list them."""
    try:
        return sum(name.startswith("node") and name[4:].isdigit() for name in os.listdir("/sys/devices/system/node"))
    except OSError:
        return None


def describe_libraries() -> dict[str, Any] | None:
    """Memory allocators and OpenMP libraries that the process has loaded, None where the system does not list them."""
    maps = read_text("/proc/self/maps")
    if maps is None:
        return None
    loaded = {os.path.basename(line.rsplit(None, 1)[-1]) for line in maps.splitlines() if "/" in line}
    return {
        "allocators": [name for name in ALLOCATORS if any(name in library for library in loaded)],
        "openmp": sorted(library for library in loaded if library.startswith(("libgomp", "libiomp", "libomp"))),
    }


def describe_gpus() -> list[dict[str, Any]]:
    """The GPUs that torch sees; empty when the program has not initialised CUDA, because the question would do it."""
    if not cuda_is_initialized():
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "index": index,
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
                "current": index == torch.cuda.current_device(),
            }
        )
    return gpus


def read_cuda_memory() -> dict[str, int] | None:
    """Allocator statistics of the current device, None without CUDA."""
    if not cuda_is_initialized():
        return None
    statistics = torch.cuda.memory_stats()
    return {name: int(statistics[name]) for name in MEMORY_STATISTICS if name in statistics}


# Switches, numbers and names of algorithms: no value of these is a path, an address or a key.
SWITCHES = (
    # What waits for each kernel, or turns caches off.
    *("CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    *("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING", "CUDA_DEVICE_MAX_CONNECTIONS"),
    *("CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
    # Collectives.
    *("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_P2P_DISABLE"),
    *("NCCL_P2P_LEVEL", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_PROTO"),
    *("NCCL_DEBUG", "NCCL_NET_GDR_LEVEL", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NTHREADS"),
    *("NCCL_BUFFSIZE", "TORCH_DISTRIBUTED_DEBUG"),
    # Debugging, and compiling.
    *("TORCH_SHOW_CPP_STACKTRACES", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONMALLOC"),
    *("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"),
    # Threads and where they run.
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("GOMP_CPU_AFFINITY", "OMP_WAIT_POLICY"),
)
# Paths: only the base names of the files in them.
FILES = ("LD_PRELOAD",)
# Longer than any switch above is in use; a list of cores may be longer, and is cut.
MAX_LENGTH = 120
SEPARATORS = (":", " ")


def describe_environment() -> dict[str, str]:
    """The switches that are set, cut to `MAX_LENGTH`, and the base names of preloaded libraries."""
    found = {name: os.environ[name][:MAX_LENGTH] for name in SWITCHES if name in os.environ}
    for name in FILES:
        if name in os.environ:
            found[name] = name_files(os.environ[name])[:MAX_LENGTH]
    return found


def name_files(paths: str) -> str:
    """The base names of files in a list as LD_PRELOAD has it, with spaces between them."""
    for separator in SEPARATORS:
        paths = paths.replace(separator, "\n")
    return " ".join(os.path.basename(path) for path in paths.split("\n") if path)


def describe_folders() -> dict[str, str | None]:
    """Where the program lies and where it runs, so that a report can name its files as its author does."""
    try:
        working_directory = os.getcwd()
    except OSError:  # it was deleted
        return {"folder": None, "working_directory": None}
    # Python takes __file__ away again before exit handlers run; a program may have changed its arguments.
    file = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else None)
    folder = os.path.dirname(os.path.abspath(file)) if isinstance(file, str) and os.path.isfile(file) else None
    return {"folder": folder, "working_directory": working_directory}
