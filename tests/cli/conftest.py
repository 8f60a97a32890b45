"""Traces to analyse, and the command line run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfdoctor.cli.main import main
from perfdoctor.testing import TraceBuilder

TRAINING = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(8), torch.zeros(1)

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print("trained")
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that stands on stderr."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("perfdoctor: ")
        return self.err.strip()


@pytest.fixture
def perfdoctor(capfd, monkeypatch, tmp_path) -> Callable[..., Ended]:
    """Runs the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "PERFDOCTOR_DEBUG", "PERFDOCTOR_DISABLE"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: object) -> Ended:
        capfd.readouterr()
        code = main([str(a) for a in argv])
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
def stalled(tmp_path) -> Path:
    """A trace of three steps, in each of which the GPU waits 60 % of the time for a DataLoader without workers."""
    builder = TraceBuilder()
    for step in range(3):
        at = 1000 * step
        builder.step(at, 1000).range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 600)
        builder.op("aten::mm", at + 605, 20)
        builder.kernel("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_nn", at + 620, 375, launch_us=at + 608)
    return builder.write(tmp_path / "stalled.json")


@pytest.fixture
def busy(tmp_path) -> Path:
    """A trace of three steps in which the GPU is busy with Tensor Core kernels all the time."""
    builder = TraceBuilder()
    for step in range(3):
        at = 1000 * step
        builder.step(at, 1000).op("aten::mm", at + 5, 20)
        builder.kernel("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_nn", at + 15, 998, launch_us=at + 8)
    return builder.write(tmp_path / "busy.json.gz")


@pytest.fixture
def training(tmp_path) -> Path:
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return path


@pytest.fixture
def short() -> list[str]:
    """Options of `run` with which the program of `training` fills its windows."""
    return ["--skip", "1", "--base", "2", "--warmup", "1", "--timing", "4", "--evidence", "0"]
