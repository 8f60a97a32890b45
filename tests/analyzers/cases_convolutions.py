"""Cases of the rules about convolutions and what surrounds them: PD502."""

from __future__ import annotations

from typing import Any

from rule_cases import POINTWISE

from perfdoctor.testing import TraceBuilder

CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4"
SUM = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::sum_functor<float>>>"
NODE = "autograd::engine::evaluate_function:"
LINE = {"file": "/home/me/model.py", "line": 7, "function": "__init__"}


def training(
    *convolutions: tuple[str, str],
    bias_us: float = 100,
    norm: str = "aten::batch_norm",
    has_gradients: bool = True,
    gathers: bool = False,
    convolution: str = "aten::conv2d",
) -> TraceBuilder:
    """Two steps with convolutions, each followed by an op in the forward pass and by a node in the backward pass."""
    trace = TraceBuilder()
    for number in range(2):
        start = 2000.0 * number
        trace.step(start, 2000)
        cpu, gpu = start, start + 100
        for after, node in convolutions:
            trace.op(convolution, cpu, 30).op("aten::cudnn_convolution", cpu + 1, 10)
            trace.kernel(CONVOLUTION, gpu, 200, launch_us=cpu + 2)
            trace.op("aten::add_", cpu + 15, 10).kernel(POINTWISE, gpu + 200, bias_us, launch_us=cpu + 16)
            trace.op(after.replace("aten::batch_norm", norm), cpu + 32, 6)
            cpu, gpu = cpu + 40, gpu + 200 + bias_us
            if has_gradients:
                trace.op(f"{NODE} {node}", cpu, 5)
                if gathers:
                    trace.op(f"{NODE} torch::autograd::AccumulateGrad", cpu + 6, 2)
                trace.op(f"{NODE} ConvolutionBackward0", cpu + 10, 25).op("aten::sum", cpu + 12, 10)
                trace.kernel(SUM, gpu, bias_us, launch_us=cpu + 14)
                cpu, gpu = cpu + 40, gpu + bias_us
        trace.call("cudaDeviceSynchronize", cpu + 10, gpu - cpu)
    return trace


BEFORE_NORM = ("aten::batch_norm", "CudnnBatchNormBackward0")
BEFORE_RELU = ("aten::relu", "ReluBackward0")


def biases(*names: str) -> dict[str, Any]:
    """Facts of a model with such layers."""
    found = [
        {"name": name, "class": "Conv2d", "norm_class": "BatchNorm2d", "channels": 8, "created": LINE} for name in names
    ]
    return {"models": [{"class": "Net", "bias_before_norm": found}]}
