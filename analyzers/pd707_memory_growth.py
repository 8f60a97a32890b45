"""PD707: memory grows from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._memory_headroom import read_memory
from perfdoctor.analyzers._memory_of_rank import devices_of, line_of, name_device, peak_evidence
from perfdoctor.analyzers._pd707_growth import GrowthOfRun, find_memory_growth
from perfdoctor.rules import (
    OPTIMIZER,
    DeviceMemory,
    Evidence,
    Finding,
    Int64Array,
    MemoryEdit,
    Rank,
    RankAnalyzer,
    SavedBytes,
    Selection,
    SourceLocation,
    distinct,
    format_bytes,
    memory_categories,
    read_advice,
    shrink,
)

_STAYS = (memory_categories.PARAMETERS, memory_categories.GRADIENTS, memory_categories.OPTIMIZER_STATE)


class MemoryGrowth(RankAnalyzer):
    """Each step leaves more allocated than the one before, and something holds on to it."""

    rule = "PD707"
    name = "memory-growth"
    # min_steps: in which it grows; one less in the middle of a run. min_growth_bytes: in each.
    # min_evenness: the least growth over the largest.
    defaults = {"min_steps": 3, "min_growth_bytes": 1 << 16, "min_evenness": 0.5}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each device whose memory grows in each step, and one on the whole run where none is known."""
        runs = dict(_growth_of_run(rank))
        # Of a run that goes on, states and pipelines are there: one step less is enough, and none is left out.
        is_later = bool(rank.facts.windows.evidence.first_step)
        worth_a_look = dict(devices_of(rank))
        for number, memory in enumerate(rank.memory):
            # A growing run is worth a look, however little of its memory was made while it was recorded.
            if memory.peak is None or (number not in worth_a_look and memory.is_cpu not in runs):
                continue
            of_run = runs.get(memory.is_cpu)
            ends = _ends_of_steps(rank, memory)
            allocated = memory.trace.memory.allocated_bytes[memory.allocations.rows[ends]]
            growth = self._growth_in_each(np.diff(allocated if is_later else allocated[1:]), is_later=is_later)
            if of_run is not None:
                if of_run.grows:
                    kept = _find_kept(memory, ends, of_run)
                    location = None if kept is None else _line_of_last(kept, ends)
                    yield self._report_run(rank, of_run, name_device(memory), location, is_cpu=memory.is_cpu)
                    del runs[memory.is_cpu]
            elif growth is not None and not (is_later and memory.is_cpu):
                yield from self._report(rank, number, memory, ends, growth, is_later=is_later)
        for is_cpu, run in runs.items():
            if run.grows:
                yield self._report_run(rank, run, "the CPU" if is_cpu else "the GPU", None, is_cpu=is_cpu)

    def _growth_in_each(self, growth: Int64Array, *, is_later: bool) -> int | None:
        """The usual growth in a recorded step; None where not each of them grows."""
        if len(growth) < self.settings["min_steps"] - is_later:
            return None
        least, most = int(growth.min()), int(growth.max())
        is_even = least >= max(self.settings["min_growth_bytes"], self.settings["min_evenness"] * most)
        return int(np.median(growth)) if is_even else None

    def _report(
        self, rank: Rank, number: int, memory: DeviceMemory, ends: Int64Array, growth_bytes: int, *, is_later: bool
    ) -> Iterator[Finding]:
        kept = _kept_in_each(memory, ends)
        if not len(kept.places):
            return
        yield self.finding(
            rank,
            title=f"Memory of {name_device(memory)} grows by {format_bytes(growth_bytes)} in each step",
            advice=read_advice("memory that grows at a line"),
            confidence=0.9,
            location=_line_of_last(kept, ends),
            evidence=(
                *peak_evidence(memory, ("more in each step", growth_bytes)),
                Evidence("steps that grew", len(ends) - 2 + is_later, "count"),
            ),
            subject=name_device(memory),
            # A window in the middle of a run says nothing of how much the run keeps.
            memory_edit=None if is_later else _edit_of(memory, number, kept, ends),
        )

    def _report_run(
        self, rank: Rank, run: GrowthOfRun, name: str, location: SourceLocation | None, *, is_cpu: bool
    ) -> Finding:
        """The finding on a whole run, with the line of what the evidence window has of it, if it has some."""
        assert rank.run_steps is not None
        steps = rank.facts.run.steps or int(rank.run_steps.number[-1]) + 1
        low, expected, high = (
            round(rate * over)
            for rate, over in ((run.low_bytes, run.seen_steps), (run.step_bytes, steps), (run.high_bytes, steps + 1))
        )
        if is_cpu:
            # What a program makes of all that it has kept, such as one tensor, is at most as large.
            high += min(rank.facts.memory.rise_after_steps_bytes or 0, expected)
        left = read_memory(rank)
        finding = self.finding(
            rank,
            title=f"Memory of {name} grows by {format_bytes(round(run.step_bytes))} in each step, "
            f"by {format_bytes(expected)} over the {steps:,} steps of the run",
            advice=read_advice("memory that grows" if location is None else "memory that grows at a line"),
            confidence=0.9,
            location=location,
            evidence=(
                Evidence("more in each step", round(run.step_bytes), "bytes"),
                Evidence("at least", round(run.low_bytes), "bytes"),
                Evidence("at most", round(run.high_bytes), "bytes"),
                Evidence("steps of the run", steps, "count"),
                Evidence("steps from the first to the last that were seen", run.seen_steps, "count"),
            ),
            subject=name,
            saved_bytes=SavedBytes(low, expected, high, expected, "run"),
        )
        # As much once more would not fit.
        return replace(finding, severity="medium") if left is not None and left.left_bytes < expected else finding


