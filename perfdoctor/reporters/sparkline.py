"""A line of eight heights that shows how a figure went, in the width of some letters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

_HEIGHTS, _ASCII_HEIGHTS = "▁▂▃▄▅▆▇█", "._-=+*%#"


def draw_sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """Letters from the lowest height at 0 to the highest at the largest value.

    Args:
        values: Not negative, in their order; none give an empty line.
        width: The most letters; where there are more values, each letter is the median of its share of them.
        unicode: Whether the output can show bars; else signs of ASCII stand for them.

    Returns:
        At most `width` letters.
    """
    count = min(len(values), width)
    bounds = [len(values) * number // count for number in range(count + 1)] if count else []
    levels = [median(values[first:end]) for first, end in pairwise(bounds)]
    top = max(levels, default=0) or 1
    heights = _HEIGHTS if unicode else _ASCII_HEIGHTS
    return "".join(heights[min(int(len(heights) * level // top), len(heights) - 1)] for level in levels)
