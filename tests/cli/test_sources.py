"""What `analyze` takes beside files of the profiler: several ranks in one file, exports of Nsight Systems, URLs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import fsspec
import pytest

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.kineto.merged_pids import RANK_STRIDE


def step(rank: int) -> TraceBuilder:
    b = TraceBuilder(device=None)
    for number in range(3):
        at = 1000 * number
        b.step(at, 1000).kernel("sgemm", at + 10, 600 + 10 * rank, launch_us=at + 5)
    return b


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    whole = TraceBuilder(device=None)
    for rank in range(3):
        for event in step(rank).to_dict()["traceEvents"]:
            whole.event(**event | {"pid": event["pid"] + RANK_STRIDE * rank})
    return whole.write(tmp_path / "merged.json.gz")


def test_a_merged_file_is_reported_by_rank(perfdoctor, merged) -> None:
    report = json.loads(perfdoctor("analyze", "--json", merged).out)
    assert [(t["rank"], t["warnings"]) for t in report["traces"]] == [(0, []), (1, []), (2, [])]
    assert [t["computation_ns"] for t in report["timeline"]] == [1_800_000, 1_830_000, 1_860_000]
    assert {t["path"] for t in report["traces"]} == {str(merged)}


def test_one_rank_of_a_merged_file_can_be_chosen(perfdoctor, merged) -> None:
    report = json.loads(perfdoctor("analyze", "--json", merged, "--rank", "1").out)
    assert [t["rank"] for t in report["traces"]] == [1]
    ended = perfdoctor("analyze", merged, "--rank", "7")
    assert ended.code == 2
    assert "none of the traces is of rank 7" in ended.line


def test_two_merged_files_are_numbered_on(perfdoctor, merged, tmp_path) -> None:
    other = tmp_path / "other.json.gz"
    other.write_bytes(merged.read_bytes())
    report = json.loads(perfdoctor("analyze", "--json", merged, other).out)
    assert [t["rank"] for t in report["traces"]] == [0, 1, 2, 3, 4, 5]


def test_files_of_one_rank_each_stay_as_they_are(perfdoctor, tmp_path) -> None:
    for rank in (0, 1):
        step(0).write(tmp_path / f"rank{rank}.json")
    report = json.loads(perfdoctor("analyze", "--json", tmp_path).out)
    assert [(t["rank"], t["warnings"]) for t in report["traces"]] == [(0, []), (1, [])]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "rank4.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
            INSERT INTO StringIds VALUES (1, 'ampere_sgemm_128x64_nn');
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, 0, 7, 1, 16777216, 1);
        """)
        db.commit()
    return path


def test_an_export_of_nsight_systems_is_analysed(perfdoctor, export) -> None:
    report = json.loads(perfdoctor("analyze", "--json", export).out)
    (trace,) = report["traces"]
    assert (trace["rank"], trace["vendor"], trace["events"]) == (4, "nvidia", 1)
    assert report["timeline"][0]["computation_ns"] == 4000


def test_an_export_of_nsight_systems_cannot_be_annotated(perfdoctor, export) -> None:
    ended = perfdoctor("export", export, "-o", "a.json.gz")
    assert ended.code == 2
    assert "an export of Nsight Systems cannot be annotated" in ended.line
    assert not Path("a.json.gz").exists()


def test_a_report_of_nsight_systems_is_refused_with_what_to_do(perfdoctor) -> None:
    Path("run.nsys-rep").write_bytes(b"\x00")
    ended = perfdoctor("analyze", "run.nsys-rep")
    assert ended.code == 2
    assert "nsys export --type sqlite run.nsys-rep" in ended.line


def test_a_url_is_analysed_and_annotated(perfdoctor) -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/run/rank1.json", step(1).to_bytes())
    report = json.loads(perfdoctor("analyze", "--json", "memory://run/rank1.json").out)
    assert (report["traces"][0]["path"], report["traces"][0]["rank"]) == ("memory://run/rank1.json", 1)
    assert perfdoctor("export", "memory://run/rank1.json", "-o", "a.json").code == 0
    assert b"ProfilerStep#0" in Path("a.json").read_bytes()
    system.store.clear()
    ended = perfdoctor("analyze", "memory://run/rank1.json")
    assert ended.code == 2
    assert "memory://run/rank1.json: there is no such file" in ended.line
