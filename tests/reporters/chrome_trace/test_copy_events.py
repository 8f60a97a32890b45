from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoctor.reporters.chrome_trace import copy_events
from perfdoctor.reporters.chrome_trace.copy_events import Changes, EventCopier, change_event, copy_list, is_compiled
from perfdoctor.trace.scanner.text_window import sliding_window

ALL = Changes({1: 99}, offset_ns=1_500, pid_shift=300_000_000, id_shift=1 << 40, sort_shift=7, label="rank 3")
NOTHING = Changes()


both_ways = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "python"])


def copied(text: bytes, changes: Changes, block: int = 1 << 20, *, compiled: bool) -> bytes:
    if compiled:
        assert is_compiled(10**6)
    blocks = (text[i : i + block] for i in range(0, len(text), block))
    return b"".join(copy_list(blocks, changes, compiled=compiled))


EVENTS = (
    b'{"ph": "X", "name": "a, \\"pid\\": 5 ] }", "pid": 0, "tid": 7, "ts": 1606910596297023.1234, "dur": 3, '
    b'"args": {"pid": 0, "ts": 1, "id": 4, "x": [{"pid": 3}, 1e5, "]"]}},\n'
    b' {"args":{},"dur":1.5,"tid":7,"pid":12,"ts":10,"ph":"X"} , {"ph":"s","id":5,"pid":12,"tid":1,"ts":0.5},{},'
    b'{"ph": "M", "name": "process_name", "pid": 12, "ts": 0, "args": {"name": "python", "more": 1}},'
    b'{"ph": "M", "name": "process_sort_index", "pid": 12, "args": {"sort_index": 5}},'
    b'{"ph": "X", "pid": "Spans", "tid": "PyTorch", "ts": 1e3, "dur": 1},'
    b'{"ph": "i", "pid": -1, "ts": -2.5, "id": "0x1f"},{"ph": "C", "pid": 12, "bind_id": 6, "args": {"v": inf}}, '
    b'5, null, "text"'
)


@both_ways
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("tail", [b"]", b' ]\n, "more": [1, 2]}  ', b",]"])
def test_without_changes_every_byte_stays(compiled, block, tail):
    assert copied(EVENTS + tail, NOTHING, block, compiled=compiled) == EVENTS + tail


@both_ways
def test_a_moved_event_changes_its_thread_alone(compiled):
    assert (
        copied(EVENTS + b"]", Changes({0: 99, 3: 5}), compiled=compiled)
        == EVENTS.replace(b'"tid": 7', b'"tid": 99', 1) + b"]"
    )
    assert (
        copied(EVENTS + b"]", Changes({1: "lane"}), compiled=compiled)
        == EVENTS.replace(b'"tid":7', b'"tid":"lane"', 1) + b"]"
    )


@both_ways
@pytest.mark.parametrize("block", [1, 64, 1 << 20])
def test_changes_are_at_the_top_of_events_alone(compiled, block):
    first, second, flow, empty, name, place, span, instant, counter, *others = json.loads(
        b"[" + copied(EVENTS.replace(b"inf", b"0") + b"]", ALL, block, compiled=compiled), parse_float=Decimal
    )
    assert first["pid"] == 300_000_000
    assert first["ts"] == Decimal("1606910596297024.6234")
    assert first["args"] == {"pid": 0, "ts": 1, "id": 4, "x": [{"pid": 3}, Decimal(100_000), "]"]}
    assert (second["tid"], second["ts"], second["dur"]) == (99, Decimal("11.5"), Decimal("1.5"))
    assert (flow["id"], flow["ts"]) == (5 + (1 << 40), Decimal(2))
    assert (empty, others) == ({}, [5, None, "text"])
    assert (name["pid"], name["args"]) == (300_000_012, {"name": "rank 3: python", "more": 1})
    assert (place["pid"], place["args"]) == (300_000_012, {"sort_index": 12})
    assert (span["pid"], span["tid"], span["ts"]) == ("rank 3: Spans", "PyTorch", Decimal("1001.5"))
    assert (instant["pid"], instant["ts"], instant["id"]) == (299_999_999, Decimal(-1), "0x1000000001f")
    assert counter["bind_id"] == 6 + (1 << 40)


@both_ways
@pytest.mark.parametrize("end", [10, 150, 240, len(EVENTS) - 3])
def test_of_a_cut_text_whole_events_are_copied(compiled, end):
    text = copied(EVENTS[:end], NOTHING, compiled=compiled)
    assert EVENTS.startswith(text)
    whole = json.loads(b"[" + text.replace(b"inf", b"0").rstrip(b" ,\n") + b"]")
    assert len(whole) == sum(end >= stop for stop in _ends())


def _ends() -> list[int]:
    decoder, text, ends, at = json.JSONDecoder(), EVENTS.replace(b"inf", b"1  ").decode(), [], 0
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip(" ,\n"))
        _, length = decoder.raw_decode(text[at:])
        at += length
        ends.append(at)
    return ends


_VALUES = st.one_of(
    st.integers(-5, 10**17),
    st.decimals(0, 10**10, places=4).map(str).map(lambda text: f"<{text}>"),
    st.text(st.characters(exclude_characters="<>"), max_size=8),
    st.none(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["pid", "ts", "id", "x"]), st.integers(), max_size=2),
)
_KEYS = st.sampled_from(["ph", "pid", "tid", "ts", "id", "dur", "name", "args", "bind_id", "id2", "p\u0069", "i"])


@settings(max_examples=60)
@given(
    st.lists(st.dictionaries(_KEYS, _VALUES, max_size=6), max_size=6),
    st.sampled_from([None, 1]),
    st.sampled_from([3, 50, 1 << 20]),
)
def test_compiled_code_and_python_write_the_same(events, indent, block):
    assert is_compiled(10**6)
    text = json.dumps(events, indent=indent).replace('"<', "").replace('>"', "").encode()[1:]
    assert _run(text, block, compiled=True) == _run(text, block, compiled=False)


def _run(text: bytes, block: int, *, compiled: bool) -> list:
    copier = EventCopier(sliding_window(text, block), ALL, compiled=compiled)
    result = b"".join(copier.copy())
    assert copier.ended
    return json.loads(b"[" + result + b"]", parse_float=Decimal, parse_int=Decimal)


@both_ways
def test_a_value_that_is_no_json_stays_and_does_not_count(compiled):
    assert copied(b'{"pid": }, {"tid": 1}]', Changes({0: 2}), compiled=compiled) == b'{"pid": }, {"tid": 2}]'


def test_an_event_is_changed_by_itself():
    assert change_event(b'{"tid" : 1 , "x": 2}', NOTHING, 5) == b'{"tid" : 5 , "x": 2}'
    assert change_event(b'{"x": 2}', NOTHING, 5) == b'{"x": 2}'


def test_small_texts_are_copied_in_python_and_large_ones_by_compiled_code(monkeypatch):
    monkeypatch.setattr(copy_events, "_copy", Unloaded())
    assert not is_compiled(40_000)
    assert is_compiled(60_000)


def test_without_numba_python_copies(monkeypatch):
    monkeypatch.setattr(copy_events, "_copy", Unloaded(ImportError("no numba")))
    assert not is_compiled(10**9)


class Unloaded:
    """Machine code that nobody has compiled yet, and that may not be compiled."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def is_loaded(self) -> bool:
        return False

    def cached_in(self) -> None:
        return None

    def load(self) -> None:
        if self._error is not None:
            raise self._error
