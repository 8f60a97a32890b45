"""What one call of an op costs, and how its recorded inputs are read.

The profiler records sizes, types, strides and scalar values as JSON texts, one entry an argument. They are read
strictly: what is missing, ragged, negative or of a type that is not known raises `Unknown`, so that an op has a right
cost or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn, TypeAlias

import orjson

Kind: TypeAlias = Literal["gemm", "convolution", "attention", "memory"]
PassName: TypeAlias = Literal["dgrad", "wgrad"]
Shape: TypeAlias = tuple[int, ...]

PASSES: tuple[PassName, ...] = ("dgrad", "wgrad")

# Types as recorded (with and without the namespace, old and new spellings): name of ours and bytes an element.
_TYPES: dict[str, tuple[str, int]] = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
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
FLOATS = frozenset({"fp64", "fp32", "fp16", "bf16", "fp8"})
_MOST_ELEMENTS = 1 << 48  # more than any memory holds; keeps products within a float


class Unknown(Exception):  # noqa: N818 - no error: the answer "cannot be told"
    """The recorded inputs do not tell the cost."""


def unknown() -> NoReturn:
    """Raise Unknown."""
    raise Unknown


def require(condition: bool) -> None:
    """Raise Unknown unless the condition holds."""
    if not condition:
        raise Unknown


class Pass(NamedTuple):
    """A part of an op that runs in a kernel of its own: `dgrad` or `wgrad` of a convolution's backward."""

    name: PassName
    flops: int
    bytes: int


class OpCost(NamedTuple):
    """What one call of an op costs at least.

    Attributes:
        kind: gemm, convolution, attention, or memory for what only moves data.
        flops: Floating-point operations, a multiply-add counted as two. Memory ops: a rough count, 1 to 12 an element.
        bytes: Compulsory traffic with the device memory: every input read once, every output written once (batch norm
            in training: the further passes that its statistics need). A lower bound.
        dtype: Type of the operands: fp64, fp32, fp16, bf16, fp8, int8 (memory ops: also integers and bool).
        m, n, k, batch: Of a product of matrices [m, k] x [k, n], `batch` times; None for other ops.
        groups, channels_in, channels_out: Of a convolution; channels in are those of one group.
        passes: The parts that run in kernels of their own; empty if there is one part.
    """

    kind: Kind
    flops: int
    bytes: int
    dtype: str
    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    groups: int | None = None
    channels_in: int | None = None
    channels_out: int | None = None
    passes: tuple[Pass, ...] = ()

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOP a byte; None for no bytes."""
        return self.flops / self.bytes if self.bytes else None


class Tensor(NamedTuple):
    """One tensor argument: sizes, type, bytes an element, and strides where they were recorded."""

    sizes: Shape
    dtype: str
    item_bytes: int
    strides: Shape | None = None

    @property
    def numel(self) -> int:
        """Number of elements that it looks like."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes that it occupies: dimensions of stride 0 are one element seen many times."""
        if self.strides is None:
            return self.numel * self.item_bytes
        return self.item_bytes * math.prod(
            size if stride or not size else 1 for size, stride in zip(self.sizes, self.strides, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Inputs:
    """The recorded inputs of one op call. Methods raise Unknown for what is not there or makes no sense."""

    sizes: Sequence[object]
    types: Sequence[object]
    strides: Sequence[object] | None
    concrete: Sequence[object] | None

    @classmethod
    def parse(cls, dims: str, types: str, strides: str | None, concrete: str | None) -> Inputs:
        """Read the four JSON texts.

        Raises:
            Unknown: one is no JSON list, or sizes and types are of different length.
        """
        sizes, kinds = _list(dims), _list(types)
        steps, values = None if strides is None else _list(strides), None if concrete is None else _list(concrete)
        require(len(sizes) == len(kinds))
        require(steps is None or len(steps) == len(sizes))
        require(values is None or len(values) == len(sizes))
        return cls(sizes, kinds, steps, values)

    def has(self, index: int) -> bool:
        """Whether there is a tensor with elements at that position; a tensor of unknown type counts."""
        if index >= len(self.sizes):
            return False
        sizes = self.sizes[index]
        return isinstance(sizes, list) and bool(sizes) and 0 not in sizes

    def tensor(self, index: int, rank: int | None = None) -> Tensor:
        """The tensor at a position, of `rank` dimensions if that is given.

        Raises:
            Unknown: there is none, or its sizes, strides or type cannot be used.
        """
        require(index < len(self.sizes))
        kind = self.types[index]
        known = _TYPES.get(kind) if isinstance(kind, str) else None
        if known is None:
            unknown()
        sizes = _shape(self.sizes[index])
        require(rank is None or len(sizes) == rank)
        require(math.prod(sizes) <= _MOST_ELEMENTS)
        strides = None
        if self.strides is not None:
            strides = _shape(self.strides[index])
            require(len(strides) == len(sizes))
        return Tensor(sizes, *known, strides)

    def optional(self, index: int) -> Tensor | None:
        """The tensor at a position; None where the argument is left out or is a number.

        Raises:
            Unknown: there is a tensor that cannot be used.
        """
        if index >= len(self.sizes) or (not self.sizes[index] and self.types[index] in ("", "Scalar")):
            return None
        return self.tensor(index)

    def text(self, index: int) -> str:
        """The recorded value of a scalar argument."""
        require(self.concrete is not None and index < len(self.concrete))
        value = self.concrete[index] if self.concrete is not None else None
        if not isinstance(value, str):
            unknown()
        return value

    def truth(self, index: int) -> bool:
        """A recorded bool."""
        value = self.text(index)
        require(value in ("True", "False"))
        return value == "True"

    def whole(self, index: int) -> int:
        """A recorded whole number."""
        value = _loads(self.text(index))
        if not isinstance(value, int) or isinstance(value, bool):
            unknown()
        return value

    def wholes(self, index: int, count: int, least: int = 0) -> Shape:
        """A recorded list of whole numbers, one a spatial dimension; a list of one stands for all."""
        values = _shape(_loads(self.text(index)))
        require(len(values) in (1, count) and all(value >= least for value in values))
        return values * count if len(values) == 1 else values

    def truths(self, index: int) -> tuple[bool, ...]:
        """A recorded list of bools, such as ``[True, True, False]``."""
        words = self.text(index).strip("[]").replace(" ", "").split(",")
        require(all(word in ("True", "False") for word in words))
        return tuple(word == "True" for word in words)

    def left_out(self, index: int, *also: str) -> bool:
        """Whether an optional scalar was not given, or given as one of `also`."""
        return self.concrete is None or index >= len(self.concrete) or self.concrete[index] in ("", *also)


def _list(text: str) -> list[object]:
    value = _loads(text)
    if not isinstance(value, list):
        unknown()
    return value


def _loads(text: str) -> object:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        raise Unknown from None


def _shape(value: object) -> Shape:
    if not isinstance(value, list):
        unknown()
    for size in value:  # written out: shapes are most of what is read
        if type(size) is not int or size < 0:
            unknown()
    return tuple(value)
