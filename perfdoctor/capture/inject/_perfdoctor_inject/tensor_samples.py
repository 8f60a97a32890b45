"""Some of a tensor's values, read from its memory: an op would be recorded as one of the program."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def read_sample(value: Any, blocks: int, block_bytes: int) -> bytes:
    """Bytes of at most so many blocks that are spread evenly over a tensor.

    Empty for what is no plain tensor in one piece of the CPU's memory: on another device a look would wait for it.
    Tensors within a transform, as of torch.func, have no memory: that is torch's RuntimeError.
    """
    if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
        return b""
    count, item_bytes = value.numel(), value.element_size()
    extent = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        extent += (size - 1) * stride
    # Sharding frees the memory of tensors that keep their size.
    if not count or extent != count or value.untyped_storage().nbytes() < (value.storage_offset() + count) * item_bytes:
        return b""
    block_bytes = min(block_bytes, count * item_bytes)
    gap = (count * item_bytes - block_bytes) // max(blocks - 1, 1) // item_bytes * item_bytes
    begin, sample = value.data_ptr(), b""
    for number in range(blocks):
        sample += ctypes.string_at(begin + gap * number, block_bytes)
    return sample
