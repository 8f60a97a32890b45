"""The script that records GPU cases: what of it a CPU can run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoctor import read
from perfdoctor.gpu.roofline.cost_of_op import cost_of_op

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu" / "record.py"


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_cases_for_the_cpu_are_recorded_with_shapes_and_summarized(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    process = run_script(str(tmp_path / "out"), "--device", "cpu", "--only", "bmm")

    assert process.returncode == 0, process.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert set(summary["cases"]) == {"bmm-bf16", "bmm-bf16-unaligned"}
    assert summary["left_out"] == {}
    trace = read(tmp_path / "out" / "traces" / "bmm-bf16-unaligned.json.gz")
    ops = trace.ops
    costs = [
        cost_of_op(trace.strings[name], trace.text(dims), trace.text(types), trace.text(strides), trace.text(concrete))
        for name, dims, types, strides, concrete in zip(
            *(column.tolist() for column in (ops.name, ops.dims, ops.types, ops.strides, ops.concrete)), strict=True
        )
    ]
    gemms = [cost for cost in costs if cost is not None and cost.kind == "gemm"]
    assert {(cost.m, cost.n, cost.k, cost.batch, cost.dtype) for cost in gemms} == {(513, 513, 64, 48, "bf16")}


def test_without_a_gpu_it_says_so_and_records_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    process = run_script(str(tmp_path / "out"))

    assert process.returncode == 2
    assert len(process.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
