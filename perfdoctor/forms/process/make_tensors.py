"""Tensors as they were recorded: sizes, strides, type, and what is known of the values."""

from __future__ import annotations

from typing import Any

import torch

# What a whole number is where nobody has looked: a class, an index, a token of a small table.
_UNKNOWN_MAX = 1


def make_tensor(row: list[Any], device: str) -> torch.Tensor:
    """A tensor like the recorded one, with random values of the recorded range.

    `row` is sizes, strides, type, device, whether it requires a gradient, whether it is a parameter, values.
    """
    sizes, strides, name, _, requires_grad, _, values = row
    dtype, values = getattr(torch, name), values or {}
    strides = _contiguous(sizes) if strides is None else strides
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if all(sizes) else 0
    made = _fill(extent, dtype, values)
    if extent and values.get("falls") and strides == [1]:
        made = _falling(extent, values).to(dtype)
    elif extent and values.get("sorted") and not dtype.is_floating_point:
        made = made.sort().values
    tensor = made.as_strided(sizes, strides).to(device) if extent else made.reshape(sizes)
    if dtype is torch.bool and values.get("first_row_is_false"):
        tensor = torch.ones_like(tensor).triu(1)
    if not requires_grad or not (dtype.is_floating_point or dtype.is_complex):
        return tensor
    if 0 not in strides:
        return tensor.requires_grad_()
    # The gradient of what is only repeated is that of its one copy.
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    return once.clone().requires_grad_().expand(sizes)


def _falling(count: int, values: dict[str, Any]) -> torch.Tensor:
    """Whole numbers that never grow, with the recorded ends and sum, as the batch sizes of packed sequences."""
    low, high, total = values["min"], values["max"], values["sum"]
    place = torch.linspace(0, 1, count, dtype=torch.float64)
    curves = [low + (high - low) * (1 - place**bend) for bend in torch.logspace(-2, 2, 200, dtype=torch.float64)]
    best = min(curves, key=lambda curve: abs(float(curve.sum()) - total)).round().to(torch.int64)
    best[0], best[-1] = high, low
    missing = total - int(best.sum())
    for at in range(1, count - 1):
        change = max(min(missing, high - int(best[at])), low - int(best[at]))
        best[at] += change
        missing -= change
    return best.sort(descending=True).values


def _fill(count: int, dtype: torch.dtype, values: dict[str, Any]) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(count) < values.get("true", 0.5)
    if not dtype.is_floating_point and not dtype.is_complex:
        low, high = int(values.get("min", 0)), int(values.get("max", _UNKNOWN_MAX))
        made = torch.randint(low, high + 1, (count,), dtype=dtype)
        if count:  # both ends: a count of classes, or an index out of range, follows from them
            made[0], made[-1] = low, high
        return made
    if "min" in values:  # a recurrent layer with weights of another size would be chaotic: rounding would grow
        made = torch.rand(count) * max(values["max"] - values["min"], 1e-6) + values["min"]
    else:
        made = torch.randn(count)
    if values.get("zeros", 0) > 0.01:
        made = made * (torch.rand(count) >= values["zeros"])
    return made.to(dtype)


def _contiguous(sizes: list[int]) -> list[int]:
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= max(size, 1)
    return strides
