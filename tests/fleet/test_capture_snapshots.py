"""A capture folder with a snapshot of CUDA's allocator: one report on time and memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from recorded_allocator import Request, SnapshotBuilder
from test_pd710_out_of_memory import FORWARD

import perfdoctor
from perfdoctor.memory.caching_allocator import MIB
from perfdoctor.testing import TraceBuilder

OOM = {"error": "torch.OutOfMemoryError", "times": 1, "device": 0, "requested_bytes": 60 * MIB, "file": "oom.pickle"}


def training(parameters_mib: int) -> SnapshotBuilder:
    """Parameters, gradients, a state, and a copy in the optimizer's step that is freed again."""
    copy = Request(parameters_mib * MIB // 10, line=7, phase="optimizer")
    gradients, state = Request(20 * MIB, line=5, phase="backward"), Request(40 * MIB, line=6, phase="optimizer")
    return SnapshotBuilder([Request(parameters_mib * MIB, line=2), gradients, state, copy, 3])


def capture(folder: Path, facts: dict[str, Any], /, **snapshots: bytes) -> Path:
    """A capture of one rank: a window with kernels, facts, and these snapshots."""
    rank = folder / "capture" / "rank0"
    rank.mkdir(parents=True)
    b = TraceBuilder(memory_bytes=8_000 * MIB)
    for at in (0, 1000, 2000):
        b.step(at, 1000).op("aten::mm", at + 10, 20).kernel("sgemm", at + 50, 400, launch_us=at + 20)
    b.write(rank / "timing.json.gz")
    (rank / "facts.json").write_text(json.dumps({"schema": "perfdoctor.facts/1", "rank": 0, "memory": facts}))
    for name, data in snapshots.items():
        (rank / f"{name}.pickle").write_bytes(data)
    return rank.parent


def test_a_report_tells_time_and_memory(tmp_path: Path) -> None:
    data = training(400).to_bytes()
    report = perfdoctor.analyze(capture(tmp_path, {"snapshot": "memory.pickle"}, memory=data))
    assert report.steps.count
    (device,) = report.memory
    (tmp_path / "snapshot.pickle").write_bytes(data)
    alone = perfdoctor.analyze(tmp_path / "snapshot.pickle").memory[0]
    assert device.peak == alone.peak
    # Nobody asked about memory alone, and it is not short.
    assert {finding.severity for finding in report.findings if finding.saved_bytes} == {"info"}


def test_memory_that_ran_out_comes_first(tmp_path: Path) -> None:
    failed = SnapshotBuilder(FORWARD, capacity_bytes=140 * MIB).to_bytes()
    other = SnapshotBuilder(FORWARD[:2]).to_bytes()
    memory = {"snapshot": "memory.pickle", "out_of_memory": OOM}
    report = perfdoctor.analyze(capture(tmp_path, memory, oom=failed, memory=other))
    first = report.findings[0]
    assert (first.rule, first.severity, str(first.location)) == ("PD710", "high", "/home/me/train.py:5")
    assert "no room for 62.9 MB on GPU 0" in first.title
    assert [finding.rule for finding in report.findings].count("PD710") == 1


def test_a_full_device_makes_memory_a_limit(tmp_path: Path) -> None:
    data = training(6_900).to_bytes()
    report = perfdoctor.analyze(capture(tmp_path, {"snapshot": "memory.pickle"}, memory=data))
    assert report.memory[0].peak is not None
    assert report.memory[0].peak.allocated_bytes > 0.9 * 8_000 * MIB
    copies, *_ = [finding for finding in report.findings if finding.saved_bytes]
    assert copies.severity != "info"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the file is empty"),
        (b"\x80\x04\x95damaged", "damaged at byte"),
        (b"\x80\x02cos\nsystem\n(S'true'\ntR.", "calling Python code"),
        (None, "No such file"),
    ],
    ids=["empty", "cut", "code", "missing"],
)
def test_what_cannot_be_read_is_a_warning_and_the_rest_is_reported(
    data: bytes | None, why: str, tmp_path: Path
) -> None:
    files = {} if data is None else {"memory": data}
    report = perfdoctor.analyze(capture(tmp_path, {"snapshot": "memory.pickle"}, **files))
    assert report.steps.count
    assert not report.memory
    (warning,) = (each for each in report.traces[0].warnings if "memory.pickle" in each)
    assert why in warning


@pytest.mark.parametrize("name", ["../other.pickle", "/etc/passwd", "other.pickle"])
def test_facts_name_no_other_files(name: str, tmp_path: Path) -> None:
    data = SnapshotBuilder(FORWARD[:2]).to_bytes()
    folder = capture(tmp_path, {"snapshot": name}, other=data)
    (folder / "other.pickle").write_bytes(data)
    report = perfdoctor.analyze(folder)
    assert not report.memory
    assert not report.traces[0].warnings


def test_a_link_out_of_the_capture_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "snapshot.pickle").write_bytes(SnapshotBuilder(FORWARD[:2]).to_bytes())
    folder = capture(tmp_path, {"snapshot": "memory.pickle"})
    os.symlink(tmp_path / "snapshot.pickle", folder / "rank0" / "memory.pickle")
    report = perfdoctor.analyze(folder)
    assert not report.memory
    assert any("links out of the capture" in each for each in report.traces[0].warnings)
