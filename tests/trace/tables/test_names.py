"""Which names of a trace fit a regular expression, asked over and over."""

from __future__ import annotations

import re

import numpy as np
import pytest

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace


@pytest.fixture
def trace() -> Trace:
    builder = TraceBuilder()
    for i, name in enumerate(("aten::mm", "aten::copy_", "aten::mm", "aten::item")):
        builder.op(name, i * 10, 5)
    builder.range("copy of a batch", 0, 50)
    return builder.trace()


def names(trace: Trace, pattern: str | re.Pattern[str]) -> list[str]:
    return [trace.strings[code] for code in trace.ops.name[trace.match_rows(trace.ops, pattern)]]


def test_rows_are_told_by_their_names(trace: Trace) -> None:
    assert names(trace, "mm|item") == ["aten::mm", "aten::mm", "aten::item"]
    assert names(trace, re.compile("MM", re.IGNORECASE)) == ["aten::mm", "aten::mm"]
    assert names(trace, "MM") == []


def test_many_names_are_told_as_few_are() -> None:
    builder = TraceBuilder()
    for i in range(40):
        builder.op(f"aten::op{i % 20}", i * 10, 5)
    trace = builder.trace()
    for some in (1, 5, 6, 20):
        fits = {f"aten::op{i}" for i in range(some)}
        matches = trace.match_rows(trace.ops, f"^({'|'.join(fits)})$")
        assert matches.tolist() == [trace.strings[code] in fits for code in trace.ops.name.tolist()]


def test_what_is_asked_twice_is_answered_alike_and_may_be_changed(trace: Trace) -> None:
    first = trace.match_rows(trace.ops, "mm")
    expected = first.tolist()
    first[:] = True
    assert trace.match_rows(trace.ops, "mm").tolist() == expected


def test_strings_fit_only_where_they_are_names_of_that_table(trace: Trace) -> None:
    fits = trace.match_strings(trace.ops, "copy")
    assert [name for name, fit in zip(trace.strings, fits, strict=True) if fit] == ["aten::copy_"]
    assert trace.match_strings(trace.ranges, "copy").any()
    assert not trace.match_strings(trace.gpu, "copy").any()


def test_what_is_kept_cannot_be_changed(trace: Trace) -> None:
    with pytest.raises(ValueError, match="read-only"):
        trace.match_strings(trace.ops, "mm")[:] = True


def test_another_trace_is_asked_anew(trace: Trace) -> None:
    assert trace.match_rows(trace.ops, "mm").sum() == 2
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 5)
    other = builder.trace()
    assert np.array_equal(other.match_rows(other.ops, "mm"), [True])