def _growth_of_run(rank: Rank) -> Iterator[tuple[bool, GrowthOfRun]]:
    """How memory develops over the run, by whether it is the host's; what was not noted is not there."""
    steps = rank.run_steps
    if steps is not None:
        for is_cpu, in_use in ((False, steps.allocated_bytes), (True, steps.held_bytes)):
            growth = None if in_use is None else find_memory_growth(steps.number, in_use)
            if growth is not None:
                yield is_cpu, growth


def _kept_in_each(memory: DeviceMemory, ends: Int64Array) -> Selection:
    """What the recorded steps make and never free; of the first ones only what the later ones make, too."""
    kept = _made_and_kept(memory, ends[-1])
    repeats = np.isin(kept.bytes, kept.bytes[memory.allocations.begins[kept.places] > ends[1]])
    return Selection(memory, kept.places[repeats])


def _find_kept(memory: DeviceMemory, ends: Int64Array, run: GrowthOfRun) -> Selection | None:
    """What the recorded steps make and still hold in the last of them; None where it is less than half of the growth.

    What the last step itself makes may be variables of the loop; where it is the only one, so may be what is found.
    """
    before_last = ends[:-1] if len(ends) > 1 else ends
    if not len(before_last):
        return None
    kept = _made_and_kept(memory, before_last[-1])
    return kept if 2 * kept.bytes.sum() >= run.step_bytes * len(before_last) else None


def _line_of_last(kept: Selection, ends: Int64Array) -> SourceLocation | None:
    """The line that makes the last of what a step keeps, of most steps: where it is a graph, all else hangs on that."""
    locations, code = kept.lines
    begins = kept.memory.allocations.begins[kept.places]
    order = np.argsort(begins, kind="stable")
    step = np.searchsorted(ends, begins[order])
    last = order[np.flatnonzero(np.diff(step, append=len(ends) + 1))]
    known = code[last][code[last] >= 0]
    return locations[int(np.bincount(known).argmax())] if len(known) else line_of(kept)


def _made_and_kept(memory: DeviceMemory, last: int) -> Selection:
    """What is made up to some event and never freed, but for what each program keeps."""
    allocations = memory.allocations
    stays = (allocations.begins >= 0) & (allocations.begins <= last)
    kept = Selection(memory, np.flatnonzero(stays & (allocations.ends == len(allocations.rows))))
    return Selection(memory, kept.places[~kept.is_for(*_STAYS)])


def _edit_of(memory: DeviceMemory, number: int, kept: Selection, ends: Int64Array) -> MemoryEdit:
    """What a step makes is needed to its end."""
    own_end = ends[np.searchsorted(ends, memory.allocations.begins[kept.places])] + 1
    return shrink(memory, number, kept.places, begins=own_end)


def _ends_of_steps(rank: Rank, memory: DeviceMemory) -> Int64Array:
    """The last event of each step; without steps those of the optimizer's steps."""
    source = rank.memory_source
    if source is not None and source.steps.count:
        at_ns = memory.trace.memory.time_ns[memory.allocations.rows]
        return distinct(np.searchsorted(at_ns, source.steps.intervals[:, 1], side="right") - 1)
    phase = memory.phases.phase
    return np.flatnonzero((phase[:-1] == OPTIMIZER) & (phase[1:] != OPTIMIZER))
