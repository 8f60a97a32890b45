"""What a real Perfetto makes of annotated traces."""

from __future__ import annotations

import json

import pytest
from perfetto_engine import TraceProcessor

import perfdoctor
from perfdoctor.testing import TraceBuilder

# The profiler's own slices, as far as a query can separate them: those of the report have a category of their own.
_THEIRS = (
    "select name, category, ts, dur, count(*) from slice where category is not 'perfdoctor' "
    "group by name, category, ts, dur order by 1, 2, 3, 4"
)
_DROPPED = "slice_drop_overlapping_complete_event"
_COUNT = "select count(*) from slice where category is not 'perfdoctor'"


def overlapping() -> bytes:
    """Two streams, on one of which each kernel begins before the last has ended; with arrows from the launches."""
    builder = TraceBuilder().step(0, 1000).op("aten::mm", 5, 900)
    for i in range(10):
        builder.kernel("ampere_sgemm_128x64_nn", 50 + 40 * i, 50, launch_us=10 + 12 * i)
        builder.kernel("elementwise_kernel", 50 + 40 * i, 30, stream=20, launch_us=16 + 12 * i)
    trace = json.loads(builder.to_bytes())
    for event in [*trace["traceEvents"]]:
        if event["ph"] == "X" and "correlation" in event["args"]:
            arrow = {"id": event["args"]["correlation"], "cat": "ac2g", "name": "ac2g"}
            arrow |= {"ph": "f", "bp": "e"} if event["cat"] == "kernel" else {"ph": "s"}
            trace["traceEvents"].append(arrow | {key: event[key] for key in ("pid", "tid", "ts")})
    return json.dumps(trace).encode()


def test_perfetto_drops_slices_that_overlap():
    with TraceProcessor(overlapping()) as before:
        assert before.errors() == {_DROPPED: 5}


def test_nothing_is_lost_where_kernels_overlap(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(overlapping())
    perfdoctor.analyze(path).export_chrome_trace(tmp_path / "out.json.gz")
    with TraceProcessor(path) as before, TraceProcessor(tmp_path / "out.json.gz") as after:
        assert after.errors() == {}
        assert after.value(_COUNT) == before.value(_COUNT) + before.errors()[_DROPPED]
        assert set(before.rows(_THEIRS)) <= set(after.rows(_THEIRS))
        lanes = dict(
            after.rows(
                "select thread.name, count(*) from slice join thread_track on track_id = thread_track.id "
                "join thread using (utid) where thread.name like 'stream%' group by utid"
            )
        )
        assert lanes == {"stream 7 (overlapping)": 5}
        arrows = "select count(*) from flow join slice on slice_in = slice.id where slice.category = 'kernel'"
        assert after.value(arrows) == 20


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "dropped"),
    [("b200-eager", 42), ("b300-decode-graph", 340), ("h100-transformer-steps", 18), ("h100-bert-small-bf16", 1)],
)
def test_nothing_of_a_real_trace_is_lost(name, dropped, corpus, tmp_path):
    path = corpus / f"{name}.json.gz"
    perfdoctor.analyze(path).export_chrome_trace(tmp_path / "out.json")
    with TraceProcessor(path) as before, TraceProcessor(tmp_path / "out.json") as after:
        assert before.errors().get(_DROPPED) == dropped
        assert after.errors() == {}
        assert after.value(_COUNT) == before.value(_COUNT) + dropped
        assert set(before.rows(_THEIRS)) <= set(after.rows(_THEIRS))
        assert after.value("select count(*) from flow") >= before.value("select count(*) from flow")


def test_without_overlap_the_original_stays_byte_for_byte(tmp_path):
    path = TraceBuilder().step(0, 100).kernel("gemm", 10, 50, launch_us=5).write(tmp_path / "trace.json")
    perfdoctor.analyze(path).export_chrome_trace(tmp_path / "out.json")
    original, written = path.read_bytes(), (tmp_path / "out.json").read_bytes()
    start = original.index(b'"traceEvents"')
    head = original[: original.index(b"[", start) + 1]
    assert written.startswith(head)
    assert written.endswith(original[len(head) :].lstrip())
    assert json.loads(written)["traceEvents"]
