"""Laws of the reader: how a file is written changes nothing of what is read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse
from perfdoctor.trace.kineto.event_walker import EventReader
from perfdoctor.trace.scanner.text_window import sliding_window

pytestmark = pytest.mark.usefixtures("each_reader")

Content = Callable[[Trace], dict[str, Any]]

NAMES = st.one_of(
    st.sampled_from(["aten::mm", "Optimizer.step#SGD.step", '"ts": 5.5', '},{"ph": "X', "\\", "\u00e9\u2713"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
TIMES = st.integers(0, 10**6).map(lambda ns: ns / 1000)


@st.composite
def builders(draw: st.DrawFn) -> TraceBuilder:
    """Small traces with all kinds of rows, names that imitate JSON among them."""
    b = TraceBuilder(rank=draw(st.sampled_from([None, 0, 5])))
    b.range("there", 0, 1)
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["op", "range", "kernel", "linked", "frame"]))
        name, start, dur = draw(NAMES), draw(TIMES), draw(TIMES)
        if kind == "op":
            b.op(name, start, dur, shapes=draw(st.sampled_from([None, [], [[1, 2], []]])))
        elif kind == "range":
            b.range(name, start, dur, thread=draw(st.integers(1, 2)))
        elif kind == "kernel":
            b.kernel(name, start, dur)
        elif kind == "linked":
            b.kernel(name, start, dur, launch_us=draw(TIMES), stream=draw(st.integers(0, 9)))
        else:
            b.frame(name, start, dur)
    return b


def rewritten(value: Any, choose: random.Random) -> str:
    """The same JSON written in another way: order of keys, white space, escapes."""

    def space() -> str:
        return choose.choice(["", "", " ", "\n\t", "  \r\n "])

    if isinstance(value, dict):
        items = list(value.items())
        choose.shuffle(items)
        body = ",".join(f"{space()}{text(key, choose)}{space()}:{rewritten(each, choose)}" for key, each in items)
        return f"{space()}{{{body}{space()}}}{space()}"
    if isinstance(value, list):
        return f"{space()}[{','.join(rewritten(each, choose) for each in value)}{space()}]{space()}"
    if isinstance(value, str):
        return f"{space()}{text(value, choose)}{space()}"
    return f"{space()}{json.dumps(value)}{space()}"


def text(value: str, choose: random.Random) -> str:
    plain = json.dumps(value, ensure_ascii=choose.random() < 0.5)
    if choose.random() < 0.8 or "\\" in plain:
        return plain
    escaped = (f"\\u{ord(c):04x}" if choose.random() < 0.3 and ord(c) < 0x10000 else c for c in value)
    return f'"{"".join(escaped)}"'


@given(builders(), st.integers(0, 2**32))
def test_order_of_keys_white_space_and_escapes_change_nothing(content: Content, b: TraceBuilder, seed: int) -> None:
    other = rewritten(b.to_dict(), random.Random(seed)).encode()
    assert json.loads(other) == b.to_dict()
    assert content(parse(other, "x")) == content(b.trace())


@given(builders())
def test_every_event_becomes_one_row(b: TraceBuilder) -> None:
    assert b.trace().events == len(b.to_dict()["traceEvents"])


@given(builders(), st.integers(-(10**9), 10**9))
def test_a_shift_in_time_shifts_every_time_and_nothing_else(content: Content, b: TraceBuilder, shift_us: int) -> None:
    moved = b.to_dict()
    for event in moved["traceEvents"]:
        event["ts"] = f"{Decimal(round(event['ts'] * 1000)) / 1000 + shift_us:f}"
    before, after = content(b.trace()), content(parse(json.dumps(moved).encode(), "x"))
    for rows in after.values():
        for row in rows if isinstance(rows, list) else []:
            row["start_ns"] -= shift_us * 1000
            row["end_ns"] -= shift_us * 1000
    assert after == before


@given(builders())
def test_a_trace_repeats(content: Content, b: TraceBuilder) -> None:
    assert content(b.trace()) == content(b.trace())
    assert b.to_bytes() == b.to_bytes()


@given(builders(), st.integers(0, 400), st.integers(0, 300), st.sampled_from(["first", "last"]), st.booleans())
def test_chunks_and_blocks_of_any_size_hold_the_same_events(
    b: TraceBuilder, chunk: int, block: int, place: str, pretty: bool
) -> None:
    whole = b.to_dict()
    # Lists of objects beside and inside the events look like the border of two events, and must not pass for it.
    whole["deviceProperties"] = [{"name": "a", "id": 0}, {"name": "b", "id": 1}]
    for event in whole["traceEvents"]:
        event["args"]["nested"] = [{"name": 1}, {"name": 2}, {"ts": 3, "name": "]}"}]
    events = {"traceEvents": whole.pop("traceEvents")}
    text = json.dumps(events | whole if place == "first" else whole | events, indent=2 if pretty else None).encode()
    reader = EventReader(sliding_window(text, block) if block else text, chunk_bytes=chunk)
    found = [event for events in reader for event in events]
    assert [event["name"] for event in found] == [event["name"] for event in events["traceEvents"]]
    assert [event["args"] for event in found] == [event["args"] for event in events["traceEvents"]]
    assert (reader.complete, reader.dropped, reader.position) == (True, 0, len(text))
    assert reader.top_level["deviceProperties"] == whole["deviceProperties"]


@pytest.mark.parametrize("chunk", [0, 50, 4 << 20])
def test_one_bad_event_in_a_chunk_costs_only_itself(chunk: int) -> None:
    lines = [f'{{"ph": "X", "name": "n{i}", "ts": {i}.5, "dur": 1}}' for i in range(40)]
    lines[20] = '{"ph": X, "name": "n20"}'
    reader = EventReader(f"[{', '.join(lines)}]".encode(), chunk_bytes=chunk)
    names = [event["name"] for events in reader for event in events]
    assert names == [f"n{i}" for i in range(40) if i != 20]
    assert (reader.complete, reader.dropped) == (True, 1)
