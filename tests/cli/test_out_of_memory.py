"""A real program that runs into a limit of its own address space: what ended it is the first finding, at its line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")]
pytest.importorskip("torch")

# The batch grows; the limit leaves room for what the recorder needs itself.
PROGRAM = """\
import resource
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with open("/proc/self/statm") as file:
    limit = int(file.read().split()[0]) * resource.getpagesize() + (3 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for step in range(40):
    rows = 64 if step < 34 else 1 << 22
    x = torch.ones(rows, 256)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_batch_too_large_for_a_limit(perfdoctor):
    Path("train.py").write_text(PROGRAM)
    ended = perfdoctor("run", "--memory", "--out", "kept", "train.py")
    assert ended.code == 1
    assert "can't allocate memory" in ended.err
    first = json.loads(Path("kept/report.json").read_bytes())["findings"][0]
    line = 1 + PROGRAM.splitlines().index("    x = torch.ones(rows, 256)")
    assert (first["rule"], first["severity"]) == ("PD710", "high")
    assert (Path(first["location"]["file"]).name, first["location"]["line"]) == ("train.py", line)
    asked = [each["value"] for each in first["evidence"] if each["unit"] == "bytes"]
    assert 4 << 30 in asked  # rows x columns of float32
    assert "saving: n/a" not in ended.out
