"""Which calls of a module repeat an earlier one: the same tensors, weights and mode, and no random numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from perfdoctor.capture.inject._perfdoctor_inject.value_looks import RepeatedCalls


class Noisy(torch.nn.Linear):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x) + torch.randn(4) * scale


class Scaled(torch.nn.Linear):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x) * scale


def call(calls: RepeatedCalls, module: torch.nn.Module, *arguments: object, optimizer_steps: int = 0) -> bool:
    is_repeated, keep = calls.add(module, arguments, optimizer_steps)
    module(*arguments)
    keep()
    return is_repeated


def nothing(module: torch.nn.Module, x: torch.Tensor) -> None:
    pass


def train(module: torch.nn.Module, x: torch.Tensor) -> None:
    module(x).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    "between", [nothing, lambda module, x: module(x).sum().backward()], ids=["nothing", "backward"]
)
def test_the_same_tensor_gives_the_same_again(between: Callable[[torch.nn.Module, torch.Tensor], None]) -> None:
    calls, module, x = RepeatedCalls(), torch.nn.Linear(4, 4), torch.randn(2, 4)
    assert not call(calls, module, x)
    between(module, x)
    assert call(calls, module, x)
    assert call(calls, module, x)


def change_input(_: torch.nn.Module, x: torch.Tensor) -> None:
    x.add_(1)


def change_mode(module: torch.nn.Module, _: torch.Tensor) -> None:
    module.eval()


@pytest.mark.parametrize("between", [train, change_input, change_mode])
def test_what_changes_the_result_makes_another_call(between: Callable[[torch.nn.Module, torch.Tensor], object]) -> None:
    calls, module, x = RepeatedCalls(), torch.nn.Linear(4, 4), torch.randn(2, 4)
    call(calls, module, x)
    between(module, x)
    assert not call(calls, module, x)


@pytest.mark.parametrize("draws", [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1)), Noisy(4, 4)])
def test_random_numbers_make_two_results_of_one_input(draws: torch.nn.Module) -> None:
    calls, x = RepeatedCalls(), torch.randn(2, 4)
    assert not any(call(calls, draws, x) for _ in range(3))
    if isinstance(draws, torch.nn.Sequential):  # none are drawn in evaluation
        draws.eval()
        assert [call(calls, draws, x) for _ in range(2)] == [False, True]


def test_other_tensors_numbers_and_modules_are_other_calls() -> None:
    calls, module, x = RepeatedCalls(), Scaled(4, 4), torch.randn(2, 4)
    assert not call(calls, module, x)
    assert not call(calls, module, x.clone())
    assert not call(calls, module, x, 2.0)
    assert not call(calls, Scaled(4, 4), x)
    assert call(calls, module, x, 2.0)
    assert calls.add(module, (x, [x]))[0] is False


def test_no_tensor_is_kept_alive_and_nothing_is_known_after_the_window() -> None:
    calls, module = RepeatedCalls(), torch.nn.Linear(4, 4)
    assert not call(calls, module, torch.randn(2, 4))
    x = torch.randn(2, 4)  # most likely at the address of the one before
    assert not call(calls, module, x)
    assert len(calls._calls[id(module)]) == 1
    calls.clear()
    assert not call(calls, module, x)


def test_tensors_without_versions_are_no_error_of_the_program() -> None:
    calls, module = RepeatedCalls(), torch.nn.Linear(4, 4)
    with torch.inference_mode():
        x, made_inside = torch.randn(2, 4), torch.nn.Linear(4, 4)
        assert [call(calls, module, x) for _ in range(2)] == [False, False]
    with torch.no_grad():  # outside, they are inference tensors still
        assert [call(calls, module, x) for _ in range(2)] == [False, False]
        assert [call(calls, made_inside, torch.randn(2, 4)) for _ in range(2)] == [False, False]


def test_tensors_of_torch_func_are_no_error_of_the_program() -> None:
    calls, module = RepeatedCalls(), torch.nn.Linear(4, 4)

    def loss(x: torch.Tensor) -> torch.Tensor:
        calls.add(module, (x,))[1]()
        result: torch.Tensor = module(x).sum()
        return result

    torch.func.grad(loss)(torch.randn(2, 4))
    torch.func.vmap(loss)(torch.randn(3, 2, 4))
    lazy = torch.nn.LazyLinear(4)
    assert not call(calls, lazy, torch.randn(2, 4))


def test_a_look_is_no_op_of_the_program() -> None:
    calls, net, x = RepeatedCalls(), torch.nn.Linear(2, 2), torch.ones(1, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(2):
            _, keep = calls.add(net, (x,))
            keep()
    assert [event.name for event in profile.events()] == []


def test_a_fused_optimizer_raises_no_version_and_changes_the_weights() -> None:
    calls, module, x = RepeatedCalls(), torch.nn.Linear(4, 4), torch.randn(2, 4)
    assert not call(calls, module, x)
    module(x).sum().backward()
    before = [each._version for each in module.parameters()]
    torch.optim.Adam(module.parameters(), fused=True).step()
    assert [each._version for each in module.parameters()] == before, "versions would do"
    assert not call(calls, module, x, optimizer_steps=1)
    assert call(calls, module, x, optimizer_steps=1)
