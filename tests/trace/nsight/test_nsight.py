"""Exports of Nsight Systems: the same events give the same Trace, account and findings as a trace of the profiler."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest
from all_cases import CASES
from hypothesis import settings
from nsys_files import (
    NEW,
    OLD,
    SESSION_START_NS,
    TEXTS,
    NsysFile,
    describe,
    limit_to_nsys,
    run_sql,
    serialized,
    write_nsys,
    write_process,
)

from perfdoctor import pipeline
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.errors import TraceError
from perfdoctor.rank import Rank
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Analyzer, Run
from perfdoctor.testing import RuleCase, TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.trace import Comms, DeviceProperties, Table, Trace, parse, read
from perfdoctor.trace.nsight.export_files import is_nsight
from perfdoctor.trace.nsight.read_export import read_nsight
from perfdoctor.trace.tables.split_ranks import split_ranks
from perfdoctor.trace.tables.steps import find_steps

Rows = Callable[[Trace, str], list[dict[str, Any]]]
VERSIONS = [NEW, OLD, TEXTS]
TABLES = ["gpu", "calls", "ops", "ranges", "syncs"]


def busy() -> TraceBuilder:
    """A little of everything that both formats can say."""
    b = TraceBuilder()
    for step in range(3):
        at = 1000.125 * step
        b.step(at, 950).range("Optimizer.step#SGD.step", at + 700, 90)
        b.op("aten::linear", at + 5, 95, shapes=[[64, 64], []]).op("aten::mm", at + 10, 80, shapes=[[64, 64], [64, 8]])
        b.kernel("void gemm<float, 4>(float*)", at + 100, 300.001, launch_us=at + 20)
        b.kernel(
            "void gemm<float, 8>(float*)", at + 420, 30, launch_us=at + 40, stream=9, grid=[70_000, 65_535, 65_535]
        )
        b.memcpy("HtoD", at + 450, 10, 4096, launch_us=at + 50).memcpy(
            "DtoH", at + 460, 5, launch_us=at + 60, pinned=True
        )
        b.memset(at + 470, 3, launch_us=at + 70).sync("Stream Sync", at + 500, 40, stream=7, correlation=3)
        b.call("cuLaunchKernel", at + 600, 4, thread=2)
        b.sync("Context Sync", at + 610, 40).call("cudaStreamSynchronize", at + 610, 40)
    return b


def both(tmp_path: Path, builder: TraceBuilder, version: str = NEW) -> tuple[Trace, Trace]:
    """The same events by way of an export and of a trace of the profiler."""
    whole = limit_to_nsys(builder.to_dict())
    info = whole.get("distributedInfo", {})
    exported = read(write_nsys(tmp_path / f"{version}.sqlite", whole, version))
    exported = replace(exported, rank=info.get("rank"), world_size=info.get("world_size"))
    return exported, parse(orjson.dumps(whole), "kineto.json")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_table_is_that_of_the_same_events_in_a_trace_of_the_profiler(
    tmp_path: Path, rows: Rows, version: str, table: str
) -> None:
    exported, kineto = (rows(trace, table) for trace in both(tmp_path, busy(), version))
    if version == OLD:  # which does not say what memory is copied from
        for row in kineto:
            row["name"] = row["name"].replace("Pageable", "Unknown").replace("Pinned", "Unknown")
    assert exported == kineto
    assert len(exported) >= 6


def of_nvidia(case: RuleCase) -> bool:
    return not any("AMD" in str(b.to_dict().get("deviceProperties")) for b in case.traces())


def cases_of(rule: str) -> list[RuleCase]:
    """The first cases of a rule that fire, then the first that stay quiet: a few of each by day, all at night."""
    few = settings().max_examples // 12
    kinds = ((c for c in CASES if c.rule == rule and bool(c.expected) == fires) for fires in (True, False))
    return [case for kind in kinds for case in islice(filter(of_nvidia, kind), few)]


@pytest.mark.parametrize("rule", sorted({case.rule for case in CASES}))
def test_every_analyzer_says_the_same_of_both(tmp_path: Path, rows: Rows, rule: str) -> None:
    """An analyzer on a case of its own that fires, all analyzers where tables differ, and the tables in all cases.

    Analyzers are functions of these tables, so tables that are the same row by row need no analysis to be compared.
    """
    analyzers = registry.load_analyzers()
    is_analysed = False
    for number, case in enumerate(cases_of(rule)):
        pairs, captured = [], []
        builders = case.traces()
        for rank, (builder, facts) in enumerate(zip(builders, case.facts_of_ranks(len(builders)), strict=True)):
            if limit_to_nsys(builder.to_dict())["traceEvents"]:
                folder = tmp_path / f"{number}-{rank}"
                folder.mkdir()
                pairs.append(both(folder, builder))
                captured.append(facts)
        is_same = all(
            rows(exported, each.name) == rows(kineto, each.name)
            for exported, kineto in pairs
            for each in fields(Trace)
            if isinstance(getattr(kineto, each.name), Table | Comms)
        )
        if not is_same or not is_analysed:
            is_analysed = True
            asked = [each for each in analyzers if each.rule == rule or not is_same]
            assert_same_reports(asked, case, pairs, captured)
    assert is_analysed


def assert_same_reports(
    analyzers: list[type[Analyzer]], case: RuleCase, pairs: list[tuple[Trace, Trace]], captured: list[Any]
) -> None:
    reports = [
        pipeline.diagnose_run(
            Run(tuple(Rank(trace, facts=facts) for trace, facts in zip(traces, captured, strict=True))),
            analyzers,
            AnalysisOptions(tables=()),
        )
        for traces in zip(*pairs, strict=True)
    ]
    first, second = (replace(r, traces=(), outcomes=()) for r in reports)
    assert first.timeline == second.timeline, case
    assert first.account == second.account, case
    assert first.findings == second.findings, case
    assert first.steps == second.steps, case


def test_the_rest_is_told_by_tables_of_their_own(tmp_path: Path) -> None:
    exported, kineto = both(tmp_path, busy())
    assert exported.device == kineto.device
    assert (exported.vendor, exported.base_ns) == ("nvidia", SESSION_START_NS)
    assert exported.threads == ("1000/1000", "1000/1001")
    assert (exported.complete, exported.dropped, exported.warnings) == (True, 0, ())
    assert exported.path == str(tmp_path / "new.sqlite")


def test_an_older_version_says_what_it_lacks(tmp_path: Path) -> None:
    exported, kineto = both(tmp_path, busy(), OLD)
    assert exported.device == kineto.device
    assert len(exported.warnings) == 1
    assert exported.warnings[0].startswith(
        "not in an export of this version, so unknown: srcKind of CUPTI_ACTIVITY_KIND_"
    )


def test_a_device_is_known_by_process_where_each_sees_its_own(tmp_path: Path) -> None:
    with closing(sqlite3.connect(write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict())))) as db:
        db.execute("INSERT INTO TARGET_INFO_GPU (vmId, id, name, cuDevice) VALUES (0, 0, 'Other', 0)")
        db.execute("UPDATE TARGET_INFO_GPU SET cuDevice = 3 WHERE id = 3")
        db.commit()
    assert read(tmp_path / "t.sqlite").device.name == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize("table", ["TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"])
def test_a_device_without_its_tables_is_not_made_up(tmp_path: Path, table: str) -> None:
    path = run_sql(write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict())), [f"DROP TABLE {table}"])
    known = DeviceProperties("NVIDIA A100-SXM4-80GB", (8, 0), 108, 85_000_000_000)
    assert read(path).device == (DeviceProperties() if table == "TARGET_INFO_GPU" else known)


ALL_TABLES = [
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "StringIds",
    "TARGET_INFO_SESSION_START_TIME",
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
]


@pytest.mark.parametrize("table", ALL_TABLES)
def test_a_missing_table_is_missing_events_and_nothing_else(tmp_path: Path, rows: Rows, table: str) -> None:
    whole = write_nsys(tmp_path / "whole.sqlite", limit_to_nsys(busy().to_dict()))
    without = run_sql(write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict())), [f"DROP TABLE {table}"])
    complete, trace = read(whole), read(without)
    # Without strings an op is a range: only its text says what it is.
    seen = {time for kept in TABLES for time in times(rows(complete, kept))}
    assert {time for kept in TABLES for time in times(rows(trace, kept))} <= seen
    if table in ALL_TABLES[:6]:
        assert trace.events < complete.events
    elif table != "StringIds":
        assert [rows(trace, kept) for kept in TABLES] == [rows(complete, kept) for kept in TABLES]
    else:
        assert trace.events == complete.events


def times(table: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["start_ns"], row["end_ns"]) for row in table]


@pytest.mark.parametrize(
    "column", ["deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind", "srcKind"]
)
def test_a_missing_column_is_unknown_and_said(tmp_path: Path, column: str) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    trace = read(run_sql(path, [f"ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN {column}"]))
    assert len(trace.gpu) == 15
    assert f"so unknown: {column} of CUPTI_ACTIVITY_KIND_MEMCPY" in trace.warnings[0]


def test_the_short_name_serves_where_there_is_no_long_one(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    trace = read(run_sql(path, ["ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName"]))
    assert {trace.text(code) for code in trace.gpu.name[trace.gpu.kind == 0].tolist()} == {"void gemm"}
    assert trace.warnings == ()


def test_a_file_without_processes_is_one_process(tmp_path: Path, rows: Rows) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    tables = ALL_TABLES[:4]
    trace = read(run_sql(path, [f"ALTER TABLE {table} DROP COLUMN globalPid" for table in tables]))
    assert rows(trace, "gpu") == rows(both(tmp_path, busy())[1], "gpu")


@pytest.mark.parametrize("table", TABLES)
def test_what_old_versions_write_for_nothing_is_nothing(tmp_path: Path, rows: Rows, table: str) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    run_sql(
        path,
        [
            "UPDATE NVTX_EVENTS SET text = '' WHERE text IS NULL",
            "UPDATE NVTX_EVENTS SET textId = 0 WHERE textId IS NULL",
            f"INSERT INTO NVTX_EVENTS VALUES (5000, 0, 59, 'open', {serialized(7, 8)}, 0, 0)",
            *(f"UPDATE {device_table} SET globalPid = 0" for device_table in ALL_TABLES[:4]),
        ],
    )
    trace = read(path)
    assert rows(trace, table) == rows(both(tmp_path, busy())[1], table)
    assert trace.warnings == ("left out because they had not ended with the recording: 1 NVTX range",)


# --- NVTX ---


def with_ranges(path: Path, *ranges: tuple[str, int, int | None], kind: int = 59) -> Trace:
    file = NsysFile(path)
    for text, start, end in ranges:
        file.range(text, start, end, serialized(7, 8), kind)
    return read(file.close())


@pytest.mark.parametrize(
    ("text", "name", "dims"),
    [
        ("aten::mm, seq = 12, op_id = 3", "aten::mm", None),
        ("aten::mm, op_id = 3, sizes = [[64, 64], [64, 8]]", "aten::mm", "[[64,64],[64,8]]"),
        ("aten::add_, seq = 1, op_id = 9, sizes = [[2], []], input_op_ids = [[3,0]]", "aten::add_", "[[2],[]]"),
        ("aten::empty", "aten::empty", None),
        ("MmBackward0, seq = 12, op_id = 4", "MmBackward0", None),
        (
            "autograd::engine::evaluate_function: MmBackward0, op_id = 4",
            "autograd::engine::evaluate_function: MmBackward0",
            None,
        ),
        ("mylib::attention, op_id = 5", "mylib::attention", None),
        ("aten::mm, op_id = 3, sizes = [[64, 64], [64,", "aten::mm", None),
    ],
)
def test_what_emit_nvtx_pushes_is_an_op(tmp_path: Path, rows: Rows, text: str, name: str, dims: str | None) -> None:
    trace = with_ranges(tmp_path / "t.sqlite", (text, 5, 9))
    assert len(trace.ranges) == 0
    (op,) = rows(trace, "ops")
    assert (op["name"], op["dims"], op["start_ns"], op["end_ns"], op["thread"]) == (name, dims, 5, 9, "7/8")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("forward", "forward"),
        ("Optimizer.step#Adam.step, op_id = 12", "Optimizer.step#Adam.step"),
        ("ProfilerStep#4, op_id = 12", "ProfilerStep#4"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__, op_id = 1", None),
        ("load, decode, crop", "load, decode, crop"),
        ("MyModel::forward", "MyModel::forward"),
        ("ncclAllReduce", "ncclAllReduce"),
    ],
)
def test_what_others_push_is_a_range(tmp_path: Path, rows: Rows, text: str, name: str | None) -> None:
    trace = with_ranges(tmp_path / "t.sqlite", (text, 5, 9))
    assert len(trace.ops) == 0
    assert [row["name"] for row in rows(trace, "ranges")] == [name or text.partition(",")[0]]


def test_ops_nest_and_hold_the_calls_within_them(tmp_path: Path, rows: Rows) -> None:
    exported, _ = both(tmp_path, busy())
    assert [op["parent"] for op in rows(exported, "ops")] == [-1, 0, -1, 2, -1, 4]
    assert {exported.text(exported.ops.name[op]) for op in exported.gpu.op.tolist()} == {"aten::mm"}


def test_ranges_that_start_and_end_are_ranges_and_marks_are_not(tmp_path: Path) -> None:
    assert len(with_ranges(tmp_path / "a.sqlite", ("x", 5, 9), kind=60).ranges) == 1
    with pytest.raises(TraceError, match="no CUDA activity and no NVTX ranges"):
        with_ranges(tmp_path / "b.sqlite", ("x", 5, None), kind=34)
    with pytest.raises(TraceError, match="no CUDA activity and no NVTX ranges"):
        with_ranges(tmp_path / "c.sqlite", ("x", 5, 9), kind=75)


def test_a_range_without_an_end_is_left_out_and_said(tmp_path: Path) -> None:
    trace = with_ranges(tmp_path / "t.sqlite", ("open", 5, None), ("closed", 6, 9))
    assert [trace.text(code) for code in trace.ranges.name.tolist()] == ["closed"]
    assert trace.warnings == ("left out because they had not ended with the recording: 1 NVTX range",)


def test_steps_come_from_numbered_ranges(tmp_path: Path) -> None:
    trace = with_ranges(tmp_path / "t.sqlite", *((f"step {n}", 100 * n, 100 * n + 90) for n in range(4)))
    steps = find_steps(trace)
    assert (steps.source, steps.count) == ("annotated", 4)


def marked_by_us(path: Path, domain: str) -> Trace:
    """Two processes whose phases `perfdoctor run --nvtx-only` marks; one has another domain before ours."""
    file = NsysFile(path)
    for pid, number in ((7, 3), (8, 4)):
        file.range("NCCL", 1, None, serialized(pid, pid), 75, domain=7 - number)
        file.range(domain, 1, None, serialized(pid, pid), 75, domain=number)
        for step in range(3):
            at = 100 * step + 10
            for phase, start, end in (("step", 0, 99), ("data", 0, 20), ("forward", 20, 50), ("optimizer", 60, 90)):
                file.range(phase, at + start, at + end, serialized(pid, pid), domain=number)
            file.range("data", at + 95, at + 96, serialized(pid, pid), domain=7 - number)
    return read(file.close())


def test_our_own_phases_have_the_names_of_the_profiler(tmp_path: Path, rows: Rows) -> None:
    trace = marked_by_us(tmp_path / "t.sqlite", "perfdoctor")
    for thread in ("7/7", "8/8"):
        names = [row["name"] for row in rows(trace, "ranges") if row["thread"] == thread]
        assert names[:5] == [
            "ProfilerStep#0",
            "enumerate(DataLoader)#__next__",
            "perfdoctor::forward",
            "Optimizer.step#",
            "data",
        ]
        assert names[5::5] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert (find_steps(trace).source, find_steps(trace).count) == ("annotated", 3)
    assert len(trace.ops) == 0


def test_the_same_words_in_the_domain_of_others_stay_as_they_are(tmp_path: Path, rows: Rows) -> None:
    trace = marked_by_us(tmp_path / "t.sqlite", "mine")
    assert {row["name"] for row in rows(trace, "ranges")} == {"step", "data", "forward", "optimizer"}
    assert find_steps(trace).source == "none"


# --- graphs, odd times, processes ---


def test_a_graph_recorded_whole_is_one_item_and_said(tmp_path: Path, rows: Rows) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(TraceBuilder().op("aten::mm", 0, 5).to_dict()))
    launch = serialized(1000, 1000)
    trace = read(
        run_sql(
            path,
            [
                "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, contextId "
                "INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER)",
                f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (50, 90, 0, 1, 7, 4, {serialized(1000)}, 12)",
                "INSERT INTO StringIds VALUES (1, 'cudaGraphLaunch_v10000')",
                f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10, 20, 0, {launch}, 4, 1)",
            ],
        )
    )
    (item,) = rows(trace, "gpu")
    assert (item["name"], item["kind"], item["start_ns"], item["call"], item["bytes"]) == (
        "CUDA graph 12",
        0,
        50,
        0,
        -1,
    )
    assert [row["name"] for row in rows(trace, "calls")] == ["cudaGraphLaunch"]
    assert trace.warnings == (
        "recorded whole, without the kernels in them: 1 CUDA graph; "
        "record with --cuda-graph-trace=node to see the kernels",
    )


def test_kernels_of_a_graph_share_its_launch(tmp_path: Path) -> None:
    b = TraceBuilder()
    launch = b.call("cudaGraphLaunch", 5)
    for row in range(3):
        b.kernel("k", 20 + 10 * row, 8, correlation=launch)
    exported, _ = both(tmp_path, b)
    assert exported.gpu.call.tolist() == [0, 0, 0]


def test_items_without_times_are_dropped_and_negative_durations_are_none(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    first = "WHERE rowid = 1"
    trace = read(
        run_sql(
            path,
            [
                f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 0, end = 0 {first}",
                f"UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET end = start - 5 {first}",
            ],
        )
    )
    assert (len(trace.gpu), trace.dropped) == (14, 1)
    assert trace.warnings == ("left out because they cannot be read: 1 event",)
    assert int((trace.gpu.dur_ns == 0).sum()) == 1


def two_processes(path: Path) -> Path:
    """What `nsys profile torchrun` gives: one file, two processes with the same ids, and a worker of a DataLoader."""
    file = NsysFile(path)
    for rank in (1, 0):
        whole = limit_to_nsys(busy().to_dict())
        whole["deviceProperties"][0]["id"] = rank
        for event in whole["traceEvents"]:
            if "device" in event["args"]:
                event["args"]["device"] = rank
            event["pid"] += 500 * rank
            event["ts"] += rank
        write_process(file, whole)
    file.range("worker", 5, 9, serialized(99, 99))
    describe(file)
    return file.close()


def test_processes_that_use_gpus_are_ranks_in_the_order_of_their_devices(tmp_path: Path, rows: Rows) -> None:
    whole = read(two_processes(tmp_path / "t.sqlite"))
    assert "its processes are taken for ranks, numbered in the order of their devices" in whole.warnings
    first, second = split_ranks(whole)
    alone = rows(both(tmp_path, busy())[0], "gpu")
    for rank, trace in enumerate((first, second)):
        assert (trace.rank, find_steps(trace).count) == (rank, 3)
        assert set(trace.gpu.device.tolist()) == {rank}
        found = rows(trace, "gpu")
        later = [
            row
            | {"start_ns": row["start_ns"] + 1000 * rank, "end_ns": row["end_ns"] + 1000 * rank}
            | {"device": rank, "process": rank}
            for row in alone
        ]
        assert found == later
    texts = {first.text(code) for trace in (first, second) for code in trace.ranges.name.tolist()}
    assert "worker" not in texts
    assert len(whole.ranges) == len(first.ranges) + len(second.ranges) + 1


def test_one_process_with_a_gpu_keeps_the_others_ranges(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "t.sqlite")
    write_process(file, limit_to_nsys(busy().to_dict()))
    file.range("worker", 5, 9, serialized(99, 99))
    trace = read(file.close())
    assert split_ranks(trace) == (trace,)
    assert len(trace.ranges) == 7
    assert trace.warnings == ()


# --- bad input ---


def test_an_sqlite_file_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "looks-like.json", limit_to_nsys(busy().to_dict()))
    assert is_nsight(path.read_bytes()[:16])
    assert len(read(path).gpu) == 15
    assert not is_nsight(b'{"traceEvents": [')


@pytest.mark.parametrize("name", ["run.nsys-rep", "run.QDREP", "run.qdstrm"])
def test_a_report_is_refused_with_the_command_that_exports_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00" * 64)
    with pytest.raises(TraceError, match=f"nsys export --type sqlite {name}"):
        read(tmp_path / name)


def sentence(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_nsight(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def test_what_is_no_export_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("{}")
    assert "no SQLite database" in sentence(tmp_path / "text.sqlite")
    assert "no such file" in sentence(tmp_path / "gone.sqlite")
    other = run_sql(tmp_path / "other.sqlite", ["CREATE TABLE songs (title TEXT)"])
    assert "no export of Nsight Systems" in sentence(other)
    empty = NsysFile(tmp_path / "empty.sqlite").close()
    assert "no CUDA activity and no NVTX ranges" in sentence(empty)
    (tmp_path / "noise.sqlite").write_bytes(b"SQLite format 3\x00" + os.urandom(4096))
    assert "damaged, cut short or encrypted" in sentence(tmp_path / "noise.sqlite")


def test_a_database_that_is_being_written_is_one_sentence(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert "another program is writing this database" in sentence(path)
    assert len(read(path).gpu) == 15


@pytest.mark.nonroot
def test_a_database_without_permission_is_one_sentence(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    path.chmod(0)
    assert "permission" in sentence(path)


def test_a_file_cut_anywhere_is_read_as_far_as_it_goes_or_refused(tmp_path: Path) -> None:
    data = write_nsys(tmp_path / "whole.sqlite", limit_to_nsys(build_healthy_trace(25).to_dict())).read_bytes()
    whole = read(tmp_path / "whole.sqlite")
    path = tmp_path / "cut.sqlite"
    seen = set()
    for length in range(0, len(data), 4096 + 512):
        path.write_bytes(data[:length])
        with contextlib.suppress(TraceError):
            trace = read_nsight(path)
            assert not trace.complete
            assert 0 < trace.events <= whole.events
            assert "damaged" in trace.warnings[0]
            assert set(times_of(trace)) <= set(times_of(whole))
            seen.add(trace.events)
    assert len(seen) > 2  # tables end early, not all at once


def times_of(trace: Trace) -> list[tuple[int, int]]:
    return [pair for t in trace.tables for pair in zip(t.start_ns.tolist(), t.end_ns.tolist(), strict=True)]


def test_bytes_that_are_no_text_become_question_marks(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    trace = read(run_sql(path, ["UPDATE StringIds SET value = CAST(x'6bff6b' AS TEXT) WHERE value LIKE 'void%'"]))
    assert {trace.text(code) for code in trace.gpu.name[trace.gpu.kind == 0].tolist()} == {"k\ufffdk"}


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    reported: list[tuple[int, int | None]] = []
    read_nsight(path, lambda done, total: reported.append((done, total)))
    assert reported == sorted(reported)
    assert reported[-1] == (path.stat().st_size, path.stat().st_size)


LOOSE = "CREATE TABLE loose AS SELECT * FROM {0}; DROP TABLE {0}; ALTER TABLE loose RENAME TO {0}"


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("ENUM_CUDA_MEM_KIND", "id = NULL"),
        ("ENUM_CUDA_MEMCPY_OPER", "id = 'x'"),
        ("ENUM_CUDA_MEMCPY_OPER", "id = 9e999"),
        ("TARGET_INFO_CUDA_DEVICE", "pid = 'x'"),
        ("TARGET_INFO_CUDA_DEVICE", "gpuId = x'00'"),
        ("TARGET_INFO_GPU", "name = x'ff', smCount = 'x', totalMemory = 1e300"),
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs = 'x'"),
    ],
)
def test_odd_values_in_the_tables_beside_the_events_are_unknown(tmp_path: Path, table: str, change: str) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    trace = read(run_sql(path, [LOOSE.format(table), f"UPDATE {table} SET {change}"]))
    assert (len(trace.gpu), trace.complete, trace.dropped) == (15, True, 0)


@pytest.mark.parametrize("change", ["start = -9223372036854775807", "end = 9223372036854775807", "start = 1e300"])
def test_times_beyond_146_years_are_dropped(tmp_path: Path, change: str) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    trace = read(run_sql(path, [f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {change} WHERE rowid = 1"]))
    assert (len(trace.gpu), trace.dropped) == (14, 1)


def test_a_device_that_no_number_fits_is_unknown(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    trace = read(run_sql(path, ["UPDATE CUPTI_ACTIVITY_KIND_MEMSET SET deviceId = 4294967296"]))
    assert trace.gpu.device[trace.gpu.kind == 2].tolist() == [-1, -1, -1]


def test_a_name_that_is_nothing_is_empty(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    trace = read(run_sql(path, [LOOSE.format("StringIds"), "UPDATE StringIds SET value = NULL"]))
    assert {trace.text(code) for code in trace.gpu.name[trace.gpu.kind == 0].tolist()} == {""}


def test_a_table_without_row_ids_is_read_with_progress_too(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict()))
    keyed = "CREATE TABLE keyed (start, end, deviceId, correlationId, PRIMARY KEY (start)) WITHOUT ROWID"
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    rows = f"INSERT INTO keyed SELECT start, end, deviceId, correlationId FROM {table}"
    run_sql(path, [keyed, rows, f"DROP TABLE {table}", f"ALTER TABLE keyed RENAME TO {table}"])
    assert len(read(path, lambda *_: None).gpu) == len(read(path).gpu) == 15


def test_a_schema_of_damaged_bytes_is_one_sentence(tmp_path: Path) -> None:
    data = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(busy().to_dict())).read_bytes()
    (tmp_path / "t.sqlite").write_bytes(
        data.replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE \xff\xfe\x8c\xff\xff NVTX_EVENTS")
    )
    assert "damaged, cut short or encrypted" in sentence(tmp_path / "t.sqlite")
