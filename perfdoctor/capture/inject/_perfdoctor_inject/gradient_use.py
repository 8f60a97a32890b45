"""Gradients that are made and dropped: cleared before their optimizer steps, or of parameters that no optimizer has.

Watched in the window whose trace has the lines of module calls. A gradient is unused when it has changed since its
optimizer stepped, is cleared now, and another optimizer has stepped in between: a discriminator's step through its
generator does that. One optimizer that steps alone may have its gradients read in other ways (PCGrad, SAM).
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from .probes import Probe
from .user_code import Location, user_location

_Calls = dict[int, tuple[torch.nn.Module, list[Location]]]


@dataclass
class _Mark:
    """A parameter as its gradient was last used or cleared: its versions, and what had happened until then."""

    gradient: tuple[int, int]
    version: int
    passes: int
    steps: int


def _while_watching(method: Callable[..., None]) -> Callable[..., None]:
    """A method that does nothing outside of the window, where each step calls it.

    Its looks at tensors are no calls of the program: the mode for source lines would mark each.
    """

    @functools.wraps(method)
    def look(self: GradientUse, *args: Any) -> None:
        if self.is_watching:
            with torch._C.DisableTorchFunction():
                method(self, *args)

    return look


class GradientUse(Probe):
    """Which gradients nobody used in the window that is watched.

    Attributes:
        is_watching: Whether that window is open.
        steps: How many steps optimizers have made in it.
    """

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.is_watching = False
        # The sizes of parameters that an optimizer has, by id: it may be gone when the window ends with the program.
        self._owned: dict[int, int] = {}
        self._marks: dict[int, _Mark] = {}
        self._calls: _Calls = {}
        self._passes: list[Location | None] = []
        self.steps = 0
        self._found: dict[str, dict[str, Any]] = {}

    def add_optimizer(self, optimizer: Any) -> None:
        """Know an optimizer that was made."""
        self._optimizers.add(optimizer)

    def find_optimizers(self) -> bool:
        """Know the optimizers that were made before anybody listened: a look at all objects, some 0.1 s.

        Returns whether there are any.
        """
        self._optimizers.update(each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer))
        return bool(self._optimizers)

    def watch(self) -> None:
        """Watch from now on, at the border of a step."""
        self.is_watching = True
        self._marks, self._calls, self._passes, self.steps = {}, {}, [], 0
        self._owned.clear()
        self._mark_all()

    @_while_watching
    def end_watch(self) -> None:
        """Watch no more; the parameters that no optimizer has are looked at now."""
        if self.steps and self._passes:
            self._mark_all()
            parameters = {id(each): each for module, _ in self._calls.values() for each in module.parameters()}
            if not self._has_copies_of(parameters):
                self._add(
                    None, [p for key, p in parameters.items() if key not in self._owned and p.grad is not None], 0
                )
        self._marks, self._calls, self.is_watching = {}, {}, False

    @_while_watching
    def on_module_call(self, module: torch.nn.Module, frame: FrameType | None, arguments: Iterable[Any]) -> None:
        """The user's code calls a module that lies in no other one."""
        location = user_location(frame)
        if location is None:
            return
        has_graph = any(isinstance(each, torch.Tensor) and each.requires_grad for each in arguments)
        call, lines = {**location, "input_has_graph": has_graph}, self._calls.setdefault(id(module), (module, []))[1]
        if call not in lines:
            lines.append(call)

    @_while_watching
    def on_backward(self, frame: FrameType | None) -> None:
        """A backward pass begins."""
        self._passes.append(user_location(frame))

    @_while_watching
    def on_optimizer_end(self, optimizer: Any) -> None:
        """An optimizer has used its gradients."""
        self.steps += 1
        self._mark_owned(optimizer)

    @_while_watching
    def before_clearing(self, owner: Any) -> None:
        """The gradients of an optimizer or a module are about to be cleared."""
        unused = [parameter for parameter in _parameters_of(owner) if self._is_unused(parameter)]
        if unused:
            first_pass = min(self._marks[id(parameter)].passes for parameter in unused)
            self._add(owner, unused, first_pass)

    @_while_watching
    def after_clearing(self, owner: Any) -> None:
        """They were cleared."""
        self._mark(_parameters_of(owner))

    def facts(self) -> dict[str, Any]:
        """What was found."""
        return {"unused_gradients": list(self._found.values())}

    @_while_watching
    def _mark_all(self) -> None:
        for optimizer in self._optimizers:
            self._mark_owned(optimizer)

    def _has_copies_of(self, parameters: dict[int, torch.nn.Parameter]) -> bool:
        """Whether optimizers may update copies of some parameters, of which they have none: master weights, shards.

        Beside an image that is optimized through a frozen network there is no copy of the network.
        """
        if not self._owned.keys().isdisjoint(parameters):
            return False
        is_sharded = torch.distributed.is_available() and torch.distributed.is_initialized()
        return is_sharded or 2 * sum(self._owned.values()) >= sum(each.numel() for each in parameters.values())

    def _mark_owned(self, optimizer: Any) -> None:
        parameters = _parameters_of(optimizer)
        self._owned.update({id(each): each.numel() for each in parameters})
        self._mark(parameters)

    def _mark(self, parameters: Iterable[Any]) -> None:
        for parameter in parameters:
            self._marks[id(parameter)] = _Mark(
                _version_of(parameter.grad), parameter._version, len(self._passes), self.steps
            )

    def _is_unused(self, parameter: Any) -> bool:
        mark = self._marks.get(id(parameter))
        return (
            mark is not None
            and parameter.grad is not None
            and _version_of(parameter.grad) != mark.gradient
            and parameter._version == mark.version
            and self.steps > mark.steps
        )

    def _add(self, owner: Any, unused: list[Any], first_pass: int) -> None:
        """Count gradients that nobody used, by what they are and where they were made."""
        if not unused:
            return
        ids = {id(parameter) for parameter in unused}
        what = {
            "optimizer": None if owner is None else type(owner).__name__,
            "tensors": len(unused),
            "parameters": sum(parameter.numel() for parameter in unused),
            "passes": _distinct(self._passes[first_pass:]),
        }
        found = self._found.setdefault(repr(what), {**what, "calls": [], "times": 0})
        for module, lines in self._calls.values():
            trained = [id(each) for each in module.parameters() if each.requires_grad]
            if trained and ids.issuperset(trained):
                found["calls"] = _distinct([*found["calls"], *lines])
        found["times"] += 1


def _distinct(lines: Iterable[Location | None]) -> list[Location]:
    """Each line once, in order; without those that are not known."""
    distinct: list[Location] = []
    for each in lines:
        if each is not None and each not in distinct:
            distinct.append(each)
    return distinct


def _parameters_of(owner: Any) -> list[Any]:
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [parameter for group in owner.param_groups for parameter in group["params"]]


def _version_of(gradient: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if gradient is None else (id(gradient), gradient._version)
