"""The line of step times in a terminal."""

from __future__ import annotations

import pytest

from perfdoctor.reporters.sparkline import draw_sparkline


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ((), 10, ""),
        ((5,), 10, "█"),
        ((0, 0), 10, "▁▁"),
        ((1, 2, 3, 4, 5, 6, 7, 8), 8, "▂▃▄▅▆▇██"),
        ((1, 1, 1, 8, 1), 5, "▂▂▂█▂"),
        ((1, 1, 1, 1, 8, 1), 2, "██"),  # medians of three: one high value in three does not count
        ((4, 4, 4, 4), 2, "██"),
    ],
)
def test_a_line_has_a_height_for_each_share_of_the_values(values: tuple[int, ...], width: int, line: str) -> None:
    assert draw_sparkline(values, width) == line


def test_a_line_is_never_wider_than_asked() -> None:
    for count in range(200):
        assert len(draw_sparkline(range(count), 24)) == min(count, 24)
