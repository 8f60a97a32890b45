"""Cases of the rules about pointwise work and copies: PD301, PD302, PD306."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory_programs import (
    AMD_TRANSPOSE,
    BIG,
    CAST,
    CAT,
    CONVOLUTION,
    COPY,
    FLOAT,
    GELU,
    GEMM,
    HALF,
    IM2COL,
    IMAGE,
    MEAN,
    MI300X,
    MUL,
    NORM,
    SCALAR,
    TO_NCHW,
    TO_NHWC,
    TRITON,
    WEIGHT,
    Launch,
    program,
)
from rule_cases import POINTWISE, TENSOR_GEMM

from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

# --- PD301 ------------------------------------------------------------------------------------------------------------


def pointwise(name: str = "add", kernel: str = POINTWISE, size: Sequence[int] | None = None, us: float = 100) -> Launch:
    """One pointwise kernel of two inputs; with sizes if given."""
    shapes = None if size is None else [list(size), list(size)]
    return Launch(kernel, us, (f"aten::{name}",), shapes, None if size is None else [FLOAT, FLOAT])


CHAIN = (pointwise("add"), pointwise("mul", MUL), pointwise("gelu", GELU))
SIZED_CHAIN = (pointwise("add", size=BIG), pointwise("mul", MUL, BIG), pointwise("div", MUL, BIG))

PD301 = [
    RuleCase(
        "PD301",
        "three-without-shapes",
        lambda: program(*CHAIN, GEMM, frame="model.py(7): forward"),
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, None, 200_000),  # the fused kernel takes as long as the longest of the three
                location="model.py:7",
                title="3 pointwise kernels a step run in chains",
                fix="torch.compile",
                confidence=0.5,
                evidence={
                    "costliest chain": "add > mul > gelu",
                    "chains per step": 1,
                    "intermediates written and read per step": None,
                },
            ),
        ),
        via_file=True,
    ),
    # Each moves 3 x 64 MiB; of 9 tensors the two intermediates are written once and read once: 4/9 of the time.
    RuleCase(
        "PD301",
        "three-with-shapes",
        lambda: program(*SIZED_CHAIN, GEMM),
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, None, 133_333),
                confidence=0.8,
                evidence={"intermediates written and read per step": 4 * 4 * 4096 * 4096},
            ),
        ),
    ),
    RuleCase(
        "PD301",
        "through-reductions-and-tiny-kernels",
        lambda: program(
            *CHAIN[:2], Launch(MEAN, 50, ("aten::mean",)), Launch(POINTWISE, 2, ("aten::add",)), CHAIN[2], steps=2
        ),
        (ExpectedFinding("medium", 300_000, (0, None, 200_000), evidence={"chains per step": 1}),),
    ),
    RuleCase(
        "PD301",
        "casts-of-activations-count",
        lambda: program(
            Launch(CAST, 100, ("aten::to", "aten::_to_copy", "aten::copy_"), [BIG, BIG, []], [FLOAT, HALF, SCALAR]),
            *SIZED_CHAIN[1:],
        ),
        (ExpectedFinding("medium", 300_000, evidence={"costliest chain": "copy_ > mul > div"}),),
    ),
    RuleCase(  # a chain lies on one stream: kernels of another stream do not end it
        "PD301",
        "other-stream-in-between",
        lambda: program(CHAIN[0], replace(GEMM, stream=20), *CHAIN[1:]),
        (ExpectedFinding("medium", 300_000, (0, None, 200_000)),),
    ),
    RuleCase(
        "PD301",
        "costliest-of-two-chains",
        lambda: program(*CHAIN, GEMM, pointwise("sub"), pointwise("pow", MUL), pointwise("exp", GELU, us=90)),
        (ExpectedFinding("medium", 590_000, evidence={"costliest chain": "add > mul > gelu", "chains per step": 2}),),
    ),
    RuleCase(
        "PD301",
        "three-steps",
        lambda: program(*CHAIN, steps=3),
        (ExpectedFinding("medium", 300_000, (0, None, 200_000)),),
    ),
    RuleCase(
        "PD301",
        "unknown-device",
        lambda: program(*SIZED_CHAIN, device=None),
        (ExpectedFinding("medium", 300_000, (0, None, 133_333)),),
    ),
    RuleCase("PD301", "healthy", build_healthy_trace),
    RuleCase("PD301", "two-kernels", lambda: program(*CHAIN[:2], GEMM, *CHAIN[1:])),
    RuleCase(
        "PD301",
        "norm-in-between",
        lambda: program(*CHAIN[:2], Launch(NORM, 50, ("aten::native_layer_norm",)), CHAIN[2]),
    ),
    RuleCase("PD301", "bound-by-latency", lambda: program(*(replace(launch, dur_us=4) for launch in CHAIN * 9))),
    RuleCase(
        "PD301",
        "compiled",
        lambda: program(*(replace(launch, ops=("Torch-Compiled Region: 0/0", *launch.ops)) for launch in CHAIN)),
    ),
    RuleCase("PD301", "generated", lambda: program(*(Launch(TRITON, 100, (f"triton_poi_{i}",)) for i in range(3)))),
    RuleCase("PD301", "loop-over-tensors", lambda: program(*[pointwise("mul", MUL)] * 8)),
    RuleCase(
        "PD301",
        "sizes-that-differ",
        lambda: program(SIZED_CHAIN[0], pointwise("mul", MUL, [512, 512]), pointwise("div", POINTWISE, [2048, 8])),
    ),
]
# --- PD302 ------------------------------------------------------------------------------------------------------------

NCHW, NHWC = [64 * 56 * 56, 56 * 56, 56, 1], [64 * 56 * 56, 1, 56 * 64, 64]


def convolution(kernel: str, us: float, strides: Sequence[int] = NCHW, op: str = "cudnn_convolution") -> Launch:
    return Launch(
        kernel,
        us,
        ("aten::conv2d", "aten::convolution", f"aten::{op}"),
        [IMAGE, WEIGHT],
        [FLOAT, FLOAT],
        [list(strides), [576, 9, 3, 1]],
    )


CONVERTED_CONVOLUTION = (convolution(TO_NHWC, 60), convolution(CONVOLUTION, 300), convolution(TO_NCHW, 40))

PD302 = [
    RuleCase(
        "PD302",
        "cudnn",
        lambda: program(*CONVERTED_CONVOLUTION, frame="model.py(9): forward"),
        (
            ExpectedFinding(
                "medium",
                100_000,
                (0, None, 100_000),
                location="model.py:9",
                title="another layout: 2 copies a step",
                fix="channels_last",
                confidence=0.8,
                evidence={"convolutions themselves": 300_000, "inputs that are channels_last": 0, TO_NHWC: 60_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD302",
        "miopen",
        lambda: program(
            *(convolution(name, 50, op="miopen_convolution") for name in (AMD_TRANSPOSE, CONVOLUTION, AMD_TRANSPOSE)),
            device=MI300X,
        ),
        (ExpectedFinding("medium", 100_000, advice="PYTORCH_MIOPEN_SUGGEST_NHWC=1"),),
    ),
    RuleCase(
        "PD302",
        "gpu-events-only",
        lambda: program(Launch(TO_NHWC, 60), Launch(CONVOLUTION, 300), steps=2),
        (ExpectedFinding("low", 60_000, evidence={"inputs that are channels_last": None}),),
    ),
    RuleCase(
        "PD302",
        "copy-by-a-convolution",
        lambda: program(
            Launch(COPY, 50, ("aten::cudnn_convolution", "aten::contiguous", "aten::clone", "aten::copy_")),
            CONVERTED_CONVOLUTION[1],
        ),
        (ExpectedFinding("low", 50_000),),
    ),
    RuleCase(
        "PD302",
        "weights-only",
        lambda: program(convolution(TO_NHWC, 60, NHWC), convolution(CONVOLUTION, 300, NHWC)),
        (ExpectedFinding("low", 60_000, advice="Bring the weights", evidence={"inputs that are channels_last": 100}),),
    ),
    RuleCase("PD302", "healthy", build_healthy_trace),
    RuleCase("PD302", "first-layer-only", lambda: program(convolution(TO_NHWC, 10), *[CONVERTED_CONVOLUTION[1]] * 3)),
    RuleCase("PD302", "unfolding", lambda: program(convolution(IM2COL, 100), CONVERTED_CONVOLUTION[1])),
    RuleCase("PD302", "transpose-beside-products", lambda: program(Launch(AMD_TRANSPOSE, 100, ("aten::mm",)), GEMM)),
    RuleCase("PD302", "no-convolutions", lambda: program(Launch(AMD_TRANSPOSE, 100), Launch(TENSOR_GEMM, 300))),
]

# --- PD306 ------------------------------------------------------------------------------------------------------------

CONTIGUOUS = ("aten::contiguous", "aten::clone", "aten::copy_")


def copies(ops: tuple[str, ...], count: int = 4, us: float = 30, kernel: str = COPY) -> tuple[Launch, ...]:
    return (Launch(kernel, us, ops, [BIG, BIG, []], [FLOAT, FLOAT, SCALAR]),) * count


PD306 = [
    RuleCase(
        "PD306",
        "contiguous",
        lambda: program(*copies(CONTIGUOUS), GEMM, frame="attention.py(31): forward"),
        (
            ExpectedFinding(
                "medium",
                120_000,
                (0, None, 120_000),
                location="attention.py:31",
                title="4 copies of tensors a step, most of their time in contiguous",
                advice="transposed views",
                confidence=0.6,
                evidence={"contiguous": 120_000, COPY: 120_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD306",
        "reshape-in-a-product",
        lambda: program(*copies(("aten::matmul", "aten::reshape", "aten::clone", "aten::copy_")), steps=2),
        (ExpectedFinding("medium", 120_000, title="in reshape in matmul"),),
    ),
    RuleCase(
        "PD306",
        "concatenation",
        lambda: program(*copies(("aten::cat",), kernel=CAT), *copies(CONTIGUOUS, 1)),
        (
            ExpectedFinding(
                "medium",
                150_000,
                title="in cat",
                advice="preallocated",
                evidence={"cat": 120_000, "contiguous": 30_000},
            ),
        ),
    ),
    RuleCase(
        "PD306",
        "repeat",
        lambda: program(*copies(("aten::repeat", "aten::copy_"))),
        (ExpectedFinding("medium", 120_000, advice="expand"),),
    ),
    RuleCase(
        "PD306",
        "copies-of-the-driver",
        lambda: program(*copies(("aten::clone", "aten::copy_"), 2, kernel="Memcpy DtoD (Device -> Device)"), GEMM),
        (ExpectedFinding("low", 60_000, title="in clone"),),
    ),
    RuleCase("PD306", "healthy", build_healthy_trace),
    RuleCase("PD306", "four-percent", lambda: program(*copies(CONTIGUOUS, us=10), GEMM)),
    RuleCase(
        "PD306", "packed-for-a-collective", lambda: program(*copies(("All2All_Pooled_Wait", "aten::cat"), kernel=CAT))
    ),
    RuleCase("PD306", "compiled", lambda: program(*copies(("Torch-Compiled Region: 0/0", *CONTIGUOUS)))),
    RuleCase("PD306", "beside-a-convolution", lambda: program(*copies(("aten::cudnn_convolution", *CONTIGUOUS)))),
]
