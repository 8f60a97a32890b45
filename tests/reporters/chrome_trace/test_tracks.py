from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import fsspec
import numpy as np
import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

import perfdoctor.trace
from perfdoctor.errors import TraceError, UsageError
from perfdoctor.reporters.chrome_trace.annotate_trace import export_chrome_trace
from perfdoctor.reporters.chrome_trace.track_writer import PID, coalesce_short_intervals
from perfdoctor.reporters.chrome_trace.tracks import track_events
from perfdoctor.reporters.write_report import save_report
from perfdoctor.savings.saving import Claim
from perfdoctor.testing import TraceBuilder


def parsed(report, index=0) -> list[dict]:
    return [json.loads(event, parse_float=Decimal) for event in track_events(report, index)]


def complete(events: list[dict]) -> dict[int, list[dict]]:
    tracks = defaultdict(list)
    for event in events:
        assert event["pid"] == PID
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
    return tracks


def named(events: list[dict]) -> dict[str, int]:
    return {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}


@pytest.mark.parametrize("name", samples.ALL)
def test_within_a_track_events_follow_one_another(name):
    for track in complete(parsed(samples.ALL[name]())).values():
        edges = [(e["ts"], e["ts"] + e["dur"]) for e in track]
        assert all(start < end for start, end in edges)
        assert all(before[1] <= after[0] for before, after in pairwise(edges))


def test_the_account_track_covers_the_window_to_the_nanosecond():
    report = samples.loader_stall()
    events = parsed(report)
    track = complete(events)[named(events)["account"]]
    by_name = defaultdict(Decimal)
    for event in track:
        by_name[event["name"]] += event["dur"] * 1000
    assert by_name == {name: ns for name, ns in report.account[0].detail.items() if ns}


def test_each_finding_that_claims_time_has_its_own_track():
    report = samples.kernel()
    events = parsed(report)
    tracks, names = complete(events), named(events)
    assert [n for n in names if "PD" in n] == [
        "1. PD201 gemm-without-tensor-cores",
        "2. PD102 host-device-sync",
        "3. PD103 gpu-idle",
    ]
    first = tracks[names["2. PD102 host-device-sync"]][0]
    assert first["args"]["cost"] == "2.00 ms a step (4.2%)"
    assert "Log every hundredth step" in first["args"]["advice"]


def test_a_finding_without_a_claim_has_no_track():
    assert not [n for n in named(parsed(samples.hostile())) if "PD" in n]


def test_claims_of_another_rank_stay_off_this_ranks_tracks():
    report = samples.four_ranks()
    claim = Claim(report.account[2].parts["compute"])
    late = replace(report, findings=(replace(report.findings[0], claim=claim),))
    assert [n for n in named(parsed(late, 2)) if "PD401" in n]
    assert not [n for n in named(parsed(late, 0)) if "PD401" in n]


def test_times_since_the_epoch_keep_their_nanoseconds():
    report = samples.loader_stall()
    moved = replace(report.account[0], steps=np.array([[1_606_910_596_297_023_123, 1_606_910_596_297_024_001]]))
    step = complete(parsed(replace(report, account=(moved,))))[1][0]
    assert (step["ts"], step["dur"]) == (Decimal("1606910596297023.123"), Decimal("0.878"))


def test_times_before_zero_are_negative():
    moved = replace(samples.healthy().account[0], steps=np.array([[-1_500, 500]]))
    step = complete(parsed(replace(samples.healthy(), account=(moved,))))[1][0]
    assert (step["ts"], step["dur"]) == (Decimal("-1.5"), Decimal(2))


def test_the_counter_shows_when_the_gpu_was_busy():
    values = [e["args"]["%"] for e in parsed(samples.loader_stall()) if e["ph"] == "C"]
    assert min(values) == 0
    assert max(values) == 100
    assert float(sum(values) / len(values)) == pytest.approx(100 * 22.1 / 43.1, abs=2)
    assert not [e for e in parsed(samples.cpu_only()) if e["ph"] == "C"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), min_size=1, max_size=80), st.integers(4, 40))
def test_coalescing_preserves_order_extent_and_the_number_of_parts(pairs, max_parts):
    gap, length = np.array(pairs, np.int64).T
    start = np.cumsum(gap + np.concatenate(([0], length[:-1])))
    end = start + length
    kind = np.arange(len(start))
    s, e, k, count = coalesce_short_intervals(start, end, kind, max_parts)
    assert len(s) <= max_parts + 1
    assert count.sum() == len(start)
    assert (s[0], e[-1]) == (start[0], end[-1])
    assert (s < e).all()
    assert (e[:-1] <= s[1:]).all()
    assert ((k == -1) == (count > 1)).all()


def test_few_events_are_not_coalesced():
    start = np.arange(10) * 10
    count = coalesce_short_intervals(start, start + 1, start, 10)[3]
    assert count.tolist() == [1] * 10


@pytest.fixture
def recorded(tmp_path):
    """A trace file, and a report that is about it."""
    builder = TraceBuilder().step(0, 1000)
    for i in range(20):
        builder.kernel("ampere_sgemm_128x64_nn", 50 + 40 * i, 30, launch_us=10)
    path = builder.write(tmp_path / "trace.json.gz")
    report = samples.loader_stall()
    return replace(report, traces=(replace(report.traces[0], path=str(path)),))


