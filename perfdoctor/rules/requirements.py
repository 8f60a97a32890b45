"""The data that rules may need, and how to record each of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REQUIREMENTS: Mapping[str, str] = MappingProxyType(
    {
        "kernels": "the trace has no GPU kernels: record with ProfilerActivity.CUDA on a machine with a GPU",
        "work": "the trace has no GPU kernels: record with ProfilerActivity.CUDA on a machine with a GPU",
        "cpu": "the trace has no CPU events: record with ProfilerActivity.CPU",
        "launches": "no kernel can be joined to its launch: record with ProfilerActivity.CPU and CUDA together",
        "work_launches": "no kernel can be joined to its launch: record with ProfilerActivity.CPU and CUDA together",
        "steps": "no steps were found: call profiler.step() each iteration, or record with `perfdoctor run`",
        "shapes": "the trace has no input shapes: record with record_shapes=True",
        "stacks": "the trace has no Python frames: record with with_stack=True, or with `perfdoctor run`",
        "facts": "there are no captured facts: record with `perfdoctor run`",
        "sizes": "no collective says how large it is: record with PyTorch 2.3 or newer, which writes that on NCCL's",
        "flops": "what a step has to compute is not known: record with record_shapes=True, or with `perfdoctor run`",
        "ranks": "one rank cannot be compared with others: give the folder with the traces of all ranks",
    }
)
"""The sentence of the report where a requirement is missing, by the name of the requirement."""
