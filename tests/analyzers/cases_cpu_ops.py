"""Cases of rules about the ops of programs on the CPU alone: PD204, PD205, PD301, PD306, PD309."""

from __future__ import annotations

from collections.abc import Sequence

from rule_cases import POINTWISE

from perfdoctor.testing import TraceBuilder

STEP_US = 1000
BACKWARD = "autograd::engine::evaluate_function: "
ADAM = "Optimizer.step#Adam.step"
Tensor = Sequence[int]


class Steps:
    """Two equal steps on the CPU, op after op; the second one like the first."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float, dict[str, object]]] = []
        self.ranges: list[tuple[str, int, int]] = []

    def op(self, name: str, us: float = 100, *tensors: tuple[str, Tensor], **options: object) -> Steps:
        """An op on tensors of (type, sizes)."""
        if tensors:
            options |= {"shapes": [list(sizes) for _, sizes in tensors], "types": [kind for kind, _ in tensors]}
        self.calls.append((name, us, options))
        return self

    def optimizer(self, name: str, *ops: tuple[str, float, dict[str, object]]) -> Steps:
        """An optimizer's step around some ops."""
        self.ranges.append((name, len(self.calls), len(self.calls) + len(ops)))
        self.calls += ops
        return self

    def build(self, frame: str | None = None) -> TraceBuilder:
        """The trace; `frame` is the Python function that calls everything."""
        trace = TraceBuilder(device=None)
        for step in range(2):
            start = at = float(step * STEP_US)
            begins = []
            for name, us, options in self.calls:
                begins.append(at)
                trace.op(name, at, us, **options)  # type: ignore[arg-type]
                at += us
            begins.append(at)
            for name, first, last in self.ranges:
                trace.range(name, begins[first], begins[last] - begins[first])
            trace.step(start, STEP_US)
        if frame is not None:
            trace.frame(frame, 0, 2 * STEP_US)
        return trace


# --- PD204 ------------------------------------------------------------------------------------------------------------

ACCUMULATE = "torch::autograd::AccumulateGrad"


def doubles(kind: str = "double", product: str = "aten::mm", us: float = 300, weights: str | None = None) -> Steps:
    """A product, an element-wise op and the gradient of a weight."""
    steps = Steps().op(product, us, (kind, (256, 256)), (kind, (256, 256))).op("aten::tanh", us, (kind, (256, 256)))
    return steps.op(ACCUMULATE, 1, (weights or kind, (256, 256)))


def place(line: int) -> dict[str, object]:
    return {"file": "train.py", "line": line, "function": "main"}


def sources(*calls: str) -> dict[str, object]:
    return {"float64_sources": [{"call": call, "location": place(7 + row)} for row, call in enumerate(calls)]}


# --- PD205 ------------------------------------------------------------------------------------------------------------


def attention(
    length: int = 384,
    kind: str = "float",
    dropout: bool = False,
    backward: bool = False,
    outer: str = "",
    layers: int = 1,
) -> TraceBuilder:
    """Product, scaling, softmax, product of 100 us each, and with `backward` its five of the backward pass."""
    queries, keys, scores = (8, length, 16), (8, 16, length), (8, length, length)
    steps = Steps()
    for _ in range(layers):
        steps.op("aten::bmm", 100, (kind, queries), (kind, keys)).op("aten::mul", 100, (kind, scores))
        if dropout:
            steps.op("aten::native_dropout", 50, (kind, scores))
        steps.op("aten::_softmax", 100, (kind, scores)).op("aten::bmm", 100, (kind, scores), (kind, queries))
    if backward:
        for name in ("bmm", "bmm", "_softmax_backward_data", "bmm", "bmm"):
            steps.op(f"aten::{name}", 50, (kind, scores), (kind, scores))
    trace = steps.build("gpt.py(12): attend")
    return trace.op(outer, 0, 400).op(outer, STEP_US, 400) if outer else trace


# --- PD301 ------------------------------------------------------------------------------------------------------------

BY_TANH = ("mul", "pow", "mul", "add", "mul", "tanh", "add", "mul")
BY_PRODUCTS = ("mul", "mul", "mul", "mul", "add", "mul", "tanh", "add", "mul")
BY_ERF = ("div", "erf", "add", "mul", "mul")
SIZE = (512, 256)


