"""The content of a Trace, in a form that tests can compare and read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from perfdoctor.trace import Comms, MemoryEvents, Table, Trace
from perfdoctor.trace.kineto.event_columns import LABELS
from perfdoctor.trace.kineto.reader_choice import VARIABLE

_TEXTS = {"name", "dims", "types", "strides", "concrete", *LABELS}


@pytest.fixture(scope="module", params=["reference", "fast"])
def each_reader(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets every test of a module run with either reader."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = request.param
    yield
    if before is None:
        del os.environ[VARIABLE]
    else:
        os.environ[VARIABLE] = before


@pytest.fixture(scope="session")
def rows() -> Callable[[Trace, str], list[dict[str, Any]]]:
    """The rows of a table as dictionaries, with texts for codes."""
    return _rows


@pytest.fixture(scope="session")
def content() -> Callable[[Trace], dict[str, Any]]:
    """Everything that a Trace holds but its path."""

    def everything(trace: Trace) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for column in fields(trace):
            value = getattr(trace, column.name)
            if column.name not in ("path", "strings", "threads"):
                result[column.name] = (
                    _rows(trace, column.name) if isinstance(value, Table | Comms | MemoryEvents) else value
                )
        return result

    return everything


def _rows(trace: Trace, name: str) -> list[dict[str, Any]]:
    table = getattr(trace, name)
    columns = {column.name: getattr(table, column.name).tolist() for column in fields(table)}
    for key, codes in columns.items():
        if key in _TEXTS:
            columns[key] = [trace.text(code) for code in codes]
        elif key == "thread":
            columns[key] = [trace.threads[code] for code in codes]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Trace, Trace], None]:
    """Asserts that two traces hold the same in every column, whatever the numbers of their codes."""
    return _assert_same


def _assert_same(one: Trace, other: Trace) -> None:
    for column in fields(one):
        mine, others = getattr(one, column.name), getattr(other, column.name)
        if isinstance(mine, Table | Comms | MemoryEvents):
            for name, values in _decoded(one, mine).items():
                np.testing.assert_array_equal(values, _decoded(other, others)[name], f"{column.name}.{name}")
        elif column.name in ("strings", "threads"):
            assert sorted(mine) == sorted(others)
        elif column.name == "processes":
            assert dict(zip(one.threads, mine, strict=False)) == dict(zip(other.threads, others, strict=False))
        elif column.name != "path":
            assert mine == others, column.name


def _decoded(trace: Trace, table: Table | Comms | MemoryEvents) -> dict[str, Any]:
    strings, threads = np.array([*trace.strings, None], object), np.array([*trace.threads, None], object)
    columns = {column.name: getattr(table, column.name) for column in fields(table)}
    return {
        name: strings[column] if name in _TEXTS else threads[column] if name == "thread" else column
        for name, column in columns.items()
    }
