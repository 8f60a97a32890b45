"""Cases of the rules about convolutions and what surrounds them: PD501, PD502."""

from __future__ import annotations

from typing import Any

from rule_cases import POINTWISE, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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


PD502 = [
    RuleCase(
        "PD502",
        "two-convolutions",
        lambda: training(BEFORE_NORM, BEFORE_NORM),
        (
            ExpectedFinding(
                "medium",
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
                "medium",
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
        (ExpectedFinding("medium", 200_000, title="The bias of a convolution is added though"),),
    ),
    RuleCase(  # as PyTorch computes them without cuDNN
        "PD502",
        "instance-norms",
        lambda: training(("aten::batch_norm", "NativeBatchNormBackward0"), norm="aten::instance_norm"),
        (
            ExpectedFinding(
                "medium",
                200_000,
                title="The bias of a convolution",
                evidence={"adding biases per step": 100_000, "modules": None},
            ),
        ),
    ),
    RuleCase(  # of three convolutions one stands before a ReLU
        "PD502",
        "transposed-in-a-generator",
        lambda: training(BEFORE_NORM, BEFORE_RELU, BEFORE_NORM, bias_us=20, convolution="aten::conv_transpose2d"),
        (
            ExpectedFinding(
                "medium",
                80_000,
                (0, 80_000, 80_000),
                location="/home/me/model.py:7",
                title="Biases of 2 convolutions",
                advice="Leave the biases out (up, out): a batch norm",
            ),
        ),
        biases("up", "out"),
    ),
    RuleCase("PD502", "no-norm-follows", lambda: training(BEFORE_RELU, BEFORE_RELU)),
    RuleCase("PD502", "a-group-norm", lambda: training(BEFORE_NORM, norm="aten::group_norm")),
    RuleCase("PD502", "evaluation", lambda: training(BEFORE_NORM, has_gradients=False)),
    RuleCase(  # the gradient comes through another op: what follows the convolution is no norm that is trained
        "PD502", "the-gradient-of-another-op", lambda: training(("aten::batch_norm", "ReluBackward0"))
    ),
    RuleCase("PD502", "next-to-nothing", lambda: training(BEFORE_NORM, bias_us=8)),
]


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
    RuleCase(  # at most 41 % of 110 us, and half of that is low
        "PD501",
        "a-little-above-a-tenth",
        lambda: convolving(110, in_function=True),
        (
            ExpectedFinding(
                "low", 110_000, (0, None, 45_100), location="model.py:7", title="take 11% of the step", confidence=0.5
            ),
        ),
        flags(),
    ),
    RuleCase(  # the one on CUDA cores is PD203's
        "PD501",
        "beside-one-without-tensor-cores",
        lambda: convolving(400, second=SCUDNN),
        (ExpectedFinding("medium", 400_000, (0, None, 164_000), evidence={"convolutions per step": 1}),),
        flags(),
    ),
    RuleCase(
        "PD501",
        "two-convolutions-a-step",
        lambda: convolving(300, second=WGRAD),
        (
            ExpectedFinding(
                "medium",
                400_000,
                (0, None, 164_000),
                title="take 40% of the step",
                evidence={"convolutions per step": 2, "their time per step": 400_000},
            ),
        ),
        flags(),
    ),
    RuleCase(
        "PD501",
        "two-steps-on-volta",
        lambda: convolving(kernel=VOLTA_CONVOLUTION, blocks=(80, 80), device="Tesla V100-SXM2-16GB", capability=(7, 0)),
        (ExpectedFinding("medium", 500_000, (0, None, 205_000)),),
        flags(),
    ),
    RuleCase(  # a product whose grid changes is no convolution
        "PD501",
        "beside-products-of-other-shapes",
        lambda: convolving(300, second=TENSOR_GEMM, second_blocks=(8, 16, 32)),
        (ExpectedFinding("medium", 300_000, (0, None, 123_000), evidence={"convolutions per step": 1}),),
        flags(),
    ),
    RuleCase(  # 14.8 GFLOP take 115.678 us at 0.82 of 156 TFLOP/s: the rest of 130 us can go
        "PD501",
        "near-the-roofline",
        lambda: convolving(130, shapes=[[64, 64, 56, 56], [64, 64, 3, 3]]),
        (
            ExpectedFinding(
                "info", 130_000, (0, None, 14_322), evidence={"of it above the roofline, as far as known": 14_322}
            ),
        ),
        flags(),
    ),
    RuleCase(  # the CPU runs ahead: the first step has two of them, the sets of kernels are the same
        "PD501",
        "two-in-one-of-three-steps",
        lambda: convolving().op("aten::conv2d", 600, 20).kernel(CONVOLUTION, 620, 100, launch_us=605, grid=(64, 1, 1)),
        (ExpectedFinding("medium", 533_333, (0, None, 218_667), title="take 53% of the step"),),
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
