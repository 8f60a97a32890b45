"""PD705: gradients, or values of the step before, are alive while the next forward pass runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._memory_of_rank import devices_of, line_of, most_at_once, name_device, peak_evidence
from perfdoctor.rules import (
    BACKWARD,
    FORWARD,
    Advice,
    DeviceMemory,
    Finding,
    Int64Array,
    MemoryEdit,
    Rank,
    RankAnalyzer,
    Selection,
    SourceLocation,
    format_bytes,
    memory_categories,
    read_advice,
    shrink,
)

_KEPT = (memory_categories.ACTIVATIONS, memory_categories.TEMPORARIES, memory_categories.UNKNOWN)


class KeptValues(RankAnalyzer):
    """What the step before no longer needs is still there while the next forward pass fills the memory."""

    rule = "PD705"
    name = "kept-values"
    needs = frozenset({"memory"})
    # min_share: of the peak.
    defaults = {"min_share": 0.05}
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """At most one finding on gradients and one on results for each device."""
        if rank.context.is_forward_only:
            return
        for number, memory in devices_of(rank):
            passes = _Passes(memory)
            large = memory.large
            gradients = large.places[large.is_for(memory_categories.GRADIENTS)]
            gradients = np.append(gradients, _earlier_ones(memory, gradients, passes))
            yield from self._report(
                rank,
                memory,
                _leave_out_of_forward(memory, number, gradients, passes),
                "Gradients of {} live on through the next forward pass",
                read_advice("gradients that live on"),
                "gradients",
            )
            # A reduced loss keeps the buffer of all its terms: on the CPU pages that nobody has written, so no RAM.
            is_in_ram = ~large.made_by(r"\w+_loss") if memory.is_cpu else True
            results = large.places[large.is_for(*_KEPT) & is_in_ram]
            yield from self._report(
                rank,
                memory,
                _free_after_own_pass(memory, number, results, passes),
                "Results of {} live on until the next step has made its own",
                read_advice("results that live on"),
                "results",
            )

    def _report(
        self, rank: Rank, memory: DeviceMemory, edit: MemoryEdit, title: str, advice: Advice, topic: str
    ) -> Iterator[Finding]:
        assert memory.peak is not None
        kept_bytes = most_at_once(memory, edit)
        if kept_bytes < self.settings["min_share"] * memory.peak.allocated_bytes:
            return
        yield self.finding(
            rank,
            title=f"{title.format(format_bytes(kept_bytes))} on {name_device(memory)}",
            advice=advice,
            location=(_line_that_frees(memory, edit) if topic == "gradients" else None)
            or line_of(Selection(memory, edit.places)),
            evidence=peak_evidence(memory, ("kept at once", kept_bytes)),
            subject=f"{name_device(memory)} {title.split(' ', 1)[0].lower()}",
            topics=(topic,),
            memory_edit=edit,
        )


class _Passes:
    """Where passes of the loop begin.

    Attributes:
        number: The pass of each event.
        forward, backward: The event with which each pass of that phase begins, as columns that rise.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        phase = memory.phases.phase
        begins = np.flatnonzero(np.diff(phase, prepend=-1) != 0)
        self.end = len(phase)
        self.begins: Int64Array = np.append(begins, self.end)
        self.forward: Int64Array = begins[phase[begins] == FORWARD]
        self.backward: Int64Array = begins[phase[begins] == BACKWARD]

    def next_of(self, starts: Int64Array, places: Int64Array) -> Int64Array:
        """For each event the first of some starts behind it; the end where there is none."""
        return np.append(starts, self.end)[np.searchsorted(starts, places, side="right")]


def _line_that_frees(memory: DeviceMemory, edit: MemoryEdit) -> SourceLocation | None:
    """The line that gives the largest of them back too late, such as zero_grad; None where none was recorded."""
    ends = memory.allocations.ends[edit.places]
    freed = np.flatnonzero(ends < len(memory.allocations.rows))
    return memory.origin_of(int(ends[freed[edit.bytes[freed].argmax()]]))[0] if len(freed) else None


def _leave_out_of_forward(memory: DeviceMemory, number: int, places: Int64Array, passes: _Passes) -> MemoryEdit:
    """The edit by which gradients are not there in the forward pass behind their optimizer's step.

    Of a gradient that stays for several steps it is the forward pass of the peak.
    """
    allocations = memory.allocations
    made = allocations.begins[places]
    peak = memory.peak.place if memory.peak is not None else 0
    # The last forward pass that begins before the peak, where the gradient is from before it; else the next one.
    last = (
        passes.forward[max(int(np.searchsorted(passes.forward, peak, side="right")) - 1, 0)]
        if len(passes.forward)
        else passes.end
    )
    lives_to_peak = (made < last) & (last < allocations.ends[places])
    begins = np.where(lives_to_peak, last, passes.next_of(passes.forward, made))
    return shrink(memory, number, places, begins=begins, ends=passes.next_of(passes.backward, begins))


def _free_after_own_pass(memory: DeviceMemory, number: int, places: Int64Array, passes: _Passes) -> MemoryEdit:
    """The edit by which results of a forward pass end with the backward pass behind it.

    Only of what the program frees in a later forward pass: what stays is kept for a reason that is not known here.
    """
    allocations = memory.allocations
    made, freed = allocations.begins[places], allocations.ends[places]
    own_backward = passes.next_of(passes.backward, made)
    behind = passes.next_of(passes.begins, own_backward)
    phase = np.append(memory.phases.phase, np.int8(-1))
    is_kept = (phase[made] == FORWARD) & (phase[np.minimum(freed, passes.end)] == FORWARD) & (freed > behind)
    earlier = _earlier_ones(memory, places[is_kept], passes)
    begins = np.append(behind[is_kept], np.zeros_like(earlier))
    return shrink(memory, number, np.append(places[is_kept], earlier), begins=begins)


def _earlier_ones(memory: DeviceMemory, places: Int64Array, passes: _Passes) -> Int64Array:
    """What was made before the recording, is as large as one of some allocations, and is freed in the first pass."""
    allocations = memory.allocations
    first = passes.backward[0] if len(passes.backward) else passes.end
    is_alike = np.isin(allocations.bytes, allocations.bytes[places])
    return np.flatnonzero((allocations.begins < 0) & (allocations.ends < first) & is_alike)
