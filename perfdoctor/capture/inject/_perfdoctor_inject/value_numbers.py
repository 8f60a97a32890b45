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

import re
from collections.abc import Iterator
from typing import Any

# A mark takes a microsecond.
MIN_REPEATED_NS = 5_000
_DRAWS = re.compile(r"dropout|rand|bernoulli|multinomial|uniform_|exponential_|poisson|gumbel|rrelu|normal_?$|cauchy_")
# Of such a call this argument, counted from 0, is a probability; without it nothing is drawn.
_PROBABILITY = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
# Nobody knows what these hold.
_UNKNOWN = re.compile(r"^(new_)?empty|^grad$")
# New memory is asked for to be written to.
_MAKES_MEMORY = re.compile(r"^(new_)?(zeros|ones|full)(_like)?$|^clone$|^__deepcopy__$")


class ValueNumbers:
    """The values of the tensors of one step, by how they were made."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[int, str]] = {}
        self._values: dict[int, Any] = {}
        self._writes = 0

    def forget(self) -> None:
        """Take all tensors for new: a step begins, or something writes to memory and raises no version."""
        self._made.clear()
        self._values.clear()
        self._writes += 1

    def add(self, line: str, function: Any, args: list[Any], kwargs: dict[str, Any], returned: Any) -> str | None:
        """One call, as `CallRecords` encodes it; returns the line that computed the same before, None where it is new.

        Tensors are numbers in `args` and `returned`, one for each state of each of them.
        """
        name = _name_of(function)
        if name == "data":  # `x.data.mul_(2)` leaves the version of x
            self.forget()
        if _UNKNOWN.search(name) or _draws(name, args[1:], kwargs):
            return None
        if name == "batch_norm" and (kwargs.get("training") or args[6:7] == [True]):
            args = [*args[:2], *args[4:]]  # it writes to the running statistics, and does not read them
        try:
            key = function, self._value_of(args), self._value_of(sorted(kwargs.items()))
        except LookupError:
            return None
        given = set(numbers_in([args, kwargs]))
        fresh = [number for number in numbers_in(returned) if number not in given]
        if name.startswith("detach") and len(args) == 2 and len(fresh) == 1:  # another tensor of the same values
            self._values[fresh[0]] = self._value_of(args[1])
            return None
        number, first = self._made.get(key, (None, None))
        if number is None:
            number = len(self._made)
            self._made[key] = number, line
        self._values.update({each: ("made", number, at) for at, each in enumerate(fresh)})
        return None if not fresh or _MAKES_MEMORY.search(name) else first

    def _value_of(self, value: Any) -> Any:
        """What stands for an encoded argument; equal for equal values, LookupError for what nobody knows."""
        if not isinstance(value, (list, tuple)):
            return type(value), value
        if value[:1] == ["unknown"]:
            raise LookupError
        if value[:1] == ["tensor"]:
            return self._values.get(value[1], ("given", value[1], self._writes))
        return tuple(map(self._value_of, value))


def numbers_in(encoded: Any) -> Iterator[int]:
    """The tensors in an encoded value, by their numbers."""
    if isinstance(encoded, dict):
        encoded = list(encoded.values())
    if isinstance(encoded, list):
        if encoded[:1] == ["tensor"]:
            yield encoded[1]
        else:
            for each in encoded:
                yield from numbers_in(each)


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):  # of an attribute: x.data
        name = getattr(function.__self__, "__name__", "")
    return str(name)


def _draws(name: str, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call takes random numbers."""
    if name in _RECURRENT:
        return any(isinstance(each, float) and each > 0 for each in args)
    if name in _PROBABILITY:
        at = _PROBABILITY[name]
        return kwargs.get("training") is not False and bool(kwargs.get("dropout_p", (args[at : at + 1] or [0.0])[0]))
    if "dropout" in name:
        drawn = kwargs.get("p", (args[1:2] or [0.5])[0]), kwargs.get("training", (args[2:3] or [True])[0])
        return all(drawn)
    return bool(_DRAWS.search(name))
