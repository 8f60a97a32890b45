"""Traces to analyse, and the command line run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfdoctor.cli.main import main
from perfdoctor.testing import TraceBuilder


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
