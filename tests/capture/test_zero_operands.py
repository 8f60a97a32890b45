"""Which products have an operand that is zero nearly everywhere."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from perfdoctor.capture.inject._perfdoctor_inject.value_looks import find_zeros

LONG_NS, SHORT_NS = 100_000, 1000
GENERATOR = torch.Generator().manual_seed(0)
DENSE = torch.rand(300, 300, generator=GENERATOR)
FEW = torch.where(DENSE > 0.99, DENSE, 0.0)
SCORES = DENSE.clone().requires_grad_()


def masked(share: float) -> torch.Tensor:
    is_left = (share < DENSE) | torch.eye(300, dtype=torch.bool)
    return torch.softmax(torch.where(is_left, SCORES, -9e15), 1)


@pytest.mark.parametrize(
    ("operands", "mark"),
    [
        ((FEW, DENSE), "perfdoctor::zeros 0 "),
        ((DENSE, FEW.T), "perfdoctor::zeros 1 "),
        ((FEW.double(), DENSE.double()), "perfdoctor::zeros 0 "),
        ((masked(0.997), DENSE), "perfdoctor::masked_zeros 0 "),
        ((torch.dropout(masked(0.997), 0.5, train=True), DENSE), "perfdoctor::masked_zeros 0 "),
    ],
    ids=["left", "right", "float64", "masked", "dropout"],
)
def test_products_with_few_numbers(operands: tuple[torch.Tensor, torch.Tensor], mark: str) -> None:
    found = find_zeros(torch.matmul, operands, LONG_NS)
    assert found is not None
    assert found.startswith(mark)
    assert 980 <= int(found.rpartition(" ")[2]) <= 1000


@pytest.mark.parametrize(
    ("operands", "dur_ns"),
    [
        ((DENSE, DENSE), LONG_NS),
        ((FEW, DENSE), SHORT_NS),
        ((masked(0.5), DENSE), LONG_NS),
        ((torch.relu(SCORES - 0.99), DENSE), LONG_NS),
        ((FEW[:50, :50].contiguous(), DENSE[:50]), LONG_NS),
        ((FEW[:, ::2], DENSE[:150]), LONG_NS),
    ],
    ids=["dense", "short", "half-masked", "relu", "small", "strided"],
)
def test_other_products_are_left_alone(operands: tuple[torch.Tensor, torch.Tensor], dur_ns: int) -> None:
    assert find_zeros(torch.matmul, operands, dur_ns) is None


def test_other_functions_are_left_alone() -> None:
    assert find_zeros(torch.add, (FEW, FEW), LONG_NS) is None
