"""The class of each kernel of a trace, determined once for each distinct name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import KernelClass, classify_kernel
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.model import KERNEL, Trace


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