def formula(*names: str, us: float = 50, backward_us: float = 0) -> TraceBuilder:
    """Pointwise ops between two products, and of each its node of the backward pass."""
    steps = Steps().op("aten::addmm", 50, ("float", SIZE), ("float", SIZE))
    for row, name in enumerate(names):
        steps.op(f"aten::{name}", us, ("float", SIZE), ("float", SIZE), sequence=10 + row)
    steps.op("aten::addmm", 50, ("float", SIZE), ("float", SIZE))
    if backward_us:
        for row, name in reversed(list(enumerate(names))):
            steps.op(f"{BACKWARD}{name.title()}Backward0", backward_us, sequence=10 + row)
    return steps.build("ffn.py(4): gelu")


def layers(sizes: Tensor, product: str = "addmm", dtype: str = "float") -> Steps:
    """Two layers of a product, its bias and a relu on a tensor, and ops that make a pass out of them."""
    steps = Steps()
    for _ in range(2):
        steps.op(f"aten::{product}").op("aten::copy_", 110, (dtype, sizes), (dtype, sizes))
        steps.op("aten::clamp_min", 100, (dtype, sizes)).op("aten::t", 2).op("aten::view", 2).op("aten::detach", 2)
    return steps


# --- PD306 ------------------------------------------------------------------------------------------------------------


def copying(outer: str, us: float = 150, around: str = "", inner: str = "aten::copy_") -> TraceBuilder:
    """A product, and an op that copies by an inner one; `around` is an op around it."""
    trace = TraceBuilder(device=None)
    for start in (0, STEP_US):
        trace.step(start, STEP_US).op("aten::mm", start, 500)
        if around:
            trace.op(around, start + 500, us + 2)
        trace.op(outer, start + 501, us).op(inner, start + 501, us)
    trace.frame("net.py(9): forward", 0, 2 * STEP_US)
    return trace


# --- PD309 ------------------------------------------------------------------------------------------------------------


def recommender(
    rows: int = 200_000,
    looked_up: int = 512,
    optimizer: str = "Adam",
    fused: bool = True,
    gradient_us: float = 200,
    product: Tensor = (512, 64),
    lookups: int = 1,
    tables: int = 1,
) -> TraceBuilder:
    """Lookups, a product, the dense gradient of each, and the optimizer: a fifth of its numbers are others'."""
    table, weight = [rows, 16], [rows // 4, 16, 1]
    steps = Steps()
    for _ in range(lookups):
        steps.op("aten::embedding", 20, ("float", table), ("long int", (looked_up,)))
    steps.op("aten::mm", 200, ("float", product), ("float", (64, 64)))
    for _ in range(lookups):
        steps.op(
            "aten::embedding_dense_backward",
            gradient_us,
            ("float", (looked_up, 16)),
            ("long int", (looked_up,)),
            ("Scalar", ()),
            concrete=["", "", str(rows)],
        )
    name = f"Optimizer.step#{optimizer}.step"
    if fused:
        steps.optimizer(
            name,
            (
                f"aten::_fused_{optimizer.lower()}_",
                400,
                {"shapes": [[table] * tables + [weight]], "types": ["TensorList"]},
            ),
        )
    else:
        ops = [("aten::add_", us, {"shapes": [size], "types": ["float"]}) for size, us in ((table, 300), (weight, 100))]
        steps.optimizer(name, *ops)
    return steps.build("rec.py(5): forward")


def gpu_recommender(rows: int = 200_000) -> TraceBuilder:
    """The gradient's kernels on a GPU, launched within the op."""
    shapes = [[512, 16], [512], [], [], []]
    trace = TraceBuilder().step(0, 1000)
    trace.op(
        "aten::embedding_dense_backward",
        0,
        20,
        shapes=shapes,
        types=["float", "long int", "Scalar", "Scalar", "Scalar"],
        concrete=["", "", str(rows), "-1", "False"],
    )
    trace.op("aten::zero_", 2, 8).kernel("fill_kernel", 30, 300, launch_us=3)
    trace.kernel("embedding_backward_kernel", 330, 100, launch_us=12)
    trace.call("cudaStreamSynchronize", 540, 400)
    return trace.op("aten::relu", 500, 20).kernel(POINTWISE, 530, 100, launch_us=502)
