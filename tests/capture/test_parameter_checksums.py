"""Checksums of parameters: equal where all elements are, whatever their layout, and without a copy of a tensor."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from perfdoctor.capture.inject._perfdoctor_inject.parameter_checksums import (  # noqa: E402
    MAX_ELEMENTS,
    ParameterChecksums,
    describe_copy,
    flatten_in_memory_order,
    sum_tensors,
)


def sum_of(tensor: torch.Tensor) -> int:
    return dict(sum_tensors([("weight", tensor)]))["weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8])
def test_one_bit_makes_another_checksum(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    other = tensor.clone()
    other[1, 2, 3] += 1
    assert sum_of(tensor) == sum_of(tensor.clone()) != sum_of(other)


def test_a_tensor_in_another_layout_is_read_in_place() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    flat = flatten_in_memory_order(tensor)
    assert flat is not None
    assert flat.data_ptr() == tensor.data_ptr()
    assert sorted(flat.tolist()) == sorted(tensor.reshape(-1).tolist())


def test_what_is_in_pieces_or_empty_has_no_checksum() -> None:
    pieces = torch.zeros(4, 6)[:, ::2]
    assert list(sum_tensors([("a", pieces), ("b", torch.zeros(0, 3))])) == []


def test_of_a_large_tensor_some_elements_are_read() -> None:
    tensor = torch.zeros(4 * MAX_ELEMENTS)
    other = tensor.clone()
    other[1] = 1.0
    assert sum_of(tensor) == sum_of(other)
    other[4] = 1.0
    assert sum_of(tensor) != sum_of(other)


def test_a_scalar_cannot_be_read_from_its_checksum() -> None:
    value = torch.tensor([1.0])
    assert sum_of(value) != int(value.view(torch.int32))


def test_frozen_parameters_and_buffers_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    copy = describe_copy(model)
    assert [each["name"] for each in copy["tensors"]] == ["0.weight", "1.weight", "1.bias"]
    assert (copy["ddp"], copy["group"], copy["sharded"]) == (False, None, False)


def test_a_program_of_one_process_has_none() -> None:
    checksums = ParameterChecksums()
    checksums.take(7, 1)
    assert checksums.samples == []
