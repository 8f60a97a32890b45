"""What a real Perfetto makes of annotated traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from perfetto_engine import TraceProcessor

import perfdoctor
from perfdoctor.testing import TraceBuilder

pytestmark = pytest.mark.process

# The profiler's own slices, as far as a query can separate them: those of the report have a category of their own.
_THEIRS = (
    "select name, category, ts, dur, count(*) from slice where category is not 'perfdoctor' "
    "group by name, category, ts, dur order by 1, 2, 3, 4"
)
SAMPLES = Path(__file__).parents[3] / "sample_traces"
_DROPPED = "slice_drop_overlapping_complete_event"
_ARROWS = (
    "select a.name as source, a.category as of, b.name as target, b.category as at from flow "
    "join slice a on slice_out = a.id join slice b on slice_in = b.id"
)
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
        found = [row for row in after.rows(_ARROWS) if (row[1], row[3]) == ("cuda_runtime", "kernel")]
        assert len(found) == 20


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "dropped"), [("b200-eager", 42), ("b300-decode-graph", 340), ("h100-transformer-steps", 18)]
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


@pytest.mark.parametrize(
    ("sample", "arrows"),
    [
        # Kernels run after their launch: launch, finding, kernel.
        ("gemm-without-tensor-cores", [("cuda_runtime", "perfdoctor"), ("perfdoctor", "kernel")]),
        # What ends idle time is launched in it: finding, launch, kernel.
        ("dataloader-stall", [("perfdoctor", "cuda_runtime"), ("cuda_runtime", "gpu_memcpy")]),
    ],
)
def test_arrows_lead_from_a_finding_to_its_launches_and_kernels(sample, arrows, tmp_path):
    report = perfdoctor.analyze(SAMPLES / f"{sample}.json.gz")
    report.export_chrome_trace(tmp_path / "out.json")
    with TraceProcessor(tmp_path / "out.json") as after:
        assert after.errors() == {}
        found = after.rows(_ARROWS)
        ours = f"{report.findings[0].rule} {report.findings[0].name}"
        for source, target in arrows:
            named = [row for row in found if row[1] == source and row[3] == target]
            assert [row for row in named if ours in row or "perfdoctor" not in row]


@pytest.mark.parametrize("sample", ["healthy", "host-device-sync", "launch-bound", "cpu-training"])
def test_every_arrow_and_counter_arrives(sample, tmp_path):
    perfdoctor.analyze(SAMPLES / f"{sample}.json.gz").export_chrome_trace(tmp_path / "out.json")
    events = [
        e for e in json.loads((tmp_path / "out.json").read_bytes())["traceEvents"] if e.get("cat") == "perfdoctor"
    ]
    with TraceProcessor(tmp_path / "out.json") as after:
        assert after.errors() == {}
        assert after.value("select count(*) from slice where category = 'perfdoctor'") == sum(
            e["ph"] == "X" for e in events
        )
        assert after.value("select count(*) from counter") == sum(e["ph"] == "C" for e in events)
        ours = "select count(*) from flow join slice a on slice_out = a.id join slice b on slice_in = b.id "
        arrived = after.value(ours + "where a.category is 'perfdoctor' or b.category is 'perfdoctor'")
        assert bool(arrived) == any(e["ph"] == "s" for e in events)


def test_ranks_of_a_folder_are_imported_whole(tmp_path):
    folder = SAMPLES / "straggler"
    perfdoctor.analyze(folder).export_chrome_trace(tmp_path / "out.json.gz")
    files = [json.loads(gzip.decompress(path.read_bytes())) for path in folder.glob("*.json.gz")]
    with TraceProcessor(tmp_path / "out.json.gz") as after:
        assert after.errors() == {}
        assert after.value(_COUNT + " and category is not null") == sum(
            event["ph"] == "X" for file in files for event in file["traceEvents"]
        )
        names = {name for (name,) in after.rows("select name from process where name is not null")}
        assert {f"rank {rank}: perfdoctor" for rank in range(4)} <= names


def test_without_overlap_the_original_stays_byte_for_byte(tmp_path):
    path = TraceBuilder().step(0, 100).kernel("gemm", 10, 50, launch_us=5).write(tmp_path / "trace.json")
    perfdoctor.analyze(path).export_chrome_trace(tmp_path / "out.json")
    original, written = path.read_bytes(), (tmp_path / "out.json").read_bytes()
    start = original.index(b'"traceEvents"')
    head = original[: original.index(b"[", start) + 1]
    assert written.startswith(head)
    assert written.endswith(original[len(head) :].lstrip())
    assert json.loads(written)["traceEvents"]
