"""Which results no step changes: what torch's functions return at the same place of each step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from perfdoctor.capture.inject._perfdoctor_inject.value_looks import UnchangedResults

LONG_NS, SHORT_NS = 100_000, 1000
FIXED = torch.rand(50, 8, generator=torch.Generator().manual_seed(0))


def look(results: UnchangedResults, function: Callable[[], torch.Tensor], dur_ns: int = LONG_NS) -> bool:
    return results.add("@train.py:3 main", function, (FIXED,), function(), dur_ns)


def unchanged_in(steps: int, function: Callable[[], torch.Tensor], dur_ns: int = LONG_NS) -> list[bool]:
    """Of each step whether the result is known not to change, beside another one that does."""
    results, found = UnchangedResults(), []
    for _ in range(steps):
        results.begin_step()
        results.add("@train.py:2 main", torch.rand, (), torch.rand(100), LONG_NS)
        found.append(look(results, function, dur_ns))
    return found


def basis() -> torch.Tensor:
    return torch.exp(FIXED @ FIXED.T)


def transposed() -> torch.Tensor:
    return basis().T


def drawn() -> torch.Tensor:
    return basis() * torch.rand(1)


def zeros() -> torch.Tensor:
    return torch.ones(300)


def all_false() -> torch.Tensor:
    return FIXED > 2


def given_back() -> torch.Tensor:
    return FIXED


def add_() -> torch.Tensor:
    return FIXED + 1


def few() -> torch.Tensor:
    return FIXED.sum(1)


def spread() -> torch.Tensor:
    return basis()[:, ::2]


@pytest.mark.parametrize("function", [basis, transposed], ids=lambda function: function.__name__)
def test_from_the_third_step_on_a_result_is_known_not_to_change(function: Callable[[], torch.Tensor]) -> None:
    assert unchanged_in(4, function) == [False, False, True, True]


@pytest.mark.parametrize(
    "function", [drawn, zeros, all_false, given_back, add_, few, spread], ids=lambda function: function.__name__
)
def test_what_may_have_to_be_made_again_is_left_alone(function: Callable[[], torch.Tensor]) -> None:
    assert unchanged_in(4, function) == [False] * 4


def test_short_calls_are_not_looked_at() -> None:
    assert unchanged_in(4, basis, SHORT_NS) == [False] * 4


def test_a_result_that_has_changed_once_is_never_unchanged() -> None:
    results, found = UnchangedResults(), []
    for step in range(6):
        results.begin_step()
        found.append(look(results, basis if step else drawn))
    assert not any(found)


def test_calls_are_told_apart_by_their_place_in_the_step() -> None:
    results, found = UnchangedResults(), []
    for _ in range(3):
        results.begin_step()
        found += [look(results, basis), results.add("@train.py:3 main", basis, (), drawn(), LONG_NS)]
    assert found == [False, False, False, False, True, False]


def test_where_nothing_changes_one_input_is_given_on_purpose() -> None:
    results = UnchangedResults()
    for _ in range(5):
        results.begin_step()
        assert not look(results, basis)
