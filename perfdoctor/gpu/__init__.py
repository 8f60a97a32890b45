"""What is known about GPUs and their kernels: names to classes, devices to peaks."""

from __future__ import annotations

from perfdoctor.gpu.devices import Device, find_device, has_tensor_cores
from perfdoctor.gpu.kernels import KernelClass, classify_kernel, is_collective
from perfdoctor.gpu.ops import classify_op

__all__ = [
    "Device",
    "KernelClass",
    "classify_kernel",
    "classify_op",
    "find_device",
    "has_tensor_cores",
    "is_collective",
]
