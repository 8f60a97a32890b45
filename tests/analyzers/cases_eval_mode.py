"""Cases of PD519: models that infer in training mode."""

from __future__ import annotations

from collections.abc import Callable

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

_SHAPE = [8, 64, 56, 56]
_NAME_OF_ANALYSIS = "batch norm computes statistics"


def model(
    norms: int = 0,
    dropouts: int = 0,
    device: str | None = None,
    norm: Callable[[TraceBuilder, float], object] | None = None,
    drop: Callable[[TraceBuilder, float], object] | None = None,
) -> TraceBuilder:
    """A pass of 1 ms: ten products of 20 us, then norms of 50 us, then dropouts of 50 us, each 60 us after the last."""
    trace = TraceBuilder(device=device).step(0, 1000)
    for index in range(10):
        trace.op("aten::mm", 1 + 22 * index, 20)
        if device:
            trace.kernel("gemm", 5 + 22 * index, 20, launch_us=2 + 22 * index)
    for index in range(norms + dropouts):
        add = norm if index < norms else drop
        assert add is not None
        add(trace, 230 + 60 * index)
    return trace


def batch_norm(*, trains: bool, keeps: bool = True, wrapped: str = "") -> Callable[[TraceBuilder, float], object]:
    """A batch norm on the CPU whose arguments were recorded."""
    running = [64] if keeps else []

    def add(trace: TraceBuilder, at: float) -> None:
        values = ["", "", "", "", "", str(trains), "0.1", "1e-05", "True"]
        shapes: list[object] = [_SHAPE, [64], [64], running, running, [], [], [], []]
        types = ["float", "float", "float", *(["float"] * 2 if keeps else ["", ""]), *["Scalar"] * 4]
        if wrapped:
            trace.op(wrapped, at - 1, 53)
        trace.op("aten::batch_norm", at, 50, shapes=shapes, types=types, concrete=values)
        trace.op("aten::native_batch_norm", at + 1, 48, shapes=shapes[:8], types=types[:8], concrete=values[:8])

    return add


def norm_on_gpu(kernels: tuple[str, ...], *, counts: bool = True, adds: str = "") -> Callable[..., object]:
    """A batch norm on a GPU of which no arguments were recorded, each of its kernels 10 us."""

    def add(trace: TraceBuilder, at: float) -> None:
        if counts:
            trace.op("aten::add_", at - 8, 6).kernel("add_long", at - 4, 2, launch_us=at - 7)
        if adds:
            trace.op("aten::instance_norm", at - 1, 45)
        trace.op("aten::batch_norm", at, 40).op("aten::cudnn_batch_norm", at + 1, 38)
        for index, name in enumerate(kernels):
            trace.kernel(name, at + 6 + 12 * index, 10, launch_us=at + 2 + 12 * index)

    return add


def dropout(
    inner: str = "aten::native_dropout", outer: str = "aten::dropout", value: str = ""
) -> Callable[..., object]:
    """A dropout on the CPU, whose inner op draws; without one it passes its input on."""

    def add(trace: TraceBuilder, at: float) -> None:
        trace.op(outer, at, 50)
        recorded = [["", "0.1", value]] if value else [None]
        if inner:
            for concrete in recorded:
                shapes: list[object] | None = [_SHAPE, [], []] if concrete else None
                types = ["float", "Scalar", "Scalar"] if concrete else None
                trace.op(inner, at + 1, 48, shapes=shapes, types=types, concrete=concrete)

    return add


def dropout_on_gpu(trace: TraceBuilder, at: float) -> None:
    """A dropout on a GPU, of one kernel of 30 us."""
    trace.op("aten::dropout", at, 20).op("aten::native_dropout", at + 1, 18)
    trace.kernel("fused_dropout_kernel_vec", at + 5, 30, launch_us=at + 3)


NATIVE = ("batch_norm_collect_statistics_kernel", "batch_norm_transform_input_kernel")
CUDNN = ("cudnn::bn_fw_tr_1C11_singleread",)
A100 = "NVIDIA A100-SXM4-80GB"

