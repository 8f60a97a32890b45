"""Which calls of a step compute what one before has computed: by what they are given, and what was written to since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from perfdoctor.capture.inject._perfdoctor_inject import value_numbers
from perfdoctor.capture.inject._perfdoctor_inject.value_numbers import ValueNumbers

X = torch.randn(8, 4)


class Watch(torch.overrides.TorchFunctionMode):
    """Numbers the calls of torch's functions, and keeps those that compute the same again."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.values = ValueNumbers(lambda: self.steps)
        self.again: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        key = self.values.open_call(func, args, kwargs)
        result = func(*args, **(kwargs or {}))
        if self.values.close_call(key, "@a.py:1 f", result, 1_000_000) is not None:
            self.again.append(func.__name__)
        return result


def look(program: Callable[[], object]) -> list[str]:
    with Watch() as watch:
        program()
    return watch.again


def call_a_model_twice() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    functional.cross_entropy(net(X), torch.zeros(8, dtype=torch.long)).backward()
    net(X).argmax(1)


def normalise_twice() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    net(X)
    net(X.detach())


def evaluate_twice() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    net(X)
    net(X)


def make_a_mask_in_each_layer() -> None:
    for _ in range(2):
        torch.triu(torch.full((16, 16), float("-inf")), 1)


def use_a_parametrized_weight_twice() -> None:
    layer = parametrizations.weight_norm(nn.Linear(4, 4))
    layer(layer(X))


def solve_again_after_views() -> None:
    for _ in range(2):
        torch.linalg.inv(X[:4].T.contiguous())


def write_the_same_to_new_memory() -> None:
    for _ in range(2):
        torch.zeros(8, 4).add_(X).exp()


def step_another_optimizer_of_versions() -> None:
    net, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(other.parameters())
    other(X).sum().backward()
    net(X)
    optimizer.step()
    net(X)


@pytest.mark.parametrize(
    ("program", "function"),
    [
        (call_a_model_twice, "linear"),
        (normalise_twice, "batch_norm"),
        (evaluate_twice, "linear"),
        (make_a_mask_in_each_layer, "triu"),
        (use_a_parametrized_weight_twice, "_weight_norm"),
        (solve_again_after_views, "linalg_inv"),
        (write_the_same_to_new_memory, "exp"),
        (step_another_optimizer_of_versions, "linear"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_what_is_computed_again_is_found(program: Callable[[], object], function: str) -> None:
    assert function in look(program)


def draw() -> None:
    for _ in range(2):
        torch.randn(4, 4) @ X.T
        functional.dropout(X, 0.5).exp()
        torch.normal(0.0, 1.0, (4,)).exp()
        functional.scaled_dot_product_attention(X[None], X[None], X[None], dropout_p=0.1).exp()


def draw_in_layers() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    rnn = nn.LSTM(4, 4, 2, dropout=0.5)
    for x in (X, X.clone()):
        rnn(net[1](x))


def change_the_input() -> None:
    x = X.clone()
    for _ in range(2):
        x.exp()
        x.add_(1)


def change_a_view_of_the_input() -> None:
    x = X.clone()
    row = x[0]
    for _ in range(2):
        row.exp()
        x[0] = 1


def change_data() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    for _ in range(2):
        X @ weight
        weight.data -= 0.1


def train() -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(X).sum().backward()
        optimizer.step()


def compute_gradients_again() -> None:
    layers = [nn.Linear(4, 4) for _ in range(2)]
    x = X.clone().requires_grad_()
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    x.sum().backward()


def read_gradients() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    for _ in range(2):
        (X @ weight.exp()).sum().backward()
        assert weight.grad is not None
        weight.grad.norm()
        weight.data.zero_()


def make_memory() -> None:
    for _ in range(2):
        torch.zeros(4, 4)
        torch.empty(4, 4).exp()
        X.clone()


def use_other_tensors() -> None:
    for _ in range(2):
        torch.from_numpy(X.numpy().copy()).exp()
        nn.Linear(4, 4)(X)


def infer() -> None:
    with torch.inference_mode():
        x = X.clone()
        for _ in range(2):
            x.exp()
    for _ in range(2):
        x.exp()


def call_with_another_number() -> None:
    for number in (1, 2.0, True):
        X * number


@pytest.mark.parametrize(
    "program",
    [
        draw,
        draw_in_layers,
        change_the_input,
        change_a_view_of_the_input,
        change_data,
        train,
        compute_gradients_again,
        read_gradients,
        make_memory,
        use_other_tensors,
        infer,
        call_with_another_number,
    ],
    ids=lambda each: each.__name__,
)
def test_what_may_be_something_else_is_quiet(program: Callable[[], object]) -> None:
    quiet = {"transpose", "view", "__getitem__", "t", "T", "__get__"}  # views
    assert set(look(program)) <= quiet


def test_a_fused_optimizer_raises_no_version_and_changes_the_weights() -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    net(X).sum().backward()
    with Watch() as watch:
        net(X)
        optimizer.step()
        watch.steps += 1
        net(X)
        assert watch.again == []
        net(X)
    assert watch.again == ["linear"]


def test_a_step_is_no_repetition_of_the_one_before() -> None:
    with Watch() as watch:
        for _ in range(3):
            X.exp()
            watch.values.forget()
    assert watch.again == []


def test_the_weight_of_a_layer_under_cached_is_made_once() -> None:
    layer = parametrizations.weight_norm(nn.Linear(4, 4))
    with parametrize.cached():
        assert "_weight_norm" not in look(lambda: layer(layer(X)))


def test_no_tensor_is_kept_alive_and_calls_beyond_a_number_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_numbers, "_MAX_CALLS", 40)
    with Watch() as watch:
        for _ in range(100):
            x = torch.randn(8, 4)  # most likely at the address of the one before
            (x + 1).exp()
    assert watch.again == []
    assert len(watch.values._made) == 40


def test_a_short_call_has_no_mark() -> None:
    values = ValueNumbers()
    for dur_ns, first in ((1_000, None), (1_000, None), (1_000_000, "@a.py:1 f")):
        key = values.open_call(torch.exp, (X,), None)
        assert values.close_call(key, "@a.py:1 f", torch.exp(X), dur_ns) == first
