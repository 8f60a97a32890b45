"""Wrappers of data-parallel models as facts: the settings of DistributedDataParallel and of FSDP, never values."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from .user_code import Location

DDP_FLAGS = (
    "find_unused_parameters",
    "static_graph",
    "gradient_as_bucket_view",
    "bucket_bytes_cap",
    "broadcast_buffers",
)
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
