"""How a step grows with its batch: by steps of several sizes, and by the work of its kernels and ops."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.captured_facts import parse_run_steps
from perfdoctor.analyzers._batch_scaling import _growth_of_bytes, grow_kernels, scale_batch
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

GEMM = "ampere_sgemm_128x64_nn"


def timed_steps(fixed_us: float, sample_us: float, sizes: list[int]) -> bytes:
    """steps.jsonl of steps that take a fixed time and some for each sample."""
    rows = [
        {"step": n, "window": "after", "dur_ns": round(1000 * (fixed_us + sample_us * size)), "samples": size}
        for n, size in enumerate(sizes)
    ]
    return "\n".join(json.dumps({**row, "loader_wait_ns": 0}) for row in rows).encode()


def cpu_rank(sizes: list[int], fixed_us: float = 600, sample_us: float = 50) -> Rank:
    step_us = fixed_us + sample_us * 8
    trace = TraceBuilder(device=None).step(0, step_us).op("aten::gelu", 0, step_us)
    return Rank(
        trace.trace(), facts=CapturedFacts(rank=0), run_steps=parse_run_steps(timed_steps(fixed_us, sample_us, sizes))
    )


@given(fixed_us=st.integers(100, 5000), sample_us=st.integers(1, 200))
def test_a_line_through_steps_of_two_sizes_is_found_again(fixed_us: int, sample_us: int) -> None:
    scaling = scale_batch(cpu_rank([8] * 12 + [3] * 4, fixed_us, sample_us))
    assert scaling is not None
    assert scaling.basis == "steps with fewer samples, as timed"
    assert scaling.twice.expected_ns == pytest.approx(1000 * (fixed_us + 16 * sample_us), rel=1e-3)
    assert scaling.at(4).expected_ns == pytest.approx(1000 * (fixed_us + 32 * sample_us), rel=1e-3)


@pytest.mark.parametrize("sizes", [[8] * 12, [8] * 12 + [3] * 2, [8] * 12 + [7] * 4])
def test_too_few_steps_of_other_sizes_make_no_line(sizes: list[int]) -> None:
    scaling = scale_batch(cpu_rank(sizes))
    assert scaling is not None
    assert scaling.basis == "ops by their shapes"


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), st.floats(1, 64))
def test_bytes_of_a_product_grow_between_once_and_as_the_samples(m: int, n: int, k: int, ratio: float) -> None:
    growth = _growth_of_bytes(OpCost("gemm", 2 * m * n * k, m * n, "fp32", m=m, n=n, k=k), ratio)
    assert 1 <= growth <= ratio * (1 + 1e-9)


def test_kernels_that_leave_the_gpu_empty_grow_less_than_those_that_fill_it() -> None:
    trace = TraceBuilder(sm_count=100).step(0, 1000)
    for number, blocks in enumerate((4, 4000)):
        trace.op("aten::mm", 100 * number, 20)
        trace.kernel(GEMM, 100 * number + 30, 60, launch_us=100 * number + 5, grid=(blocks, 1, 1))
    trace.memcpy("HtoD", 300, 50, launch_us=290)
    low, likely, high = grow_kernels(Rank(trace.trace()), 2.0)
    assert low[0] == 1 < likely[0] < likely[1] <= high[1]
    assert (low <= likely + 1e-9).all()
    assert (likely <= high + 1e-9).all()
    assert np.array_equal([low[2], likely[2], high[2]], [2, 2, 2])  # a copy of samples
