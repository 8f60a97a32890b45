"""The table of memory: its rows add up to the peak, and the notes say what was not recorded."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from perfdoctor import analyze
from perfdoctor.rank import Rank
from perfdoctor.reporters.terminal import Terminal
from perfdoctor.tables.catalog import TABLES, build_table
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import read


def training() -> TraceBuilder:
    """Two steps in which a line keeps an activation of 3 MiB and makes a temporary tensor of 1 MiB."""
    b = TraceBuilder(device=None)
    for number in range(2):
        at = 1000 * number
        b.step(at, 1000)
        step = b.frame("train.py(7): step", at, 1000)
        b.frame("nn.Module: Linear_0", at + 100, 200, parent=step)
        b.op("aten::linear", at + 100, 190, sequence=number).op("aten::empty", at + 110, 20)
        b.memory(at + 120, 3 << 20, 100).memory(at + 150, 1 << 20, 200).memory(at + 160, -(1 << 20), 200)
        b.op("autograd::engine::evaluate_function: AddmmBackward0", at + 400, 150, sequence=number)
        b.memory(at + 500, -(3 << 20), 100)
        b.memory(at + 700, (1 << 10) + number, 300 + number)
    return b


@pytest.mark.parametrize("by", TABLES["memory"].by[:-1])
def test_the_rows_add_up_to_the_peak(by: str) -> None:
    table = build_table(Rank(training().trace()), "memory", by)
    assert sum(table.column("bytes").values) == (4 << 20) + (1 << 10)  # type: ignore[arg-type]
    assert sum(table.column("share").values) == pytest.approx(1)  # type: ignore[arg-type]


def test_the_largest_row_of_each_kind() -> None:
    rank = Rank(training().trace())
    first = {by: build_table(rank, "memory", by).rows[0] for by in TABLES["memory"].by[:-1]}
    assert [(by, row["name"], row["bytes"]) for by, row in first.items()] == [
        ("category", "activations", 3 << 20),
        ("line", "train.py:7", (4 << 20) + (1 << 10)),
        ("module", "Linear_0", 4 << 20),
        ("op", "aten::linear", 4 << 20),
        ("size", "3.15 MB", 3 << 20),
    ]


def test_a_step_that_leaves_memory_allocated_grows() -> None:
    rows = build_table(Rank(training().trace()), "memory", "step").rows
    assert [row["growth_bytes"] for row in rows] == [1 << 10, (1 << 10) + 1]
    assert [row["peak_bytes"] for row in rows] == [4 << 20, (4 << 20) + (1 << 10)]


@pytest.mark.parametrize("by", TABLES["memory"].by)
def test_a_trace_without_memory_says_how_to_record_it(by: str) -> None:
    table = build_table(Rank(TraceBuilder().op("aten::mm", 0, 10).trace()), "memory", by)
    assert not len(table)
    assert "profile_memory=True" in table.notes[0]


def write_snapshot(path: Path, *, history: bool) -> Path:
    frames = [{"name": "forward", "filename": "/home/me/model.py", "line": 12}]
    block = {"address": 0, "size": 5 << 20, "requested_size": 5 << 20, "state": "active_allocated", "frames": frames}
    alloc = {"action": "alloc", "addr": 0, "size": 5 << 20, "frames": frames}
    segment = {"device": 3, "address": 0, "total_size": 6 << 20, "blocks": [block]}
    value = {"segments": [segment], "device_traces": [[], [], [], [alloc] if history else []]}
    path.write_bytes(pickle.dumps(value))
    return path


def test_a_snapshot_has_lines_and_no_modules(tmp_path: Path) -> None:
    rank = Rank(read(write_snapshot(tmp_path / "s.pickle", history=True)))
    [row] = build_table(rank, "memory", "line").rows
    assert (row["name"], row["bytes"]) == ("/home/me/model.py:12", 5 << 20)
    assert "--by line" in build_table(rank, "memory", "module").notes[-1]


def test_an_end_state_has_no_peak(tmp_path: Path) -> None:
    report = analyze(write_snapshot(tmp_path / "s.pickle", history=False))
    [memory] = report.memory
    assert (memory.peak, memory.device, memory.consistent) == (None, 3, True)
    assert memory.end is not None
    assert (memory.end.allocated_bytes, memory.end.slack_bytes) == (5 << 20, 1 << 20)
    assert not len(report.table("memory"))


def test_the_report_says_who_owns_the_peak(tmp_path: Path) -> None:
    report = analyze(training().write(tmp_path / "t.json"))
    [memory] = report.memory
    assert memory.peak is not None
    assert memory.peak.by_category["activations"] == 3 << 20
    assert sum(memory.peak.by_category.values()) == memory.peak.allocated_bytes
    [line] = memory.peak.by_line
    assert (line.file, line.line, line.bytes) == ("train.py", 7, (4 << 20) + (1 << 10))
    assert "Memory: 4.20 MB at the peak on the CPU, 75% activations" in Terminal().render(report)
    snapshot = analyze(write_snapshot(tmp_path / "s.pickle", history=True))
    assert "snapshot of memory" in Terminal().render(snapshot).partition("\n\n")[0]
