"""Parts of a loss that wait for one backward pass, though nothing that one needs is made by another."""

from __future__ import annotations

import re

import numpy as np

from perfdoctor.analyzers._memory_of_rank import most_at_once
from perfdoctor.rules import (
    BACKWARD,
    FORWARD,
    DeviceMemory,
    Int64Array,
    MemoryEdit,
    Selection,
    distinct,
    memory_categories,
    shrink,
)

# Without a loss of a library the program reduces by itself.
_LOSS = (r"aten::(\w*_loss(_forward|2d_forward)?|binary_cross_entropy\w*|kl_div)", r"aten::(mean|sum)")


class LossParts:
    """The parts of the loss in the forward pass of the peak, and the values that they keep.

    A part is what lies between two ops of the loss. Parts alike, of which none gets a gradient from a later one, could
    each run backward before the next is made: then the backward pass makes as many values for the first as for others.
    For the first step of a recurrent net it makes fewer, since the state there needs no gradient.

    Attributes:
        count: How many there are; 0 where there are no such parts, or where no numbers of autograd were recorded.
    """

    def __init__(self, chosen: Selection) -> None:
        self._chosen = chosen
        self._part = np.full(len(chosen.places), -1, np.int64)
        self._end = np.zeros(len(chosen.places), np.int64)
        self._known: tuple[int, list[int]] | None = None
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
        # The first op begins before it allocates.
        begin_ns, end_ns = int(time_ns[begin - 1]) if begin else 0, int(time_ns[end - 1])
        all_cuts = _ends_of_losses(memory, begin_ns, end_ns)
        made_ns = time_ns[made[rows]]
        if not len(rows) or not len(all_cuts) or made_ns.max() > all_cuts[-1]:
            return 0
        gradients = self._made_backward(begin_ns, end_ns)
        # A part may have several such ops: a mean within the model, and that of the loss.
        for each in range(1, len(all_cuts) // 2 + 1):
            if len(all_cuts) % each:
                continue
            cuts = all_cuts[each - 1 :: each]
            part = np.searchsorted(cuts, made_ns)
            names = [sorted(evidence.op_name[rows[part == number]].tolist()) for number in range(len(cuts))]
            work = np.bincount(np.searchsorted(cuts, gradients), minlength=len(cuts))
            # Of a pass in which the recording ends the backward pass is missing: it is as the one before.
            is_known = work.min() > 0 or (not work.any() and (len(cuts), names[0]) == self._known)
            if is_known and all(each == names[0] for each in names) and (work == work[0]).all():
                self._known = len(cuts), names[0]
                self._part[rows] = np.where(part < len(cuts) - 1, part, -1)
                self._end[rows] = np.searchsorted(time_ns, cuts[part])
                return len(cuts)
        return 0

    def _made_backward(self, begin_ns: int, end_ns: int) -> Int64Array:
        """When the forward ops began, in a stretch of time, to which large values of backward passes belong."""
        memory, large = self._chosen.memory, self._chosen.memory.large
        is_backward = memory.phases.phase[memory.allocations.begins[large.places]] == BACKWARD
        # Gradients of one tensor are added up when the second one comes, wherever that is.
        op = large.evidence.op[is_backward & ~large.made_by("add") & (large.evidence.op >= 0)]
        forward = memory.joins.forward[op]
        starts = memory.trace.ops.start_ns[forward[forward >= 0]]
        result: Int64Array = starts[(starts >= begin_ns) & (starts <= end_ns)]
        return result

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
    trace, ops = memory.trace, memory.trace.ops
    is_forward = ~memory.joins.in_backward & (ops.sequence >= 0)
    rows = np.flatnonzero(is_forward & (ops.start_ns >= begin_ns) & (ops.start_ns <= end_ns))
    names = ops.name[rows]
    for pattern in _LOSS:
        found = [name for name in distinct(names).tolist() if re.fullmatch(pattern, trace.strings[name])]
        if found:
            most = max(found, key=lambda name: int((names == name).sum()))
            ends: Int64Array = np.sort(ops.end_ns[rows[names == most]])
            return ends
    return np.empty(0, np.int64)
