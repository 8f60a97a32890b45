"""Values of arguments as numbers and texts, one meaning for each, however it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from perfdoctor.trace.arrays import LIMIT_NS, NONE, Int64Array
from perfdoctor.trace.kineto.exact_times import exact_ns

_DEEP = 100
_BORDER = orjson.Fragment(b"\n")  # orjson writes no line feed of its own


def integers(values: Sequence[object]) -> Int64Array:
    """Numbers as the arguments hold them (integers, decimal or hexadecimal text); -1 for everything else."""
    kinds = set(map(type, values))
    try:
        if kinds <= {int}:
            return np.array(values, np.int64)
        if kinds <= {int, type(None)}:
            return np.array([NONE if value is None else value for value in values], np.int64)
    except OverflowError:
        pass
    return np.array([_integer(value) for value in values], np.int64)


def _integer(value: object) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            exact = exact_ns(value)
            value = None if exact is None or exact % 1000 else exact // 1000
    elif isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < 2 * LIMIT_NS else None
    if not isinstance(value, int) or isinstance(value, bool):
        return NONE
    # Handles of streams are addresses: beyond int64 only that they stay distinct matters.
    return value if -2 * LIMIT_NS <= value < 2 * LIMIT_NS else value & (2 * LIMIT_NS - 1)


def blocks_in(grid: object) -> int:
    """The thread blocks of a grid as the arguments hold it, a list of sizes; -1 for everything else."""
    if not isinstance(grid, list) or not grid or any(type(size) is not int or size < 1 for size in grid):
        return NONE
    blocks = math.prod(grid)
    return blocks if blocks < LIMIT_NS else NONE


def plain(value: object) -> str:
    """Any value as a text; no value, and one nested deeper than any real one, as an empty one."""
    if isinstance(value, str):
        return value
    return "" if value is None or _is_deep(value) else str(value)


def label(value: Any) -> str | bytes | None:
    """A text as it stands, and anything else as its JSON text."""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any) -> bytes | None:
    """The JSON text of a value, without white space.

    None for no value, for NaN and infinities, which JSON has no text for, and for what is nested deeper than any real
    value.
    """
    try:
        text = orjson.dumps(value)
    except TypeError:  # lone surrogates, integers beyond 64 bits, or nested too deeply
        if _is_deep(value):
            return None
        return orjson.dumps(repr(value).encode("utf-8", errors="replace").decode())
    return None if text == b"null" else text


def json_texts(values: list[Any]) -> list[bytes | None]:
    """The JSON text of each value, as `json_text` has it; at once, as each takes a page of memory."""
    if not values:
        return []
    spread = [_BORDER] * (2 * len(values) - 1)
    spread[::2] = values
    try:
        texts = orjson.dumps(spread)[1:-1].split(b",\n,")
    except TypeError:
        return list(map(json_text, values))
    return [None if text == b"null" else text for text in texts]


def _is_deep(value: Any) -> bool:
    """Whether a value is nested deeper than `repr` surely can follow."""
    level = [value]
    for _ in range(_DEEP):
        nests = [each for each in level if isinstance(each, (list, dict))]
        level = [inner for each in nests for inner in (each.values() if isinstance(each, dict) else each)]
    return bool(level)
