"""What a recording takes of disk and memory: evidence is cut to a limit, and a full disk leaves whole files."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
resource = pytest.importorskip("resource", reason="Windows has no limits")

import perfdoctor  # noqa: E402
from perfdoctor.analysis.step_times import describe_sample  # noqa: E402
from perfdoctor.capture.capture_notes import notes_of_rank, read_facts  # noqa: E402
from perfdoctor.capture.capture_options import CaptureOptions  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject import rank_folder, recorder, run_totals, window_profiler  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.rank_folder import RankFolder  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.step_meter import StepWork  # noqa: E402
from perfdoctor.capture.session import profile  # noqa: E402
from perfdoctor.errors import UsageError  # noqa: E402

SIZES = {"skip": 1, "base": 1, "warmup": 1, "timing": 1, "evidence": 3}
CALLS = 3000


def call_often() -> None:
    for number in range(CALLS):
        abs(number)
    torch.ones(2).add(1)


def record(folder: Path, **options: Any) -> tuple[Any, set[str]]:
    """The facts of rank 0, and the categories of what its evidence has."""
    with profile(folder, **SIZES, **options) as session:
        for _ in range(9):
            with session.step():
                call_often()
    rows = json.loads(gzip.decompress((folder / "rank0" / "evidence.json.gz").read_bytes()))["traceEvents"]
    facts = read_facts(folder, 0)
    assert facts is not None
    return facts, {row.get("cat", "") for row in rows}


def test_evidence_is_cut_to_its_bytes_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a recorded step may take so much longer that one is enough.
    monkeypatch.setattr(run_totals, "EXPENSIVE_STACKS_NS", 1 << 60)
    # Where another test of this process has compiled, calls would not be counted.
    monkeypatch.setattr(window_profiler, "dynamo_has_compiled", lambda: False)
    whole, kinds = record(tmp_path / "whole")
    assert (whole.notes, whole.windows.evidence.steps) == ((), 3)
    assert "python_function" in kinds
    fewer, kinds = record(tmp_path / "fewer", max_evidence_bytes=2_500_000)
    assert "python_function" in kinds
    assert fewer.windows.evidence.steps == 2
    assert "cut to 2.5 MB: shapes and lines are of 2 steps; --max-evidence 4 records all" in fewer.notes[0]
    without, kinds = record(tmp_path / "without", max_evidence_bytes=500_000)
    assert "python_function" not in kinds
    assert "cpu_op" in kinds
    assert without.windows.evidence.steps == 1
    assert "a step calls 3,0" in without.notes[0]
    assert next(notes_of_rank(without, CaptureOptions(**SIZES))) == f"{without.notes[0]}."
    assert describe_sample(without, None) == without.notes
    with pytest.raises(UsageError, match="--max-evidence"):
        CaptureOptions(max_evidence_bytes=0)


def test_evidence_beyond_its_estimate_loses_calls_of_python_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_totals, "EXPENSIVE_STACKS_NS", 1 << 60)
    monkeypatch.setattr(recorder, "EVENT_BYTES", 1)  # an estimate that is far too low
    monkeypatch.setattr(rank_folder, "COPY_BYTES", 4096)
    facts, kinds = record(tmp_path / "capture", max_evidence_bytes=200_000)
    assert {"cpu_op", "python_function"} <= kinds
    assert len(gzip.decompress((tmp_path / "capture" / "rank0" / "evidence.json.gz").read_bytes())) < 800_000
    (note,) = (note for note in facts.notes if "2 times --max-evidence" in note)
    assert "calls of functions were left out" in note
    assert perfdoctor.read(tmp_path / "capture" / "rank0" / "evidence.json.gz").complete


def test_calls_are_counted_beside_no_profile_function_of_the_program(tmp_path: Path) -> None:
    sys.setprofile(own := lambda *_: None)
    try:
        facts, _ = record(tmp_path / "capture", max_evidence_bytes=500_000)
        assert [note.split(":")[0] for note in facts.notes] == ["the evidence has more than 2 times --max-evidence"]
        assert sys.getprofile() in (own, None), "torch's own profiler takes its place in the evidence window"
    finally:
        sys.setprofile(None)


class Results:
    """What Kineto has recorded, as it saves itself: to a file of another name, which is renamed; no error is raised."""

    def __init__(self, rows: int, *, fails: bool = False, then: Callable[[], None] = lambda: None) -> None:
        self.text = '{"baseTimeNanoseconds": 0,\n"traceEvents": [\n' + ",\n".join(
            f'{{"ph": "X", "cat": "cpu_op", "name": "{number**9}"}}' for number in range(rows)
        )
        self.fails, self.then = fails, then
        self.on_disk: list[str] = []

    def save(self, path: str) -> None:
        with open(f"{path}.tmp", "w") as out:
            out.write(self.text)
        self.on_disk = [each.name for each in Path(path).parent.iterdir() if each.is_file() and not each.is_symlink()]
        if not self.fails:
            os.replace(f"{path}.tmp", path)
        self.then()


def limit_files(size: int) -> None:
    """Let writes beyond that size fail from now on, as on a full disk."""
    sys.dont_write_bytecode = True  # Python does not notice that what it writes is cut off
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_only_compressed_text_reaches_the_disk(tmp_path: Path) -> None:
    folder, results = RankFolder(str(tmp_path), 0), Results(1000)
    assert folder.write_trace("timing", results, None) == "timing.json.gz"
    assert folder.events == 1000
    if sys.platform == "linux":
        assert results.on_disk == ["steps.jsonl"]
    assert gzip.decompress((tmp_path / "rank0/timing.json.gz").read_bytes()).decode() == results.text
    assert sorted(os.listdir(folder.path)) == ["steps.jsonl", "timing.json.gz"]


@pytest.mark.parametrize("writer", ["steps", "facts", "trace", "kineto"])
def test_a_full_disk_says_what_is_kept_and_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], writer: str
) -> None:
    folder = RankFolder(str(tmp_path), 0)
    for step in range(3):
        folder.write_step(step, 5, "base", 0, StepWork())
    folder.write_facts({"old": True})
    folder.write_trace("timing", Results(10), None)
    steps = Path(folder.path, "steps.jsonl")
    failing: dict[str, tuple[int, Callable[[], Any]]] = {
        "steps": (steps.stat().st_size, lambda: folder.write_step(3, 5, "after", 0, StepWork())),
        "facts": (500, lambda: folder.write_facts({"new": "x" * 1000})),
        "trace": (1 << 20, lambda: folder.write_trace("evidence", Results(5000, then=lambda: limit_files(500)), None)),
        "kineto": (1 << 20, lambda: folder.write_trace("evidence", Results(10, fails=True), None)),
    }
    size, write = failing[writer]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    try:
        for _ in range(2):
            limit_files(size)
            write()
    finally:
        limit_files(before)
    errors = capsys.readouterr().err
    assert errors.count("perfdoctor: ") == errors.count("\n") == 1
    assert "recording stops, the program runs on; kept: the times of 3 steps, timing.json.gz.\n" in errors
    assert folder.write_trace("evidence", Results(10), None) is None, "what comes later would not fit what is there"
    assert json.loads(Path(folder.path, "facts.json").read_text()) == {"old": True}
    assert sorted(os.listdir(folder.path)) == ["facts.json", "steps.jsonl", "timing.json.gz"]
    assert len(steps.read_text().splitlines()) == 3
