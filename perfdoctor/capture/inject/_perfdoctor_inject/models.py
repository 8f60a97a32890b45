"""Models and optimizers as facts: classes, sizes and settings, never values."""

from __future__ import annotations

import gc
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

DDP_FLAGS = (
    "find_unused_parameters",
    "static_graph",
    "gradient_as_bucket_view",
    "bucket_bytes_cap",
    "broadcast_buffers",
)
# Names shown for a finding; a model of a thousand layers repeats the same ones.
MOST_NAMES = 10
ALIGNMENT = 8


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """Class and implementation of an optimizer; None is torch's own choice."""
    groups = getattr(optimizer, "param_groups", None) or [{}]
    return {
        "class": type(optimizer).__name__,
        "steps": 0,
        "groups": len(groups),
        "tensors": sum(len(group.get("params", ())) for group in groups),
        **{name: groups[0].get(name) for name in ("foreach", "fused", "capturable")},
    }


def describe_models() -> list[dict[str, Any]]:
    """Every module with parameters that no other module contains."""
    # type(), not isinstance(): lazy proxies answer isinstance by importing or warning.
    modules = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
    children = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    roots = [module for module in modules if id(module) not in children and "_parameters" in vars(module)]
    return [described for described in map(describe_model, roots) if described["parameters"]]


def describe_model(model: nn.Module) -> dict[str, Any]:
    """One model: sizes, placement, and the patterns that rules ask for."""
    parameters = list(model.parameters())
    modules = list(model.named_modules())
    return {
        "class": type(model).__name__,
        "parameters": sum(0 if nn.parameter.is_lazy(each) else each.numel() for each in parameters),
        "tensors": len(parameters),
        "modules": len(modules),
        "training": model.training,
        "dtypes": sorted({str(each.dtype) for each in parameters}),
        "devices": sorted({str(each.device) for each in parameters}),
        "conv_bias_before_norm": convs_with_useless_bias(modules)[:MOST_NAMES],
        "unaligned_layers": unaligned_layers(modules)[:MOST_NAMES],
        "sync_batch_norm": any(isinstance(module, nn.SyncBatchNorm) for _, module in modules),
        "recurrent_cells": sum(isinstance(module, nn.RNNCellBase) for _, module in modules),
        "data_parallel": isinstance(model, nn.DataParallel),
        "ddp": ddp_flags(model),
    }


def ddp_flags(model: nn.Module) -> dict[str, Any] | None:
    """Settings of DistributedDataParallel, None for another model."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return None
    return {name: getattr(model, name, None) for name in DDP_FLAGS}


def convs_with_useless_bias(modules: list[tuple[str, nn.Module]]) -> list[str]:
    """Convolutions with a bias, registered right before a batch norm that takes it out again."""
    found = []
    for path, parent in modules:
        previous: tuple[str, nn.Module] | None = None
        for name, child in parent.named_children():
            convolution = previous[1] if previous and isinstance(child, _BatchNorm) else None
            if previous and isinstance(convolution, _ConvNd) and convolution.bias is not None:
                found.append(f"{path}.{previous[0]}".lstrip("."))
            previous = (name, child)
    return found


def unaligned_layers(modules: list[tuple[str, nn.Module]]) -> list[dict[str, Any]]:
    """Linear and convolution layers with a side that is no multiple of eight (NVIDIA's rule for Tensor Cores)."""
    found = []
    for path, module in modules:
        if isinstance(module, nn.Linear):
            sides = (module.in_features, module.out_features)
        elif isinstance(module, _ConvNd):
            sides = (module.in_channels, module.out_channels)
        else:
            continue
        if any(side % ALIGNMENT for side in sides):
            found.append({"name": path, "class": type(module).__name__, "in": sides[0], "out": sides[1]})
    return found
