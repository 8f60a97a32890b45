"""Cases of the rules about wrong results: PD505, PD506, PD516."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rule_cases import ALL_REDUCE, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

CLIP_LINE = {"file": "/home/me/train.py", "line": 12, "function": "train"}


def amp(**counts: Any) -> dict[str, Any]:
    """Facts of a training with an enabled scaler, which unscales in each of 40 steps."""
    usual = {
        "autocast": 40,
        "scaled": 40,
        "unscaled": 40,
        "clipped": 40,
        "clipped_before_unscale": 0,
        "clip_location": None,
        "scaler_steps": 40,
        "scale_was_read": 0,
    }
    return {"amp": usual | counts, "optimizers": [{"class": "SGD", "steps": 40, "location": CLIP_LINE}]}


def no_scaler_step(optimizer: str = "SGD", steps: int = 40, **counts: Any) -> dict[str, Any]:
    """Facts of a training whose optimizer steps without the scaler."""
    facts = amp(**{"unscaled": 0, "scaler_steps": 0} | counts)
    return facts | {"optimizers": [{"class": optimizer, "steps": steps, "location": CLIP_LINE}]}


def add_training(trace: TraceBuilder, start_us: float) -> TraceBuilder:
    """The rest of a step: without gradients and an optimizer no result could be wrong."""
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", start_us, 100)
    return trace.range("Optimizer.step#SGD.step", start_us + 100, 50)


def one_step() -> TraceBuilder:
    return add_training(TraceBuilder(device=None).step(0, 1000).op("aten::addmm", 0, 400), 400)


PD505 = [
    RuleCase(
        "PD505",
        "each-clip-is-too-early",
        one_step,
        (
            ExpectedFinding(
                "high",
                0,
                (None, None, None),
                "/home/me/train.py:12",
                "is wrong: gradients are clipped before they are unscaled, each time",
                "Unscale the gradients before this line",
                "scaler.unscale_(optimizer)",
                evidence={"clips of scaled gradients": 40},
            ),
        ),
        amp(clipped_before_unscale=40, clip_location=CLIP_LINE),
    ),
    RuleCase(
        "PD505",
        "some-clips-are-too-early",
        one_step,
        (ExpectedFinding("high", 0, title="3 times"),),
        amp(clipped_before_unscale=3),
    ),
    RuleCase(
        "PD505",
        "nobody-unscales",
        one_step,
        (ExpectedFinding("high", 0, location="/home/me/train.py:12", title="nobody unscales", fix="scaler.step"),),
        no_scaler_step(),
    ),
    RuleCase(
        "PD505",
        "one-clip-of-40-is-too-early",
        one_step,
        (
            ExpectedFinding(
                "high", 0, title="before they are unscaled, once", evidence={"clips of scaled gradients": 1}
            ),
        ),
        amp(clipped_before_unscale=1),
    ),
    RuleCase(  # a generator and a discriminator, of which one is clipped: 40 of 80 steps
        "PD505",
        "one-of-two-optimizers",
        one_step,
        (
            ExpectedFinding(
                "high",
                0,
                location="/home/me/train.py:12",
                title="40 times",
                evidence={"clips of scaled gradients": 40, "steps of optimizers by the scaler": 80},
            ),
        ),
        amp(unscaled=80, scaler_steps=80, clipped_before_unscale=40, clip_location=CLIP_LINE),
    ),
    RuleCase(  # the clip goes first: who unscales before it also learns who steps
        "PD505",
        "clipped-and-never-unscaled",
        one_step,
        (
            ExpectedFinding(
                "high", 0, title="each time", fix="unscale_", evidence={"steps of optimizers by the scaler": 0}
            ),
        ),
        no_scaler_step(clipped_before_unscale=40),
    ),
    RuleCase(
        "PD505",
        "nobody-unscales-accumulated-gradients",
        one_step,
        (
            ExpectedFinding(
                "high",
                0,
                location="/home/me/train.py:12",
                title="nobody unscales",
                evidence={"scaled losses": 160, "optimizer": "SGD"},
            ),
        ),
        no_scaler_step(scaled=160, steps=40),
    ),
    RuleCase("PD505", "clipped-after-unscale", one_step, facts=amp()),
    RuleCase("PD505", "no-scaler", one_step, facts=no_scaler_step(scaled=0)),
    RuleCase("PD505", "adam-does-not-care-for-a-scale", one_step, facts=no_scaler_step("AdamW")),
    RuleCase("PD505", "the-program-may-unscale-itself", one_step, facts=no_scaler_step(scale_was_read=40)),
    RuleCase("PD505", "another-loss-is-scaled", one_step, facts=no_scaler_step(steps=80)),
    RuleCase("PD505", "an-older-capture", one_step, facts={"amp": {"scaled": 40, "unscaled": 0}}),
    RuleCase("PD505", "nothing-known", one_step, facts={"amp": None}),
]


def losses(
    backward: str | None,
    forward: str = "aten::nll_loss_forward",
    types: Sequence[str] | None = ("c10::Half", "c10::Half", "long int"),
) -> TraceBuilder:
    """Two steps that compute a loss and, unless it is None, its gradient from inputs of some types."""
    trace = TraceBuilder()
    for number in range(2):
        start = 1000.0 * number
        trace.step(start, 1000).op("aten::mm", start, 20).kernel(TENSOR_GEMM, start + 30, 800, launch_us=start + 10)
        trace.op(forward, start + 30, 20, types=types and types[1:])
        if backward:
            trace.op(backward, start + 60, 20, types=types)
            add_training(trace, start + 200)
    return trace


def in_a_criterion(trace: TraceBuilder) -> TraceBuilder:
    """The forward ops of the losses are called on a line."""
    for start in (0, 1000):
        trace.frame("seg.py(12): criterion", start + 28, 24)
    return trace


FLOAT = ("float", "float", "long int")
_NLL_2D = "aten::nll_loss2d_backward"

PD506 = [
    RuleCase(
        "PD506",
        "cross-entropy",
        lambda: losses("aten::nll_loss_backward"),
        (
            ExpectedFinding(
                "high",
                0,
                title="gradients are wrong: the cross entropy loss is computed in float16",
                advice="below 6e-8 become 0",
                fix="outputs.float()",
                evidence={"gradients of losses in float16": "1 a step"},
            ),
        ),
    ),
    RuleCase(
        "PD506",
        "squares-overflow",
        lambda: losses("aten::mse_loss_backward", "aten::mse_loss", ("c10::Half", "c10::Half", "c10::Half")),
        (ExpectedFinding("high", 0, title="mean squared error", advice="overflow from a difference of 256"),),
    ),
    RuleCase(
        "PD506",
        "logits",
        lambda: losses("BinaryCrossEntropyWithLogitsBackward0", types=("c10::Half",)),
        (ExpectedFinding("high", 0, title="binary cross entropy"),),
    ),
    RuleCase(
        "PD506",
        "segmentation-and-its-line",
        lambda: in_a_criterion(losses("aten::nll_loss2d_backward", "aten::nll_loss2d_forward")),
        (ExpectedFinding("high", 0, location="seg.py:12", title="cross entropy", evidence={"op": _NLL_2D}),),
    ),
    RuleCase(
        "PD506",
        "huber",
        lambda: losses("aten::huber_loss_backward", "aten::huber_loss", ("c10::Half", "c10::Half", "c10::Half")),
        (ExpectedFinding("high", 0, title="the Huber loss", advice="sums overflow above 65,504"),),
    ),
    RuleCase(  # the second one in one of two steps
        "PD506",
        "two-losses",
        lambda: losses("aten::nll_loss_backward").op(
            "aten::binary_cross_entropy_backward", 1100, 20, types=["c10::Half", "c10::Half"]
        ),
        (
            ExpectedFinding(
                "high",
                0,
                title="the binary cross entropy loss",
                advice="probabilities above 0.9995 are 1",
                evidence={
                    "gradients of losses in float16": "1 in 2 steps",
                    "op": "aten::binary_cross_entropy_backward",
                },
            ),
            ExpectedFinding(
                "high", 0, title="the cross entropy loss", evidence={"gradients of losses in float16": "1 a step"}
            ),
        ),
    ),
    RuleCase(
        "PD506",
        "smooth-l1-twice-a-step",
        lambda: (
            losses("aten::smooth_l1_loss_backward", "aten::smooth_l1_loss")
            .op("aten::smooth_l1_loss_backward", 100, 20, types=["c10::Half", "c10::Half"])
            .op("aten::smooth_l1_loss_backward", 1100, 20, types=["c10::Half", "c10::Half"])
        ),
        (ExpectedFinding("high", 0, title="smooth L1", evidence={"gradients of losses in float16": "2 a step"}),),
    ),
    RuleCase(  # its engine scales the loss
        "PD506", "deepspeed", lambda: losses("aten::nll_loss_backward").range("DeepSpeedEngine.forward", 5, 100)
    ),
    RuleCase("PD506", "autocast-computes-it-in-float32", lambda: losses("aten::nll_loss_backward", types=FLOAT)),
    RuleCase(  # as in log_softmax(x, dtype=torch.float32)
        "PD506",
        "half-gradient-of-float32",
        lambda: losses("aten::nll_loss_backward", types=("c10::Half", "float", "long int")),
    ),
    RuleCase(
        "PD506",
        "bfloat16-has-the-range",
        lambda: losses("aten::nll_loss_backward", types=("c10::BFloat16", "c10::BFloat16", "long int")),
    ),
    RuleCase("PD506", "evaluation", lambda: losses(None)),
    RuleCase("PD506", "no-types", lambda: losses("aten::nll_loss_backward", types=None)),
    RuleCase("PD506", "attention", lambda: losses("aten::_softmax_backward_data", "aten::_softmax")),
]


def job(world: int = 2, reductions: int = 2, device: str = "NVIDIA A100-SXM4-80GB") -> list[TraceBuilder]:
    """Ranks that all-reduce in each of two steps."""
    ranks = []
    for rank in range(world):
        trace = TraceBuilder(rank=rank, world_size=world, device=device if rank else "NVIDIA A100-SXM4-80GB")
        for number in range(2):
            start = 1000.0 * number
            trace.step(start, 1000).op("aten::mm", start, 20)
            add_training(trace, start + 200)
            trace.kernel(TENSOR_GEMM, start + 30, 500, launch_us=start + 10)
            if number < reductions:
                trace.kernel(ALL_REDUCE, start + 600, 100, launch_us=start + 15)
        ranks.append(trace)
    return ranks


def checksums(*ranks: Sequence[int], step: int = 42, **model: Any) -> list[Mapping[str, Any]]:
    """For each rank facts with the checksums of its tensors a, b, c."""
    usual = {"class": "Net", "ddp": True, "group": [], "reduces_each_step": True, "sharded": False}
    return [
        {
            "models": [{"class": "DistributedDataParallel", "ddp": {"created": CLIP_LINE}}],
            "parameter_checksums": [
                {
                    "step": step,
                    "models": [
                        usual
                        | model
                        | {"tensors": [{"name": n, "checksum": c} for n, c in zip("abc", sums, strict=False)]}
                    ],
                }
            ],
        }
        for sums in ranks
    ]


def at_two_steps(before: list[Mapping[str, Any]], after: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [
        {**late, "parameter_checksums": [*early["parameter_checksums"], *late["parameter_checksums"]]}
        for early, late in zip(before, after, strict=True)
    ]


def both_models(one: list[Mapping[str, Any]], other: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Facts of ranks with two models, compared at the same step."""
    both = []
    for first, second in zip(one, other, strict=True):
        (sample,), (more,) = first["parameter_checksums"], second["parameter_checksums"]
        both.append({**first, "parameter_checksums": [{**sample, "models": [*sample["models"], *more["models"]]}]})
    return both


