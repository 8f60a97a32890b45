"""Models and optimizers as facts: classes, sizes and settings, never values."""

from __future__ import annotations

import gc
from collections import Counter
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from .parallel_facts import describe_ddp, describe_fsdp
from .user_code import Location, constructor_location

# A finding needs a few names only; a model of a thousand layers repeats the same ones.
MAX_NAMES = 10
# Modules whose constructors' lines are remembered (2 us each): those that findings are about.
LOCATED_MODULES = (_ConvNd, nn.Linear, nn.Embedding, nn.EmbeddingBag)


class ModuleLines:
    """The lines of the user's code that made modules of `LOCATED_MODULES`, and each DistributedDataParallel."""

    def __init__(self) -> None:
        self._lines: WeakKeyDictionary[Any, Location | None] = WeakKeyDictionary()

    def add(self, module: Any, frame: FrameType | None) -> None:
        """The code in `frame` has made a module."""
        self._lines[module] = constructor_location(frame, module)

    def get(self, module: Any) -> Location | None:
        """The line; None where it is not known, as of a copy."""
        return self._lines.get(module)


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


def describe_models(lines: ModuleLines) -> list[dict[str, Any]]:
    """Every model of the process: each module with parameters that no other module contains."""
    described = [describe_model(root, lines) for root in find_models()]
    return [each for each in described if each["parameters"]]


def find_models() -> list[nn.Module]:
    """Each module of the process that no other module contains."""
    # type(), not isinstance(): lazy proxies answer isinstance by importing or warning.
    modules = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
    children = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    return [module for module in modules if id(module) not in children and "_parameters" in vars(module)]


def describe_model(model: nn.Module, lines: ModuleLines) -> dict[str, Any]:
    """One model: sizes, placement, and the patterns that rules look for."""
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
        "conv_bias_before_norm": [
            name for name, layer, _ in find_biases_before_norms(modules) if isinstance(layer, _ConvNd)
        ][:MAX_NAMES],
        "bias_before_norm": describe_biases_before_norms(modules, lines),
        "embeddings": describe_embeddings(modules, lines),
        "recurrent_cells": sum(isinstance(module, nn.RNNCellBase) for _, module in modules),
        "data_parallel": isinstance(model, nn.DataParallel),
        "ddp": describe_ddp(model, lines.get(model)),
        "fsdp": describe_fsdp(modules),
    }


def find_biases_before_norms(modules: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module, nn.Module]]:
    """Layers with a bias that the norm registered right after them subtracts again, each with its path and the norm.

    A norm over the batch, or over each channel of a sample, takes any constant of a channel out again. A norm over all
    features of a sample, such as nn.LayerNorm, does not.
    """
    found = []
    for path, parent in modules:
        previous: tuple[str, nn.Module] | None = None
        for name, child in parent.named_children():
            if previous is not None and takes_out_bias(child, previous[1]):
                found.append((f"{path}.{previous[0]}".lstrip("."), previous[1], child))
            previous = (name, child)
    return found


def takes_out_bias(norm: nn.Module, layer: nn.Module) -> bool:
    """Whether a norm subtracts the bias of a layer from the layer's output again."""
    if getattr(layer, "bias", None) is None:
        return False
    if isinstance(layer, _ConvNd):
        return isinstance(norm, _BatchNorm | _InstanceNorm) and norm.num_features in (layer.out_channels, 0)  # 0: lazy
    return isinstance(layer, nn.Linear) and isinstance(norm, _BatchNorm) and norm.num_features == layer.out_features


def describe_biases_before_norms(modules: list[tuple[str, nn.Module]], lines: ModuleLines) -> list[dict[str, Any]]:
    """Layers whose bias a norm subtracts again by the statistics of the batch: running statistics leave it in."""
    return [
        {
            "name": name,
            "class": type(layer).__name__,
            "norm_class": type(norm).__name__,
            "channels": getattr(layer, "out_channels", None) or getattr(layer, "out_features", None),
            "created": lines.get(layer),
        }
        for name, layer, norm in find_biases_before_norms(modules)
        if norm.training or not getattr(norm, "track_running_stats", False)
    ][:MAX_NAMES]


def describe_embeddings(modules: list[tuple[str, nn.Module]], lines: ModuleLines) -> list[dict[str, Any]]:
    """The tables of embeddings, the largest first; "tied" is one whose weight another module uses as well."""
    owners = Counter(id(each) for _, module in modules for each in vars(module).get("_parameters", {}).values())
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "class": type(module).__name__,
            "num_embeddings": module.num_embeddings,
            "embedding_dim": module.embedding_dim,
            "sparse": module.sparse,
            "tied": owners[id(weight)] > 1,
            "trained": weight.requires_grad,
            "created": lines.get(module),
        }
        for name, module in modules
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        # Wrappers that shard parameters take them out of the modules.
        and isinstance(weight := getattr(module, "weight", None), nn.Parameter)
    ]
    return sorted(found, key=lambda each: -each["num_embeddings"] * each["embedding_dim"])[:MAX_NAMES]
