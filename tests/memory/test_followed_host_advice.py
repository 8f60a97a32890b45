"""A data set whose objects each worker copies: found, its line, and what workers hold after the advice was followed.

The program measures itself, by the pages in /proc/PID/smaps, in both runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import perfdoctor

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("forks"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

PROGRAM = """
import json, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS = 600_000

class Rows(Dataset):
    def __init__(self):
        self.rows = [[float(number), number + 0.5, number + 0.25] for number in range(ROWS)]
        if sys.argv[2] == "array":
            self.rows = np.array(self.rows)

    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        return self.rows[number]

def collate(rows):
    return torch.tensor(np.array(rows), dtype=torch.float32) / ROWS

def written_bytes(pid):
    with open(f"/proc/{pid}/smaps") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_Dirty:"))

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(DataLoader(Rows(), batch_size=6000, shuffle=True, num_workers=2, collate_fn=collate))
for number in range(ROWS // 6000):
    optimizer.zero_grad()
    model(next(batches)).square().mean().backward()
    optimizer.step()
with open(sys.argv[1], "w") as file:
    json.dump([written_bytes(worker.pid) for worker in batches._workers], file)
"""


def test_a_data_set_that_workers_copy(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program, capture = tmp_path / "train.py", tmp_path / "capture"
    program.write_text(PROGRAM)
    written = {}
    for kind in ("list", "array"):
        runs = ["-m", "perfdoctor", "run", "--memory", "--no-report", "--out", str(capture)] if kind == "list" else []
        meter = tmp_path / f"{kind}.json"
        subprocess.run([sys.executable, *runs, str(program), str(meter), kind], check=True, timeout=600)
        written[kind] = sum(json.loads(meter.read_text()))
    [finding] = [each for each in perfdoctor.analyze(capture).findings if each.rule == "PD709"]
    assert finding.location is not None
    assert (Path(finding.location.file).name, finding.location.function) == ("train.py", "__getitem__")
    assert "'rows'" in finding.title
    promised, saved = finding.saved_bytes, written["list"] - written["array"]
    assert promised is not None
    assert promised.low <= saved <= promised.high
