"""Files that are no traces, or only parts of one: one sentence, or as much as can be read."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.errors import TraceError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse, read
from perfdoctor.trace.io.stream import refuse

pytestmark = pytest.mark.usefixtures("each_reader")

Rows = Callable[[Trace, str], list[dict[str, Any]]]

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 1}


def small() -> bytes:
    b = TraceBuilder(rank=0).step(0, 100).op("aten::mm", 1.125, 5, shapes=[[2, 3]])
    b.kernel('odd "name" }, {"ph": [\\', 10, 50, launch_us=3).range("tail", 200, 1)
    return b.to_bytes()


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert not message.endswith(".")
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "the file is empty"),
        (b" \n\t ", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (gzip.compress(b"{}", mtime=0)[:6], "the compressed file is cut or damaged"),
        (b"hello", "not JSON, so no trace"),
        (b"<html>", "a page without a snapshot of memory"),
        (bytes(100), "not JSON, so no trace"),
        (b"\xef\xbb\xbf", "not JSON, so no trace"),
        (b"42", "not JSON, so no trace"),
        (b"{}", "JSON, but without traceEvents"),
        (b'{"a": [{"traceEvents": []}]}', "JSON, but without traceEvents"),
        (b'{"traceEvents": null}', "JSON, but without traceEvents"),
        (b"{", "cut short, or not JSON, from byte 1 on"),
        (b"{'traceEvents': []}", "cut short, or not JSON, from byte 1 on"),
        (b'{"deviceProperties": [{"id": 0', "cut short, or not JSON, from byte 21 on"),
        (b"[", "cut short or damaged at byte 1, before its first event"),
        (b'{"traceEvents": [{"ph": "X"', "cut short or damaged at byte 17, before its first event"),
        (b"[]", "holds no events"),
        (b'{"traceEvents": []}', "holds no events"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "ts": 0}]}', "holds no events"),
        (b'[{"a": 1}, {"b": 2}]', "JSON, but no trace"),
        (b"[1, 2, 3]", "JSON, but no trace"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": null, "dur": 1}]', "none of its events can be read (1 "),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x28\xb5\x2f\xfdrest", "the compressed file is cut or damaged"),
        ("{}".encode("utf-16"), "UTF-16"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, data: bytes, expected: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    assert expected in refusal(path)


def test_what_is_no_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "missing.json")
    assert "this is a folder" in refusal(tmp_path)
    assert "cannot be read (Not a directory)" in refusal(Path(os.devnull) / "x.json")
    with pytest.raises(TraceError, match="this is not a file name"):
        read("nul\0.json")


@pytest.mark.nonroot
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(small())
    path.chmod(0)
    assert "no permission" in refusal(path)


def test_a_refused_permission_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no permission to read it"):
        refuse(tmp_path / "trace.json", PermissionError(13, "Permission denied"))


def test_an_nsight_export_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("create table t (x)")
    database.close()
    assert "no export of Nsight Systems" in refusal(path)


def starts(trace: Trace) -> set[tuple[str, int]]:
    return {(trace.strings[code], start) for t in trace.tables for code, start in zip(t.name, t.start_ns, strict=True)}


@pytest.mark.parametrize("bare", [False, True])
def test_a_file_cut_at_any_byte_holds_a_part_of_its_events_or_is_refused(bare: bool) -> None:
    text = small()
    if bare:
        text = json.dumps(json.loads(text)["traceEvents"]).encode()
    whole = parse(text, "x")
    of_whole, kept = starts(whole), 0
    for cut in range(len(text)):
        try:
            trace = parse(text[:cut], "x")
        except TraceError:
            assert not kept
            continue
        assert not trace.complete
        assert trace.dropped == 0
        assert trace.warnings[0].startswith("the file is cut short or damaged at byte ")
        found = starts(trace)
        assert found <= of_whole
        assert len(found) >= kept
        kept = len(found)
    assert kept == whole.events


def test_a_complete_file_is_complete() -> None:
    assert parse(small(), "x").complete
    assert parse(small() + b"\n\n", "x").complete


@pytest.mark.parametrize("count", [0, 300])
def test_a_cut_gzip_file_is_inflated_as_far_as_it_goes(tmp_path: Path, count: int) -> None:
    b = TraceBuilder()
    for i in range(count):
        b.op(f"aten::op{i * 7919 % 1000}", i * 10, 5)
    whole = gzip.compress(b.op("last", 10**6, 1).to_bytes())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    if not count:
        assert "cut short, or not JSON, from byte " in refusal(path)
        return
    trace = read(path)
    assert not trace.complete
    assert 100 < len(trace.ops) < 300


def test_a_damaged_gzip_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    b = TraceBuilder()
    for i in range(60_000):
        b.op(f"aten::op{i * 7919 % 10007}", i * 10, 5)
    data = bytearray(gzip.compress(b.to_bytes(), 1))
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    trace = read(path)
    assert not trace.complete
    assert 20_000 < len(trace.ops) < 40_000


@pytest.mark.parametrize(
    ("middle", "read_before"), [(b"garbage", True), (b"{", True), (b'"', True), (b"]]", False), (b"}", True)]
)
def test_a_damaged_place_ends_the_reading_or_costs_one_event(middle: bytes, read_before: bool) -> None:
    event = json.dumps(EVENT).encode()
    trace = parse(b"[" + event + b", " + middle + b", " + event + b"]", "x")
    assert 1 <= len(trace.ops) <= 2
    assert trace.dropped == 1 or trace.complete is (not read_before)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_trace_error(data: bytes) -> None:
    for text in (data, b'{"traceEvents": [' + data, small()[:300] + data):
        try:
            trace = parse(text, "x")
        except TraceError:
            continue
        assert trace.events > 0


@given(st.data())
def test_damage_anywhere_raises_nothing_but_a_trace_error(data: st.DataObject) -> None:
    text = bytearray(small())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        trace = parse(bytes(text), "x")
    except TraceError:
        return
    assert trace.events > 0
    assert [string.encode() for string in trace.strings]


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
@pytest.mark.parametrize("closed", [True, False])
def test_nesting_without_end_is_survived(bracket: bytes, closed: bool) -> None:
    depth = 100_000
    close = (b"]" if bracket == b"[" else b"1" + b"}" * depth) if closed else b""
    nest = bracket * depth + (close * depth if bracket == b"[" else close)
    event = json.dumps(EVENT).encode()
    trace = parse(b"[" + event + b',{"ph": "X", "args": ' + nest + (b"}, " + event + b"]" if closed else b""), "x")
    assert len(trace.ops) == (2 if closed else 1)
    assert trace.complete is closed
    assert trace.dropped == int(closed)


def test_a_name_of_three_megabytes_is_read() -> None:
    trace = TraceBuilder().op("x" * 3_000_000, 0, 1).op("aten::mm", 5, 1).trace()
    assert [len(name) for name in trace.strings] == [3_000_000, 8]


@pytest.mark.parametrize("value", [b'{"a": X}', b"[", b"NaN", b'"\\ud800"', b"1e999", b"[{]"])
def test_odd_values_beside_the_events_do_no_harm(value: bytes) -> None:
    event = json.dumps(EVENT).encode()
    for key in (b"deviceProperties", b"distributedInfo", b"baseTimeNanoseconds", b"whatever"):
        trace = parse(b'{"traceEvents": [' + event + b'], "' + key + b'": ' + value + b"}", "x")
        assert len(trace.ops) == 1
        assert (trace.rank, trace.device.name) == (None, None)


@pytest.mark.parametrize("name", [3, None, "", " ", ["x"], {"x": 1}])
def test_a_device_name_that_is_none_is_unknown(name: object) -> None:
    trace = (
        TraceBuilder().header(deviceProperties=[{"id": "0", "name": name, "computeMajor": "x"}]).op("a", 0, 1).trace()
    )
    assert (trace.device.name, trace.device.capability) == (None, None)
