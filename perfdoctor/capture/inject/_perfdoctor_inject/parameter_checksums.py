"""Checksums of the parameters of each rank, taken between two steps: ranks of data parallel training must agree.

Taken after an evidence window, where writing its trace has taken time already. On a GPU they cost one copy, which waits
for the GPU: nowhere else would that be allowed.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from .messages import warn
from .model_facts import find_models
from .probes import Probe

# Number of elements of a large tensor, evenly spaced, that are summed: 200 tensors take some ms.
MAX_ELEMENTS = 65_536
MAX_TENSORS = 400
# A group as large as this is not worth a list in the facts of each of its ranks.
MAX_GROUP = 64
# Integers of the size of an element: sums of floating-point numbers would depend on their order.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Hooks that reduce gradients in each step, in another form. With others the ranks may differ on purpose (local SGD).
_REDUCING_HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")


class ParameterChecksums(Probe):
    """What each model's parameters were at some steps; empty in a program of one process.

    Attributes:
        samples: As they stand in facts.json.
    """

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self._models: WeakSet[nn.Module] | None = None

    def take(self, step: int, world_size: int) -> None:
        """Take the checksums before this step; a failure is a line, and no checksums."""
        distributed = sys.modules.get("torch.distributed")
        if world_size < 2 or distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return
        try:
            if self._models is None:
                self._models = WeakSet(find_models())
            with torch.no_grad():
                models = [each for each in map(describe_copy, list(self._models)) if each["tensors"]]
        except Exception as error:
            warn(f"parameters of the ranks were not compared: {error!r}")
            return
        if models:
            self.samples.append({"step": step, "models": sorted(models, key=lambda each: str(each["class"]))})

    def facts(self) -> dict[str, Any]:
        """The samples."""
        return {"parameter_checksums": self.samples}


def describe_copy(model: nn.Module) -> dict[str, Any]:
    """This rank's copy of a model: which ranks have one by DistributedDataParallel, and checksums of its parameters."""
    is_ddp = isinstance(model, nn.parallel.DistributedDataParallel)
    group: list[int] | None = None
    left_out: set[str] = set()
    if isinstance(model, nn.parallel.DistributedDataParallel):
        group = torch.distributed.get_process_group_ranks(model.process_group)
        left_out = set(getattr(model, "parameters_to_ignore", ()))
    named = [
        (name, each)
        for name, each in (model.module if is_ddp else model).named_parameters()  # type: ignore[union-attr]
        # Subclasses are sharded, or not made yet.
        if type(each) is nn.Parameter and each.requires_grad and each.device.type != "meta" and name not in left_out
    ][:MAX_TENSORS]
    return {
        "class": type(model.module if is_ddp else model).__name__,
        "ddp": is_ddp,
        "group": group if group is not None and len(group) <= MAX_GROUP else None,
        "reduces_each_step": is_ddp and reduces_each_step(model),
        "sharded": any(type(each) is not nn.Parameter for each in model.parameters()) or is_sharded(model),
        "tensors": [{"name": name, "checksum": sum_} for name, sum_ in sum_tensors(named)],
    }


def reduces_each_step(model: Any) -> bool:
    """Whether DistributedDataParallel averages the gradients themselves, not the parameters now and then."""
    hooks = [getattr(hook, "__name__", "") for hook, _ in getattr(model, "_comm_hooks", ())]
    return all(name in _REDUCING_HOOKS for name in hooks)


def is_sharded(model: nn.Module) -> bool:
    """Whether a module in it holds a part of its parameters only: fully sharded, or a stage of a pipeline."""
    names = {type(module).__name__ for module in model.modules()}
    return any("FullyShardedDataParallel" in name or name.startswith(("FSDP", "Pipeline")) for name in names)


def sum_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, int]]:
    """Names and checksums; those of one device are copied to the CPU together."""
    sums: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in named:
        flat = flatten_in_memory_order(tensor.detach())
        if flat is not None and flat.element_size() in _BITS:
            # More than the limit where the step is rounded down: twice as many at most.
            bits = flat[:: max(flat.numel() // MAX_ELEMENTS, 1)].view(_BITS[flat.element_size()])
            sums.setdefault(flat.device, []).append((name, bits.sum(dtype=torch.int64)))
    for of_device in sums.values():
        values = torch.stack([each for _, each in of_device]).tolist()
        for (name, _), value in zip(of_device, values, strict=True):
            yield name, zlib.crc32(f"{name}:{value}".encode())  # of one element the sum would be its value


def flatten_in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements in one dimension without a copy; None where they are not in one piece, or there are none."""
    strides = tensor.stride()
    dense = tensor.permute(sorted(range(tensor.dim()), key=lambda each: -strides[each]))
    return dense.view(-1) if tensor.numel() and dense.is_contiguous() else None
