"""The most that a fix can save: the time of the things that it takes away, and the idle gaps that end with them.

Whatever a replay, a ledger or a rule says, a fix that removes 12 copies saves at most what these copies take, the gaps
before them, and the time of the CPU that launches them. The driver's allocating in such a gap stays: what needs memory
next asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.timeline.idle_gaps import IdleGaps
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.edits import Edit
from perfdoctor.savings.saving import Claim
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import FloatArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps


@frozen_dataclass(eq=False)
class SavingBounds:
    """What bounds the savings of a rank.

    Attributes:
        trace: The trace, with the clocks of CPU and GPU aligned.
        gaps: Its idle gaps.
        steps: The analysed steps.
        window: The analysed time.
        cpu_waits: When the CPU waited for the GPU: that time goes with the GPU's work, not with the call that waited.
        time_scale: Time without the profiler over recorded time. Bounds are of the longer one: what is left of a thing
            without the profiler is not known, but where steps took longer without it, so did what they do.
    """

    trace: Trace
    gaps: IdleGaps
    steps: Steps
    window: Intervals
    cpu_waits: Intervals
    time_scale: float = 1.0

    def of_fix(self, edit: Edit | None, claim: Claim) -> int | None:
        """The most that a fix saves of a step, in ns; of the window without steps. None where nobody knows.

        That is what its edit takes away, else the time that it claims. Of the CPU an edit knows calls, and idle time
        that ends with what they launch may be more.
        """
        if edit is None:
            return self.of_claim(claim)
        return max(self.of_edit(edit), 0 if claim.kernels else self.of_claim(claim) or 0)

    def of_edit(self, edit: Edit) -> int:
        """The most that an edit saves of a step in any of its variants, in ns; of the window without steps."""
        return max(self._of_variant(variant) for variant in edit.variants()) if len(self._spans) else 0

    def of_claim(self, claim: Claim) -> int | None:
        """The most that ending some claimed time saves of a step, in ns; None where no time is claimed."""
        if not claim.total_ns:
            return None
        if claim.unshared_ns:
            return self._per_step(claim.total_ns)
        return self._per_step(_integrate_largest([_Layer.of(claim.intervals, 1.0)], self._spans).sum())

    def _of_variant(self, edit: Edit) -> int:
        """Where several things take one instant it counts once, with the largest part of it that goes."""
        gpu, rows = self.trace.gpu, edit.items.index
        start_ns, end_ns, stream = gpu.start_ns[rows], gpu.end_ns[rows], gpu.stream[rows]
        share = 1 - np.minimum(edit.dur_ns / np.maximum(end_ns - start_ns, 1), 1)
        of_streams = (stream == number for number in distinct(stream))
        layers = [_Layer(start_ns[on], end_ns[on], share[on]) for on in of_streams]
        layers.append(_Layer.of(self._gaps_and_waits(edit), 1.0))
        layers += [
            _Layer.of(iv.subtract(each.intervals, self.cpu_waits), 1 - each.remaining_share)
            for each in edit.removed_cpu_time
        ]
        return self._per_step(_integrate_largest(layers, self._spans).sum())

    def _gaps_and_waits(self, edit: Edit) -> Intervals:
        """The gaps that end with a removed item, but for the driver's allocating, and the calls that no longer wait."""
        calls, gaps = self.trace.calls, self.gaps
        removed = np.zeros(len(self.trace.gpu) + 1, bool)  # the last entry is for gaps that no item ends
        removed[edit.items.index[edit.dur_ns == 0]] = True
        ends = removed[gaps.next_item]
        waits = edit.unblocked_calls.index
        idle = iv.subtract(iv.union(gaps.start_ns[ends], gaps.end_ns[ends]), self._allocating)
        return iv.union_of((idle, iv.union(calls.start_ns[waits], calls.end_ns[waits])))

    @cached_property
    def _allocating(self) -> Intervals:
        calls = self.trace.calls
        rows = self.trace.match_rows(calls, vocabulary.ALLOCATOR_CALL)
        return iv.union(calls.start_ns[rows], calls.end_ns[rows])

    @property
    def _spans(self) -> Intervals:
        """The steps; without steps the window."""
        return self.steps.intervals if self.steps.count else self.window

    def _per_step(self, ns: float) -> int:
        """The mean of the steps; without steps all of it."""
        return int(np.ceil(ns * max(self.time_scale, 1.0) / max(self.steps.count, 1)))


class _Layer(NamedTuple):
    """Time of which a share goes, such as what gets shorter on one stream; what overlaps in a layer adds up."""

    start_ns: Int64Array
    end_ns: Int64Array
    share: FloatArray

    @classmethod
    def of(cls, time: Intervals, share: float) -> _Layer:
        return cls(time[:, 0], time[:, 1], np.full(len(time), share))


def _integrate_largest(layers: Sequence[_Layer], spans: Intervals) -> FloatArray:
    """For each span how much of it goes, in ns: an instant counts once, with the most that any layer has of it."""
    # Nearly sorted, and an edge twice adds nothing: np.unique takes twelve times as long.
    edge_ns = np.sort(
        np.concatenate([side for layer in layers for side in (layer.start_ns, layer.end_ns)]), kind="stable"
    )
    if len(edge_ns) < 2:
        return np.zeros(len(spans))
    largest = np.zeros(len(edge_ns))  # of the time after each edge
    for layer in layers:
        change = np.zeros(len(edge_ns))
        np.add.at(change, np.searchsorted(edge_ns, layer.start_ns), layer.share)
        np.subtract.at(change, np.searchsorted(edge_ns, layer.end_ns), layer.share)
        np.maximum(largest, np.cumsum(change), out=largest)
    since_ns = np.append(0.0, np.cumsum(np.minimum(largest, 1)[:-1] * np.diff(edge_ns)))
    begin_ns, end_ns = (np.interp(spans[:, side] - edge_ns[0], edge_ns - edge_ns[0], since_ns) for side in (0, 1))
    return np.asarray(end_ns - begin_ns)
