"""The mode that marks lines runs the program's calls as they are, whatever tensors these have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from perfdoctor.capture.inject._perfdoctor_inject import value_looks
from perfdoctor.capture.inject._perfdoctor_inject.call_records import CallRecords
from perfdoctor.capture.inject._perfdoctor_inject.needed_rows import NeededRows
from perfdoctor.capture.inject._perfdoctor_inject.source_lines import SourceLineMode
from perfdoctor.capture.inject._perfdoctor_inject.value_numbers import ValueNumbers

X = torch.rand(200, 200, generator=torch.Generator().manual_seed(0))


class Refusing(torch.Tensor):
    """A tensor that says nothing of itself."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.__name__ in ("numel", "stride"):
            raise ValueError("nothing is said")
        return super().__torch_function__(func, types, args, kwargs or {})


def of_transform() -> torch.Tensor:
    return torch.func.vmap(lambda x: torch.matmul(x[None], X).exp())(X)


def of_gradient() -> torch.Tensor:
    return torch.func.grad(lambda x: torch.matmul(x, X).exp().sum())(X)


def of_meta() -> torch.Tensor:
    return torch.matmul(X.to("meta"), X.to("meta"))


def of_a_subclass() -> torch.Tensor:
    return torch.matmul(X.as_subclass(Refusing), X)


def of_sparse() -> torch.Tensor:
    return torch.matmul(torch.eye(200).to_sparse(), X)


@pytest.mark.parametrize(
    "call", [of_transform, of_gradient, of_meta, of_a_subclass, of_sparse], ids=lambda call: call.__name__
)
def test_a_call_returns_what_it_returns_without_the_mode(
    call: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_looks, "MIN_CALL_NS", 0)
    results, calls = value_looks.UnchangedResults(), CallRecords()
    calls.start()
    with SourceLineMode(results, NeededRows(), calls, ValueNumbers()):
        for _ in range(4):
            results.begin_step()
            assert call().shape == call().shape


def test_memory_that_was_freed_is_not_read() -> None:
    freed = torch.rand(200, 200)
    assert len(value_looks.read_sample(freed, 4, 64)) == 256
    freed.untyped_storage().resize_(0)
    assert value_looks.read_sample(freed, 4, 64) == b""


def test_a_look_leaves_the_memory_as_it_was() -> None:
    looked_at = torch.rand(200, 200, requires_grad=True)
    value_looks.read_sample(looked_at, 4, 64)
    looked_at.untyped_storage().resize_(0)  # as sharding does: torch refuses it after `Tensor.numpy`
    assert looked_at.untyped_storage().nbytes() == 0
