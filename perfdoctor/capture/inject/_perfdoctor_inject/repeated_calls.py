"""Calls of a module with the very tensors of an earlier call, while its weights are as they were: one result again.

A loss and a metric that call the model each, or derivatives that evaluate the network anew::

    loss = criterion(net(x), y)
    accuracy = (net(x).argmax(1) == y).float().mean()   # again

Dropout and other random numbers make two results of one input, which may be meant.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

_PLAIN = (int, float, str, bool, type(None))


class _Call(NamedTuple):
    """What a call was given: its tensors, in which states, other arguments, the weights' states, and the mode."""

    tensors: tuple[Any, ...]
    versions: tuple[int, ...]
    others: tuple[Any, ...]
    weights: tuple[int, int]
    is_training: bool


class RepeatedCalls:
    """The last calls of each module."""

    def __init__(self) -> None:
        self._calls: dict[int, list[_Call]] = {}

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()

    def add(
        self, module: torch.nn.Module, arguments: Iterable[Any], optimizer_steps: int = 0
    ) -> tuple[bool, Callable[[], None]]:
        """Whether a call repeats an earlier one; and what to call at its end, which keeps it for later ones.

        `optimizer_steps` is how many steps optimizers have made: fused ones raise no version of what they write to.
        Tensors of any kind are looked at, and some have no versions or answer in ways of their own: that is no error of
        the program, which comes first.
        """
        try:
            call = _describe(module, tuple(arguments), optimizer_steps)
            if call is None:
                return False, _do_nothing
            calls = self._calls.setdefault(id(module), [])
            calls[:] = [
                each
                for each in calls
                if each.weights == call.weights and all(ref() is not None for ref in each.tensors)
            ]
            if any(_is_same(each, call) for each in calls):
                return True, _do_nothing
            state = _rng_state()
        except Exception:
            return False, _do_nothing

        def keep() -> None:
            with contextlib.suppress(Exception):
                if state == _rng_state():
                    calls.append(call)

        return False, keep


def _do_nothing() -> None:
    pass


def _rng_state() -> bytes:
    """The generator's state, read without an op: it would be recorded as one of the program."""
    state = torch.get_rng_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def _describe(module: torch.nn.Module, arguments: tuple[Any, ...], optimizer_steps: int) -> _Call | None:
    """A call by what decides its result; None where an argument is neither a tensor nor plain, or dropout draws.

    None as well in torch.inference_mode(), whose tensors have no versions: what trains nothing may repeat on purpose.
    """
    if torch.is_inference_mode_enabled():
        return None
    tensors = tuple(each for each in arguments if isinstance(each, torch.Tensor))
    others = tuple(each for each in arguments if not isinstance(each, torch.Tensor))
    draws = module.training and any(
        isinstance(each, torch.nn.modules.dropout._DropoutNd) and each.p > 0 for each in module.modules()
    )
    if draws or not tensors or not all(isinstance(each, _PLAIN) for each in others):
        return None
    return _Call(
        tuple(map(weakref.ref, tensors)),
        tuple(each._version for each in tensors),
        others,
        (sum(each._version for each in module.parameters()), optimizer_steps),
        module.training,
    )


def _is_same(call: _Call, other: _Call) -> bool:
    return call[1:] == other[1:] and all(a() is b() for a, b in zip(call.tensors, other.tensors, strict=True))
