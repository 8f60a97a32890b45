"""The tables of updates, of what is computed again, and of Triton's kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real_traces import read_once

from perfdoctor.rank import Rank
from perfdoctor.tables.catalog import build_table
from perfdoctor.testing import TraceBuilder

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >(int)"
)
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)"
NODE = "autograd::engine::evaluate_function: MulBackward0"


def table_of(trace: TraceBuilder, name: str, by: str | None = None) -> Any:
    return build_table(Rank(trace.trace()), name, by)


def update() -> TraceBuilder:
    trace = TraceBuilder()
    for step in (0, 1000):
        trace.step(step, 1000).op("aten::mm", step, 20).kernel(GEMM, step + 30, 200, launch_us=step + 5)
        trace.range("Optimizer.step#Adam.step", step + 100, 200).op("aten::_foreach_add_", step + 110, 50)
        trace.kernel(ADAM, step + 300, 100, launch_us=step + 115).kernel(ADAM, step + 400, 50, launch_us=step + 118)
        trace.range("Optimizer.zero_grad#Adam.zero_grad", step + 400, 40).op("aten::zero_", step + 410, 20)
        trace.kernel(FILL, step + 500, 30, launch_us=step + 415)
        trace.frame("torch/nn/utils/clip_grad.py(12): clip_grad_norm_", step + 600, 50)
        trace.op("aten::mul_", step + 610, 20).kernel(FILL, step + 700, 10, launch_us=step + 615)
    return trace


def test_an_update_has_its_parts() -> None:
    rows = table_of(update(), "optimizer").rows
    assert [(row["name"], row["step_ns"], row["count"], row["launches"]) for row in rows] == [
        ("Adam.step", 150_000, 1.0, 2.0),
        ("zero_grad", 30_000, 1.0, 1.0),
        ("clipping of gradients", 10_000, 1.0, 1.0),
    ]
    assert rows[0]["cpu_ns"] == 200_000
    rows = table_of(update(), "optimizer", "kernel").rows
    assert [(row["name"], row["part"], row["window_count"]) for row in rows] == [
        (ADAM, "Adam.step", 4),
        (FILL, "zero_grad", 2),
        (FILL, "clipping of gradients", 2),
    ]


def test_an_update_on_the_cpu_takes_its_own_time() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 300)
    trace.range("Optimizer.step#SGD.step", 400, 200).op("aten::add_", 410, 100)
    row = table_of(trace, "optimizer").rows[0]
    assert (row["name"], row["window_ns"], row["share"], row["count"]) == ("SGD.step", 200_000, 0.2, 1.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("optimizer", "no optimizer's step is marked"),
        ("recompute", "nothing is computed again"),
        ("triton", "no kernel of the analysed time was compiled by Triton"),
    ],
)
def test_what_a_program_does_not_do_has_no_rows(name: str, words: str) -> None:
    trace = TraceBuilder().step(0, 1000).op("aten::mm", 0, 20).kernel(GEMM, 30, 200, launch_us=5)
    table = table_of(trace, name)
    assert not table.rows
    assert words in table.notes[0]


def test_the_newer_checkpoint_computes_again_when_a_node_asks() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.op(NODE, 0, 400)
    trace.frame("torch/utils/checkpoint.py(1111): unpack_hook", 10, 200)
    trace.op("aten::addmm", 20, 50).kernel(GEMM, 30, 200, launch_us=25)
    trace.op("aten::mul", 300, 50).kernel(FILL, 400, 100, launch_us=310)
    table = table_of(trace, "recompute")
    assert [(row["name"], row["window_ns"]) for row in table.rows] == [("addmm", 200_000)]
    assert "200 us of a step (20.0%) are computed again" in table.notes


@pytest.mark.parametrize("with_frames", [True, False])
def test_the_older_checkpoint_runs_the_backward_pass_inside(with_frames: bool) -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.op("CheckpointFunctionBackward", 0, 600)
    if with_frames:
        trace.frame("torch/utils/checkpoint.py(300): backward", 5, 590)
    trace.op("aten::addmm", 20, 50).kernel(GEMM, 30, 200, launch_us=25)
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", 300, 90)
    trace.op("aten::mm", 310, 50).kernel(GEMM, 400, 100, launch_us=320)
    rows = table_of(trace, "recompute").rows
    assert [(row["name"], row["window_ns"]) for row in rows] == [("addmm", 200_000)]


def test_a_generated_kernel_has_its_ops_and_its_inputs() -> None:
    trace = TraceBuilder().step(0, 1000)
    name = "triton_poi_fused__unsafe_view_add_3"
    trace.op("Torch-Compiled Region: 0/0", 0, 100)
    trace.op(name, 10, 20, shapes=[[64, 64], [64, 64], []], types=["float", "float", "Scalar"])
    trace.kernel(name, 30, 200, launch_us=15).kernel(GEMM, 300, 100, launch_us=80)
    table = table_of(trace, "triton")
    row = table.rows[0]
    assert len(table) == 1
    assert (row["name"], row["fused"], row["fused_count"], row["kind"]) == (name, "_unsafe_view, add", 2, "pointwise")
    assert (row["op"], row["shape"], row["dtype"]) == ("Torch-Compiled Region: 0/0", "64x64, 64x64", "fp32")
    assert [row["name"] for row in table_of(trace, "triton", "kind").rows] == ["pointwise"]


@pytest.mark.corpus
def test_a_real_checkpoint_is_found(corpus: Path) -> None:
    """A ResNet with checkpointed blocks: what runs again is convolutions, norms, sums and ReLUs."""
    rank = Rank(read_once(corpus / "mi300x-resnet-ddp.json.gz"))
    names = {row["name"] for row in build_table(rank, "recompute").rows}
    assert {"miopen_convolution", "native_batch_norm"} <= names
    assert not any("backward" in name for name in names)
