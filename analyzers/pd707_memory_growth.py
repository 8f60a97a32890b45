"""PD707: memory grows from step to step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._memory_of_rank import devices_of, line_of, name_device, peak_evidence
from perfdoctor.rules import Advice, Claim, Evidence, Finding, Int64Array, Rank, RankAnalyzer, Saving, format_bytes
from perfdoctor.rules.internal import OPTIMIZER, DeviceMemory, Selection, memory_categories, shrink

_STAYS = (memory_categories.PARAMETERS, memory_categories.GRADIENTS, memory_categories.OPTIMIZER_STATE)


class MemoryGrowth(RankAnalyzer):
    """Each step leaves more allocated than the one before, and something holds on to it.

    What it finds:
        Memory at the end of the steps that grows by about the same amount in each, and the line whose allocations stay.

    Why it costs time:
        What does not fit has to be smaller, or ends the program. A list of losses keeps the graph of each with all that
        it saved; a cache, a history or a global list keeps tensors. It runs out in the end, however small a step is.

    How it is measured:
        What is allocated at the end of each step (without steps: of each optimizer's step), the first one aside, in
        which optimizers make their state; where captured facts say that steps came before the recording, from the
        end of its first one. What is made in a step and never freed is the growth.

    How to fix:
        Keep `loss.detach()` or `loss.item()`; move what has to be kept to the CPU; empty the list each epoch.

    When it is wrong:
        A recording that is shorter than what the program collects before it lets go, such as an episode.

    Needs:
        Recorded memory of `min_steps` steps in the middle of a captured run, or of two more that may be the first of a
        program: a snapshot, or a trace with profile_memory=True.

    References:
        PyTorch, "Frequently Asked Questions", My model reports "cuda runtime error(2): out of memory".
    """

    rule = "PD707"
    name = "memory-growth"
    needs = frozenset({"memory"})
    # min_steps: in which it grows; one less in the middle of a run. min_growth_bytes: in each.
    # min_evenness: the least growth over the largest.
    defaults = {"min_steps": 3, "min_growth_bytes": 1 << 16, "min_evenness": 0.5}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each device whose memory grows in each step."""
        for number, memory in devices_of(rank):
            ends = _ends_of_steps(rank, memory)
            allocated = memory.trace.memory.allocated_bytes[memory.allocations.rows[ends]]
            # Of a run that goes on, states and pipelines are there: one step less is enough, and none is left out.
            is_later = bool(rank.facts.windows.evidence.first_step)
            growth = np.diff(allocated if is_later else allocated[1:])
            if len(growth) < self.settings["min_steps"] - is_later:
                continue
            least, most = int(growth.min()), int(growth.max())
            if least < self.settings["min_growth_bytes"] or least < self.settings["min_evenness"] * most:
                continue
            yield from self._report(rank, number, memory, ends, growth)

    def _report(
        self, rank: Rank, number: int, memory: DeviceMemory, ends: Int64Array, growth: Int64Array
    ) -> Iterator[Finding]:
        allocations, growth_bytes = memory.allocations, int(np.median(growth))
        steps_before = rank.facts.windows.evidence.first_step or 0
        before = (Evidence("kept from steps before the recording, if all grew", steps_before * growth_bytes, "bytes"),)
        stays = (allocations.begins >= 0) & (allocations.begins <= ends[-1])
        kept = Selection(memory, np.flatnonzero(stays & (allocations.ends == len(allocations.rows))))
        # The first steps make what stays for good as well: of theirs only what the later ones make, too.
        repeats = np.isin(kept.bytes, kept.bytes[allocations.begins[kept.places] > ends[1]])
        kept = Selection(memory, kept.places[repeats & ~kept.is_for(*_STAYS)])
        if not len(kept.places):
            return
        # What a step makes is needed to its end.
        own_end = ends[np.searchsorted(ends, allocations.begins[kept.places])] + 1
        yield self.finding(
            rank,
            title=f"Memory of {name_device(memory)} grows by {format_bytes(growth_bytes)} in each step",
            cost_ns=0,
            saving=Saving(),
            advice=Advice(
                "Look who keeps what this line makes: a list of results, a cache, a running sum. Keep its value; "
                "a tensor with a graph keeps all that the graph saved.",
                "history.append(result.detach().cpu())   # not result",
                "https://docs.pytorch.org/docs/stable/notes/faq.html",
            ),
            claim=Claim(),
            confidence=0.9,
            location=line_of(kept),
            evidence=(
                *peak_evidence(memory, ("more in each step", growth_bytes)),
                Evidence("steps that grew", len(growth), "count"),
                *(before if steps_before else ()),
            ),
            subject=name_device(memory),
            memory_edit=shrink(memory, number, kept.places, begins=own_end),
        )


def _ends_of_steps(rank: Rank, memory: DeviceMemory) -> Int64Array:
    """The last event of each step; without steps those of the optimizer's steps."""
    source = rank.memory_source
    if source is not None and source.steps.count:
        at_ns = memory.trace.memory.time_ns[memory.allocations.rows]
        return np.unique(np.searchsorted(at_ns, source.steps.intervals[:, 1], side="right") - 1)
    phase = memory.phases.phase
    return np.flatnonzero((phase[:-1] == OPTIMIZER) & (phase[1:] != OPTIMIZER))
