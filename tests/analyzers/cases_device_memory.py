"""Cases of the rules about what fills the memory: PD701 to PD705, PD707, PD708.

A step takes 1000 us: forward 100 to 300, backward 400 to 600, the optimizer 700 to 900.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfdoctor.testing import TraceBuilder

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


LOSS = (
    Tensor(50, 200, 450, "aten::mm"),
    Tensor(50, 205, 450, "aten::_log_softmax"),
    Tensor(50, 410, 440, "aten::_log_softmax_backward_data"),
)


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
_AFTER_39_STEPS = {"windows": {"evidence": {"steps": 3, "complete": True, "first_step": 39}}}


def inference() -> TraceBuilder:
    """Steps of forward passes alone."""
    b = TraceBuilder(memory_bytes=8_000_000_000)
    for at in (0, 1000):
        b.step(at, 1000).op("aten::linear", at + 100, 50)
        b.memory(at + 110, 300 * MB, 64, device=0).memory(at + 140, -300 * MB, 64, device=0)
    return b
