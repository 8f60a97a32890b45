"""What a Trace says, in a form that tests can compare and read; and the way to the exports of Nsight Systems."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.trace import Trace

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "analyzers"):
    if str(folder) not in sys.path:  # importlib mode puts no test folder on the path
        sys.path.append(str(folder))

_TEXTS = {"name", "dims", "types", "strides", "concrete"}


@pytest.fixture(scope="session")
def rows() -> Callable[[Trace, str], list[dict[str, Any]]]:
    """The rows of a table as dictionaries, with texts for codes."""
    return _rows


@pytest.fixture(scope="session")
def said() -> Callable[[Trace], dict[str, Any]]:
    """Everything that a Trace says but its path."""

    def everything(trace: Trace) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for column in fields(trace):
            value = getattr(trace, column.name)
            if column.name not in ("path", "strings", "threads"):
                result[column.name] = _rows(trace, column.name) if hasattr(value, "start_ns") else value
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
