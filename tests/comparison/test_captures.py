"""Captures of a real program, and folders of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from programs import Program

import perfdoctor
from perfdoctor.testing.synthetic_fleet import ALL_REDUCE, SyntheticFleet

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

PROGRAM = """\
import sys, time
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    x = torch.randn(8, 32)
    time.sleep(float(sys.argv[1]))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
WINDOWS = ("--skip", "2", "--base", "8", "--warmup", "1", "--timing", "4", "--evidence", "2", "--stop-after")


def capture(script: Path, folder: Path, *arguments: str) -> Path:
    """A capture of a program, with its report."""
    command = [sys.executable, "-m", "perfdoctor", "run", "--json", *WINDOWS, "--out", folder, script, *arguments]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    (folder / "report.json").write_text(ended.stdout)
    return folder


def base_steps_ns(capture: Path) -> list[int]:
    rows = map(json.loads, (capture / "rank0" / "steps.jsonl").read_text().splitlines())
    return [row["dur_ns"] for row in rows if row["window"] == "base"]


@pytest.mark.process
def test_captures_of_a_real_program(tmp_path: Path) -> None:
    """One test, because the program has to be started once only: a step that sleeps 60 ms, and one that sleeps 20."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    slow, fast = (capture(script, tmp_path / name, name) for name in ("0.06", "0.02"))
    comparison = perfdoctor.compare(slow, fast)
    assert comparison.comparable
    assert comparison.before.paths == (str(slow),)
    # The steps are those without the profiler.
    assert comparison.before.is_unprofiled
    assert comparison.after.is_unprofiled
    assert comparison.before.steps == len(base_steps_ns(slow)) == 8
    # At least the sleep: what other programs took of a step is left out, on a busy machine also of the shortest.
    assert 60e6 <= (comparison.step.before_ns or 0) <= max(base_steps_ns(slow))
    assert comparison.step.verdict == "faster"
    assert comparison.step.difference_ns == pytest.approx(-40e6, rel=0.4)
    # Rows add up, and the evidence window says which modules there are.
    difference_ns = comparison.after.mean_ns - comparison.before.mean_ns
    for name in ("places", "ops", "modules"):
        table = comparison.table(name)
        assert sum(row.difference_ns for row in table.rows) + (table.remainder_ns or 0) == difference_ns, name
    assert comparison.ops.rows[0].name == "Python, outside of ops"
    assert {"Linear_0", "GELU_0", "outside of modules"} <= {row.name for row in comparison.modules.rows}
    slept = comparison.places.rows[0]
    assert (slept.name, slept.kind, slept.status) == ("train.py:9", "line", "faster")
    assert slept.difference_ns == pytest.approx(-40e6, rel=0.4)
    # The report alone says the same of the step, and of the line.
    by_report = perfdoctor.compare(slow / "report.json", fast)
    assert by_report.step.verdict == "faster"
    assert by_report.before.is_unprofiled
    assert by_report.step.before_ns == pytest.approx(comparison.step.before_ns, rel=0.01)
    assert by_report.before.mean_ns == pytest.approx(comparison.before.mean_ns, rel=0.01)
    assert by_report.places.rows[0].name == "train.py:9"


def write_capture(folder: Path, batch: int) -> Path:
    """A capture whose timing window has no shapes, and whose evidence window has them."""
    rank = folder / "rank0"
    rank.mkdir(parents=True)
    (rank / "facts.json").write_text("{}")
    Program(with_shapes=False, batch=batch).write(rank / "timing.json")
    Program(with_modules=True, batch=batch).write(rank / "evidence.json")
    return folder


def test_shapes_and_modules_of_the_evidence_window_count(tmp_path: Path) -> None:
    one, same, larger = (
        write_capture(tmp_path / name, batch) for name, batch in (("one", 64), ("same", 64), ("larger", 128))
    )
    comparison = perfdoctor.compare(one, same)
    assert comparison.comparable
    assert comparison.modules.is_known
    assert sum(row.before_ns for row in comparison.modules.rows) == comparison.before.mean_ns
    (reason,) = perfdoctor.compare(one, larger).reasons
    assert reason.aspect == "shapes"
    assert "[64,512],[512,512]" in reason.sentence


def write_ranks(folder: Path, fleet: SyntheticFleet) -> Path:
    folder.mkdir()
    for rank, builder in enumerate(fleet.builders()):
        builder.write(folder / f"rank{rank}.json")
    return folder


def test_a_folder_of_ranks_is_one_recording(tmp_path: Path) -> None:
    before = write_ranks(tmp_path / "before", SyntheticFleet(ranks=2, steps=6))
    after = write_ranks(tmp_path / "after", SyntheticFleet(ranks=2, steps=6, seed=1).slow_link([0, 1], 3.0))
    comparison = perfdoctor.compare(before, after)
    assert comparison.comparable
    assert (comparison.before.ranks, len(comparison.before.paths)) == (2, 1)
    assert comparison.step.verdict == "slower"
    assert comparison.collectives.rows[0].name == "all_reduce"
    assert comparison.collectives.rows[0].status == "slower"
    assert comparison.kernels.rows[0].name == ALL_REDUCE
    difference_ns = comparison.after.mean_ns - comparison.before.mean_ns
    collectives = comparison.collectives
    assert sum(row.difference_ns for row in collectives.rows) + (collectives.remainder_ns or 0) == difference_ns
    assert any("longest mean step: rank" in note for note in comparison.notes)


def test_ranks_without_a_change_are_the_same(tmp_path: Path) -> None:
    before = write_ranks(tmp_path / "before", SyntheticFleet(ranks=2, steps=6))
    after = write_ranks(tmp_path / "after", SyntheticFleet(ranks=2, steps=6, seed=1))
    comparison = perfdoctor.compare(before, after)
    assert comparison.step.verdict == "same"
    assert {row.status for row in comparison.collectives.rows} == {"same"}
