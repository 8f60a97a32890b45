"""Which line takes the time between two recorded calls, by the text of the function alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject.silent_lines import find_silent_line

SOURCE = """\
import numpy as np

def sample(memory, n):
    at = np.random.choice(len(memory), n)
    rows = memory[at]
    return rows.tolist()

@np.vectorize
def decorated(x):
    y = x
    return np.exp(y)

def two(x):
    a = np.exp(x)
    b = np.log(x)
    return a.copy()

def loops(x):
    for each in x:
        y = np.exp(each)
    return y.copy()

def arithmetic(x, y):
    z = x
    z = x * y
    return z.copy()

def makes(x):
    def inner():
        return np.exp(x)
    return inner.copy()
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(SOURCE)
    return str(tmp_path / "program.py")


@pytest.mark.parametrize(
    ("function", "first", "after", "before", "line"),
    [
        ("sample", 3, None, 6, 4),  # the line that only indexes is not asked where one calls
        ("sample", 3, (4, "numpy/core/fromnumeric.py(1): prod"), 6, 4),  # what choice calls itself
        ("sample", 3, (4, "<built-in method choice of RandomState>"), 6, 5),
        ("decorated", 8, None, None, 11),
        ("arithmetic", 23, None, 26, 25),
        ("two", 13, (14, "<built-in method exp>"), 16, 15),
        ("two", 13, None, 15, 14),
    ],
)
def test_the_one_line_that_can_take_long_is_found(
    file: str, function: str, first: int, after: tuple[int, str] | None, before: int | None, line: int
) -> None:
    assert find_silent_line(file, function, first, after, before) == line


@pytest.mark.parametrize(
    ("function", "first", "before"),
    [
        ("two", 13, 16),  # either
        ("loops", 18, 21),
        ("makes", 28, 31),  # it makes a function, and does not call it
        ("sample", 3, 4),  # nothing stands between
        ("sample", 4, 6),  # another function of that name
        ("unknown", 3, 6),
    ],
)
def test_where_several_may_none_is_named(file: str, function: str, first: int, before: int) -> None:
    assert find_silent_line(file, function, first, None, before) is None


def test_without_the_text_of_the_function_no_line_is_known(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    for name in ("broken.py", "missing.py"):
        assert find_silent_line(str(tmp_path / name), "f", 1, None, None) is None
