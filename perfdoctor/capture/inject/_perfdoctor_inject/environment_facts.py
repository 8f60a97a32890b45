"""Environment variables as facts: a named list of switches whose values say how fast a program can be, no secrets."""

from __future__ import annotations

import os

# Switches, numbers and names of algorithms: no value of these is a path, an address or a key.
SWITCHES = (
    # What waits for each kernel, or turns caches off.
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_NO_HIP_MEMORY_CACHING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    # Collectives.
    "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_IB_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_DEBUG",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "TORCH_DISTRIBUTED_DEBUG",
    # Debugging.
    "TORCH_SHOW_CPP_STACKTRACES",
    "PYTHONDEVMODE",
    "PYTHONTRACEMALLOC",
    "PYTHONMALLOC",
    # Compiling.
    "TORCHDYNAMO_DISABLE",
    "TORCH_COMPILE_DISABLE",
    # Threads and where they run.
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY",
    "OMP_WAIT_POLICY",
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
