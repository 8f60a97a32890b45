"""What is known about GPUs and their kernels: names to classes, devices to peaks."""

from __future__ import annotations

from perfdoctor.gpu.classify_kernels import KernelClass, classify_kernel, is_collective
from perfdoctor.gpu.classify_ops import classify_op
from perfdoctor.gpu.devices import Device, find_device, has_tensor_cores

__all__ = [
    "Device",
    "KernelClass",
    "classify_kernel",
    "classify_op",
    "find_device",
    "has_tensor_cores",
    "is_collective",
]
