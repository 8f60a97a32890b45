"""Columns of whole numbers are stored in as few bytes as they need, and come back as they were."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.pack_columns import _HEADER, pack_columns
from perfdoctor.rank import Rank
from perfdoctor.testing import SyntheticFleet

DTYPES = {"<i8": 62, "<i4": 31, "|i1": 7}


@st.composite
def columns(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Whole numbers of any width, rising or not, of one or two dimensions."""
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    limit = 1 << draw(st.integers(1, DTYPES[dtype]))
    numbers = np.array(draw(st.lists(st.integers(-limit, limit - 1), max_size=30)), np.int64)
    if draw(st.booleans()):
        numbers.sort()
    width = draw(st.sampled_from((0, 2, 3)))
    if width:
        numbers = numbers[: len(numbers) - len(numbers) % width].reshape(-1, width)
    if draw(st.booleans()):
        return numbers.astype(np.float32)
    return numbers.astype(dtype)


@given(st.lists(columns(), max_size=4))
def test_columns_come_back(given_columns: list[npt.NDArray[Any]]) -> None:
    packed = pickle.loads(pickle.dumps(pack_columns({str(at): each for at, each in enumerate(given_columns)})))
    for at, column in enumerate(given_columns):
        unpacked = packed.unpack(str(at))
        assert (unpacked.dtype, unpacked.shape) == (column.dtype, column.shape)
        assert np.array_equal(unpacked, column)


@pytest.mark.parametrize(
    ("column", "size"),
    [
        (np.full(1000, 7), 0),
        (np.arange(1000) + (1 << 60), 0),
        (np.arange(1000) % 200, 1000),
        (np.arange(1000) % 7 * 1_000_000, 3 * 1000),
        (np.cumsum(np.arange(1000) % 2 * 60_000), 2 * 999),
        (np.zeros((1000, 5), np.float32), 0),
    ],
    ids=["equal", "counter", "small", "millions", "rising", "zeros"],
)
def test_numbers_take_what_they_need_and_a_table_a_byte_more(column: npt.NDArray[Any], size: int) -> None:
    lists = 1 if column.ndim == 1 else column.shape[1]
    assert len(pack_columns({"x": column}).data) == lists * _HEADER.size + size + 1


def test_a_fraction_is_refused() -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        pack_columns({"x": np.array([0.5], np.float32)})


def test_a_table_is_the_same_packed_and_sent() -> None:
    [built] = SyntheticFleet(ranks=1, steps=3).builders()
    table = Rank(built.trace()).collectives
    packed = table.pack()
    assert packed.pack() is packed
    for other in (packed, pickle.loads(pickle.dumps(packed)), pickle.loads(pickle.dumps(table)), replace(packed)):
        assert len(other) == len(table)
        for each in fields(CollectiveTable):
            mine, theirs = getattr(table, each.name), getattr(other, each.name)
            if isinstance(mine, np.ndarray):
                assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), each.name
                assert np.array_equal(mine, theirs), each.name
            elif each.init:
                assert mine == theirs, each.name
        assert other.has_all_exposed
    with pytest.raises(AttributeError, match="nothing_like_it"):
        packed.nothing_like_it  # type: ignore[attr-defined]  # noqa: B018
