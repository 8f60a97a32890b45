"""Models, optimizers and the wrappers of data-parallel models as facts: classes, sizes and settings, never values."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

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
        # Wrappers that shard parameters take them out of the modules; asked for, a parametrized one is computed.
        and (weight := module._parameters.get("weight")) is not None
    ]
    return sorted(found, key=lambda each: -each["num_embeddings"] * each["embedding_dim"])[:MAX_NAMES]


DDP_FLAGS = [
    "find_unused_parameters",
    "static_graph",
    "gradient_as_bucket_view",
    "bucket_bytes_cap",
    "broadcast_buffers",
]
# A program registers one hook; FSDP and optimizers in the backward pass add one each.
MAX_HOOKS = 4


def describe_ddp(model: nn.Module, created: Location | None = None) -> dict[str, Any] | None:
    """Settings of DistributedDataParallel, None for another model; `created` is the line that made it."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return None
    policy = getattr(model, "mixed_precision", None)
    logged = _logged_by_reducer(model)
    return {
        **{name: getattr(model, name, None) for name in DDP_FLAGS},
        "comm_hooks": [_name_hook(entry[0]) for entry in getattr(model, "_comm_hooks", ())][:MAX_HOOKS],
        "mixed_precision": None if policy is None else _describe_policy(policy),
        "unused_elements": logged.get("unused_parameter_size"),
        "has_rebuilt_buckets": logged.get("has_rebuilt_buckets"),
        "created": created,
    }


def describe_fsdp(modules: list[tuple[str, nn.Module]]) -> dict[str, Any] | None:
    """Settings of FSDP, None for another model.

    The root is the first of the modules.
    """
    sharding = sys.modules.get("torch.distributed.fsdp")  # not imported for the answer: it takes half a second
    if sharding is None:
        return None
    first = getattr(sharding, "FullyShardedDataParallel", None)
    units = [module for _, module in modules if first is not None and isinstance(module, first)]
    if units:
        return _describe_fsdp1(units)
    second = getattr(sharding, "FSDPModule", None)
    units = [module for _, module in modules if second is not None and isinstance(module, second)]
    return _describe_fsdp2(units) if units else None


def _describe_fsdp1(units: list[Any]) -> dict[str, Any]:
    unit = units[0]
    return {
        "version": 1,
        "units": len(units),
        "sharding": _name_of(getattr(unit, "sharding_strategy", None)),
        "forward_prefetch": _flag(getattr(unit, "forward_prefetch", None)),
        "backward_prefetch": _name_of(getattr(unit, "backward_prefetch", None)),
        "limit_all_gathers": _flag(getattr(unit, "limit_all_gathers", None)),
        "reshard_after_forward": None,
        "offloads_to_cpu": _flag(getattr(getattr(unit, "cpu_offload", None), "offload_params", None)),
        **_describe_policy(getattr(unit, "mixed_precision", None)),
    }


def _describe_fsdp2(units: list[Any]) -> dict[str, Any]:
    states = [unit._get_fsdp_state() for unit in units]
    groups = [group for state in states for group in getattr(state, "_fsdp_param_groups", None) or _only_group(state)]
    group = groups[0] if groups else None
    resharding = {getattr(each, "post_forward_mesh_info", None) is not None for each in groups[1:] or groups}
    return {
        "version": 2,
        "units": len(units),
        "sharding": None,
        "forward_prefetch": any(getattr(state, "_states_to_forward_prefetch", ()) for state in states),
        "backward_prefetch": "explicit"
        if any(getattr(state, "_states_to_backward_prefetch", ()) for state in states)
        else None,
        "limit_all_gathers": None,
        "reshard_after_forward": True in resharding if resharding else None,
        "offloads_to_cpu": "CPU" in type(getattr(group, "offload_policy", None)).__name__,
        **_describe_policy(getattr(group, "mp_policy", None)),
    }


def _only_group(state: Any) -> list[Any]:
    """The parameters of a state before PyTorch 2.11, where it had one group of them."""
    group = getattr(state, "_fsdp_param_group", None)
    return [] if group is None else [group]


def _describe_policy(policy: Any) -> dict[str, str | None]:
    """The element types of a policy of mixed precision; None for those that it leaves as they are."""
    values = {name: getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype")}
    return {name: None if value is None else str(value) for name, value in values.items()}


def _logged_by_reducer(model: Any) -> dict[str, Any]:
    """What the reducer knows by itself: of all its figures the two that are asked for, where they have the right type.

    It fills them in during the first steps, and then every hundredth.
    """
    try:
        logged = model._get_ddp_logging_data()
    except Exception:  # a wrapper made before its process group, or a release without the method
        return {}
    unused, rebuilt = logged.get("unused_parameter_size"), logged.get("has_rebuilt_buckets")
    return {
        "unused_parameter_size": int(unused) if isinstance(unused, int) else None,
        "has_rebuilt_buckets": bool(rebuilt) if isinstance(rebuilt, int) else None,
    }


def _name_hook(hook: Any) -> str:
    """The name of a communication hook: torch's own are kept apart by it."""
    return str(getattr(hook, "__name__", type(hook).__name__))


def _name_of(member: Any) -> str | None:
    return None if member is None else str(getattr(member, "name", member))


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