def test_the_annotated_trace_reads_back_with_the_same_gpu_items(recorded, tmp_path):
    out = tmp_path / "annotated.json.gz"
    save_report(recorded, out)
    before, after = (perfdoctor.trace.read(p) for p in (recorded.traces[0].path, out))
    assert len(before.gpu) == 20
    for column in ("start_ns", "end_ns", "stream", "correlation", "call"):
        assert (getattr(before.gpu, column) == getattr(after.gpu, column)).all()
    assert [before.text(c) for c in before.gpu.name] == [after.text(c) for c in after.gpu.name]
    assert after.complete
    assert json.loads(gzip.decompress(out.read_bytes()))["traceEvents"][0]["pid"] == PID


def test_the_same_report_gives_the_same_file(recorded, tmp_path):
    for name in ("a.json.gz", "b.json.gz"):
        export_chrome_trace(recorded, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_without_gz_the_annotated_trace_is_plain(recorded, tmp_path):
    export_chrome_trace(recorded, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_bytes())["schemaVersion"] == 1


@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("packed", [True, False])
def test_a_cut_source_gives_a_whole_annotated_trace(recorded, tmp_path, share, packed):
    whole = Path(recorded.traces[0].path).read_bytes()
    whole = whole if packed else gzip.decompress(whole)
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: int(share * len(whole))])
    report = replace(recorded, traces=(replace(recorded.traces[0], path=str(cut), complete=False),))
    export_chrome_trace(report, tmp_path / "out.json")
    after = perfdoctor.trace.read(tmp_path / "out.json")
    assert after.complete
    assert len(after.gpu) == len(perfdoctor.trace.read(cut).gpu)


def test_a_source_that_is_gone_cannot_be_read_again(recorded, tmp_path):
    report = replace(recorded, traces=(replace(recorded.traces[0], path=str(tmp_path / "gone.json")),))
    with pytest.raises(TraceError, match="cannot be read again"):
        export_chrome_trace(report, tmp_path / "out.json.gz")
    assert not (tmp_path / "out.json.gz").exists()


def test_the_trace_itself_is_never_overwritten(recorded):
    with pytest.raises(UsageError, match="is the trace itself"):
        export_chrome_trace(recorded, recorded.traces[0].path)


def test_of_several_ranks_all_or_one_are_annotated(recorded, tmp_path):
    path = recorded.traces[0].path
    several = samples.four_ranks()
    several = replace(several, traces=tuple(replace(t, path=path) for t in several.traces))
    with pytest.raises(UsageError, match="none of the traces is of rank 9"):
        export_chrome_trace(several, tmp_path / "a.json.gz", rank=9)
    for rank, names in ((2, {"perfdoctor"}), (None, {f"rank {rank}: perfdoctor" for rank in range(4)})):
        export_chrome_trace(several, tmp_path / "a.json", rank=rank)
        events = json.loads((tmp_path / "a.json").read_bytes())["traceEvents"]
        assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == names


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor(level=1).compress(data)


@pytest.fixture
def memory():
    """A file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def about(report, path, *, complete=True):
    return replace(report, traces=(replace(report.traces[0], path=str(path), complete=complete),))


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_trace_in_zstandard_is_annotated(recorded, tmp_path, suffix):
    text = gzip.decompress(Path(recorded.traces[0].path).read_bytes())
    (tmp_path / "t.json.zst").write_bytes(zstd(text[:700]) + zstd(text[700:]))
    export_chrome_trace(about(recorded, tmp_path / "t.json.zst"), tmp_path / f"out{suffix}")
    written = (tmp_path / f"out{suffix}").read_bytes()
    events = json.loads(gzip.decompress(written) if suffix == ".json.gz" else written)["traceEvents"]
    assert [event for event in events if event["pid"] != PID] == json.loads(text)["traceEvents"]
    assert len(events) > len(json.loads(text)["traceEvents"])


def test_a_cut_trace_in_zstandard_is_annotated_as_far_as_it_goes(recorded, tmp_path):
    builder = TraceBuilder().step(0, 10**6)
    for i in range(20_000):
        builder.kernel(f"kernel{i * 7919 % 1009}", 50 * i, 30, launch_us=10)
    cut = tmp_path / "cut.json.zst"
    whole = zstd(builder.to_bytes())
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    export_chrome_trace(about(recorded, cut, complete=False), tmp_path / "out.json")
    after = perfdoctor.trace.read(tmp_path / "out.json")
    assert after.complete
    assert len(after.gpu) == len(perfdoctor.trace.read(cut).gpu) > 1000


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_a_trace_elsewhere_is_read_again_and_annotated(recorded, tmp_path, memory, pack):
    memory.pipe("/t.json", pack(gzip.decompress(Path(recorded.traces[0].path).read_bytes())))
    export_chrome_trace(about(recorded, "memory://t.json"), tmp_path / "out.json.gz")
    assert len(perfdoctor.trace.read(tmp_path / "out.json.gz").gpu) == 20
    memory.rm("/t.json")
    with pytest.raises(TraceError, match="cannot be read again"):
        export_chrome_trace(about(recorded, "memory://t.json"), tmp_path / "gone.json.gz")


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_source_that_was_cut_since_then_is_no_annotated_trace(recorded, tmp_path, pack):
    text = json.dumps(json.loads(gzip.decompress(Path(recorded.traces[0].path).read_bytes())), indent=20).encode()
    (tmp_path / "cut").write_bytes(pack(text)[:-20])
    with pytest.raises(TraceError, match=r"cannot be read again.*: (its|the) compressed (text ends|file is cut)"):
        export_chrome_trace(about(recorded, tmp_path / "cut"), tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_standard_input_is_gone_and_cannot_be_annotated(recorded, tmp_path):
    with pytest.raises(UsageError, match="it is gone; save it in a file first"):
        export_chrome_trace(about(recorded, "-"), tmp_path / "out.json")
