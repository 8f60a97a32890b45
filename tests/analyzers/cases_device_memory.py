"""Cases of the rules about what fills the memory: PD701 to PD705, PD707, PD708.

A step takes 1000 us: forward 100 to 300, backward 400 to 600, the optimizer 700 to 900.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

MB, RAM_MARGIN = 1_000_000, 2 << 20
STEP_US = 1000


class Tensor(NamedTuple):
    """What each step allocates: its size, when it is made and freed in us from the begin of the step, and by which op.

    It may be freed in a later step; None stays to the end. One that is made `once` is made in the first step alone.
    """

    megabytes: int
    made: float
    freed: float | None
    op: str = "aten::add"
    once: bool = False


def training(
    *tensors: Tensor, steps: int = 3, parameters: int = 0, device: int | None = None, capacity: int | None = None
) -> TraceBuilder:
    """Steps of a training, and the memory of the CPU or of a GPU, which may have a known size in MB."""
    b = TraceBuilder(device=None) if capacity is None else TraceBuilder(memory_bytes=capacity * MB)
    line = b.frame("train.py(3): build", -200, 150)
    b.frame("torch/nn/modules/linear.py(96): __init__", -190, 100, parent=line)
    events: list[tuple[float, int, int]] = [(-150, parameters * MB, 1)] if parameters else []
    for number in range(steps):
        at = number * STEP_US
        b.step(at, STEP_US)
        line = b.frame("train.py(7): forward", at + 95, 210)
        b.frame("nn.Module: Net_0", at + 100, 200, parent=line)
        b.op("aten::linear", at + 100, 5, sequence=number)
        b.op("autograd::engine::evaluate_function: AddmmBackward0", at + 400, 150, sequence=number)
        b.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 550, 50)
        b.frame("train.py(9): update", at + 690, 220)
        b.range("Optimizer.step#Adam.step", at + 700, 200)
        for place, tensor in enumerate(tensors):
            if tensor.once and number:
                continue
            address = 1000 * (place + 1) + number
            made = at + tensor.made + place * 0.01
            b.op(tensor.op, made - 0.002, 0.004)
            events.append((made, tensor.megabytes * MB, address))
            if tensor.freed is not None and at + tensor.freed < steps * STEP_US:
                events.append((at + tensor.freed + place * 0.01, -tensor.megabytes * MB, address))
    for at_us, size, address in sorted(events):
        b.memory(at_us, size, address, device=device)
    return b


def blocks(count: int, sizes: Sequence[int] = (20, 10, 10)) -> list[Tensor]:
    """The values that so many blocks keep for the backward pass."""
    ops = ("aten::linear", "aten::gelu", "aten::layer_norm")
    return [Tensor(size, 150, 450, op) for _ in range(count) for size, op in zip(sizes, ops, strict=True)]


def attention(layers: int, product: str = "aten::bmm") -> list[Tensor]:
    """The scores that so many layers keep: the product, which is freed at once, the scaled one, and the softmax."""
    layer = [Tensor(30, 150, 160, product), Tensor(30, 151, 161, "aten::mul"), Tensor(30, 152, 450, "aten::_softmax")]
    return layer * layers


def found(title: str, location: str | None = "train.py:7") -> tuple[ExpectedFinding, ...]:
    """One finding of a title, for information: here memory is no limit."""
    return (ExpectedFinding("info", 0, location=location, title=title),)


def saved(low: float, expected: float, high: float) -> tuple[int, int, int]:
    """What is saved of the CPU's memory, in bytes of so many megabytes, and what RAM moves by besides."""
    return max(round(low * MB) - RAM_MARGIN, 0), round(expected * MB), round(high * MB) + RAM_MARGIN


