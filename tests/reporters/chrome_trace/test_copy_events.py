from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from left_out_library import without_library

from perfdoctor.reporters.chrome_trace.copy_events import Changes, EventCopier, change_event, copy_list
from perfdoctor.trace.scanner.text_window import sliding_window

ALL = Changes({1: 99}, offset_ns=1_500, pid_shift=300_000_000, id_shift=1 << 40, sort_shift=7, label="rank 3")
NOTHING = Changes()


both_ways = pytest.mark.usefixtures("each_way")


def copied(text: bytes, changes: Changes, block: int = 1 << 20) -> bytes:
    blocks = (text[i : i + block] for i in range(0, len(text), block))
    return b"".join(copy_list(blocks, changes))


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
def test_without_changes_every_byte_stays(block, tail):
    assert copied(EVENTS + tail, NOTHING, block) == EVENTS + tail


@both_ways
def test_a_moved_event_changes_its_thread_alone():
    assert copied(EVENTS + b"]", Changes({0: 99, 3: 5})) == EVENTS.replace(b'"tid": 7', b'"tid": 99', 1) + b"]"
    assert copied(EVENTS + b"]", Changes({1: "lane"})) == EVENTS.replace(b'"tid":7', b'"tid":"lane"', 1) + b"]"


@both_ways
@pytest.mark.parametrize("block", [1, 64, 1 << 20])
def test_changes_are_at_the_top_of_events_alone(block):
    first, second, flow, empty, name, place, span, instant, counter, *others = json.loads(
        b"[" + copied(EVENTS.replace(b"inf", b"0") + b"]", ALL, block), parse_float=Decimal
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
def test_of_a_cut_text_whole_events_are_copied(end):
    text = copied(EVENTS[:end], NOTHING)
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


@given(
    st.lists(st.dictionaries(_KEYS, _VALUES, max_size=6), max_size=6),
    st.sampled_from([None, 1]),
    st.sampled_from([3, 50, 1 << 20]),
)
def test_the_library_and_python_write_the_same(events, indent, block):
    text = json.dumps(events, indent=indent).replace('"<', "").replace('>"', "").encode()[1:]
    by_library = _run(text, block)
    with without_library():
        assert _run(text, block) == by_library


def _run(text: bytes, block: int) -> list:
    copier = EventCopier(sliding_window(text, block), ALL)
    result = b"".join(copier.copy())
    assert copier.ended
    return json.loads(b"[" + result + b"]", parse_float=Decimal, parse_int=Decimal)


@both_ways
def test_a_value_that_is_no_json_stays_and_does_not_count():
    assert copied(b'{"pid": }, {"tid": 1}]', Changes({0: 2})) == b'{"pid": }, {"tid": 2}]'


def test_an_event_is_changed_by_itself():
    assert change_event(b'{"tid" : 1 , "x": 2}', NOTHING, 5) == b'{"tid" : 5 , "x": 2}'
    assert change_event(b'{"x": 2}', NOTHING, 5) == b'{"x": 2}'


@both_ways
@pytest.mark.parametrize(("ts", "shift"), [("9999999999999999", "0"), ("4611686018427387", "1.5")])
def test_times_that_do_not_fit_into_nanoseconds_stay(ts, shift):
    [event] = json.loads(b"[" + copied(b'{"ph": "X", "pid": 12, "ts": %s}]' % ts.encode(), ALL), parse_float=Decimal)
    assert Decimal(event["ts"]) == Decimal(ts) + Decimal(shift)
