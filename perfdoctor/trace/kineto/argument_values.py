"""Argument values as numbers and texts, one meaning for each, however it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from perfdoctor.trace.arrays import LIMIT_NS, NONE, Int64Array
from perfdoctor.trace.kineto.exact_times import parse_time

_MAX_LEVELS = 100  # of nesting; real values have three, and `repr` surely follows so many
_BORDER = orjson.Fragment(b"\n")  # orjson writes no line feed of its own


def parse_integers(values: Sequence[object]) -> Int64Array:
    """The values as integers (from integers, decimal or hexadecimal text); NONE for everything else."""
    types = set(map(type, values))
    try:
        if types <= {int}:
            return np.array(values, np.int64)
        if types <= {int, type(None)}:
            return np.array([NONE if value is None else value for value in values], np.int64)
    except OverflowError:
        pass
    return np.array([_parse_integer(value) for value in values], np.int64)


def _parse_integer(value: object) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            exact = parse_time(value)
            value = None if exact is None or exact % 1000 else exact // 1000
    elif isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < 2 * LIMIT_NS else None
    if not isinstance(value, int) or isinstance(value, bool):
        return NONE
    # Handles of streams are addresses: beyond int64 only that they stay distinct matters.
    return value if -2 * LIMIT_NS <= value < 2 * LIMIT_NS else value & (2 * LIMIT_NS - 1)


def count_blocks(grid: object) -> int:
    """The thread blocks of a grid, which the arguments hold as a list of sizes; NONE for everything else."""
    if not isinstance(grid, list) or not grid or any(type(size) is not int or size < 1 for size in grid):
        return NONE
    blocks = math.prod(grid)
    return blocks if blocks < LIMIT_NS else NONE


def to_text(value: object) -> str:
    """Any value as a text; empty for None, and for a value nested deeper than any real one."""
    if isinstance(value, str):
        return value
    return "" if value is None or _is_too_deep(value) else str(value)


def to_label(value: Any) -> str | None:
    """A text as it stands, and anything else as its JSON text."""
    return value if isinstance(value, str) else to_json(value)


def to_json(value: Any) -> str | None:
    """The JSON text of a value, without white space.

    None for no value, for NaN and infinities, which JSON has no text for, and for a value nested deeper than any real
    one.
    """
    try:
        text = orjson.dumps(value).decode()
    except TypeError:  # lone surrogates, integers beyond 64 bits, or nested too deeply
        if _is_too_deep(value):
            return None
        return orjson.dumps(repr(value).encode("utf-8", errors="replace").decode()).decode()
    return None if text == "null" else text


def to_json_list(values: list[Any]) -> list[str | None]:
    """The JSON text of each value, as `to_json` has it; in one call of orjson, as each call takes a page of memory."""
    if not values:
        return []
    bordered = [_BORDER] * (2 * len(values) - 1)
    bordered[::2] = values
    try:
        texts = orjson.dumps(bordered)[1:-1].decode().split(",\n,")
    except TypeError:
        return list(map(to_json, values))
    return [None if text == "null" else text for text in texts]


def _is_too_deep(value: Any) -> bool:
    """Whether a value is nested deeper than `repr` surely can follow."""
    level = [value]
    for _ in range(_MAX_LEVELS):
        nested = [each for each in level if isinstance(each, (list, dict))]
        level = [inner for each in nested for inner in (each.values() if isinstance(each, dict) else each)]
    return bool(level)
