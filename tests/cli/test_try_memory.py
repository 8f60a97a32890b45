"""`perfdoctor try` on programs whose memory one thing fills: its finding names the change, and the peak is lower."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="peaks are those of /proc")]
pytest.importorskip("torch")

# Without the first line of each program glibc keeps small pieces for itself, as threads happen to free them: a third of
# what tensors no longer hold stays there. The real torch._dynamo is there as elsewhere.
BLOCKS = """\
import ctypes; ctypes.CDLL(None).mallopt(-3, 1 << 20)
import torch, torch._dynamo.utils
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.drop = nn.Parameter(torch.ones(1)), nn.Dropout(0.1)
    def forward(self, x):
        h = x * self.scale
        for _ in range(8):
            h = torch.tanh(h)
        return x + self.drop(h)

torch.set_num_threads(1)
model = nn.Sequential(*(Block() for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(256, 1024)
for _ in range(24):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOGITS = """\
import ctypes; ctypes.CDLL(None).mallopt(-3, 1 << 20)
import torch, torch._dynamo.utils
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20000, 16), nn.Linear(16, 20000)
    def forward(self, tokens):
        return self.head(self.embed(tokens))

torch.set_num_threads(1)
model, criterion = Model(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
tokens = torch.randint(20000, (4, 129))
for _ in range(24):
    logits = model(tokens)[:, :-1]
    criterion(logits.reshape(-1, 20000), tokens[:, 1:].reshape(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("program", "change", "label", "min_saved_mb", "max_difference"),
    [
        # 7 of 8 blocks keep 1 MB of 10; the first one runs as it is in its first call.
        pytest.param(BLOCKS, "checkpoint", "Block", 54, 0, id="blocks"),
        # Of 512 rows 41 MB of logits, as much of their log-softmax and of two gradients.
        pytest.param(LOGITS, "chunked-loss", "8", 90, 1e-5, id="logits"),
    ],
)
def test_the_peak_is_lower_and_the_loss_the_same(perfdoctor, program, change, label, min_saved_mb, max_difference):
    Path("train.py").write_text(program)
    options = ["--wait", "0", "--pairs", "1", "--skip", "2", "--base", "6", "--only", change]
    ended = perfdoctor("try", *options, "--out", "kept", "train.py")
    assert ended.code == 0, ended.err
    report = json.loads(Path("kept/report.json").read_bytes())
    (row,) = [each for each in report["trials"] if each["change"] == change]
    # The setting is that of the finding of the recording with which it began: nothing else names one.
    assert (row["setting"], row["verdict"] in ("broke", "not applicable")) == (label, False), row
    # Memory before and after, below the table.
    note = re.search(r"memory at the peak: (\d+) -> (\d+) MB\.", " ".join(ended.out.split()))
    before, after = map(int, note.groups())
    assert (after, before - after > min_saved_mb) == (round(row["peak_memory_bytes"] / 1e6), True), ended.out
    assert row["loss_difference"] <= max_difference


@pytest.mark.usefixtures("forks")
def test_a_block_that_cannot_be_repeated_gets_its_reason(perfdoctor):
    Path("train.py").write_text(BLOCKS.replace("nn.Dropout(0.1)", "nn.BatchNorm1d(1024)"))
    options = ["--wait", "0", "--pairs", "1", "--skip", "2", "--base", "4", "--only", "checkpoint=Block"]
    ended = perfdoctor("try", *options, "--no-diagnose", "train.py")
    assert ended.code == 0, ended.err
    assert "checkpoint=Block is not applicable: the forward pass of Block changes the buffer drop." in " ".join(
        ended.out.split()
    )
