"""The inputs of an op call as the profiler recorded them.

The profiler records sizes, types, strides and scalar values as JSON texts, one entry for each argument. They are read
strictly: what is missing, ragged, negative or of an unknown type raises `UnusableInputsError`, so that an op has a
right cost or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import orjson

from perfdoctor.frozen_dataclass import frozen_dataclass

Shape: TypeAlias = tuple[int, ...]

# Types as recorded (with and without the namespace, old and new spellings): our name and the bytes of an element.
_TYPES: dict[str, tuple[str, int]] = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::Float4_e2m1fn_x2": ("fp4", 1),  # two values
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "int": ("int32", 4),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "long long": ("int64", 8),
    "long long int": ("int64", 8),
}
FLOAT_TYPES = frozenset({"fp64", "fp32", "fp16", "bf16", "fp8"})
_MAX_ELEMENTS = 1 << 48  # more than any memory holds; keeps products of sizes exact in a float


def name_of_type(recorded: object) -> str | None:
    """Our name of a recorded type: "bf16" for "c10::BFloat16"; None for what is not a tensor, and for unknown types."""
    return _TYPES.get(recorded, (None, 0))[0] if isinstance(recorded, str) else None


class UnusableInputsError(ValueError):
    """The recorded inputs do not determine the cost: something is missing, unknown or contradictory."""


def require_consistent(condition: bool) -> None:
    """Raise UnusableInputsError unless a condition on the recorded inputs holds."""
    if not condition:
        raise UnusableInputsError


class TensorInput(NamedTuple):
    """One tensor argument: sizes, type, bytes of an element, and strides where they were recorded."""

    sizes: Shape
    dtype: str
    item_bytes: int
    strides: Shape | None = None

    @property
    def numel(self) -> int:
        """Number of elements by its sizes."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes that it occupies in memory: along a dimension of stride 0 all elements are the same one."""
        if self.strides is None:
            return self.numel * self.item_bytes
        return self.item_bytes * math.prod(
            size if stride or not size else 1 for size, stride in zip(self.sizes, self.strides, strict=True)
        )


@frozen_dataclass
class RecordedInputs:
    """The recorded inputs of one op call; arguments are addressed by their position in the op's schema.

    Methods raise UnusableInputsError where an argument is missing or makes no sense.
    """

    sizes: Sequence[object]
    types: Sequence[object]
    strides: Sequence[object] | None
    concrete: Sequence[object] | None

    @classmethod
    def parse(cls, dims: str, types: str, strides: str | None, concrete: str | None) -> RecordedInputs:
        """Return the inputs that the four JSON texts hold.

        Raises:
            UnusableInputsError: a text is no JSON list, or the lists differ in length.
        """
        size_list, type_list = _parse_list(dims), _parse_list(types)
        stride_list = None if strides is None else _parse_list(strides)
        concrete_list = None if concrete is None else _parse_list(concrete)
        require_consistent(len(size_list) == len(type_list))
        require_consistent(stride_list is None or len(stride_list) == len(size_list))
        require_consistent(concrete_list is None or len(concrete_list) == len(size_list))
        return cls(size_list, type_list, stride_list, concrete_list)

    def has_elements(self, index: int) -> bool:
        """Return whether the argument is a tensor with elements; a tensor of unknown type counts."""
        if index >= len(self.sizes):
            return False
        sizes = self.sizes[index]
        return isinstance(sizes, list) and bool(sizes) and 0 not in sizes

    def tensor(self, index: int, ndim: int | None = None) -> TensorInput:
        """Return a tensor argument, of `ndim` dimensions if that is given.

        Raises:
            UnusableInputsError: it is not a tensor, or its sizes, strides or type cannot be used.
        """
        require_consistent(index < len(self.sizes))
        type_name = self.types[index]
        dtype_and_bytes = _TYPES.get(type_name) if isinstance(type_name, str) else None
        if dtype_and_bytes is None:
            raise UnusableInputsError
        sizes = _parse_shape(self.sizes[index])
        require_consistent(ndim is None or len(sizes) == ndim)
        require_consistent(math.prod(sizes) <= _MAX_ELEMENTS)
        strides = None
        if self.strides is not None:
            strides = _parse_shape(self.strides[index])
            require_consistent(len(strides) == len(sizes))
        return TensorInput(sizes, *dtype_and_bytes, strides)

    def optional_tensor(self, index: int) -> TensorInput | None:
        """Return a tensor argument; None where the argument is omitted or is a number.

        Raises:
            UnusableInputsError: there is a tensor that cannot be used.
        """
        if index >= len(self.sizes) or (not self.sizes[index] and self.types[index] in ("", "Scalar")):
            return None
        return self.tensor(index)

    def scalar_text(self, index: int) -> str:
        """Return the recorded text of a scalar argument."""
        require_consistent(self.concrete is not None and index < len(self.concrete))
        value = self.concrete[index] if self.concrete is not None else None
        if not isinstance(value, str):
            raise UnusableInputsError
        return value

    def bool_value(self, index: int) -> bool:
        """Return a bool argument."""
        value = self.scalar_text(index)
        require_consistent(value in ("True", "False"))
        return value == "True"

    def int_value(self, index: int) -> int:
        """Return an integer argument."""
        value = _load_json(self.scalar_text(index))
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnusableInputsError
        return value

    def int_list(self, index: int, length: int, minimum: int = 0) -> Shape:
        """Return a list of integers, one for each spatial dimension; a recorded list of one stands for all of them."""
        values = _parse_shape(_load_json(self.scalar_text(index)))
        require_consistent(len(values) in (1, length) and all(value >= minimum for value in values))
        return values * length if len(values) == 1 else values

    def bool_list(self, index: int) -> tuple[bool, ...]:
        """Return a list of bools, recorded as ``[True, True, False]``."""
        texts = self.scalar_text(index).strip("[]").replace(" ", "").split(",")
        require_consistent(all(text in ("True", "False") for text in texts))
        return tuple(text == "True" for text in texts)

    def is_omitted(self, index: int, *defaults: str) -> bool:
        """Return whether an optional scalar is omitted, or recorded as one of `defaults`."""
        return self.concrete is None or index >= len(self.concrete) or self.concrete[index] in ("", *defaults)


def _parse_list(text: str) -> list[object]:
    value = _load_json(text)
    if not isinstance(value, list):
        raise UnusableInputsError
    return value


def _load_json(text: str) -> object:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        raise UnusableInputsError from None


def _parse_shape(value: object) -> Shape:
    if not isinstance(value, list):
        raise UnusableInputsError
    for size in value:  # written out: shapes are most of what is read
        if type(size) is not int or size < 0:
            raise UnusableInputsError
    return tuple(value)
