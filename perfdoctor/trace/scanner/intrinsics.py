"""What the machine can do: load and store at an address, look at 64 bytes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
Primitive: TypeAlias = Callable[..., int]
"""A function of int64 numbers to one, which only compiled code can call."""

_QUOTE, _BACKSLASH, _OPEN, _CLOSE = 34, 92, 123, 125
_SPACES = (32, 10, 13, 9)
_WORD = ir.IntType(64)
_BYTES = ir.VectorType(ir.IntType(8), 64)


def compiled(function: F) -> F:
    """Compile without anything that would let Python call it: `native` does.

    Into its caller: a call goes through a status and a result in memory, and calls were a quarter of the time.
    """
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy", "forceinline": True}
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    result: F = numba.njit(**options)(function)
    return result


def _primitive(generate: Callable[..., Any], arguments: int) -> Primitive:
    """A function whose LLVM instructions are given."""

    def code(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return generate(builder, *values)

    def of_one(_typing: Any, _value: Any) -> Any:
        return types.int64(types.int64), code

    def of_two(_typing: Any, _value: Any, _other: Any) -> Any:
        return types.int64(types.int64, types.int64), code

    result: Primitive = intrinsic(of_one if arguments == 1 else of_two)
    return result


def _loader(bits: int) -> Primitive:
    """Loads some bits from an address and extends them with zeros."""

    def generate(builder: Any, address: Any) -> Any:
        value = builder.load(builder.inttoptr(address, ir.IntType(bits).as_pointer()), align=1)
        return value if bits == 64 else builder.zext(value, _WORD)

    return _primitive(generate, 1)


def _storer(bits: int) -> Primitive:
    """Stores the lower bits of a number at an address."""
    word = ir.IntType(bits)

    def generate(builder: Any, address: Any, value: Any) -> Any:
        lower = value if bits == 64 else builder.trunc(value, word)
        builder.store(lower, builder.inttoptr(address, word.as_pointer()), align=1)
        return value

    return _primitive(generate, 2)


def _all_of(byte: int) -> Any:
    return ir.Constant(_BYTES, [byte] * 64)


def _where(builder: Any, address: Any, test: Callable[[Any, Any], list[Any]]) -> Any:
    """Of the 64 bytes at an address those that pass one of some tests, as bits."""
    text = builder.load(builder.inttoptr(address, _BYTES.as_pointer()), align=1)
    passed, *others = test(builder, text)
    for other in others:
        passed = builder.or_(passed, other)
    return builder.bitcast(passed, _WORD)


def _is_quote(builder: Any, text: Any) -> list[Any]:
    return [builder.icmp_unsigned("==", text, _all_of(byte)) for byte in (_QUOTE, _BACKSLASH)]


def _is_bracket(builder: Any, text: Any) -> list[Any]:
    folded = builder.or_(text, _all_of(32))  # [ and { differ by one bit, as ] and } do
    tests = [builder.icmp_unsigned("==", folded, _all_of(byte)) for byte in (_OPEN, _CLOSE)]
    return [*tests, builder.icmp_unsigned("==", text, _all_of(_QUOTE))]


def _is_no_space(builder: Any, text: Any) -> list[Any]:
    spaces = builder.icmp_unsigned("==", text, _all_of(_SPACES[0]))
    for space in _SPACES[1:]:
        spaces = builder.or_(spaces, builder.icmp_unsigned("==", text, _all_of(space)))
    return [builder.not_(spaces)]


byte, four, load = _loader(8), _loader(32), _loader(64)
store, put_four = _storer(64), _storer(32)
"""Store 64 bits, and 32: `store(address, value)`."""
quotes = _primitive(lambda builder, address: _where(builder, address, _is_quote), 1)
"""Of the 64 bytes at an address those that are quotation marks or backslashes, as bits."""
brackets = _primitive(lambda builder, address: _where(builder, address, _is_bracket), 1)
"""Of the 64 bytes at an address those that are brackets, braces or quotation marks, as bits."""
others = _primitive(lambda builder, address: _where(builder, address, _is_no_space), 1)
"""Of the 64 bytes at an address those that are no white space, as bits."""
lowest = _primitive(lambda builder, bits: builder.cttz(bits, cgutils.true_bit), 1)
"""The position of the lowest bit that is set; there is one."""
shifted = _primitive(lambda builder, value, bits: builder.lshr(value, bits), 2)
"""The upper bits of a number, moved down, with zeros above."""
