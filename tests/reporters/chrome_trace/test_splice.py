from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.errors import TraceError
from perfdoctor.reporters.chrome_trace.splice import splice_events

OURS = [b'{"ours":1}', b'{"ours":2}']
EVENT = {"ph": "X", "name": 'a "quoted\\" ] } name', "args": {"list": [1, {"x": "]"}]}}


def blocks(text: bytes, size: int) -> list[bytes]:
    return [text[i : i + size] for i in range(0, len(text), size)] or [b""]


def annotated(text: bytes, size: int = 1 << 20, *, cut: bool = False) -> bytes:
    return b"".join(splice_events(blocks(text, size), OURS, cut=cut))


def events_of(text: bytes) -> list[dict]:
    read = json.loads(text)
    return read if isinstance(read, list) else read["traceEvents"]


FORMS = {
    "object": {"schemaVersion": 1, "traceEvents": [EVENT, EVENT], "traceName": "x"},
    "events first": {"traceEvents": [EVENT]},
    "bare list": [EVENT, EVENT],
    "empty list": [],
    "empty events": {"traceEvents": [], "more": [1]},
    "decoys": {
        "note": "traceEvents", "deep": {"traceEvents": [{"no": 1}]}, "list": ["traceEvents", []],
        "traceEvents": [EVENT],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_our_events_come_first_and_the_rest_stays_as_it_was(name, size, indent):
    source = json.dumps(FORMS[name], indent=indent).encode()
    result = annotated(source, size)
    theirs = events_of(source)
    assert events_of(result) == [{"ours": 1}, {"ours": 2}, *theirs]


def test_the_original_text_is_not_rewritten():
    source = b'{"traceEvents": [\n {"ts": 1606910596297023.125, "name": "caf\xc3\xa9\xff", "dur": 1e3}  ] , "x": NaN}'
    result = annotated(source)
    head, _, tail = result.partition(b'\n{"ours":1},\n{"ours":2},\n')
    assert head + tail == source


def test_a_byte_order_mark_is_left_out():
    assert events_of(annotated(b"\xef\xbb\xbf[]")) == [{"ours": 1}, {"ours": 2}]


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'{"traceEvents": {}}', b'{"a": [', b'{"note": "traceEvents": ['[:24], b'"traceEvents"']
)
def test_a_text_without_a_list_of_events_is_refused(text):
    with pytest.raises(TraceError, match="no list of events"):
        annotated(text)


@given(
    form=st.sampled_from(["object", "bare list", "empty events"]),
    at=st.floats(0, 1),
    size=st.sampled_from([1, 5, 64, 1 << 20]),
    indent=st.sampled_from([None, 1]),
)
def test_a_cut_text_is_ended_after_its_last_complete_event(form, at, size, indent):
    source = json.dumps(FORMS[form], indent=indent).encode()
    start = source.index(b"[") + 1
    cut = source[: start + int(at * (len(source) - start))]
    events = events_of(annotated(cut, size, cut=True))
    assert events[:2] == [{"ours": 1}, {"ours": 2}]
    theirs = events[2:]
    assert theirs == events_of(source)[: len(theirs)]
    whole = cut.count(
        json.dumps(EVENT, indent=indent).replace("\n", "\n" + " " * (2 if form == "object" else 1)).encode()
    )
    assert len(theirs) == whole


@pytest.mark.parametrize("name", FORMS)
def test_a_text_called_cut_that_is_whole_loses_nothing(name):
    source = json.dumps(FORMS[name]).encode()
    assert events_of(annotated(source, 9, cut=True)) == [{"ours": 1}, {"ours": 2}, *events_of(source)]
