"""Several ranks in one trace: what tells them apart, and their clocks."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal

import pytest
from perfetto_engine import TraceProcessor

import perfdoctor
from perfdoctor.errors import TraceError, UsageError
from perfdoctor.reporters.chrome_trace.annotate_trace import export_chrome_trace
from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.synthetic_fleet import SyntheticFleet


def export(tmp_path, folder, **options) -> tuple[dict, str | None]:
    """The joined trace, and how its clocks were aligned."""
    sentence = export_chrome_trace(perfdoctor.analyze(folder), tmp_path / "out.json", **options)
    return json.loads((tmp_path / "out.json").read_bytes(), parse_float=Decimal), sentence


def written(tmp_path, fleet: SyntheticFleet):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, builder in enumerate(fleet.builders()):
        builder.write(folder / f"rank{rank}.json")
    return folder


def starts(trace: dict, pid: int, name: str) -> list[Decimal]:
    return sorted(e["ts"] for e in trace["traceEvents"] if e["pid"] == pid and e["name"] == name and e["ph"] == "X")


def ends_of_all_reduce(trace: dict, rank: int) -> list[Decimal]:
    events = (e for e in trace["traceEvents"] if e["pid"] == 10**8 * rank and "AllReduce" in e["name"])
    return sorted(Decimal(e["ts"]) + Decimal(e["dur"]) for e in events if e["ph"] == "X")


def test_ranks_are_on_one_clock_and_told_apart(tmp_path):
    folder = written(tmp_path, SyntheticFleet(ranks=3, steps=3).clock_offset(1, by_us=7_000_000))
    trace, sentence = export(tmp_path, folder)
    assert sentence.startswith("times are those of rank 0; ranks 1, 2 aligned by ")
    assert trace["perfdoctor"]["clocks"] == sentence
    assert [each["rank"] for each in trace["perfdoctor"]["ranks"]] == [0, 1, 2]
    ends = [ends_of_all_reduce(trace, rank) for rank in range(3)]
    assert len(ends[0]) == len(ends[1]) > 3
    assert max(abs(a - b) for a, b in zip(ends[0], ends[1], strict=True)) < 200
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert {names[10**8 * rank] for rank in range(3)} == {f"rank {rank}" for rank in range(3)}
    assert {names[10**8 * rank - 1] for rank in range(1, 4)} == {f"rank {rank}: perfdoctor" for rank in range(3)}


def test_the_joined_trace_is_read_as_the_ranks_that_it_is_of(tmp_path):
    folder = written(tmp_path, SyntheticFleet(ranks=2, steps=3))
    before = perfdoctor.analyze(folder)
    export(tmp_path, folder)
    after = perfdoctor.analyze(tmp_path / "out.json")
    assert [trace.rank for trace in after.traces] == [0, 1]
    assert [timeline.busy_ns for timeline in after.timeline] == [timeline.busy_ns for timeline in before.timeline]
    assert after.traces[0].device == before.traces[0].device


def test_each_rank_shows_its_own_account_findings_and_counters(tmp_path):
    folder = written(tmp_path, SyntheticFleet(ranks=2, steps=4).late_loader(1, by_us=4000))
    trace, _ = export(tmp_path, folder)
    ours = [e for e in trace["traceEvents"] if e.get("cat") == "perfdoctor"]
    for rank in range(2):
        own = [e for e in ours if e["pid"] == 10**8 * (rank + 1) - 1]
        assert sum(e["name"].startswith("step ") for e in own) == 4
        account = sum(Decimal(e["dur"]) for e in own if e.get("tid") == 2)
        steps = sum(Decimal(e["dur"]) for e in own if e.get("tid") == 1)
        assert account == steps
        assert {e["name"] for e in own if e["ph"] == "C"} >= {"GPU busy", "queue of stream 7"}
    claims = [e for e in ours if e["name"] == "PD101 dataloader-stall" and e["ph"] == "X"]
    assert {e["pid"] for e in claims} == {199_999_999}


def test_without_collectives_clocks_are_those_of_day(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, base in enumerate((1_700_000_000_000_000_000, 1_700_000_000_005_000_000)):
        trace = json.loads(TraceBuilder(rank=rank).kernel("gemm", 50, 100, launch_us=10).to_bytes())
        (folder / f"rank{rank}.json").write_text(json.dumps({"baseTimeNanoseconds": base} | trace))
    trace, sentence = export(tmp_path, folder)
    assert sentence == "times are those of rank 0; rank 1 aligned by the time of day in the file"
    assert (starts(trace, 0, "gemm"), starts(trace, 10**8, "gemm")) == ([50], [5050])
    assert trace["baseTimeNanoseconds"] == 1_700_000_000_000_000_000


def test_clocks_with_nothing_in_common_begin_together(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, start in enumerate((50, 10**15)):
        TraceBuilder(rank=rank).kernel("gemm", start, 100).write(folder / f"rank{rank}.json.gz")
    trace, sentence = export(tmp_path, folder)
    assert sentence.endswith("rank 1 aligned by their beginnings, as their clocks have nothing in common")
    assert starts(trace, 0, "gemm") == starts(trace, 10**8, "gemm")


@pytest.mark.process
def test_arrows_of_ranks_keep_apart_in_perfetto(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        trace = json.loads(TraceBuilder(rank=rank).kernel("gemm", 50, 100, launch_us=10, stream=7).to_bytes())
        call, kernel = (e for e in trace["traceEvents"] if e["ph"] == "X")
        for phase, end in (("s", call), ("f", kernel)):
            ends = {key: end[key] for key in ("pid", "tid", "ts")}
            trace["traceEvents"].append({"ph": phase, "id": 1, "cat": "ac2g", "name": "ac2g", "bp": "e"} | ends)
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    export(tmp_path, folder)
    with TraceProcessor(tmp_path / "out.json") as imported:
        assert imported.errors() == {}
        assert imported.rows(
            "select a.name as one, b.name as other, p.name as process, q.name as its from flow "
            "join slice a on slice_out = a.id join slice b on slice_in = b.id "
            "join thread_track t on a.track_id = t.id join thread using (utid) join process p using (upid) "
            "join thread_track u on b.track_id = u.id join thread v on u.utid = v.utid "
            "join process q on v.upid = q.upid "
            "where a.category is not 'perfdoctor' order by p.pid"
        ) == [("cudaLaunchKernel", "gemm", f"rank {rank}", f"rank {rank}") for rank in range(2)]


def test_one_of_several_ranks_keeps_its_text(tmp_path):
    folder = written(tmp_path, SyntheticFleet(ranks=2, steps=2))
    trace, sentence = export(tmp_path, folder, rank=1)
    original = json.loads((folder / "rank1.json").read_bytes(), parse_float=Decimal)
    assert sentence is None
    assert trace["traceEvents"][-len(original["traceEvents"]) :] == original["traceEvents"]


def test_a_rank_that_is_gone_ends_the_export(tmp_path):
    folder = written(tmp_path, SyntheticFleet(ranks=2, steps=2))
    report = perfdoctor.analyze(folder)
    (folder / "rank1.json").unlink()
    with pytest.raises(TraceError, match="cannot be read again"):
        export_chrome_trace(report, tmp_path / "out.json.gz")
    assert not (tmp_path / "out.json.gz").exists()
    with pytest.raises(UsageError, match="is the trace itself"):
        export_chrome_trace(report, folder / "rank0.json")


def test_more_ranks_than_viewers_can_tell_apart_are_refused(tmp_path):
    for rank in (0, 600):
        TraceBuilder(rank=rank).kernel("gemm", 50, 100).write(tmp_path / f"rank{rank}.json")
    with pytest.raises(UsageError, match="choose one with --rank"):
        export(tmp_path, [tmp_path / "rank0.json", tmp_path / "rank600.json"])


def test_many_ranks_have_narrower_process_ids(tmp_path):
    for rank in (0, 100):
        TraceBuilder(rank=rank).kernel("gemm", 50, 100).write(tmp_path / f"rank{rank}.json")
    trace, _ = export(tmp_path, [tmp_path / "rank0.json", tmp_path / "rank100.json"])
    assert {e["pid"] for e in trace["traceEvents"] if e["name"] == "gemm"} == {0, 100 << 22}


def test_a_cut_file_gives_the_events_it_has(tmp_path):
    folder = written(tmp_path, SyntheticFleet(ranks=2, steps=2))
    text = (folder / "rank1.json").read_bytes()
    (folder / "rank1.json").unlink()
    (folder / "rank1.json.gz").write_bytes(gzip.compress(text[: len(text) * 2 // 3]))
    trace, _ = export(tmp_path, folder)
    assert sum(e["pid"] == 10**8 for e in trace["traceEvents"]) > 5
