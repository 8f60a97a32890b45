"""Whether the clocks of CPU and GPU agree, and by how much GPU times must move where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.model import Trace

# If a larger share of the linked items starts before its launch the clocks disagree; fewer may be rounding.
_SKEWED_SHARE = 0.10


class ClockShift(NamedTuple):
    """By how much GPU times have to be shifted.

    Attributes:
        shift_ns: The smallest shift after which no item starts before its launch, but at most so that no copy for which
            the CPU waited ends after its call; 0 where the clocks agree.
        consistent: Whether this shift satisfies both conditions; if not, the clocks drift within the trace.
        needed_ns: The shift that the first condition needs.
    """

    shift_ns: int = 0
    consistent: bool = True
    needed_ns: int = 0

    @property
    def warning(self) -> str | None:
        """A sentence for the report; None where the clocks agree."""
        if not self.needed_ns:
            return None
        if self.consistent:
            return f"the clocks of CPU and GPU disagree by {self.shift_ns / 1e6:.3f} ms or more; GPU times were moved"
        return (
            f"the clocks of CPU and GPU drift apart: kernels start up to {self.needed_ns / 1e6:.3f} ms before their "
            f"launch, but copies allow a shift of {self.shift_ns / 1e6:.3f} ms only; causes of short gaps are uncertain"
        )


def clock_shift_of(trace: Trace) -> ClockShift:
    """The shift that the launches and blocking copies of a trace need."""
    gpu, calls = trace.gpu, trace.calls
    linked = gpu.call >= 0
    if not linked.any():
        return ClockShift()
    early = calls.start_ns[gpu.call[linked]] - gpu.start_ns[linked]
    if (early > 0).mean() <= _SKEWED_SHARE:
        return ClockShift()
    needed = int(early.max())
    # The call of a copy into pageable memory returns only when the copy is done.
    waited = np.flatnonzero(linked & copy_kinds_of(trace).matches(vocabulary.DTOH, vocabulary.PAGEABLE))
    room = int((calls.end_ns[gpu.call[waited]] - gpu.end_ns[waited]).min()) if len(waited) else needed
    return ClockShift(min(needed, max(room, 0)), room >= needed, needed)


def shift_gpu_clock(trace: Trace, shift: ClockShift) -> Trace:
    """The trace with shifted GPU times and a warning about that; the same trace where the clocks agree."""
    if shift.warning is None:
        return trace
    gpu, ranges = trace.gpu, trace.gpu_ranges
    return replace(
        trace,
        gpu=replace(gpu, start_ns=gpu.start_ns + shift.shift_ns, end_ns=gpu.end_ns + shift.shift_ns),
        gpu_ranges=replace(ranges, start_ns=ranges.start_ns + shift.shift_ns, end_ns=ranges.end_ns + shift.shift_ns),
        warnings=(*trace.warnings, shift.warning),
    )
