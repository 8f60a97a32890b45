"""The class of each kernel of a trace, determined once for each distinct name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import KernelClass, classify_kernel
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.model import KERNEL, Trace

_MATRIX = frozenset({"gemm", "convolution", "attention"})
_HALF = frozenset({"fp16", "bf16"})


@frozen_dataclass(eq=False)
class KernelClasses:
    """The classes of the kernels of a trace, by their names.

    Attributes:
        trace: The trace.
        by_name: The class of each kernel name, by its code in `Trace.strings`.
    """

    trace: Trace
    by_name: Mapping[int, KernelClass]

    def match_names(self, test: Callable[..., bool]) -> BoolArray:
        """For each string of the trace whether it is the name of a kernel whose class passes the test."""
        passing = np.zeros(len(self.trace.strings), bool)
        passing[[name for name, kernel in self.by_name.items() if test(kernel)]] = True
        return passing

    def match_rows(self, test: Callable[..., bool]) -> BoolArray:
        """For each GPU item whether it is a kernel whose class passes the test."""
        gpu = self.trace.gpu
        result: BoolArray = self.match_names(test)[gpu.name] & (gpu.kind == KERNEL)
        return result


def kernel_classes_of(trace: Trace) -> KernelClasses:
    """The classes of the kernels of a trace."""
    gpu = trace.gpu
    names = occurring(gpu.name[gpu.kind == KERNEL]).tolist()
    return KernelClasses(trace, {name: classify_kernel(trace.strings[name]) for name in names})


def half_precision_share(classes: KernelClasses, chosen: BoolArray) -> float | None:
    """The share (0 to 1) of the time of matrix kernels that multiply in fp16 or bf16; None without matrix kernels.

    Kernels whose names do not say it count as another type.
    """
    matrix = classes.match_rows(lambda kernel: kernel.category in _MATRIX) & chosen
    half = classes.match_rows(lambda kernel: kernel.category in _MATRIX and kernel.operand in _HALF) & chosen
    dur_ns = classes.trace.gpu.dur_ns
    total_ns = int(np.sum(dur_ns[matrix]))
    return int(np.sum(dur_ns[half])) / total_ns if total_ns else None
