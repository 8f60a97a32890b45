"""PD704: the optimizer's copies, or its state, fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._memory_of_rank import bytes_at_peak, devices_of, line_of, name_device, peak_evidence
from perfdoctor.rules import (
    OPTIMIZER,
    Advice,
    DeviceMemory,
    Finding,
    Int64Array,
    MemoryEdit,
    Rank,
    RankAnalyzer,
    Selection,
    format_bytes,
    memory_categories,
    read_advice,
    shrink,
)

# Two states of one byte and a scale for each 256 of them, for two of four bytes (Dettmers et al.).
_LEFT_OF_8_BIT = 0.26


class OptimizerMemory(RankAnalyzer):
    """The peak is in the optimizer's step, or what it keeps is a large part of the peak."""

    rule = "PD704"
    name = "optimizer-memory"
    needs = frozenset({"memory"})
    # min_share: of the peak, for copies. min_state_share: of the peak, for states, which cost accuracy or a network.
    defaults = {"min_share": 0.05, "min_state_share": 0.25}
    references = ("https://docs.pytorch.org/docs/stable/optim.html", "https://arxiv.org/abs/2110.02861")

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """At most one finding on copies and one on states for each device."""
        if rank.context.is_forward_only:
            return
        for number, memory in devices_of(rank):
            large, phase, allocations = memory.large, memory.phases.phase, memory.allocations
            in_step = phase[allocations.begins[large.places]] == OPTIMIZER
            is_copy = in_step & large.is_for(memory_categories.TEMPORARIES)
            copies, states = large.places[is_copy], large.places[large.is_for(memory_categories.OPTIMIZER_STATE)]
            if self._hold(memory, copies, "min_share"):
                advice = read_advice("copies of the optimizer")
                title = "Copies in the optimizer's step hold {} at the peak"
                yield self._report(rank, memory, copies, title, advice, shrink(memory, number, copies))
            if self._hold(memory, states, "min_state_share"):
                advice = read_advice("states of the optimizer")
                edit = replace(shrink(memory, number, states, 1 - _LEFT_OF_8_BIT), costs_time=True)
                yield self._report(rank, memory, states, "Optimizer states hold {} at the peak", advice, edit)

    def _hold(self, memory: DeviceMemory, places: Int64Array, threshold: str) -> bool:
        assert memory.peak is not None
        share = max(self.settings[threshold], self.settings["min_share"])
        return bytes_at_peak(memory, places) >= max(share * memory.peak.allocated_bytes, 1)

    def _report(
        self, rank: Rank, memory: DeviceMemory, places: Int64Array, title: str, advice: Advice, edit: MemoryEdit
    ) -> Finding:
        held_bytes = bytes_at_peak(memory, places)
        return self.finding(
            rank,
            title=f"{title.format(format_bytes(held_bytes))} of {name_device(memory)}",
            advice=advice,
            location=line_of(Selection(memory, places)),
            evidence=peak_evidence(memory, ("of it the optimizer's", held_bytes)),
            subject=f"{name_device(memory)} {'states' if edit.costs_time else 'copies'}",
            topics=("optimizer", "states" if edit.costs_time else "copies"),
            memory_edit=edit,
        )
