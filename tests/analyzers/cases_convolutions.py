"""Cases of the rules about convolutions and what surrounds them: PD501, PD502."""

from __future__ import annotations

from typing import Any

from rule_cases import POINTWISE, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder

CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4"
SCUDNN = "maxwell_scudnn_128x64_relu_interior_nn_v1"
WGRAD = "sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4"
VOLTA_CONVOLUTION = "volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1"
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


def padded(shapes: Any) -> dict[str, Any]:
    """What the profiler writes of the arguments of a convolution with strides of 1 and a border of 1."""
    return {
        "shapes": [*shapes, *[[]] * 7],
        "types": ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"],
        "concrete": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    }


def convolving(
    us: float = 500,
    blocks: tuple[int, ...] = (64, 64, 64),
    kernel: str = CONVOLUTION,
    device: str = "NVIDIA A100-SXM4-80GB",
    capability: tuple[int, int] = (8, 0),
    second: str = "",
    second_blocks: tuple[int, ...] = (8, 8, 8),
    in_function: bool = False,
    shapes: Any = None,
) -> TraceBuilder:
    """Steps of 1 ms with a convolution in each, in grids of so many blocks, and another kernel of 100 us after it."""
    trace = TraceBuilder(device=device, capability=capability)
    for number, count in enumerate(blocks):
        start = 1000.0 * number
        trace.step(start, 1000).op(
            "aten::convolution" if shapes else "aten::conv2d", start, 30, **(padded(shapes) if shapes else {})
        )
        trace.kernel(kernel, start + 40, us, launch_us=start + 10, grid=(count, 1, 1))
        if second:
            trace.op("aten::next", start + 31, 8)
            trace.kernel(second, start + 40 + us, 100, launch_us=start + 32, grid=(second_blocks[number], 1, 1))
        if in_function:
            trace.frame("model.py(7): forward", start, 35)
        trace.call("cudaDeviceSynchronize", start + 40, us)
    return trace


def flags(**more: bool) -> dict[str, Any]:
    return {"flags": {"cudnn_benchmark": False, "deterministic_algorithms": False} | more}
