"""Models and optimizers as facts: classes, sizes and settings, never values."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from .parallel_facts import describe_ddp, describe_fsdp
from .user_code import Location

# A finding needs a few names only; a model of a thousand layers repeats the same ones.
MAX_NAMES = 10
# Channels and features must be multiples of eight for Tensor Cores (NVIDIA's rule).
TENSOR_CORE_MULTIPLE = 8


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """Class, sizes and implementation of an optimizer; an implementation of None leaves the choice to torch."""
    groups = getattr(optimizer, "param_groups", None) or [{}]
    return {
        "class": type(optimizer).__name__,
        "groups": len(groups),
        "tensors": sum(len(group.get("params", ())) for group in groups),
        "parameters": sum(count_elements(each) for group in groups for each in group.get("params", ())),
        **{name: groups[0].get(name) for name in ("foreach", "fused", "capturable")},
    }


def count_elements(parameter: Any) -> int:
    """Elements of a parameter; 0 of a lazy one, which has no size yet."""
    return 0 if nn.parameter.is_lazy(parameter) else parameter.numel()


def describe_models(wrapped: Mapping[Any, Location | None]) -> list[dict[str, Any]]:
    """Every model of the process: each module with parameters that no other module contains.

    Args:
        wrapped: The line that made each DistributedDataParallel.
    """
    # type(), not isinstance(): lazy proxies answer isinstance by importing or warning.
    modules = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
    children = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    roots = [module for module in modules if id(module) not in children and "_parameters" in vars(module)]
    described = [describe_model(root, wrapped.get(root)) for root in roots]
    return [each for each in described if each["parameters"]]


def describe_model(model: nn.Module, created: Location | None = None) -> dict[str, Any]:
    """One model: sizes, placement, and the patterns that rules look for; `created` is where DDP wrapped it."""
    parameters = list(model.parameters())
    modules = list(model.named_modules())
    return {
        "class": type(model).__name__,
        "parameters": sum(map(count_elements, parameters)),
        "tensors": len(parameters),
        "modules": len(modules),
        "training": model.training,
        "dtypes": sorted({str(each.dtype) for each in parameters}),
        "devices": sorted({str(each.device) for each in parameters}),
        "conv_bias_before_norm": find_convs_with_useless_bias(modules)[:MAX_NAMES],
        "unaligned_layers": find_unaligned_layers(modules)[:MAX_NAMES],
        "sync_batch_norm": any(isinstance(module, nn.SyncBatchNorm) for _, module in modules),
        "recurrent_cells": sum(isinstance(module, nn.RNNCellBase) for _, module in modules),
        "data_parallel": isinstance(model, nn.DataParallel),
        "ddp": describe_ddp(model, created),
        "fsdp": describe_fsdp(modules),
    }


def find_convs_with_useless_bias(modules: list[tuple[str, nn.Module]]) -> list[str]:
    """Paths of convolutions with a bias that the batch norm registered right after them subtracts again."""
    found = []
    for path, parent in modules:
        previous: tuple[str, nn.Module] | None = None
        for name, child in parent.named_children():
            convolution = previous[1] if previous and isinstance(child, _BatchNorm) else None
            if previous and isinstance(convolution, _ConvNd) and convolution.bias is not None:
                found.append(f"{path}.{previous[0]}".lstrip("."))
            previous = (name, child)
    return found


def find_unaligned_layers(modules: list[tuple[str, nn.Module]]) -> list[dict[str, Any]]:
    """Linear and convolution layers with inputs or outputs that are no multiple of eight."""
    found = []
    for path, module in modules:
        if isinstance(module, nn.Linear):
            sides = (module.in_features, module.out_features)
        elif isinstance(module, _ConvNd):
            sides = (module.in_channels, module.out_channels)
        else:
            continue
        if any(side % TENSOR_CORE_MULTIPLE for side in sides):
            found.append({"name": path, "class": type(module).__name__, "in": sides[0], "out": sides[1]})
    return found
