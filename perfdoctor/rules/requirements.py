"""The data that rules may need, and how to record each of them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from types import MappingProxyType

_NO_KERNELS = "the trace has no GPU kernels: record with ProfilerActivity.CUDA on a machine with a GPU"
_NO_LAUNCHES = "no kernel can be joined to its launch: record with ProfilerActivity.CPU and CUDA together"

REQUIREMENTS: Mapping[str, str] = MappingProxyType(
    {
        "gpu_items": _NO_KERNELS,
        "kernels": _NO_KERNELS,
        "work": _NO_KERNELS,
        "work_items": _NO_KERNELS,
        "cpu": "the trace has no CPU events: record with ProfilerActivity.CPU",
        "launches": _NO_LAUNCHES,
        "work_launches": _NO_LAUNCHES,
        "steps": "no steps were found: call profiler.step() each iteration, or record with `perfdoctor run`",
        "shapes": "the trace has no input shapes: record with record_shapes=True",
        "stacks": "the trace has no Python frames: record with with_stack=True, or with `perfdoctor run`",
        "nvml": "NVML was not sampled: record with `perfdoctor run` where nvidia-ml-py is installed",
        "memory": "memory was not recorded: record with profile_memory=True, or give a snapshot of it",
        "facts": "there are no captured facts: record with `perfdoctor run`",
        "sizes": "no collective says how large it is: record with PyTorch 2.3 or newer, which writes that on NCCL's",
        "flops": "what a step has to compute is not known: record with record_shapes=True, or with `perfdoctor run`",
        "hang": "no flight recorder and no stacks were read: give a folder of dumps, or record with `perfdoctor run`",
        "ranks": "one rank cannot be compared with others: give the folder with the traces of all ranks",
    }
)
"""The sentence of the report where a requirement is missing, by the name of the requirement."""

OF_THE_JOB = frozenset({"ranks", "hang"})
"""The requirements that no rank meets by itself."""

_ONLY_COPIES = "the GPU only copies here, no kernel was recorded, and this rule looks at kernels"
_WITHOUT_KERNELS = {
    "kernels": _ONLY_COPIES,
    "work": _ONLY_COPIES,
    "launches": "no copy can be joined to its launch: record with ProfilerActivity.CPU and CUDA together",
}


def explain_missing(need: str, available: Set[str]) -> str:
    """The sentence of the report for a requirement that is missing.

    Where `available`, what the ranks have, is GPU items without kernels, a GPU was recorded, and it copied.
    """
    if need in _WITHOUT_KERNELS and "gpu_items" in available and "kernels" not in available:
        return _WITHOUT_KERNELS[need]
    return REQUIREMENTS.get(need, f"it needs '{need}', which is not known here")
