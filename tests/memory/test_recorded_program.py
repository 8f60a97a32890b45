"""A program that is recorded here: its peak against the profiler's own totals, and what is known of its categories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoctor.rank import Rank
from perfdoctor.trace import read

pytestmark = pytest.mark.process

PROGRAM = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile

def step(model, optimizer, loss_of):
    x, y = torch.randn(256, 128), torch.randint(0, 100, (256,))
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()

with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True, with_modules=True) as profiler:
    model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 100))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        step(model, optimizer, torch.nn.functional.cross_entropy)
profiler.export_chrome_trace(sys.argv[1])
"""


def test_the_peak_of_a_program_on_the_cpu(run_program: Callable[..., None], tmp_path: Path) -> None:
    path, script = tmp_path / "trace.json", tmp_path / "train.py"
    script.write_text(PROGRAM)
    run_program(script, path)
    events = [each for each in json.loads(path.read_bytes())["traceEvents"] if each["name"] == "[memory]"]
    [memory] = Rank(read(path)).memory_summary
    assert memory.peak is not None
    assert memory.peak.allocated_bytes == max(each["args"]["Total Allocated"] for each in events)
    found = memory.peak.by_category
    assert sum(found.values()) == memory.peak.allocated_bytes
    weights = 4 * (128 * 512 + 512 + 512 * 100 + 100)
    assert found["parameters"] == weights
    # Adam keeps two tensors for each parameter, and a counter of four bytes.
    assert found["optimizer_state"] == 2 * weights + 4 * 4
    assert found["before_recording"] == 0
