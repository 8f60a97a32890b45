"""The torch calls of one step as `perfdoctor run` recorded them: which call made the tensors that another one got."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from perfdoctor.frozen_dataclass import frozen_dataclass

# Spellings of one function: operators, aliases, and products by how many axes they take.
_NAMES = {
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "rmul": "mul",
    "radd": "add",
    "subtract": "sub",
    "negative": "neg",
    "rdiv": "rtruediv",
    "mT": "transpose",
    "T": "transpose",
}
# Calls that compute nothing: views, and questions.
VIEWS = frozenset(
    [
        "view",
        "reshape",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "expand",
        "flatten",
        "unflatten",
        "movedim",
        "detach",
        "unbind",
        "chunk",
        "split",
        "t",
        "contiguous",
        "narrow",
        "swapaxes",
        "size",
        "dim",
        "__get__",
        "view_as",
        "expand_as",
        "requires_grad_",
    ]
)


def spell_alike(name: str) -> str:
    """The one name of a function of torch, without its room: "__truediv__" and "true_divide" are "div"."""
    name = name.strip("_") if name.startswith("__") else name
    return _NAMES.get(name, name)


class RecordedCall(NamedTuple):
    """One torch call.

    Attributes:
        line: "@train.py:41 forward".
        function: Its name in torch: "torch.Tensor.matmul".
        args: The arguments, encoded as call_records.py has them, without the word in front.
        kwargs: The keywords.
        result: What it returned, encoded.
        dur_ns: How long it took on the CPU.
        with_grad: Whether gradients were on.
    """

    line: str
    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    dur_ns: int
    with_grad: bool

    @property
    def name(self) -> str:
        """What it is called whatever the spelling: "matmul", "div"."""
        parts = [part for part in self.function.split(".") if part != "__get__"]
        return spell_alike(parts[-1])

    @property
    def tensors(self) -> list[int]:
        """The tensors that it got."""
        return [*tensors_in(self.args), *tensors_in(self.kwargs)]


@frozen_dataclass(eq=False)
class RecordedCalls:
    """The calls of a step.

    Attributes:
        calls: In their order.
        tensors: By number what each was: sizes, strides, type, device, whether it requires a gradient, whether it is a
            parameter, what is known of its values.
        threads: The threads of torch.
    """

    calls: Sequence[RecordedCall]
    tensors: Sequence[list[Any]]
    threads: int

    @cached_property
    def maker(self) -> Mapping[int, tuple[int, tuple[int, ...]]]:
        """For each tensor the call that made it, and where in its result it stands."""
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for row, call in enumerate(self.calls):
            given = set(call.tensors)
            for number, path in _paths_in(call.result):
                if number not in given:  # what a call returns as it got it was made before
                    found.setdefault(number, (row, path))
        return found

    @cached_property
    def readers(self) -> Mapping[int, list[int]]:
        """For each tensor the calls that got it."""
        found: dict[int, list[int]] = defaultdict(list)
        for row, call in enumerate(self.calls):
            for number in set(call.tensors):
                found[number].append(row)
        return found

    def on_gpu(self, rows: Sequence[int]) -> bool:
        """Whether some calls got a tensor on a GPU."""
        return any(self.tensors[number][3] == "cuda" for row in rows for number in self.calls[row].tensors)


def tensors_in(value: Any) -> list[int]:
    """The numbers of the tensors in an encoded value."""
    if isinstance(value, Mapping):
        return [number for each in value.values() for number in tensors_in(each)]
    if not isinstance(value, (list, tuple)) or not value:
        return []
    return [value[1]] if value[0] == "tensor" else [number for each in value for number in tensors_in(each)]


def _paths_in(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, tuple[int, ...]]]:
    if isinstance(value, list) and value:
        if value[0] == "tensor":
            yield value[1], path
        elif value[0] in ("tuple", "list"):
            for number, each in enumerate(value[1:]):
                yield from _paths_in(each, (*path, number))


def read_calls(path: Path) -> RecordedCalls | None:
    """The calls in a file; None where there are none, or where it is damaged."""
    try:
        plain = json.loads(path.read_bytes())
        lines, functions = plain["lines"], plain["functions"]
        calls = [
            RecordedCall(lines[line], functions[number], tuple(args[1:]), kwargs, result, int(dur_ns), bool(with_grad))
            for line, number, args, kwargs, result, dur_ns, with_grad in plain["calls"]
        ]
        return RecordedCalls(calls, list(plain["tensors"]), int(plain["threads"])) if calls else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
