"""What a trial measures beside the wall time of steps: losses, GPU time of steps, and peak memory. No step waits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .host_memory import read_host_bytes
from .machine_facts import cuda_is_initialized
from .memory_records import read_rss_peak_bytes

# A call may give a list of losses to `torch.autograd.backward`: the first ones are enough to compare.
MAX_LOSSES_PER_CALL = 16


class Losses:
    """The losses of each step: scalars from which backward passes began, read when the program ends.

    Of a program without backward passes the norms of what its model returns.
    """

    def __init__(self) -> None:
        self._by_step: dict[int, list[Any]] = {}
        self._outputs: dict[int, list[Any]] = {}

    def add(self, step: int, tensors: Any) -> None:
        """Keep the scalars of a call of `torch.autograd.backward`: copies, which do not wait for a GPU."""
        found = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if not isinstance(found, Sequence):
            return
        for tensor in found[:MAX_LOSSES_PER_CALL]:
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 and not tensor.is_meta:
                # A CUDA graph writes its next result into the same memory: a copy keeps this one.
                self._by_step.setdefault(step, []).append(tensor.detach().clone())

    def add_output(self, step: int, output: Any) -> None:
        """Keep the norm of the first tensor of real numbers that a model has returned; a copy, as of losses."""
        tensor = first_tensor(output)
        if tensor is not None and not self._by_step:
            norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32)
            self._outputs.setdefault(step, []).append(norm)

    def to_dict(self) -> dict[str, float | str]:
        """The sum of each step's losses, by the step's number; "nan", "inf" and "-inf" as words."""
        by_step = self._by_step or self._outputs
        return {str(step): to_json_number(sum(map(float, losses))) for step, losses in by_step.items()}


def first_tensor(output: Any) -> Any:
    """The first tensor of real numbers in what a model returns: itself, or within tuples, lists and dictionaries.

    None of a class of its own, which may stand for what is not computed yet, as the logits of a chunked loss do.
    """
    if isinstance(output, torch.Tensor):
        is_plain = type(output) is torch.Tensor and output.is_floating_point() and not output.is_meta
        return output if is_plain else None
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((found for each in values if (found := first_tensor(each)) is not None), None)


def to_json_number(value: float) -> float | str:
    """A number that JSON has; the word for one that it has not."""
    return value if math.isfinite(value) else str(value)


class GpuStepTimes:
    """The time of each step on the GPU, by events at its borders.

    The CPU may run ahead of the GPU: the time between two borders on the CPU is that of launching then. Where the GPU
    waits for the CPU, its events pass as the CPU records them, so that they show the CPU's time.
    """

    def __init__(self) -> None:
        self._begins: list[Any] = []
        self._ends: list[Any] = []

    def begin_step(self) -> None:
        """A step begins on the current stream."""
        self._begins.append(_record_event())

    def end_step(self) -> None:
        """The step ends."""
        if len(self._ends) < len(self._begins):
            self._ends.append(_record_event())

    def read(self) -> list[int]:
        """Wait for the GPU, and return the duration of each whole step in nanoseconds."""
        torch.cuda.synchronize()
        pairs = zip(self._begins, self._ends, strict=False)
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in pairs]


def _record_event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def read_peak_memory() -> tuple[int | None, str]:
    """The peak of memory so far, and its kind.

    On a GPU the bytes of tensors ("cuda"), since the timed steps began; else the bytes of the process in memory
    ("rss"), since it began, without its workers. None where the system does not tell.
    """
    if cuda_is_initialized():
        return int(torch.cuda.max_memory_allocated()), "cuda"
    peak_bytes = read_host_bytes("VmHWM", "/proc/self/status")  # getrusage has the peak of before exec, too
    return (read_rss_peak_bytes() if peak_bytes is None else peak_bytes), "rss"
