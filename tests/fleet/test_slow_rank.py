"""A real job of two ranks in which one rank sleeps: the report names that rank and the line that sleeps.

Where the other rank's recorder works for longer, no step of a window holds the wait for it.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.fleet.discover import find_traces
from perfdoctor.fleet.rank_tasks import read_ranks

pytest.importorskip("torch")

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

PROGRAM = """
import gzip
import time
import torch
import torch.distributed as dist
from torch import nn

def prepare(rank):
    batch = torch.randn(32, 128)
    if rank == SLOW:
        time.sleep(0.08)  # here
    return batch

def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if rank == 0:  # a disk on which each trace takes as long
        open_packed = gzip.open
        gzip.open = lambda *args: (time.sleep(DISK_S), open_packed(*args))[1]
    for step in range(STEPS):
        loss = model(prepare(rank)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    time.sleep(0.5)  # torch aborts where the interpreter ends before gloo's threads: see tests/capture/conftest.py

main()
"""
OPTIONS = ("--skip", "2", "--base", "3", "--warmup", "1", "--timing", "8", "--evidence", "3")


def record(folder: Path, slow_rank: int, options: tuple[str, ...] = OPTIONS, steps: int = 30, disk_s: float = 0) -> Any:
    """Record the job with `perfdoctor run`; returns the report as JSON."""
    folder.mkdir()
    program = folder / "job.py"
    values = {"SLOW": slow_rank, "DISK_S": disk_s, "STEPS": steps}
    program.write_text(re.sub("|".join(values), lambda match: str(values[match[0]]), PROGRAM))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = (sys.executable, "-m", "perfdoctor", "run", *options, "--out", str(folder / "out"), "--no-report", "--")
    recording = subprocess.run(
        (*command, *torchrun, str(program)), cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert recording.returncode == 0, recording.stderr
    analyze = (sys.executable, "-m", "perfdoctor", "analyze", str(folder / "out"), "--json")
    analysis = subprocess.run(analyze, cwd=folder, capture_output=True, text=True, timeout=300)
    assert analysis.returncode == 0, analysis.stderr
    return json.loads(analysis.stdout)


LINE = next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if "# here" in text)


def test_a_line_that_no_rank_sleeps_in_is_not_named(tmp_path: Path) -> None:
    findings = record(tmp_path / "run", slow_rank=7)["findings"]
    assert LINE not in [finding["location"]["line"] for finding in findings if finding["location"]]


def test_the_rank_that_sleeps_is_named_with_its_line(tmp_path: Path) -> None:
    report = record(tmp_path / "run", slow_rank=1)
    assert [trace["rank"] for trace in report["traces"]] == [0, 1]
    [late] = [finding for finding in report["findings"] if finding["rule"] == "PD409"]
    assert late["rank"] == 1
    assert late["severity"] == "medium"  # a bound, as nobody has tried it
    assert re.match(r"Rank 1 enters the step [\d.]+ ms late in each step, ", late["title"])
    assert Path(late["location"]["file"]).name == "job.py"
    assert (late["location"]["line"], late["location"]["function"]) == (LINE, "prepare")
    # The rest of a step takes a few ms; where another program has the core of the rank that waits, it waits for less.
    assert late["cost_ns"] >= 20_000_000
    assert late["cost_ns"] <= report["steps"]["median_ns"] * 1.5


@pytest.mark.parametrize(
    ("options", "timing", "evidence"),
    [
        ((), [3, 4], [6]),  # a step to warm up lies between both windows
        (("--skip", "2", "--base", "3", "--warmup", "0", "--timing", "4", "--evidence", "3"), [6, 7, 8], [10, 11]),
    ],
)
def test_no_step_holds_the_wait_for_the_recorder_of_another_rank(
    tmp_path: Path, options: tuple[str, ...], timing: list[int], evidence: list[int]
) -> None:
    steps = max(evidence) + 4
    record(tmp_path / "run", slow_rank=1, options=options, steps=steps, disk_s=1.0)
    for file in find_traces([tmp_path / "run" / "out"]):
        [rank] = read_ranks(file, AnalysisOptions())
        assert rank.evidence is not None
        assert [list(each.steps.numbers) for each in (rank, rank.evidence)] == [timing, evidence]
        assert [each for each in rank.facts.recorder_worked if each in (*timing, *evidence)] == []
        # Each rank sleeps or waits for 80 ms; with the disk it would be a second.
        for each in (rank, rank.evidence):
            assert 80e6 < statistics.median(each.steps.durations_ns) <= each.steps.durations_ns.max() < 500e6
        ranges = rank.evidence.trace.ranges
        slept = rank.evidence.trace.match_rows(ranges, rf"^@.*job\.py:{LINE} ")
        slept &= rank.evidence.steps.at(ranges.start_ns) >= 0
        share = ranges.dur_ns[slept].sum() / rank.evidence.steps.durations_ns.sum()
        assert (0.5 < share < 1) if rank.rank == 1 else share == 0
