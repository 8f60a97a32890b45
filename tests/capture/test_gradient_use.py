"""Which gradients are made and dropped: real training loops, whose calls are reported as the hooks report them."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject.gradient_use import GradientUse  # noqa: E402


class Watched:
    """A loop whose steps are reported to a GradientUse."""

    def __init__(self, *optimizers: Any) -> None:
        self.use = GradientUse()
        for optimizer in optimizers:
            self.use.add_optimizer(optimizer)
        self.use.watch()

    def call(self, module: Any, *inputs: Any) -> Any:
        self.use.on_module_call(module, sys._getframe(1), inputs)
        return module(*inputs)

    def backward(self, loss: Any, **options: Any) -> None:
        self.use.on_backward(sys._getframe(1))
        loss.backward(**options)

    def step(self, optimizer: Any) -> None:
        optimizer.step()
        self.use.on_optimizer_end(optimizer)

    def clear(self, owner: Any, **options: Any) -> None:
        self.use.before_clearing(owner)
        owner.zero_grad(**options)
        self.use.after_clearing(owner)

    def find(self) -> list[dict[str, Any]]:
        self.use.end_watch()
        return self.use.facts()["unused_gradients"]


def gan(*, detach: bool, freeze: bool, to_none: bool = True, steps: int = 3, critic_steps: int = 1) -> list[Any]:
    generator, discriminator = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    ours, other = torch.optim.SGD(discriminator.parameters(), 0.1), torch.optim.SGD(generator.parameters(), 0.1)
    loop = Watched(ours, other)
    for _ in range(steps):
        for _ in range(critic_steps):
            fake = loop.call(generator, torch.randn(2, 4))
            loop.clear(ours, set_to_none=to_none)
            loop.backward(loop.call(discriminator, fake.detach() if detach else fake).mean())
            loop.step(ours)
        loop.clear(other, set_to_none=to_none)
        discriminator.requires_grad_(not freeze)
        loop.backward(loop.call(discriminator, loop.call(generator, torch.randn(2, 4))).mean())
        discriminator.requires_grad_(True)
        loop.step(other)
    return loop.find()


@pytest.mark.parametrize("to_none", [True, False])
def test_a_discriminators_step_through_the_generator(to_none: bool) -> None:
    of_weights, of_generator = sorted(
        gan(detach=False, freeze=False, to_none=to_none), key=lambda each: int(each["parameters"])
    )
    assert (of_generator["tensors"], of_generator["parameters"], of_generator["times"]) == (2, 40, 3)
    assert [call["input_has_graph"] for call in of_generator["calls"]] == [False, False]
    assert len(of_generator["passes"]) == 1
    # The first step's were seen by no clearing yet, and those after the last one are not cleared.
    assert (of_weights["parameters"], of_weights["times"]) == (9, 2)
    assert any(call["input_has_graph"] for call in of_weights["calls"])


def test_several_steps_of_a_critic_for_one_of_the_generator() -> None:
    found = gan(detach=False, freeze=True, critic_steps=3)
    assert [each["parameters"] for each in found] == [40]


def test_a_generators_step_with_the_weights_of_the_discriminator() -> None:
    assert [each["parameters"] for each in gan(detach=True, freeze=False)] == [9]


def test_detached_and_frozen_nothing_is_dropped() -> None:
    assert gan(detach=True, freeze=True) == []


def plain_loop(loop: Watched, model: Any, optimizer: Any, batches: int = 3, accumulate: int = 1) -> list[Any]:
    for _ in range(batches):
        loop.clear(optimizer)
        for _ in range(accumulate):
            loop.backward(loop.call(model, torch.randn(2, 4)).mean())
        loop.step(optimizer)
    return loop.find()


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_plain_loop_drops_nothing(accumulate: int) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    assert plain_loop(Watched(optimizer), model, optimizer, accumulate=accumulate) == []


def test_an_optimizer_that_is_gone_when_the_window_ends() -> None:
    """The loop was in a function, and the window ends with the program."""
    model, loop = torch.nn.Linear(4, 2), Watched()

    def train() -> None:
        optimizer = torch.optim.AdamW(model.parameters())
        loop.use.add_optimizer(optimizer)
        for _ in range(2):
            loop.clear(optimizer)
            loop.backward(loop.call(model, torch.randn(2, 4)).mean())
            loop.step(optimizer)

    train()
    gc.collect()
    assert loop.find() == []


def test_an_image_is_optimized_through_weights_that_stay() -> None:
    features, image = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 4)), torch.randn(2, 8)
    optimizer = torch.optim.SGD([image.requires_grad_()], 0.1)
    loop = Watched(optimizer)
    for _ in range(3):
        loop.clear(optimizer)
        loop.backward(loop.call(features, image).square().mean())
        loop.step(optimizer)
    [found] = loop.find()
    assert (found["optimizer"], found["tensors"]) == (None, 4)


def test_master_weights_are_quiet() -> None:
    """Mixed precision by hand: the optimizer has copies of the parameters."""
    model = torch.nn.Linear(4, 2).bfloat16()
    copies = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(copies, 0.1)
    loop = Watched(optimizer)
    for _ in range(3):
        loop.backward(loop.call(model, torch.randn(2, 4).bfloat16()).mean())
        for copy, parameter in zip(copies, model.parameters(), strict=True):
            copy.grad = parameter.grad.float()
        loop.step(optimizer)
    assert loop.find() == []


def test_a_part_that_no_optimizer_has() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    (found,) = plain_loop(Watched(optimizer), model, optimizer)
    assert (found["optimizer"], found["parameters"], found["calls"]) == (None, 40, [])


def test_a_frozen_part_is_quiet() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8).requires_grad_(False), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    assert plain_loop(Watched(optimizer), model, optimizer) == []


def test_gradients_of_tasks_that_the_program_combines_itself_are_quiet() -> None:
    """PCGrad: each task's gradients are read and cleared, before the one optimizer steps."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loop = Watched(optimizer)
    for _ in range(3):
        kept = []
        for _ in range(2):
            loop.clear(optimizer)
            loop.backward(loop.call(model, torch.randn(2, 4)).mean())
            kept.append([parameter.grad.clone() for parameter in model.parameters()])
        for parameter, *gradients in zip(model.parameters(), *kept, strict=True):
            parameter.grad = sum(gradients)
        loop.step(optimizer)
    assert loop.find() == []


def test_weights_that_were_moved_by_hand_are_quiet() -> None:
    """SAM: the first pass moves the weights by their gradients, without a step of torch."""
    model, beside = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    optimizer, other = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(beside.parameters(), 0.1)
    loop = Watched(optimizer, other)
    for _ in range(3):
        loop.backward(loop.call(beside, torch.randn(2, 4)).mean())
        loop.step(other)
        loop.clear(other)
        loop.backward(loop.call(model, torch.randn(2, 4)).mean())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad)
        loop.clear(optimizer)
        loop.backward(loop.call(model, torch.randn(2, 4)).mean())
        loop.step(optimizer)
        loop.clear(optimizer)
    assert loop.find() == []


def test_without_a_step_nothing_is_said() -> None:
    model = torch.nn.Linear(4, 2)
    loop = Watched()
    loop.backward(loop.call(model, torch.randn(2, 4)).mean())
    assert loop.find() == []
