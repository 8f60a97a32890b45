"""A real job of two ranks in which one rank sleeps: the report names that rank and the line that sleeps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.process

PROGRAM = """
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
    for step in range(30):
        loss = model(prepare(rank)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    time.sleep(0.5)  # torch aborts where the interpreter ends before gloo's threads: see tests/capture/conftest.py

main()
"""
OPTIONS = ("--skip", "2", "--base", "3", "--warmup", "1", "--timing", "8", "--evidence", "3")


def record(folder: Path, slow_rank: int) -> Any:
    """Record the job with `perfdoctor run`; returns the report as JSON."""
    folder.mkdir()
    program = folder / "job.py"
    program.write_text(PROGRAM.replace("SLOW", str(slow_rank)))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = (sys.executable, "-m", "perfdoctor", "run", *OPTIONS, "--out", str(folder / "out"), "--no-report", "--")
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
    assert late["severity"] == "high"
    assert re.match(r"Rank 1 enters the step [\d.]+ ms late in each step, ", late["title"])
    assert Path(late["location"]["file"]).name == "job.py"
    assert (late["location"]["line"], late["location"]["function"]) == (LINE, "prepare")
    # The rest of a step takes a few ms; where another program has the core of the rank that waits, it waits for less.
    assert late["cost_ns"] >= 20_000_000
    assert late["cost_ns"] <= report["steps"]["median_ns"] * 1.5
