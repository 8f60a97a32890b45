"""Some of a tensor's values, read from its memory: an op would be recorded as one of the program."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def is_readable(value: Any) -> bool:
    """Whether it is a plain tensor whose values lie in the memory of the CPU: on another device a look would wait.

    Sharding frees the memory of tensors that keep their size. Tensors within a transform, as of torch.func, have none:
    that is torch's RuntimeError.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type != "cpu":
        return False
    if value.layout is not torch.strided or not value.numel():
        return False
    return bool(value.untyped_storage().nbytes() >= (value.storage_offset() + _extent(value)) * value.element_size())


def read_sample(value: Any, blocks: int, block_bytes: int) -> bytes:
    """Bytes of at most so many blocks, spread evenly over a tensor; empty where it does not lie in one piece."""
    if not is_readable(value) or _extent(value) != value.numel():
        return b""
    count, item_bytes = value.numel(), value.element_size()
    block_bytes = min(block_bytes, count * item_bytes)
    gap = (count * item_bytes - block_bytes) // max(blocks - 1, 1) // item_bytes * item_bytes
    begin, sample = value.data_ptr(), b""
    for number in range(blocks):
        sample += ctypes.string_at(begin + gap * number, block_bytes)
    return sample


def _extent(tensor: torch.Tensor) -> int:
    """How many elements lie from its first to its last one in memory."""
    extent = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        extent += (size - 1) * stride
    return extent
