"""Calls that compute the same again within a step, found by value numbering: no value of a tensor is read.

A tensor in one state has a number; what a function returns has that of the function with the numbers of what it was
given, and equal numbers are equal values. So are found a model that the loss and the metric call each, a weight that is
made of others at each use, a mask or a table of positions that each layer makes for itself::

    for block in self.blocks:
        mask = torch.triu(torch.full((n, n), float("-inf")), 1)   # the same in each block
        x = block(x, mask)

Random numbers make two results of one input, which may be meant. What torch did not make, or what is written to in a
way that raises no version, is new each time.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch

from .module_calls import is_in_backward

# A mark takes a microsecond.
MIN_REPEATED_NS = 5_000
# Of a step of more calls the rest is left out.
_MAX_CALLS = 20_000
_DRAWS = re.compile(r"dropout|rand|bernoulli|multinomial|uniform_|exponential_|poisson|gumbel|rrelu|normal_?$|cauchy_")
# Of such a call this argument, counted from 0, is a probability; without it nothing is drawn.
_PROBABILITY = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
# Nobody knows what these hold.
_UNKNOWN = re.compile(r"^(new_)?empty|^grad$")
# New memory is asked for to be written to.
_MAKES_MEMORY = re.compile(r"^(new_)?(zeros|ones|full)(_like)?$|^clone$|^__deepcopy__$")
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN: frozenset[type] = frozenset(
    (
        *(bool, int, float, complex, str, type(None), type(Ellipsis)),
        torch.Size,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)

Key: TypeAlias = tuple[Any, ...]
"""A function with the values of what it is given."""


class ValueNumbers:
    """The values of the tensors of one step, by how they were made."""

    def __init__(self, optimizer_steps: Callable[[], int] = int) -> None:
        """`optimizer_steps` counts the steps of optimizers, of which fused ones raise no version of what they write."""
        self._optimizer_steps = optimizer_steps
        self._stepped = self._tensors = 0
        # A tensor by its address while it lives: its version then, and its value.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, Any]] = {}
        self._made: dict[Key, tuple[int, str]] = {}

    def forget(self) -> None:
        """Take all tensors for new: a step begins, or something writes to memory and raises no version."""
        self._known.clear()
        self._made.clear()

    def open_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Key | None:
        """What a call computes, asked before it changes anything; None where nobody knows.

        A backward pass computes again on purpose (checkpoints); inference tensors have no versions.
        """
        kind = _kind_of(function)
        if kind.name == "data" or self._stepped != self._optimizer_steps():  # `x.data.mul_(2)` leaves the version of x
            self._stepped = self._optimizer_steps()
            self.forget()
        if kind.is_unknown or len(self._made) >= _MAX_CALLS or is_in_backward():
            return None
        try:
            if kind.may_draw and _draws(kind.name, args, kwargs or {}):
                return None
            if kind.name == "batch_norm" and ((kwargs or {}).get("training") or args[5:6] == (True,)):
                args = (args[0], *args[3:])  # it writes to the running statistics, and does not read them
            return (function, self._value_of(args), self._value_of(tuple(kwargs.items())) if kwargs else None)
        except Exception:  # LookupError; tensors of any kind are looked at, and the program comes first
            return None

    def close_call(self, key: Key | None, line: str, result: Any, dur_ns: int) -> str | None:
        """What a call returned; returns the line that computed the same before, None where it is new, or no work."""
        if key is None:
            return None
        try:
            fresh = [tensor for tensor in _tensors_in(result) if self._find(tensor) is None]
            kind, known = _kind_of(key[0]), len(self._made)
            is_passed_on = kind.name.startswith("detach") and len(key[1]) == 2  # another tensor of the same values
            number, first = (0, "") if is_passed_on else self._made.setdefault(key, (known, line))
            for at, tensor in enumerate(fresh):
                value = key[1][1] if is_passed_on else (number, at)
                self._known[id(tensor)] = weakref.ref(tensor), tensor._version, value
        except Exception:
            return None
        is_new = is_passed_on or len(self._made) > known
        return None if is_new or not fresh or dur_ns < MIN_REPEATED_NS or kind.makes_memory else first

    def _find(self, tensor: torch.Tensor) -> Any:
        """The value of a tensor in its state; None where it is new. An inference tensor has none: RuntimeError."""
        known = self._known.get(id(tensor))
        return known[2] if known is not None and known[1] == tensor._version and known[0]() is tensor else None

    def _value_of(self, value: Any) -> Any:
        """What stands for an argument; equal for equal values, LookupError for what nobody knows."""
        kind = type(value)
        if kind in _TENSORS:
            found = self._find(value)
            if found is None:
                self._tensors += 1
                found = self._tensors
                self._known[id(value)] = weakref.ref(value), value._version, found
            return found
        if kind in _PLAIN:
            return kind, value
        if kind is tuple or kind is list:
            return (kind, *map(self._value_of, value))
        if kind is slice:
            return kind, self._value_of(value.start), self._value_of(value.stop), self._value_of(value.step)
        raise LookupError


def _tensors_in(result: Any) -> Iterator[torch.Tensor]:
    if type(result) in _TENSORS:
        yield result
    elif isinstance(result, (tuple, list)):
        for each in result:
            yield from _tensors_in(each)


class _Kind(NamedTuple):
    """What is known of a function by its name."""

    name: str
    is_unknown: bool
    may_draw: bool
    makes_memory: bool


@functools.lru_cache(maxsize=1024)
def _kind_of(function: Any) -> _Kind:
    name = str(getattr(function, "__name__", ""))
    if name in ("__get__", "__set__"):  # of an attribute: x.data
        name = str(getattr(function.__self__, "__name__", ""))
    may_draw = name in _RECURRENT or name in _PROBABILITY or _DRAWS.search(name) is not None
    return _Kind(name, _UNKNOWN.search(name) is not None, may_draw, _MAKES_MEMORY.search(name) is not None)


def _draws(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a function that may take random numbers does."""
    if name in _RECURRENT:
        return any(isinstance(each, float) and each > 0 for each in args)
    if name in _PROBABILITY:
        at = _PROBABILITY[name]
        return kwargs.get("training") is not False and bool(kwargs.get("dropout_p", (*args[at : at + 1], 0.0)[0]))
    if "dropout" in name:
        return bool(kwargs.get("p", (*args[1:2], 0.5)[0]) and kwargs.get("training", (*args[2:3], True)[0]))
    return True
