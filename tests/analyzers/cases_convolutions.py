"""Cases of the rules about convolutions and what surrounds them: PD501, PD502."""

from __future__ import annotations

from typing import Any

from rule_cases import POINTWISE, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4"
SCUDNN = "maxwell_scudnn_128x64_relu_interior_nn_v1"
SUM = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::sum_functor<float>>>"
NODE = "autograd::engine::evaluate_function:"
LINE = {"file": "/home/me/model.py", "line": 7, "function": "__init__"}


def training(
    *convolutions: tuple[str, str],
    bias_us: float = 100,
    norm: str = "aten::batch_norm",
    has_gradients: bool = True,
    gathers: bool = False,
) -> TraceBuilder:
    """Two steps with convolutions, each followed by an op in the forward pass and by a node in the backward pass."""
    trace = TraceBuilder()
    for number in range(2):
        start = 2000.0 * number
        trace.step(start, 2000)
        cpu, gpu = start, start + 100
        for after, node in convolutions:
            trace.op("aten::conv2d", cpu, 30).op("aten::cudnn_convolution", cpu + 1, 10)
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


PD502 = [
    RuleCase(
        "PD502",
        "two-convolutions",
        lambda: training(BEFORE_NORM, BEFORE_NORM),
        (
            ExpectedFinding(
                "high",
                400_000,
                (0, 400_000, 400_000),
                title="Biases of 2 convolutions are added though",
                advice="Leave the biases out: a batch norm",
                fix="bias=False",
                evidence={"adding biases per step": 200_000, "summing their gradients per step": 200_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD502",
        "named-by-a-capture",
        lambda: training(BEFORE_NORM, gathers=True),
        (
            ExpectedFinding(
                "high",
                200_000,
                location="/home/me/model.py:7",
                advice="(a, b, c and 1 more)",
                evidence={"modules": "a, b, c, d"},
            ),
        ),
        biases("a", "b", "c", "d"),
    ),
    RuleCase(
        "PD502",
        "only-those-before-norms-count",
        lambda: training(BEFORE_NORM, BEFORE_RELU),
        (ExpectedFinding("high", 200_000, title="The bias of a convolution is added though"),),
    ),
    RuleCase("PD502", "no-norm-follows", lambda: training(BEFORE_RELU, BEFORE_RELU)),
    RuleCase("PD502", "a-group-norm", lambda: training(BEFORE_NORM, norm="aten::group_norm")),
    RuleCase("PD502", "evaluation", lambda: training(BEFORE_NORM, has_gradients=False)),
    RuleCase("PD502", "next-to-nothing", lambda: training(BEFORE_NORM, bias_us=8)),
]


def convolving(
    us: float = 500,
    blocks: tuple[int, ...] = (64, 64, 64),
    kernel: str = CONVOLUTION,
    device: str = "NVIDIA A100-SXM4-80GB",
    capability: tuple[int, int] = (8, 0),
) -> TraceBuilder:
    """Steps of 1 ms with a convolution in each, in grids of so many blocks."""
    trace = TraceBuilder(device=device, capability=capability)
    for number, count in enumerate(blocks):
        start = 1000.0 * number
        trace.step(start, 1000).op("aten::conv2d", start, 30)
        trace.kernel(kernel, start + 40, us, launch_us=start + 10, grid=(count, 1, 1))
        trace.call("cudaDeviceSynchronize", start + 40, us)
    return trace


def flags(**more: bool) -> dict[str, Any]:
    return {"flags": {"cudnn_benchmark": False, "deterministic_algorithms": False} | more}


PD501 = [
    RuleCase(
        "PD501",
        "half-of-the-step",
        convolving,
        (
            ExpectedFinding(
                "medium",
                500_000,
                (0, None, 205_000),
                title="cuDNN guesses the algorithms of convolutions that take 50% of the step",
                fix="torch.backends.cudnn.benchmark = True",
                evidence={"convolutions per step": 1, "their time per step": 500_000},
            ),
        ),
        flags(),
    ),
    RuleCase(
        "PD501",
        "a-device-without-tensor-cores",
        lambda: convolving(kernel=SCUDNN, device="Quadro GP100", capability=(6, 0)),
        (ExpectedFinding("medium", 500_000, (0, None, 205_000)),),
        flags(),
    ),
    RuleCase("PD501", "without-tensor-cores-pd203-speaks", lambda: convolving(kernel=SCUDNN), facts=flags()),
    RuleCase("PD501", "on-already", convolving, facts=flags(cudnn_benchmark=True)),
    RuleCase("PD501", "deterministic", convolving, facts=flags(deterministic_algorithms=True)),
    RuleCase("PD501", "shapes-change", lambda: convolving(blocks=(64, 72, 64)), facts=flags()),
    RuleCase("PD501", "little-time", lambda: convolving(us=60), facts=flags()),
    RuleCase("PD501", "products", lambda: convolving(kernel=TENSOR_GEMM), facts=flags()),
    RuleCase("PD501", "nothing-captured", convolving, facts={}),
    RuleCase("PD501", "a-bare-trace", convolving),
    RuleCase("PD501", "one-step", lambda: convolving(blocks=(64,)), facts=flags()),
]