PD701 = [
    RuleCase(
        "PD701",
        "blocks-that-repeat",
        # Of 8 blocks of 40 MB one stays, and of each an input of 10 MB, or of the mean, a third of a block.
        lambda: training(*blocks(8)),
        (
            ExpectedFinding(
                "info",
                0,
                saved_bytes=saved(186.666655, 198.333327, 210),
                location="train.py:7",
                title="Activations hold 320 MB at the peak of the CPU",
                fix="checkpoint(block, x",
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD701",
        "no-blocks",
        lambda: training(Tensor(100, 150, 450), Tensor(60, 160, 450, "aten::mul")),
        (ExpectedFinding("info", 0, saved_bytes=saved(80, 80, 80), location="train.py:7", advice="Halve the batch"),),
    ),
    RuleCase(
        "PD701",
        "a-block-that-makes-a-value-twice",
        # Eight blocks with two values of 20 MB and one of 10 MB, the input.
        lambda: training(*[Tensor(20, 150, 450, "aten::gelu")] * 16, *[Tensor(10, 150, 450, "aten::add")] * 8),
        (ExpectedFinding("info", 0, location="train.py:7", advice="about 8"),),
    ),
    RuleCase("PD701", "freed-in-the-forward-pass", lambda: training(*(each._replace(freed=290) for each in blocks(8)))),
    RuleCase("PD701", "parameters-hold-more", lambda: training(*blocks(8, (2, 1, 1)), parameters=200)),
    RuleCase("PD701", "small", lambda: training(*blocks(8, (2, 1, 1)))),
]
LOSS = (
    Tensor(50, 200, 450, "aten::mm"),
    Tensor(50, 205, 450, "aten::_log_softmax"),
    Tensor(50, 410, 440, "aten::_log_softmax_backward_data"),
)
PD702 = [
    RuleCase(
        "PD702",
        "logits-in-three-copies",
        # Seven eighths of three, at least those of two.
        lambda: training(*LOSS, Tensor(40, 150, 450)),
        (
            ExpectedFinding(
                "info",
                0,
                saved_bytes=saved(87.5, 109.375, 131.25),
                location="train.py:7",
                title="Logits and copies of them hold 150 MB",
                fix="chunk",
            ),
        ),
    ),
    RuleCase(
        "PD702",
        "logits-in-half-precision",
        lambda: training(Tensor(25, 200, 450, "aten::mm"), *LOSS[1:], Tensor(40, 150, 450)),
        (ExpectedFinding("info", 0, saved_bytes=saved(87.5, 98.4375, 109.375), location="train.py:7"),),
    ),
    RuleCase(
        "PD702",
        "logits-of-a-position-more",
        lambda: training(LOSS[0]._replace(megabytes=51), *LOSS[1:], Tensor(40, 150, 450)),
        (ExpectedFinding("info", 0, location="train.py:7", title="151 MB"),),
    ),
    RuleCase("PD702", "no-log-softmax", lambda: training(LOSS[0], Tensor(50, 205, 450, "aten::mse_loss"))),
    RuleCase("PD702", "few-classes", lambda: training(*(each._replace(megabytes=1) for each in LOSS), *blocks(8))),
    RuleCase("PD702", "another-softmax", lambda: training(*attention(4))),
]
PD703 = [
    RuleCase(
        "PD703",
        "scores-of-four-layers",
        # Without them nothing of 120 MB and three passing ones is left but another tensor.
        lambda: training(*attention(4), Tensor(20, 140, 450)),
        (
            ExpectedFinding(
                "info",
                0,
                saved_bytes=saved(240, 300, 360),
                location="train.py:7",
                title="Scores of attention hold 360 MB",
                fix="scaled_dot_product_attention",
            ),
        ),
    ),
    RuleCase(
        "PD703",
        "scores-with-autocast",
        lambda: training(
            *(Tensor(size, at, 450, op) for at, size, op in ((150, 30, "aten::bmm"), (151, 60, "aten::exp"))),
            Tensor(20, 140, 450),
        ),
        (ExpectedFinding("info", 0, saved_bytes=saved(90, 90, 90), location="train.py:7"),),
    ),
    RuleCase(
        "PD703", "fused", lambda: training(*blocks(4), Tensor(60, 150, 450, "aten::_efficient_attention_forward"))
    ),
    RuleCase("PD703", "softmax-of-another-size", lambda: training(*blocks(8), Tensor(5, 150, 450, "aten::_softmax"))),
]
PD704 = [
    RuleCase(
        "PD704",
        "copies-of-foreach",
        # Without them the peak is that of the activations.
        lambda: training(Tensor(80, 720, 760, "aten::_foreach_sqrt"), Tensor(40, 150, 450), parameters=80),
        (
            ExpectedFinding(
                "info", 0, saved_bytes=saved(40, 40, 40), location="train.py:9", title="80 MB", fix="fused=True"
            ),
        ),
    ),
    RuleCase(
        "PD704",
        "states",
        lambda: training(Tensor(100, 720, None, "aten::zeros_like", once=True), Tensor(40, 150, 450)),
        (
            ExpectedFinding(
                "info", 0, saved_bytes=saved(74, 74, 74), location="train.py:9", title="states hold 100 MB", fix="8bit"
            ),
        ),
    ),
    RuleCase(
        "PD704",
        "copies-and-states",
        lambda: training(
            Tensor(90, 720, None, "aten::zeros_like", once=True),
            Tensor(60, 725, 760, "aten::_foreach_sqrt"),
            Tensor(5, 150, 450),
        ),
        (
            *found("Copies in the optimizer's step hold 60 MB", "train.py:9"),
            *found("Optimizer states hold 90 MB", "train.py:9"),
        ),
    ),
    RuleCase("PD704", "made-in-the-forward-pass", lambda: training(Tensor(80, 150, 250, "aten::_foreach_sqrt"))),
    RuleCase("PD704", "small-copies", lambda: training(Tensor(2, 720, 760), *blocks(8))),
    RuleCase("PD704", "states-of-sgd", lambda: training(Tensor(40, 720, None, once=True), *blocks(8))),
]
PD705 = [
    RuleCase(
        "PD705",
        "gradients-to-the-next-backward",
        # zero_grad() before backward(): they are there beside the activations.
        lambda: training(Tensor(60, 560, 1395), Tensor(100, 150, 450)),
        (
            ExpectedFinding(
                "info", 0, saved_bytes=saved(60, 60, 60), location=None, title="Gradients of 60 MB", fix="zero_grad()"
            ),
        ),
    ),
    RuleCase(
        "PD705",
        "output-of-the-step-before",
        lambda: training(Tensor(90, 150, 1170), Tensor(60, 160, 450)),
        (
            ExpectedFinding(
                "info", 0, saved_bytes=saved(90, 90, 90), location="train.py:7", title="Results of 90 MB", fix="del "
            ),
        ),
    ),
    RuleCase(
        "PD705",
        "gradients-that-are-set-to-zero",
        # set_to_none=False: they are made once, and stay.
        lambda: training(Tensor(60, 560, None, once=True), Tensor(100, 150, 390)),
        (ExpectedFinding("info", 0, saved_bytes=saved(60, 60, 60), location=None, title="Gradients of 60 MB"),),
    ),
    RuleCase("PD705", "small-gradients", lambda: training(Tensor(2, 560, 1395), Tensor(100, 150, 450))),
    RuleCase("PD705", "zeroed-behind-the-step", lambda: training(Tensor(60, 560, 950), Tensor(100, 150, 450))),
    RuleCase(
        "PD705", "buffer-of-a-loss", lambda: training(Tensor(90, 150, 1170, "aten::mse_loss"), Tensor(60, 160, 450))
    ),
    RuleCase(
        "PD705",
        "buffer-of-a-loss-on-a-gpu",
        lambda: training(Tensor(90, 150, 1170, "aten::mse_loss"), Tensor(60, 160, 450), device=0),
        found("Results of 90 MB"),
    ),
    RuleCase("PD705", "freed-in-its-step", lambda: training(Tensor(90, 150, 650), Tensor(60, 160, 450))),
]
PD707 = [
    RuleCase(
        "PD707",
        "a-list-of-outputs",
        # The last of the six needs its own to its end.
        lambda: training(Tensor(20, 150, None), Tensor(40, 160, 450), steps=6),
        (
            ExpectedFinding(
                "info",
                0,
                saved_bytes=saved(100, 100, 100),
                location="train.py:7",
                title="grows by 20 MB in each step",
                fix="detach",
                evidence={"steps that grew": 4},
            ),
        ),
    ),
    RuleCase(
        "PD707",
        "small-ones",
        lambda: training(Tensor(1, 150, None), Tensor(100, 160, 450), steps=9),
        (ExpectedFinding("info", 0, location="train.py:7", title="grows by 1 MB in each step"),),
    ),
    RuleCase(
        "PD707",
        "beside-states",
        lambda: training(Tensor(20, 150, None), Tensor(80, 720, None, "aten::zeros_like", once=True), steps=6),
        (ExpectedFinding("info", 0, location="train.py:7", title="grows by 20 MB in each step"),),
    ),
    RuleCase("PD707", "states-alone", lambda: training(Tensor(80, 720, None, once=True), *blocks(4), steps=6)),
    RuleCase("PD707", "freed", lambda: training(Tensor(20, 150, 1140), Tensor(60, 160, 450), steps=6)),
    RuleCase("PD707", "two-steps", lambda: training(Tensor(60, 150, None), Tensor(40, 160, 450), steps=2)),
]


# The same on a GPU, and what differs in size or in number.
def forward_alone(*tensors: Tensor, is_in_model: bool = True) -> TraceBuilder:
    """A forward pass of a model, and where the recording ends."""
    b = TraceBuilder(device=None)
    line = b.frame("infer.py(7): forward", 95, 210)
    if is_in_model:
        b.frame("nn.Module: Net_0", 100, 200, parent=line)
    events: list[tuple[float, int, int]] = []
    for place, tensor in enumerate(tensors):
        made = tensor.made + place * 0.01
        b.op(tensor.op, made - 0.002, 0.004)
        events.append((made, tensor.megabytes * MB, place + 1))
        if tensor.freed is not None:
            events.append((tensor.freed + place * 0.01, -tensor.megabytes * MB, place + 1))
    for at_us, size, address in sorted(events):
        b.memory(at_us, size, address, device=0)
    return b


_LEFT = [Tensor(20, 150, None)] * 8
PD701 += [
    RuleCase(
        "PD701",
        "a-forward-pass-and-no-more",
        lambda: forward_alone(*_LEFT),
        (
            ExpectedFinding(
                "info",
                0,
                saved_bytes=(0, 40 * MB, 80 * MB),
                location="infer.py:7",
                title="160 MB of a forward pass are still there where the recording ends",
                fix="inference_mode",
            ),
        ),
    ),
    RuleCase(
        "PD701",
        "a-cache-of-an-inference",
        # Most of what the model makes is freed at once.
        lambda: forward_alone(*[Tensor(40, 150, 160 + n) for n in range(8)], *_LEFT),
    ),
    RuleCase("PD701", "loaded-and-no-more", lambda: forward_alone(*_LEFT, is_in_model=False)),
]
PD701 += [
    RuleCase("PD701", "gpu", lambda: training(*blocks(8), device=0), found("320 MB at the peak of GPU 0")),
    RuleCase("PD701", "beside-parameters", lambda: training(*blocks(8), parameters=100), found("320 MB")),
    RuleCase("PD701", "many-blocks", lambda: training(*blocks(40, (4, 2, 2))), found("320 MB")),
    RuleCase("PD701", "kept-to-the-next-step", lambda: training(*(each._replace(freed=1050) for each in blocks(4)))),
    RuleCase("PD701", "the-optimizer-s-instead", lambda: training(Tensor(200, 720, 760), *blocks(8, (2, 1, 1)))),
]
PD702 += [
    RuleCase("PD702", "gpu", lambda: training(*LOSS, device=0), found("150 MB at the peak of GPU 0")),
    RuleCase("PD702", "beside-blocks", lambda: training(*LOSS, *blocks(8)), found("Logits and copies of them hold")),
    RuleCase("PD702", "without-memory", lambda: training()),
    RuleCase("PD702", "freed-before-the-peak", lambda: training(LOSS[1]._replace(made=110, freed=120), *blocks(8))),
]
PD703 += [
    RuleCase(
        "PD703",
        "beside-a-larger-model",
        lambda: training(*attention(2), *blocks(4), parameters=100),
        found("Scores of attention hold"),
    ),
    RuleCase("PD703", "gpu", lambda: training(*attention(4), device=0), found("at the peak of GPU 0")),
    RuleCase("PD703", "baddbmm", lambda: training(*attention(4, "aten::baddbmm")), found("Scores of attention hold")),
    RuleCase("PD703", "a-product-alone", lambda: training(*[Tensor(30, 150, 450, "aten::bmm")] * 4)),
    RuleCase("PD703", "a-softmax-alone", lambda: training(*[Tensor(30, 150, 450, "aten::_softmax")] * 4)),
    RuleCase("PD703", "small-scores", lambda: training(*blocks(8), *attention(1), parameters=900)),
]
PD704 += [
    RuleCase(
        "PD704",
        "copies-on-a-gpu",
        lambda: training(Tensor(80, 720, 760, "aten::_foreach_div"), parameters=20, device=0),
        found("hold 80 MB at the peak of GPU 0", "train.py:9"),
    ),
    RuleCase(
        "PD704",
        "two-copies",
        lambda: training(Tensor(40, 720, 760, "aten::_foreach_mul"), Tensor(40, 725, 770), parameters=20),
        found("hold 80 MB", "train.py:9"),
    ),
    RuleCase("PD704", "no-optimizer-memory", lambda: training(*blocks(8))),
    RuleCase("PD704", "lower-than-the-activations", lambda: training(Tensor(40, 720, 760), *blocks(8))),
]
PD705 += [
    RuleCase(
        "PD705",
        "gradients-on-a-gpu",
        lambda: training(Tensor(60, 560, 1395), Tensor(100, 150, 450), device=0),
        found("Gradients of 60 MB live on through the next forward pass on GPU 0", None),
    ),
    RuleCase(
        "PD705",
        "two-outputs",
        lambda: training(Tensor(45, 150, 1170), Tensor(45, 155, 1170), Tensor(60, 160, 450)),
        found("Results of 90 MB"),
    ),
    RuleCase("PD705", "made-and-freed-in-the-backward-pass", lambda: training(Tensor(60, 410, 590), *blocks(8))),
    RuleCase("PD705", "kept-for-good", lambda: training(Tensor(60, 150, None, once=True), *blocks(8))),
]
_AFTER_39_STEPS = {"windows": {"evidence": {"steps": 3, "complete": True, "first_step": 39}}}
PD707 += [
    RuleCase(
        "PD707",
        "gpu",
        lambda: training(Tensor(20, 150, None), Tensor(40, 160, 450), steps=6, device=0),
        found("Memory of GPU 0 grows by 20 MB in each step"),
    ),
    RuleCase(
        "PD707",
        "two-lists",
        lambda: training(Tensor(15, 150, None), Tensor(5, 160, None), Tensor(40, 160, 450), steps=6),
        found("grows by 20 MB in each step"),
    ),
    RuleCase("PD707", "freed-two-steps-later", lambda: training(Tensor(20, 150, 2140), *blocks(2), steps=8)),
    RuleCase("PD707", "tiny", lambda: training(*blocks(8), steps=6)),
    RuleCase(
        "PD707",
        "two-lists-of-a-gpu",
        lambda: training(Tensor(15, 150, None), Tensor(5, 160, None), Tensor(40, 160, 450), steps=7, device=0),
        found("Memory of GPU 0 grows by 20 MB in each step"),
    ),
    RuleCase(
        "PD707",
        "three-steps-in-the-middle-of-a-run-of-a-gpu",
        lambda: training(Tensor(20, 150, None), Tensor(40, 160, 450), device=0),
        found("Memory of GPU 0 grows by 20 MB in each step"),
        facts=_AFTER_39_STEPS,
    ),
    # The first steps of a program, which may fill what is freed later; and a value that lives into the next step.
    RuleCase("PD707", "three-first-steps", lambda: training(Tensor(20, 150, None), Tensor(40, 160, 450))),
    RuleCase(
        "PD707",
        "made-once-in-the-middle-of-a-run",
        lambda: training(Tensor(20, 150, None, once=True), Tensor(60, 160, 450)),
        facts=_AFTER_39_STEPS,
    ),
]


def inference() -> TraceBuilder:
    """Steps of forward passes alone."""
    b = TraceBuilder(memory_bytes=8_000_000_000)
    for at in (0, 1000):
        b.step(at, 1000).op("aten::linear", at + 100, 50)
        b.memory(at + 110, 300 * MB, 64, device=0).memory(at + 140, -300 * MB, 64, device=0)
    return b


PD708 = [
    RuleCase(
        "PD708",
        "room",
        # Of 6926 MB nine tenths are left, less the share that is reserved and not allocated (1074 for 320): 1858 more.
        lambda: training(*blocks(8), device=0, capacity=8000),
        (
            ExpectedFinding(
                "info",
                0,
                location="train.py:7",
                title="A batch at least 6.8 times as large fits: 6.93 GB of GPU 0 are free at the peak",
                evidence={"grows with the batch": 320 * MB, "times as large, at least": 6.81},
            ),
        ),
    ),
    RuleCase(
        "PD708",
        "beside-parameters",
        # 200 of 520 stay: (520 + 3019 - 200) / 320.
        lambda: training(*blocks(8), parameters=200, device=0, capacity=8000),
        found("A batch at least 10 times as large fits"),
    ),
    RuleCase(
        "PD708",
        "checkpoints-leave-more",
        # At least two thirds of seven blocks of 40 MB are gone: 2178 / 133.
        lambda: training(*blocks(8), device=0, capacity=8000),
        (ExpectedFinding("info", 0, location="train.py:7", advice="With checkpoints (PD701) it may be 16 times"),),
    ),
    RuleCase(
        "PD708",
        "much-room",
        lambda: training(*blocks(8), device=0, capacity=900_000),
        found("A batch at least 100 times as large fits"),
    ),
    RuleCase(
        "PD708",
        "gradients-stay",
        lambda: training(Tensor(60, 560, 1395), Tensor(100, 150, 450), device=0, capacity=8000),
        found("times as large fits"),
    ),
    RuleCase("PD708", "a-full-gpu", lambda: training(*blocks(8), device=0, capacity=1100)),
    RuleCase("PD708", "a-gpu-of-unknown-size", lambda: training(*blocks(8), device=0)),
    RuleCase("PD708", "the-cpu", lambda: training(*blocks(8), capacity=8000)),
    RuleCase("PD708", "no-backward-pass", inference),
    RuleCase("PD708", "small", lambda: training(*blocks(8, (2, 1, 1)), device=0, capacity=8000)),
]
