"""fused: optimizers by their fused or foreach implementation, where the program leaves the choice to torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# Classes of torch.optim that have a fused form; which devices and types it takes is asked at run time.
HAVE_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


class FusedOptimizer:
    """`fused=True` or `foreach=True` for optimizers of torch.optim, and for classes made from them."""

    name = "fused"
    summary = "optimizers by their fused (or foreach) implementation"
    rules = ("PD303",)
    effect_on_results = "sums in another order"
    code = "torch.optim.AdamW(..., {setting}=True)   # the optimizer of the program"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The fused form where a class has one; on a CPU the foreach form, too, which is the default on a GPU."""
        from perfdoctor.trials.change import advised_settings

        is_fusible = any(each.class_ in HAVE_FUSED and not each.fused for each in facts.optimizers)
        is_foreach = any(each.foreach is None and not each.fused for each in facts.optimizers)
        found = ["fused"] if is_fusible else []
        if is_foreach and not facts.devices:
            found.append("foreach")
        wanted = advised_settings(self.name, findings)
        return tuple(sorted(found, key=lambda each: each not in wanted))

    def apply(self, setting: str, program: Program) -> None:
        """Set the argument of every optimizer that is made."""
        import torch

        for optimizer in [each for each in vars(torch.optim).values() if isinstance(each, type)]:
            if issubclass(optimizer, torch.optim.Optimizer) and setting in argument_names(optimizer):
                program.edit_arguments(self, optimizer, "__init__", self._edit(setting))
                program.patch(optimizer, "__init__", list_parameters)

    def _edit(self, setting: str) -> Any:
        def edit(optimizer: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            # An explicit foreach=False still leaves open whether the fused form is wanted.
            is_said = given.get(setting) is not None or given.get("fused") or given.get("foreach")
            if is_said or given.get("differentiable") or not are_supported(given.get("params"), setting):
                return None
            return {setting: True}

        return edit


def argument_names(function: Any) -> list[str]:
    """The names of a constructor's arguments."""
    return list(inspect.signature(function).parameters)


def list_parameters(original: Any) -> Any:
    """A constructor that reads a generator of parameters once, so that they can be looked at before it does."""

    def __init__(optimizer: Any, params: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        is_iterator = hasattr(params, "__next__")
        original(optimizer, list(params) if is_iterator else params, *args, **kwargs)

    return __init__


def are_supported(params: Any, setting: str) -> bool:
    """Whether the form takes these parameters or groups of them: floating point, on a device that has the form."""
    import torch

    tensors: list[Any] = []
    for each in params or ():
        # A pair is a parameter with its name; the parameters of a group may be a generator, which is left unread.
        inner = each.get("params", ()) if isinstance(each, dict) else each[1] if isinstance(each, tuple) else each
        if isinstance(inner, torch.Tensor):
            tensors.append(inner)
        elif isinstance(inner, list | tuple):
            tensors += [item[1] if isinstance(item, tuple) else item for item in inner]
        else:
            return False
    if not tensors or any(type(each).__name__ == "UninitializedParameter" for each in tensors):
        return False
    if setting == "foreach":
        return True
    from torch.utils import _foreach_utils

    devices = _foreach_utils._get_fused_kernels_supported_devices()
    return all(torch.is_floating_point(each) and each.device.type in devices for each in tensors)
