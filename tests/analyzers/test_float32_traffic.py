"""PD201 on inference in float32: what its memory-bound kernels would gain from half precision."""

from __future__ import annotations

import pytest
from rule_cases import POINTWISE, SGEMM

from perfdoctor.analyzers.pd201_gemm_without_tensor_cores import GemmWithoutTensorCores
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder

A100 = "NVIDIA A100-SXM4-80GB"
SIZE = [64, 1024, 1024]  # 256 MiB in float32: reading and writing it takes 263 us at 2,039 GB/s


def find_traffic(
    *, dtype: str = "float", backward: bool = False, pointwise: int = 40, device: str = A100
) -> list[Finding]:
    """A program of products on CUDA cores and pointwise kernels of 350 us, forward only or with a backward pass."""
    trace = TraceBuilder(device=device, capability=(8, 0))
    at = 10.0
    for row in range(pointwise + 10):
        is_product = row < 10
        op = "aten::mm" if is_product else "aten::relu"
        sizes = [[2048, 2048], [2048, 2048]] if is_product else [SIZE]
        trace.op(op, 10 * row, 5, 1, sizes, ["float", "float"] if is_product else [dtype])
        dur_us = 1000 if is_product else 350
        call = trace.call("cudaLaunchKernel", 10 * row + 1, 1)
        trace.kernel(SGEMM if is_product else POINTWISE, at, dur_us, correlation=call)
        at += dur_us
    for row in range(60):  # enough ops to say that none is of a backward pass
        trace.op("aten::view", 600 + 5 * row, 2)
    if backward:
        for row in range(5):
            trace.op("autograd::engine::evaluate_function: MmBackward0", 1000 + 10 * row, 5, 2)
    trace.call("cudaDeviceSynchronize", 1200, at - 1200)
    found = GemmWithoutTensorCores().analyze(Run((Rank(trace.trace()),)))
    return [finding for finding in found if finding.subject == "float32 traffic"]


def test_inference_in_float32_would_move_half_of_the_bytes() -> None:
    (finding,) = find_traffic()
    saving = finding.saving
    assert finding.cost_ns == 40 * 350_000
    assert saving.high_ns == finding.cost_ns // 2
    assert saving.low_ns is not None
    assert saving.expected_ns is not None
    assert 0 < saving.low_ns <= saving.expected_ns <= saving.high_ns
    assert "bfloat16" in (finding.fix or "")


@pytest.mark.parametrize(
    "program",
    [{"dtype": "c10::BFloat16"}, {"backward": True}, {"pointwise": 1}, {"device": "Quadro GP100"}],
    ids=["half precision already", "training", "little of it", "no Tensor Cores"],
)
def test_other_programs_hear_nothing_of_it(program: dict[str, object]) -> None:
    assert not find_traffic(**program)  # type: ignore[arg-type]
