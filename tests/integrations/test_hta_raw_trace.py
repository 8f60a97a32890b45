"""The events of a file in the order of HTA's rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.errors import UsageError
from perfdoctor.integrations.hta import read_in_row_order
from perfdoctor.integrations.hta_columns import Symbols, make_columns
from perfdoctor.testing import TraceBuilder


def events_by_index(path: Path) -> list[dict]:
    return read_in_row_order(perfdoctor.read(path), str(path))["traceEvents"]


def test_events_stand_at_their_index_and_the_others_follow(tmp_path):
    builder = TraceBuilder()
    builder.event(ph="M", name="process_name", pid=1, tid=0, args={"name": "python"})
    builder.op("late", 30, 5).kernel("k", 20, 5, launch_us=10).event(ph="i", name="mark", ts=1, pid=1, tid=1)
    events = events_by_index(builder.write(tmp_path / "trace.json.gz"))
    assert [event["name"] for event in events] == ["process_name", "cudaLaunchKernel", "k", "late", "mark"]


def test_equal_events_stay_different_ones(tmp_path):
    builder = TraceBuilder().op("a", 10, 5, thread=1).op("a", 10, 5, thread=2).op("a", 10, 5, thread=3)
    events = events_by_index(builder.write(tmp_path / "trace.json"))
    assert sorted(event["tid"] for event in events[1:]) == [1000, 1001, 1002]


def test_times_since_the_epoch_are_matched_to_the_nanosecond(tmp_path):
    # As floats, these three are one instant.
    texts = [f"17121954955055{digits}" for digits in ("83.001", "83.002", "83.003")]
    events = ", ".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": {tid}, "ts": {ts}, "dur": 0.001}}'
        for tid, ts in zip((3, 1, 2), reversed(texts), strict=True)
    )
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{events}]}}')
    assert [event["tid"] for event in events_by_index(path)[1:]] == [2, 1, 3]


def test_rows_without_an_event_of_their_own_and_bare_lists(tmp_path):
    events = [
        {"ph": "B", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 10},
        {"ph": "E", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 15},
        {"ph": "X", "cat": "cpu_op", "name": "b", "pid": 1, "tid": 1, "ts": 20, "dur": 5},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    assert [event["ph"] for event in events_by_index(path)] == ["B", "M", "X", "E"]


def test_what_is_no_json_gets_one_sentence(tmp_path):
    path = tmp_path / "trace.sqlite"
    path.write_bytes(b"SQLite format 3\x00")
    trace = TraceBuilder().op("a", 10, 5).trace()
    with pytest.raises(UsageError, match="this file is no JSON"):
        read_in_row_order(trace, str(path))


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["h100-bert-small-bf16.json.gz", "v100-torchrec-4ranks/rank2.json.gz"])
def test_every_row_of_a_real_trace_has_its_event(corpus, name):
    path, symbols = corpus / name, Symbols()
    columns = make_columns(perfdoctor.read(path), symbols)
    texts, events = list(symbols), events_by_index(path)
    rows = zip(columns["index"].tolist(), columns["name"].tolist(), columns["correlation"].tolist(), strict=True)
    for index, name_id, correlation in rows:
        event = events[index]
        assert event["name"] == texts[name_id]
        assert event["args"].get("correlation", -1) == correlation
    assert len(events) == len(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
