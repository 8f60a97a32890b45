"""Cases of the rules about parameters and their gradients: PD303, PD304, PD305."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory_programs import (
    CAST,
    FILL,
    FLOAT,
    FOREACH,
    FUSED_ADAM,
    GEMM,
    HALF,
    IMAGE,
    MUL,
    SCALAR,
    WEIGHT,
    Launch,
    program,
)
from rule_cases import POINTWISE, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

# --- PD303 ------------------------------------------------------------------------------------------------------------

ADAM, SGD = "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step"
PRIMITIVES = ("lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")


def foreach(us: float = 20) -> tuple[Launch, ...]:
    """A step of foreach Adam: seven passes, the longest twice as long as the others."""
    return tuple(
        Launch(FOREACH, us * (2 if name == "addcdiv_" else 1), (f"aten::_foreach_{name}",)) for name in PRIMITIVES
    )


def loop(tensors: int = 20, us: float = 5) -> tuple[Launch, ...]:
    """A step of SGD with momentum, tensor by tensor: a multiplication and two additions for each."""
    each = (
        Launch(MUL, us, ("aten::mul_",)),
        Launch(POINTWISE, us, ("aten::add_",)),
        Launch(POINTWISE, us, ("aten::add_",)),
    )
    return each * tensors


def two_optimizers() -> TraceBuilder:
    """AdamW with foreach for two groups of parameters, and SGD tensor by tensor; then a step without either."""
    trace = program(*foreach() * 2, range_name=ADAM)
    start = 400.0
    for row in range(96):
        trace.op("aten::mul_" if row % 3 else "aten::add_", 100 + 2 * row, 1.9)
        trace.kernel(
            MUL if row % 3 else POINTWISE, start, 5, correlation=trace.call("cudaLaunchKernel", 101 + 2 * row, 0.1)
        )
        start += 5
    trace.kernel(TENSOR_GEMM, 1200, 100, launch_us=1150)  # a step that does something else
    return trace.range(SGD, 100, 200).step(1000, 1000)


def on_cpu(large_us: float, small: int = 24) -> TraceBuilder:
    """A product, and Adam of a table that takes this time and of some biases that take 5 us an op."""
    trace = TraceBuilder(device=None)
    for start in (0, 1000):
        trace.step(start, 1000).op("aten::mm", start, 400)
        trace.range(ADAM, start + 410, small * 6 + large_us + 10)
        for row in range(small):
            trace.op("aten::addcmul_", start + 415 + 6 * row, 5)
        trace.op("aten::addcdiv_", start + 415 + 6 * small, large_us)
    return trace


PD303 = [
    RuleCase(
        "PD303",
        "one-large-table-among-biases-on-the-cpu",
        lambda: on_cpu(300),
        (ExpectedFinding("medium", 454_000, title="tensor by tensor: 25 ops", fix="fused=True"),),
    ),
    RuleCase("PD303", "a-few-small-tensors-on-the-cpu", lambda: on_cpu(5)),
    RuleCase(
        "PD303",
        "foreach",
        lambda: program(*foreach(), range_name=ADAM, frame="train.py(3): main"),
        (
            ExpectedFinding(
                "medium",
                160_000,
                (0, None, 120_000),  # all but the longest of the passes
                location="train.py:3",
                title="AdamW goes over the parameters 7 times with foreach: 7 kernels a step",
                fix="torch.optim.AdamW(..., fused=True)",
                evidence={"kernel time of the step": 160_000, "fused, as captured": None},
            ),
        ),
        via_file=True,
    ),
    RuleCase(  # the additions make two of the three passes
        "PD303",
        "tensor-by-tensor",
        lambda: program(*loop(), range_name=SGD),
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, None, 200_000),
                title="SGD goes over the parameters 3 times tensor by tensor: 60 kernels a step",
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "starved",
        lambda: program(*loop(us=2), range_name=SGD, late_launches=True),
        (
            ExpectedFinding(
                "medium",
                # 2 us of work and 10 of waiting for each of 60 kernels
                120_000 + 60 * 10_000,
                title="tensor by tensor",
                evidence={"kernel time of the step": 120_000, "GPU waits for its launches": 590_000},
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "custom-class",
        lambda: program(*loop(), range_name="Optimizer.step#Lion.step", steps=2),
        (
            ExpectedFinding(
                "medium", 300_000, (0, None, 200_000), fix="torch.compile(optimizer.step)", advice="foreach or fused"
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "as-captured",
        lambda: program(*foreach(10), range_name=ADAM),
        (ExpectedFinding("low", 80_000, (0, None, 60_000), evidence={"foreach, as captured": "yes"}),),
        {"optimizers": [{"class": "SGD", "fused": True}, {"class": "AdamW", "foreach": True, "fused": False}]},
    ),
    RuleCase(
        "PD303",
        "two-optimizers",
        two_optimizers,
        (ExpectedFinding("medium", 240_000, title="SGD"), ExpectedFinding("medium", 160_000, title="AdamW")),
    ),
    RuleCase(  # six groups of parameters: 42 kernels in the same seven passes
        "PD303",
        "groups-of-parameters",
        lambda: program(*foreach(5) * 6, range_name=ADAM),
        (ExpectedFinding("medium", 240_000, (0, None, 180_000), title="7 times with foreach: 42 kernels a step"),),
    ),
    RuleCase(  # one pass, but the GPU waits for each of its launches
        "PD303",
        "one-pass-starved",
        lambda: program(*[Launch(POINTWISE, 2, ("aten::add_",))] * 60, range_name=SGD, late_launches=True),
        (
            ExpectedFinding(
                "medium",
                120_000 + 60 * 10_000,
                (0, None, 590_000),
                title="SGD goes over the parameters tensor by tensor",
            ),
        ),
    ),
    RuleCase("PD303", "healthy", build_healthy_trace),
    RuleCase(
        "PD303", "fused", lambda: program(*[Launch(FUSED_ADAM, 80, ("aten::_fused_adamw_",))] * 6, range_name=ADAM)
    ),
    RuleCase("PD303", "compiled", lambda: program(*[Launch("triton_for_fused_1", 30)] * 7, range_name=ADAM)),
    RuleCase("PD303", "small-share", lambda: program(*foreach(1.5), range_name=ADAM)),
    RuleCase(
        "PD303",
        "fused-as-captured",
        lambda: program(*foreach(), range_name=ADAM),
        facts={"optimizers": [{"class": "AdamW", "fused": True}]},
    ),
    RuleCase(
        "PD303", "mostly-matrix-maths", lambda: program(*foreach(), GEMM, range_name="Optimizer.step#Shampoo.step")
    ),
    RuleCase(
        "PD303",
        "one-pass-of-few-tensors",
        lambda: program(*[Launch(POINTWISE, 2, ("aten::add_",))] * 24, range_name=SGD, late_launches=True),
    ),
    RuleCase("PD303", "outside-of-the-optimizer", lambda: program(*foreach(), range_name="backward")),
]

# --- PD304 ------------------------------------------------------------------------------------------------------------

ZERO_GRAD = "Optimizer.zero_grad#SGD.zero_grad"
FILLS = (Launch(FILL, 10, ("aten::zero_", "aten::fill_")),) * 12
ACCUMULATE_GRAD = ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "aten::add_")


def zeroing(*fills: Launch, adds: int = 0, rest_us: float = 0) -> TraceBuilder:
    """Fills within zero_grad; then additions by another thread in the backward pass; then products."""
    trace = program(*fills, range_name=ZERO_GRAD)
    start = sum(fill.dur_us for fill in fills)
    for row in range(adds):
        host = 300.0 + 4 * row
        trace.op(ACCUMULATE_GRAD[0], host, 3, 2).op(ACCUMULATE_GRAD[1], host + 0.5, 2, 2)
        trace.kernel(POINTWISE, start, 10, correlation=trace.call("cudaLaunchKernel", host + 1, 0.1, 2))
        start += 10
    return trace.kernel(TENSOR_GEMM, start, rest_us, launch_us=250) if rest_us else trace


PD304 = [
    RuleCase(
        "PD304",
        "fills-and-additions",
        lambda: zeroing(*FILLS, adds=12),
        (
            ExpectedFinding(
                "medium",
                240_000,
                (0, None, 240_000),
                title="filled with zeros: 12 fills a step",
                fix="set_to_none=True",
                evidence={"filling": 120_000, "adding to zeros": 120_000, "zero_grad(set_to_none=False) calls": None},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD304",
        "accumulated-over-two-passes",
        lambda: zeroing(*FILLS, adds=24),
        (ExpectedFinding("medium", 120_000, evidence={"adding to zeros": 0}),),
    ),
    RuleCase(
        "PD304",
        "memsets",
        lambda: zeroing(*[Launch("Memset", 2, ("aten::zero_",))] * 20, rest_us=100),
        (ExpectedFinding("low", 40_000),),
    ),
    RuleCase(
        "PD304",
        "foreach",
        lambda: zeroing(*[Launch(FOREACH, 1, ("aten::_foreach_zero_",))] * 12),
        (ExpectedFinding("info", 12_000, (0, None, 12_000)),),
    ),
    RuleCase(
        "PD304",
        "half-a-percent-and-captured",
        lambda: zeroing(*[replace(FILLS[0], dur_us=0.5)] * 10),
        (ExpectedFinding("info", 5_000, evidence={"zero_grad(set_to_none=False) calls": 10}),),
        {"zero_grad_to_zero": 10},
    ),
    RuleCase(  # fills of no length to speak of, for each of which the GPU waits
        "PD304",
        "starved",
        lambda: program(*[replace(FILLS[0], dur_us=0.2)] * 12, range_name=ZERO_GRAD, late_launches=True),
        (ExpectedFinding("medium", 2_400 + 11 * 10_000, evidence={"GPU waits for the fills": 110_000}),),
    ),
    RuleCase(  # one kernel fills them all
        "PD304",
        "foreach-starved",
        lambda: program(Launch(FOREACH, 1, ("aten::_foreach_zero_",)), range_name=ZERO_GRAD, late_launches=True),
    ),
    RuleCase("PD304", "healthy", build_healthy_trace),
    RuleCase("PD304", "less-than-half-a-percent", lambda: zeroing(*[replace(FILLS[0], dur_us=0.4)] * 12)),
    RuleCase("PD304", "few-tensors", lambda: zeroing(*FILLS[:9])),
    RuleCase("PD304", "fills-in-forward", lambda: program(*FILLS, range_name="forward")),
    RuleCase("PD304", "additions-without-fills", lambda: zeroing(adds=12)),
]

# --- PD305 ------------------------------------------------------------------------------------------------------------

MATRIX, BATCH = [1024, 512], [64, 512]


def cast(
    sizes: Sequence[int] = MATRIX,
    us: float = 20,
    to: str = HALF,
    source: str = FLOAT,
    outer_op: str = "aten::linear",
    inputs: Sequence[object] = (BATCH, MATRIX, [1024]),
) -> Launch:
    ops = (outer_op, "aten::to", "aten::_to_copy", "aten::copy_")
    return Launch(CAST, us, ops, [list(sizes), list(sizes), []], [to, source, SCALAR], outer_shapes=list(inputs))


GRADIENT_CAST = cast(to=FLOAT, source=HALF, outer_op="ToCopyBackward0", inputs=())
HALF_PRODUCT = Launch(TENSOR_GEMM, 100, ("aten::linear", "aten::addmm"))

PD305 = [
    RuleCase(
        "PD305",
        "inference",
        lambda: program(*(cast(), HALF_PRODUCT) * 6, frame="serve.py(5): answer"),
        (
            ExpectedFinding(
                "medium",
                120_000,
                (0, None, 120_000),
                location="serve.py:5",
                title="cast at every step: 6 casts a step",
                advice="leave autocast out",
                fix="model.to(torch.bfloat16)",
                evidence={"of weights": 120_000, "of their gradients": 0, "read and written": 6 * 6 * 1024 * 512},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD305",
        "training",
        lambda: program(*(cast(), HALF_PRODUCT) * 4, *[GRADIENT_CAST] * 4),
        (
            ExpectedFinding(
                "medium",
                160_000,
                advice="master weights",
                evidence={"of weights": 80_000, "of their gradients": 80_000},
            ),
        ),
    ),
    RuleCase(
        "PD305",
        "convolutions-and-biases",
        lambda: program(
            *(
                cast(size, outer_op="aten::conv2d", inputs=(IMAGE, WEIGHT, [64]))
                for size in (WEIGHT, [64], WEIGHT, [64], WEIGHT)
            ),
            HALF_PRODUCT,
        ),
        (ExpectedFinding("medium", 100_000),),
    ),
    RuleCase(
        "PD305",
        "two-percent",
        lambda: program(*[cast(us=4)] * 5, GEMM, steps=2),
        (ExpectedFinding("info", 20_000, title="5 casts a step"),),
    ),
    RuleCase(
        "PD305",
        "back-to-float32",
        lambda: program(*[cast(to=FLOAT, source=HALF, outer_op="aten::matmul", inputs=(BATCH, MATRIX))] * 8),
        (ExpectedFinding("medium", 160_000),),
    ),
    RuleCase("PD305", "healthy", build_healthy_trace),
    RuleCase("PD305", "casts-of-activations", lambda: program(*[cast(BATCH)] * 8)),
    RuleCase("PD305", "cast-by-the-program", lambda: program(*[cast(outer_op="forward", inputs=(MATRIX,))] * 8)),
    RuleCase("PD305", "integers", lambda: program(*[cast(source="long int")] * 8)),
    RuleCase(
        "PD305", "without-shapes", lambda: program(*[replace(cast(), shapes=None, types=None, outer_shapes=None)] * 8)
    ),
]
