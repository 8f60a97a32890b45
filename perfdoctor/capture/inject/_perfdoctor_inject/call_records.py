"""The torch calls of one step, with what each was given: calls.json, from which single calls can be made again.

The profiler's own record lacks strings (an equation), the types of lists, and which result is whose input. The mode for
source lines sees each call as the program makes it. No tensor is kept: a number stands for it while it lives.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from .value_looks import MIN_CALL_NS, is_readable, read_sample, values_of

# A step of more calls is cut: the dearest ones come again and again.
_MAX_CALLS = 20_000
# Values that are looked at: of whole numbers all, because an index must stay within its range; of others a sample.
_MAX_WHOLE, _BLOCKS, _BLOCK_BYTES = 1 << 18, 16, 1024
_MAX_TEXT, _MAX_ITEMS = 200, 4096
_PLAIN = (int, float, bool, type(None))
_FLOATS = {torch.float32: "f4", torch.float64: "f8"}

Encoded: TypeAlias = Any
"""A number, text, or null as they are; else a list whose first item says what the others are."""


class CallRecords:
    """The calls of one step of the window, in their order."""

    def __init__(self) -> None:
        self._is_open = False
        self._clear()

    def _clear(self) -> None:
        self._calls: list[list[Any]] = []
        self._functions: dict[Any, int] = {}
        self._lines: dict[str, int] = {}
        self._tensors: list[list[Any]] = []
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}

    def start(self) -> None:
        """Record the step that begins, and forget those of an earlier window."""
        self._clear()
        self._is_open = True

    def begin_step(self) -> None:
        """Record no more once a step with calls has ended."""
        self._is_open = self._is_open and not self._calls

    def open_call(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[Any] | None:
        """What a call is given, before it changes any of it; None where calls are not recorded."""
        if not self._is_open or len(self._calls) >= _MAX_CALLS:
            return None
        with contextlib.suppress(Exception):  # tensors of any kind are looked at, and the program comes first
            return [self._encode(args), {name: self._encode(value) for name, value in (kwargs or {}).items()}]
        return None

    def close_call(self, given: list[Any] | None, line: str, function: Any, result: Any, dur_ns: int) -> None:
        """What it returned, and how long it took."""
        if given is None:
            return
        with contextlib.suppress(Exception):
            if dur_ns >= MIN_CALL_NS:
                self._look_at(given)
            returned = self._encode(result)
            if not _numbers_of(returned):  # a question: shape, size, requires_grad
                return
            number = self._functions.setdefault(function, len(self._functions))
            at = self._lines.setdefault(line, len(self._lines))
            self._calls.append([at, number, *given, returned, dur_ns, torch.is_grad_enabled()])

    def to_dict(self) -> dict[str, Any]:
        """All that was recorded, as it stands in calls.json."""
        return {
            "schema": "perfdoctor.calls/1",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "lines": list(self._lines),
            "functions": list(map(_name_function, self._functions)),
            "tensors": self._tensors,
            "calls": self._calls,
        }

    def _encode(self, value: Any) -> Encoded:
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, str):
            return ["text", value[:_MAX_TEXT]]
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            return ["tensor", self._number(value)]
        if isinstance(value, (tuple, list)) and len(value) <= _MAX_ITEMS:
            return ["list" if isinstance(value, list) else "tuple", *map(self._encode, value)]
        if isinstance(value, slice):
            return ["slice", *map(self._encode, (value.start, value.stop, value.step))]
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return ["torch", str(value).removeprefix("torch.")]
        if isinstance(value, torch.device):
            return ["device", value.type]
        return ["ellipsis"] if value is Ellipsis else ["unknown", type(value).__name__]

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor in its present state; another one after it was written to."""
        version = 0 if tensor.is_inference() else tensor._version
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version:
            return known[2]
        number = len(self._tensors)
        self._known[id(tensor)] = weakref.ref(tensor), version, number
        strides = tensor.stride() if tensor.layout is torch.strided else None
        kind = str(tensor.dtype).removeprefix("torch."), tensor.device.type, tensor.requires_grad
        is_whole = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.numel() <= _MAX_WHOLE
        values = _describe_whole(tensor) if is_whole else None
        self._tensors.append([list(tensor.shape), strides, *kind, isinstance(tensor, torch.nn.Parameter), values])
        return number

    def _look_at(self, given: Encoded) -> None:
        """Add what a sample shows of the numbers in the tensors of a dear call."""
        numbers = set(_numbers_of(given))
        for ref, _, number in list(self._known.values()):
            tensor = ref() if number in numbers and self._tensors[number][-1] is None else None
            if tensor is not None:
                self._tensors[number][-1] = _describe_floats(tensor)


def _numbers_of(given: Encoded) -> list[int]:
    """The tensors in some arguments."""
    if isinstance(given, dict):
        return [number for value in given.values() for number in _numbers_of(value)]
    if not isinstance(given, list):
        return []
    return [given[1]] if given[:1] == ["tensor"] else [number for each in given for number in _numbers_of(each)]


def _describe_whole(tensor: torch.Tensor) -> dict[str, Any] | None:
    """The range of whole numbers, whether they are sorted, and how many differ; of flags the share that is true."""
    if not is_readable(tensor):
        return None
    values = values_of(tensor)
    if tensor.dtype is torch.bool:
        is_lower = values.ndim > 1 and not values[..., 0, 1:].any() and bool(values.any())
        return {"true": float(values.astype(bool).mean()), "first_row_is_false": is_lower}
    values = values.view(f"i{tensor.element_size()}").reshape(-1)
    sorted_values = values.copy()
    sorted_values.sort()
    changes = int((sorted_values[1:] != sorted_values[:-1]).sum())
    return {
        "min": int(sorted_values[0]),
        "max": int(sorted_values[-1]),
        "sorted": bool((values[1:] >= values[:-1]).all()),
        "distinct": changes + 1,
        "sum": int(values.sum()),
        "falls": bool((values[1:] <= values[:-1]).all()),
    }


def _describe_floats(tensor: torch.Tensor) -> dict[str, float] | None:
    """The range of a sample of numbers, and the share of zeros."""
    sample = read_sample(tensor, _BLOCKS, _BLOCK_BYTES) if tensor.dtype in _FLOATS else b""
    if not sample:
        return None
    import numpy as np

    values = np.frombuffer(sample, _FLOATS[tensor.dtype])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return {"min": float(values.min()), "max": float(values.max()), "zeros": float((values == 0).mean())}


@functools.cache
def _name_function(function: Callable[..., Any]) -> str:
    """The name by which torch has a function: torch.Tensor.matmul."""
    found = torch.overrides.resolve_name(function)
    return found or f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', function)}"