PD519 = [
    RuleCase(  # four of 50 us: 94 % of them at most
        "PD519",
        "batch-norms-with-training-true",
        lambda: model(4, norm=batch_norm(trains=True)),
        (
            ExpectedFinding(
                "medium",
                188_000,
                (0, 134_000, 188_000),
                title=_NAME_OF_ANALYSIS,
                fix="model.eval()",
                confidence=0.9,
                evidence={"batch norms in training mode, per step": 4, "calls of dropout that draw, per step": 0},
            ),
        ),
    ),
    RuleCase(
        "PD519",
        "dropout-draws-on-a-cpu",
        lambda: model(0, 3, drop=dropout()),
        (ExpectedFinding("medium", 150_000, (0, 150_000, 150_000), title="dropout draws", fix="eval()"),),
    ),
    RuleCase(
        "PD519",
        "channels-are-dropped",
        lambda: model(0, 1, drop=dropout("aten::bernoulli_", "aten::feature_dropout")),
        (ExpectedFinding("medium", 50_000, evidence={"calls of dropout that draw, per step": 1}),),
    ),
    RuleCase(
        "PD519",
        "dropout-kernels-on-a-gpu",
        lambda: model(0, 2, A100, drop=dropout_on_gpu),
        (ExpectedFinding("low", 60_000, evidence={"time of dropout, per step": 60_000}),),
    ),
    RuleCase(  # two counts of 2 us and two kernels of statistics of 10 us; the others stay
        "PD519",
        "statistics-and-counts-on-a-gpu",
        lambda: model(2, 0, A100, norm=norm_on_gpu(NATIVE)),
        (ExpectedFinding("info", 24_000, title=_NAME_OF_ANALYSIS),),
    ),
    RuleCase(  # what a fused kernel takes less in inference is not known: the counts alone
        "PD519",
        "fused-norms-on-a-gpu",
        lambda: model(2, 0, A100, norm=norm_on_gpu(CUDNN)),
        (ExpectedFinding("info", 4_000, title=_NAME_OF_ANALYSIS),),
    ),
    RuleCase(  # only kernels tell
        "PD519",
        "fused-norms-without-counts",
        lambda: model(2, 0, A100, norm=norm_on_gpu(CUDNN, counts=False)),
        (ExpectedFinding("info", 0, title=_NAME_OF_ANALYSIS),),
    ),
    RuleCase(
        "PD519",
        "compiled-training-mode",
        lambda: (
            model(0, 0, A100)
            .op("CompiledFunction", 300, 100)
            .kernel("triton_red_fused__native_batch_norm_legit_functional_0", 310, 50, launch_us=305)
        ),
        (ExpectedFinding("info", 0, title="kernels of dropout or of batch norm's training run"),),
    ),
    RuleCase(  # F.dropout without training=self.training, or Monte Carlo dropout
        "PD519",
        "dropout-alone-in-evaluation-mode",
        lambda: model(4, 2, norm=batch_norm(trains=False), drop=dropout()),
        (
            ExpectedFinding(
                "medium",
                100_000,
                title="Dropout draws in a model that is in evaluation mode otherwise",
                fix="training=self.training",
                advice="Monte Carlo dropout",
                confidence=0.5,
            ),
        ),
    ),
    RuleCase("PD519", "in-evaluation-mode", lambda: model(4, 2, norm=batch_norm(trains=False), drop=dropout(""))),
    RuleCase(  # model.eval() changes nothing: it has no running statistics
        "PD519", "statistics-are-never-kept", lambda: model(4, norm=batch_norm(trains=True, keeps=False))
    ),
    RuleCase(
        "PD519",
        "instance-norms",
        lambda: model(2, 0, A100, norm=norm_on_gpu(CUDNN, counts=False, adds="aten::instance_norm")),
    ),
    RuleCase("PD519", "dropout-with-train-false", lambda: model(0, 2, drop=dropout(value="False"))),
    RuleCase(  # a residual sum before one norm of two, and kernels of inference
        "PD519",
        "a-sum-before-a-norm",
        lambda: (
            model(1, 0, A100, norm=norm_on_gpu(("cudnn::bn_fw_inf_1C11",)))
            .op("aten::batch_norm", 500, 40)
            .kernel("cudnn::bn_fw_inf_1C11", 510, 10, launch_us=505)
        ),
    ),
    RuleCase("PD519", "draws-of-the-program", lambda: model().op("aten::bernoulli_", 500, 100)),
    RuleCase(
        "PD519",
        "a-training",
        lambda: (
            model(4, norm=batch_norm(trains=True))
            .op("autograd::engine::evaluate_function: NativeBatchNormBackward0", 700, 100)
            .range("Optimizer.step#SGD.step", 900, 50)
        ),
    ),
    RuleCase(  # fine-tuning with frozen statistics
        "PD519",
        "a-training-with-frozen-batch-norm",
        lambda: model(4, 2, norm=batch_norm(trains=False), drop=dropout()).op(
            "autograd::engine::evaluate_function: NativeBatchNormBackward0", 700, 100
        ),
    ),
    RuleCase(
        "PD519",
        "differentiated-outside-of-the-trace",
        lambda: model(4, norm=batch_norm(trains=True)),
        facts={"base_backwards": [1, 1]},
    ),
]
