"""Cases of rules about the ops of programs on the CPU alone: PD204, PD205, PD301, PD306, PD309."""

from __future__ import annotations

from collections.abc import Sequence

from rule_cases import POINTWISE

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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


PD204 = [
    RuleCase(
        "PD204",
        "data on the CPU",
        lambda: doubles(weights="float").build("train.py(3): main"),
        (
            ExpectedFinding(
                "medium",
                600_000,
                (0, 324_000, 450_000),  # of a product 0.58 goes, of tanh a half
                location="train.py:3",
                title="Ops compute in float64: 2 a step",
                fix="torch.from_numpy(array).float()",
                evidence={"in matrix products and convolutions": 300_000, "first float64 op": "aten::mm"},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD204",
        "a double model on the CPU",
        lambda: (
            doubles()
            .optimizer(ADAM, ("aten::_fused_adam_", 100, {"shapes": [[[256, 256]]], "types": ["TensorList"]}))
            .build()
        ),
        (
            ExpectedFinding(
                "medium",
                700_000,
                location="train.py:7",
                title="Ops compute in float64: 3 a step",
                advice="Leave the model in float32",
                evidence={"float64 comes from": "model"},
            ),
        ),
        sources("Module.double"),
    ),
    RuleCase(
        "PD204",
        "the default type on the CPU",
        lambda: doubles(us=50).build(),
        (
            ExpectedFinding(
                "medium",
                100_000,
                location="train.py:7",
                fix="set_default_dtype",
                evidence={"float64 comes from": "default type"},
            ),
        ),
        {"flags": {"default_dtype": "torch.float64"}, **sources("set_default_dtype", "Module.double")},
    ),
    RuleCase(  # the line alone says it; of a layer norm at best a half goes, as expected 0.15
        "PD204",
        "layer norms and a line that sets the default type on the CPU",
        lambda: Steps().op("aten::native_layer_norm", 400, ("double", (256, 256)), ("double", (256,))).build(),
        (
            ExpectedFinding(
                "medium",
                400_000,
                (0, 60_000, 200_000),
                location="train.py:7",
                evidence={"float64 comes from": "default type", "in matrix products and convolutions": 0},
            ),
        ),
        sources("set_default_dtype"),
    ),
    RuleCase(  # a twentieth of the step in a solver: of it a half goes, as of tanh
        "PD204",
        "a short solver on the CPU",
        lambda: doubles().op("aten::linalg_solve_ex", 50, ("double", (64, 64))).build(),
        (
            ExpectedFinding(
                "medium", 650_000, (0, 349_000, 487_500), title="3 a step", evidence={"float64 comes from": "model"}
            ),
        ),
    ),
    RuleCase(
        "PD204",
        "a convolution by Module.to on the CPU",
        lambda: doubles(product="aten::mkldnn_convolution", us=200).build(),
        (
            ExpectedFinding(
                "medium",
                400_000,
                (0, 234_000, 324_000),
                location="train.py:7",
                evidence={
                    "in matrix products and convolutions": 200_000,
                    "first float64 op": "aten::mkldnn_convolution",
                },
            ),
        ),
        sources("Module.to"),
    ),
    RuleCase("PD204", "float32 on the CPU", lambda: doubles("float").build()),
    RuleCase(
        "PD204",
        "Python numbers on the CPU",
        lambda: Steps().op("aten::mul", 500, ("float", (64, 64)), ("double", ())).build(),
    ),
    RuleCase(
        "PD204",
        "a cast to float32 on the CPU",
        lambda: Steps().op("aten::copy_", 500, ("float", (64, 64)), ("double", (64, 64))).build(),
    ),
    RuleCase("PD204", "a small share on the CPU", lambda: doubles(us=20).build()),
    RuleCase("PD204", "no types on the CPU", lambda: Steps().op("aten::mm", 500).build()),
    RuleCase(
        "PD204", "solvers on the CPU", lambda: doubles().op("aten::linalg_solve_ex", 150, ("double", (64, 64))).build()
    ),
    RuleCase("PD204", "LBFGS on the CPU", lambda: doubles().build(), facts={"optimizers": [{"class": "LBFGS"}]}),
    RuleCase(
        "PD204",
        "half of it on the CPU",
        lambda: (
            doubles(us=150, weights="float").op("aten::mm", 300, ("float", (256, 256)), ("float", (256, 256))).build()
        ),
        (ExpectedFinding("medium", 300_000, (0, 162_000, 225_000)),),
    ),
]

# --- PD205 ------------------------------------------------------------------------------------------------------------

SCORES = (8, 384, 384)


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


PD205 = [
    RuleCase(
        "PD205",
        "written out on the CPU",
        attention,
        (
            ExpectedFinding(
                "medium",
                400_000,
                (0, 200_000, 300_000),  # less 1.5, 1.0 and 0.5 times the products
                location="gpt.py:12",
                title="product, softmax and product over a sequence of 384",
                fix="scaled_dot_product_attention",
                evidence={"all but the products": 200_000, "attentions and their backward passes": 1},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD205",
        "written out on the CPU, with its backward pass",
        lambda: attention(backward=True),
        (ExpectedFinding("medium", 650_000, (0, 190_000, 450_000), location="gpt.py:12"),),
    ),
    RuleCase(
        "PD205",
        "two layers on the CPU",
        lambda: attention(layers=2),
        (
            ExpectedFinding(
                "medium",
                800_000,
                (0, 400_000, 600_000),
                location="gpt.py:12",
                evidence={"attentions and their backward passes": 2, "all but the products": 400_000},
            ),
        ),
    ),
    RuleCase(
        "PD205",
        "just long enough on the CPU",
        lambda: attention(256),
        (ExpectedFinding("medium", 400_000, location="gpt.py:12", title="over a sequence of 256", confidence=0.8),),
    ),
    RuleCase("PD205", "short on the CPU", lambda: attention(128)),
    RuleCase("PD205", "in bfloat16 on the CPU", lambda: attention(kind="c10::BFloat16")),
    RuleCase("PD205", "with dropout on the CPU", lambda: attention(dropout=True)),
    RuleCase("PD205", "fell back on the CPU", lambda: attention(outer="aten::scaled_dot_product_attention")),
]

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


PD301 = [
    RuleCase(
        "PD301",
        "GELU by tanh on the CPU",
        lambda: formula(*BY_TANH),
        (
            ExpectedFinding(
                "medium",
                400_000,
                (0, 280_000, 340_000),
                location="ffn.py:4",
                title="GELU is computed op by op: once a step",
                fix="torch.nn.functional.gelu",
                evidence={"costliest chain": " > ".join(BY_TANH)},
            ),
        ),
    ),
    RuleCase(
        "PD301",
        "GELU by erf on the CPU, with its backward pass",
        lambda: formula(*BY_ERF, backward_us=50),
        (ExpectedFinding("medium", 500_000, (0, 350_000, 425_000), location="ffn.py:4"),),
    ),
    RuleCase(
        "PD301",
        "two of them on the CPU",
        lambda: formula(*BY_ERF, "relu", *BY_ERF),
        (ExpectedFinding("medium", 500_000, location="ffn.py:4", title="2 times a step"),),
    ),
    RuleCase(  # x * x * x in place of a power
        "PD301",
        "GELU by products and tanh on the CPU",
        lambda: formula(*BY_PRODUCTS),
        (
            ExpectedFinding(
                "medium",
                450_000,
                (0, 315_000, 382_500),
                location="ffn.py:4",
                evidence={"costliest chain": "mul > mul > mul > mul > add > mul > tanh > add > mul"},
            ),
        ),
    ),
    RuleCase(  # a view is no part of it, and ends nothing
        "PD301",
        "GELU in place with a view on the CPU",
        lambda: formula("div", "view", "erf", "add_", "mul_", "mul"),
        (
            ExpectedFinding(
                "medium",
                250_000,
                (0, 175_000, 212_500),
                location="ffn.py:4",
                evidence={"costliest chain": "div > erf > add_ > mul_ > mul"},
            ),
        ),
    ),
    # Of 2 x (110 + 100) us a step 0.85 may go. A row has 256 bytes: 4,096 of them are 1 MB.
    RuleCase(
        "PD301",
        "passes over large tensors on the CPU",
        lambda: layers([400_400, 64]).build("model.py(7): forward"),
        (
            ExpectedFinding(
                "medium",
                420_000,
                (0, None, 357_000),
                location="model.py:7",
                title="Tensors of 103 MB pass through memory op by op, most in copy_: 4 times a step",
                fix="x.split(4096)",
            ),
        ),
    ),
    RuleCase(
        "PD301",
        "passes over wide rows on the CPU",
        lambda: layers([65_536, 1024]).build("model.py(7): forward"),
        (ExpectedFinding("medium", 420_000, location="model.py:7", title="Tensors of 268 MB", fix="x.split(256)"),),
    ),
    RuleCase(
        "PD301",
        "passes in half precision on the CPU",
        lambda: layers([800_800, 64], dtype="c10::BFloat16").build("model.py(7): forward"),
        (ExpectedFinding("medium", 420_000, location="model.py:7", title="Tensors of 103 MB", fix="x.split(8192)"),),
    ),
    RuleCase(
        "PD301",
        "passes of element-wise ops on the CPU",
        lambda: layers([400_400, 64], "mul").build("model.py(7): forward"),
        (ExpectedFinding("medium", 420_000, location="model.py:7", title="most in copy_: 4 times a step"),),
    ),
    RuleCase("PD301", "passes over what a cache holds on the CPU", lambda: layers([200_000, 64]).build()),
    RuleCase("PD301", "passes over a few large rows on the CPU", lambda: layers([8, 3_203_200]).build()),
    RuleCase("PD301", "passes between convolutions on the CPU", lambda: layers([400_400, 64], "conv2d").build()),
    RuleCase(
        "PD301",
        "passes of training on the CPU",
        lambda: layers([400_400, 64]).op(f"{BACKWARD}ReluBackward0").optimizer(ADAM, ("aten::add_", 50, {})).build(),
    ),
    RuleCase("PD301", "functional.gelu on the CPU", lambda: formula("gelu")),
    RuleCase("PD301", "a gate by tanh on the CPU", lambda: formula("mul", "tanh", "mul", "add")),
    RuleCase("PD301", "other chains on the CPU", lambda: formula("mul", "add", "div", "sub", "mul", "add")),
    RuleCase("PD301", "a small share on the CPU", lambda: formula(*BY_TANH, us=5)),
    RuleCase("PD301", "a long chain with an erf on the CPU", lambda: formula(*["mul"] * 12, *BY_ERF, us=20)),
]

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


PD306 = [
    RuleCase(
        "PD306",
        "contiguous on the CPU",
        lambda: copying("aten::contiguous"),
        (
            ExpectedFinding(
                "medium",
                150_000,
                (0, None, 150_000),
                location="net.py:9",
                title="1 copies of tensors a step, most of their time in contiguous",
                evidence={"contiguous": 150_000},
            ),
        ),
    ),
    RuleCase(
        "PD306",
        "reshape in a module's op on the CPU",
        lambda: copying("aten::reshape", 400, around="mine::attend"),
        (ExpectedFinding("medium", 400_000, title="reshape in mine::attend", location="net.py:9"),),
    ),
    RuleCase(
        "PD306",
        "repeat on the CPU",
        lambda: copying("aten::repeat"),
        (ExpectedFinding("medium", 150_000, location="net.py:9", title="in repeat", advice="Use expand"),),
    ),
    RuleCase(  # cat moves the numbers itself
        "PD306",
        "stack and cat on the CPU",
        lambda: copying("aten::stack", 200, inner="aten::cat"),
        (
            ExpectedFinding(
                "medium",
                200_000,
                location="net.py:9",
                title="1 copies of tensors a step, most of their time in stack",
                advice="preallocated",
                evidence={"stack": 200_000},
            ),
        ),
    ),
    RuleCase(
        "PD306",
        "clone on the CPU",
        lambda: copying("aten::clone"),
        (ExpectedFinding("medium", 150_000, location="net.py:9", title="in clone"),),
    ),
    RuleCase("PD306", "reshape in matmul on the CPU", lambda: copying("aten::reshape", 400, around="aten::matmul")),
    RuleCase("PD306", "a cast on the CPU", lambda: copying("aten::_to_copy")),
    RuleCase(
        "PD306",
        "within a convolution on the CPU",
        lambda: copying("aten::contiguous", around="aten::convolution_backward"),
    ),
    RuleCase("PD306", "a small share on the CPU", lambda: copying("aten::contiguous", 40)),
    RuleCase("PD306", "a gradient that is kept on the CPU", lambda: copying("aten::clone", around=ACCUMULATE)),
]

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


PD309 = [
    RuleCase(
        "PD309",
        "fused Adam on the CPU",
        recommender,
        (
            ExpectedFinding(
                "medium",
                520_000,  # of the optimizer four fifths
                (0, 156_160, 338_080),  # less twice, once and half of 0.2 ms and 20 ns for each of 8,192 numbers
                location="rec.py:5",
                title="An embedding of 200,000 rows gets dense gradients, and a step looks up at most 512 of them",
                fix="sparse=True",
                advice="SparseAdam",
                evidence={
                    "making their gradients": 200_000,
                    "their part of the optimizer": 320_000,
                    "optimizer": "Adam",
                },
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD309",
        "SGD tensor by tensor on the CPU",
        lambda: recommender(optimizer="SGD", fused=False),
        (
            ExpectedFinding(
                "medium", 500_000, (0, 379_520, 439_760), location="rec.py:5", advice="with the same results"
            ),
        ),
    ),
    RuleCase(
        "PD309",
        "where the table is made, as captured",
        lambda: recommender(optimizer="Adagrad"),
        (ExpectedFinding("medium", 520_000, location="train.py:31", advice="Adagrad without weight decay"),),
        {
            "models": [
                {
                    "class": "Net",
                    "embeddings": [
                        {"name": "items", "num_embeddings": 50, "embedding_dim": 16, "created": place(30)},
                        {"name": "users", "num_embeddings": 200_000, "embedding_dim": 16, "created": place(31)},
                    ],
                }
            ]
        },
    ),
    RuleCase(
        "PD309",
        "clipped gradients on the CPU",
        recommender,
        (ExpectedFinding("medium", 520_000, location="rec.py:5", advice="leave it out of the clipping"),),
        {"amp": {"clipped": 20}},
    ),
    RuleCase(
        "PD309",
        "on a GPU",
        gpu_recommender,
        (ExpectedFinding("medium", 400_000, (0, None, 398_976), fix="sparse=True"),),
    ),
    RuleCase(
        "PD309",
        "two tables of one size",
        lambda: recommender(62_500, 3_000, "SGD", gradient_us=150, lookups=2, tables=2),
        (
            ExpectedFinding(
                "medium",
                655_556,
                location="rec.py:5",
                title="a step looks up at most 3,000 of them",
                evidence={"such embeddings": 2},
            ),
        ),
    ),
    RuleCase(
        "PD309", "one table looked up twice", lambda: recommender(62_500, 3_000, "SGD", gradient_us=150, lookups=2)
    ),
    RuleCase("PD309", "a small table on the CPU", lambda: recommender(50_000)),
    RuleCase("PD309", "many rows looked up on the CPU", lambda: recommender(looked_up=16_000)),
    RuleCase("PD309", "tied weights on the CPU", lambda: recommender(product=(16, 200_000))),
    RuleCase("PD309", "a small share on the CPU", lambda: recommender(gradient_us=5, fused=False, optimizer="Adam")),
    RuleCase("PD309", "a small table on a GPU", lambda: gpu_recommender(20_000)),
]
