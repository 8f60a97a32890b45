"""Parts of a loss that wait for one backward pass, though nothing that one needs is made by another."""

from __future__ import annotations

import re

import numpy as np

from perfdoctor.analyzers._memory_of_rank import most_at_once
from perfdoctor.rules import Int64Array
from perfdoctor.rules.internal import (
    FORWARD,
    DeviceMemory,
    MemoryEdit,
    Selection,
    match_op_names,
    memory_categories,
    shrink,
)

# Without a loss of a library the program reduces by itself.
_LOSS = (r"aten::(\w*_loss(_forward|2d_forward)?|binary_cross_entropy\w*|kl_div)", r"aten::(mean|sum)")
_PRODUCT = r"aten::(mm|addmm|bmm|baddbmm|convolution_backward)"


class LossParts:
    """The parts of the loss in the forward pass of the peak, and the values that they keep.

    A part is what lies between two ops of the loss. Parts alike, of which none gets a gradient from a later one, could
    each run backward before the next is made: then the first has as many products in the backward pass as the others.
    The first step of a recurrent net has fewer, since its state needs no gradient.

    Attributes:
        count: How many there are; 0 where there are no such parts, or where no numbers of autograd were recorded.
    """

    def __init__(self, chosen: Selection) -> None:
        self._chosen = chosen
        self._part = np.full(len(chosen.places), -1, np.int64)
        self._end = np.zeros(len(chosen.places), np.int64)
        self.count = 0
        memory = chosen.memory
        if memory.peak is None or not memory.joins.has_numbers:
            return
        phase = memory.phases.phase
        begins = np.flatnonzero(np.diff(phase, prepend=-1) != 0)
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(phase)], strict=True):
            if phase[begin] == FORWARD:
                count = self._cut(begin, end)
                # The peak lies in this pass, or in the backward pass behind it.
                if begin <= memory.peak.place:
                    self.count = count

    def _cut(self, begin: int, end: int) -> int:
        """The parts in a forward pass from one event to another; 0 where they are not alike or depend on each other."""
        memory, evidence = self._chosen.memory, self._chosen.evidence
        made = memory.allocations.begins[self._chosen.places]
        rows = np.flatnonzero((made >= begin) & (made < end) & (evidence.op >= 0))
        time_ns = memory.trace.memory.time_ns[memory.allocations.rows]
        cuts = _ends_of_losses(memory, int(time_ns[begin]), int(time_ns[end - 1]))
        part = np.searchsorted(cuts, time_ns[made[rows]])
        if len(cuts) < 2 or not len(rows) or part.max() >= len(cuts):
            return 0
        names = [sorted(evidence.op_name[rows[part == number]].tolist()) for number in range(len(cuts))]
        joins, ops = memory.joins, memory.trace.ops
        is_product = match_op_names(memory.trace, lambda name: re.fullmatch(_PRODUCT, name) is not None)[ops.name]
        differentiated = joins.forward[joins.in_backward & is_product & np.isin(joins.forward, evidence.op[rows])]
        work = np.bincount(np.searchsorted(cuts, ops.start_ns[differentiated]), minlength=len(cuts))
        if any(each != names[0] for each in names) or (work != work[0]).any() or not work[0]:
            return 0
        self._part[rows] = np.where(part < len(cuts) - 1, part, -1)
        self._end[rows] = np.searchsorted(time_ns, cuts[part])
        return len(cuts)

    def run_backward_for_each(self, number: int) -> MemoryEdit:
        """What is gone when each part runs backward before the next is made: at least that less all gradients."""
        rows = np.flatnonzero(self._part >= 0)
        memory, places, ends = self._chosen.memory, self._chosen.places[rows], self._end[rows]
        gradients = memory.large.places[memory.large.is_for(memory_categories.GRADIENTS)]
        edit = shrink(memory, number, places, begins=ends)
        least = 1 - most_at_once(memory, shrink(memory, number, gradients)) / max(most_at_once(memory, edit), 1)
        return MemoryEdit(
            number,
            edit.places,
            edit.bytes,
            edit.begins,
            edit.ends,
            at_least=shrink(memory, number, places, max(least, 0.0), begins=ends),
        )


def _ends_of_losses(memory: DeviceMemory, begin_ns: int, end_ns: int) -> Int64Array:
    """When the ops end that make the parts of a loss in a stretch of time: the most frequent of them, rising."""
    trace, joins = memory.trace, memory.joins
    makers = np.unique(joins.forward[joins.forward >= 0])
    makers = makers[(trace.ops.start_ns[makers] >= begin_ns) & (trace.ops.start_ns[makers] <= end_ns)]
    names = trace.ops.name[makers]
    for pattern in _LOSS:
        found = [name for name in np.unique(names).tolist() if re.fullmatch(pattern, trace.strings[name])]
        if found:
            most = max(found, key=lambda name: int((names == name).sum()))
            ends: Int64Array = np.sort(trace.ops.end_ns[makers[names == most]])
            return ends
    return np.empty(0, np.int64)