PD516 = [
    RuleCase(
        "PD516",
        "two-ranks-differ",
        job,
        (
            ExpectedFinding(
                "high",
                0,
                (None, None, None),
                "/home/me/train.py:12",
                "is wrong: the ranks train different models, which differ in b",
                "on all ranks",
                evidence={"tensors that differ": 1, "tensors compared": 3, "compared before step": 42},
            ),
        ),
        checksums((1, 2, 3), (1, 5, 3)),
    ),
    RuleCase(
        "PD516",
        "one-of-three",
        lambda: job(3),
        (ExpectedFinding("high", 0, location="/home/me/train.py:12", title="rank 2 differs in a and 1 more", rank=2),),
        checksums((1, 2, 3), (1, 2, 3), (7, 2, 9)),
    ),
    RuleCase(
        "PD516",
        "since-a-step",
        job,
        (
            ExpectedFinding(
                "high",
                0,
                location="/home/me/train.py:12",
                evidence={"still equal before step": 6, "first of them": "c"},
            ),
        ),
        at_two_steps(checksums((1, 2, 3), (1, 2, 3), step=6), checksums((1, 2, 3), (1, 2, 4))),
    ),
    RuleCase(
        "PD516",
        "two-of-five",
        lambda: job(5),
        (ExpectedFinding("high", 0, location="/home/me/train.py:12", title="ranks 1, 3 differ in c"),),
        checksums((1, 2, 3), (1, 2, 4), (1, 2, 3), (1, 2, 5), (1, 2, 3)),
    ),
    RuleCase(  # two and two: nobody knows which are right
        "PD516",
        "halves-of-four",
        lambda: job(4),
        (ExpectedFinding("high", 0, location="/home/me/train.py:12", title="different models, which differ in b"),),
        checksums((1, 2, 3), (1, 2, 3), (1, 5, 3), (1, 5, 3)),
    ),
    RuleCase(
        "PD516",
        "one-of-two-models",
        job,
        (
            ExpectedFinding(
                "high",
                0,
                location="/home/me/train.py:12",
                title="in c",
                evidence={"model": "Critic", "tensors compared": 3, "still equal before step": None},
            ),
        ),
        both_models(checksums((1, 2, 3), (1, 2, 3)), checksums((1, 2, 3), (1, 2, 4), **{"class": "Critic"})),
    ),
    RuleCase(
        "PD516",
        "both-models",
        job,
        (
            ExpectedFinding("high", 0, location="/home/me/train.py:12", title="in a", evidence={"model": "Critic"}),
            ExpectedFinding("high", 0, location="/home/me/train.py:12", title="in b", evidence={"model": "Net"}),
        ),
        both_models(checksums((1, 2, 3), (1, 9, 3)), checksums((1, 2, 3), (8, 2, 3), **{"class": "Critic"})),
    ),
    RuleCase(
        "PD516",
        "a-rank-without-checksums",
        lambda: job(3),
        (ExpectedFinding("high", 0, location="/home/me/train.py:12", title="which differ in a and 2 more"),),
        [*checksums((1, 2, 3)), {}, *checksums((4, 5, 6))],
    ),
    RuleCase(  # of two process groups of two ranks one differs
        "PD516",
        "one-of-two-groups",
        lambda: job(4),
        (
            ExpectedFinding(
                "high",
                0,
                location="/home/me/train.py:12",
                title="which differ in c",
                evidence={"tensors that differ": 1},
            ),
        ),
        [*checksums((4, 5, 6), (4, 5, 7), group=[0, 1]), *checksums((1, 2, 3), (1, 2, 3), group=[2, 3])],
    ),
    RuleCase(
        "PD516",
        "the-wrapper-was-made-elsewhere",
        job,
        (ExpectedFinding("high", 0, title="which differ in b", fix="DistributedDataParallel(model)"),),
        [{**facts, "models": []} for facts in checksums((1, 2, 3), (1, 5, 3))],
    ),
    RuleCase("PD516", "equal", job, facts=checksums((1, 2, 3), (1, 2, 3))),
    RuleCase(
        "PD516",
        "equal-again",
        job,
        facts=at_two_steps(checksums((1, 2, 3), (1, 2, 4), step=6), checksums((1, 2, 3), (1, 2, 3))),
    ),
    RuleCase("PD516", "other-steps", job, facts=[checksums((1, 2, 3))[0], checksums((4, 5, 6), step=43)[0]]),
    RuleCase("PD516", "sharded", job, facts=checksums((1, 2, 3), (4, 5, 6), sharded=True)),
    RuleCase("PD516", "not-wrapped", job, facts=checksums((1, 2, 3), (4, 5, 6), ddp=False)),
    RuleCase("PD516", "local-sgd", job, facts=checksums((1, 2, 3), (4, 5, 6), reduces_each_step=False)),
    RuleCase(
        "PD516", "other-groups", job, facts=[checksums((1, 2, 3), group=[0])[0], checksums((4, 5, 6), group=[1])[0]]
    ),
    RuleCase("PD516", "no-reductions", lambda: job(reductions=1), facts=checksums((1, 2, 3), (4, 5, 6))),
    RuleCase("PD516", "other-devices", lambda: job(device="Tesla V100"), facts=checksums((1, 2, 3), (4, 5, 6))),
    RuleCase("PD516", "other-tensors", job, facts=checksums((1, 2, 3), (4, 5))),
]
