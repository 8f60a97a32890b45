"""Whether a model multiplies in half precision: what its gradients could travel in."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.trace.arrays import BoolArray

_MATRIX = frozenset({"gemm", "convolution", "attention"})
_HALF = frozenset({"fp16", "bf16"})


def half_precision_share(classes: KernelClasses, chosen: BoolArray) -> float | None:
    """The share (0 to 1) of the time of matrix kernels that multiply in fp16 or bf16; None without matrix kernels.

    Kernels whose names do not say it count as another type.
    """
    matrix = classes.match_rows(lambda kernel: kernel.category in _MATRIX) & chosen
    half = classes.match_rows(lambda kernel: kernel.category in _MATRIX and kernel.operand in _HALF) & chosen
    dur_ns = classes.trace.gpu.dur_ns
    total_ns = int(np.sum(dur_ns[matrix]))
    return int(np.sum(dur_ns[half])) / total_ns if total_ns else None
