"""Integer columns in as few bytes as they need: a table of collectives is sent, and kept by thousands, as one string.

A column becomes its numbers above the least one, or the steps from one number to the next where these are smaller, in
1, 2, 3, 4 or 8 bytes each; equal numbers, or equal steps, take none. Times that rise by less than 17 ms need 3 bytes,
counters and kinds none. A column of floats that are whole numbers, as float32 times are, becomes the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import Int64Array

AnyArray: TypeAlias = npt.NDArray[Any]

_WIDTHS = (1, 2, 3, 4, 8)


# Of each list of numbers: the type of the column, bytes a number, whether the numbers are steps, how long the list is,
# where its bytes begin, its first number, and the least number or step. Thousands of tables have twenty lists each.
_HEADER = struct.Struct("<3sB?IIqq")
_Header: TypeAlias = tuple[Any, ...]
# A number of three bytes is read with the byte behind it.
_END = b"\0"
# The name of each column, into how many lists it was taken apart, and whether it has pairs.
_Layout: TypeAlias = tuple[tuple[str, int, bool], ...]


@frozen_dataclass
class PackedColumns:
    """Columns by name, see `pack_columns`.

    Attributes:
        layout: What the columns are; that of tables of one kind is one object.
        data: A header for each list of numbers, then the numbers.
    """

    layout: _Layout
    data: bytes

    def __contains__(self, name: str) -> bool:
        return name in _index(self.layout)

    def __reduce__(self) -> tuple[Callable[..., PackedColumns], tuple[_Layout, bytes]]:
        return _restore, (self.layout, self.data)

    def length(self, name: str) -> int:
        """The number of a column's rows."""
        first, _, are_pairs = _index(self.layout)[name]
        count: int = _HEADER.unpack_from(self.data, first * _HEADER.size)[3]
        return count // 2 if are_pairs else count

    def content_of(self, name: str) -> Hashable:
        """What a column is stored as: equal for two columns only if these are."""
        return tuple(
            (kind, width, are_steps, count, first, minimum, self.data[at : at + width * count])
            for kind, width, are_steps, count, at, first, minimum in self._headers(name)
        )

    def unpack(self, name: str) -> AnyArray:
        """A column as it was; a copy, so that it takes memory only while it is used."""
        headers = self._headers(name)
        if len(headers) == 1:
            column = _unpack(headers[0], self.data)
            return column.reshape(-1, 2) if _index(self.layout)[name][2] else column
        column = np.zeros((headers[0][3], len(headers)), headers[0][0].decode())
        for place, header in enumerate(headers):
            if header[1] or header[5] or header[6]:
                column[:, place] = _unpack(header, self.data)
        return column

    def _headers(self, name: str) -> list[_Header]:
        first, count, _ = _index(self.layout)[name]
        return [_HEADER.unpack_from(self.data, at * _HEADER.size) for at in range(first, first + count)]


def pack_columns(columns: Mapping[str, AnyArray]) -> PackedColumns:
    """The columns packed: times, codes and counts, whose numbers lie within 2^62 of 0.

    A column of pairs is packed as one list of numbers, a wider one by its columns.
    """
    layout = []
    lists: list[AnyArray] = []
    for name, column in columns.items():
        are_pairs = column.ndim == 2 and column.shape[1] == 2
        parts = [column.ravel()] if column.ndim == 1 or are_pairs else list(column.T)
        layout.append((name, len(parts), are_pairs))
        lists += parts
    at, headers, chunks = len(lists) * _HEADER.size, [], []
    for numbers in lists:
        width, are_steps, first, minimum, chunk = _pack(numbers)
        headers.append(_HEADER.pack(numbers.dtype.str.encode(), width, are_steps, len(numbers), at, first, minimum))
        chunks.append(chunk)
        at += len(chunk)
    return _restore(tuple(layout), b"".join((*headers, *chunks, _END)))


@cache
def _index(layout: _Layout) -> dict[str, tuple[int, int, bool]]:
    """By name of a column its first list, the number of its lists, and whether it has pairs."""
    until = accumulate(count for _, count, _ in layout)
    return {name: (end - count, count, pairs) for (name, count, pairs), end in zip(layout, until, strict=True)}


@cache
def _only(layout: _Layout) -> _Layout:
    return layout


def _restore(layout: _Layout, data: bytes) -> PackedColumns:
    return PackedColumns(_only(layout), data)


def _pack(column: AnyArray) -> tuple[int, bool, int, int, bytes]:
    """Bytes a number, whether they are steps, the first number, the least number or step, and the bytes."""
    whole = column.astype(np.int64)
    if column.dtype.kind == "f" and not np.array_equal(whole, column):
        raise ValueError("only floats that are whole numbers can be packed")
    if not len(whole):
        return 0, False, 0, 0, b""
    first, minimum = int(whole[0]), int(whole.min())
    width = _width(int(whole.max()) - minimum)
    steps = np.diff(whole)
    if width and len(steps):
        min_step = int(steps.min())
        step_width = _width(int(steps.max()) - min_step)
        if step_width < width:
            return step_width, True, first, min_step, _store(steps - min_step, step_width)
    return width, False, first, minimum, _store(whole - minimum, width)


def _width(largest: int) -> int:
    """Bytes for numbers from 0 to `largest`; 0 if that is the only one."""
    return next(width for width in _WIDTHS if largest < 1 << 8 * width) if largest else 0


def _store(numbers: Int64Array, width: int) -> bytes:
    """Numbers from 0 on in `width` bytes each."""
    if width != 3:
        return numbers.astype(f"<u{width}").tobytes() if width else b""
    return numbers.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


def _load(data: bytes, width: int, count: int, at: int) -> AnyArray:
    """The numbers of `_store`, of which there are so many from a place on."""
    if width != 3:
        return np.frombuffer(data, f"<u{width}", count, at)
    # Words of four bytes, the highest of which is the next number's.
    return np.ndarray(count, "<u4", data, at, 3) & 0xFFFFFF


def _unpack(header: _Header, data: bytes) -> AnyArray:
    kind, width, are_steps, count, at, first, minimum = header
    if not width and not are_steps:
        return np.full(count, minimum, kind.decode())
    numbers = np.empty(count, np.int64)
    if not are_steps:
        numbers[:] = _load(data, width, count, at)  # first, as of unsigned and signed numbers numpy makes floats
        numbers += minimum
    else:
        numbers[0] = first
        numbers[1:] = _load(data, width, count - 1, at) if width else 0
        numbers[1:] += minimum
        np.cumsum(numbers, out=numbers)
    return numbers if kind == b"<i8" else numbers.astype(kind.decode())
