"""PD307: activation checkpointing that the memory does not demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._memory_headroom import Memory, read_memory
from perfdoctor.analyzers._recompute_memory import bound_recomputed_bytes
from perfdoctor.rules import (
    Action,
    Advice,
    BoolArray,
    CheckpointingFacts,
    Claim,
    Edit,
    Evidence,
    Finding,
    Intervals,
    Rank,
    RankAnalyzer,
    RecomputedSections,
    Saving,
    Trace,
    captured_location,
    find_steps,
    format_bytes,
    frozen_dataclass,
    recomputed_sections_of,
    remove_sections,
    yes_or_no,
)
from perfdoctor.rules import intervals as iv

# What computing again takes and would not come back: the forward pass then records the graph itself.
_CHECKPOINT = "https://docs.pytorch.org/docs/stable/checkpoint.html"
_LOW_SHARE = 0.75


@frozen_dataclass
class Recompute:
    """What is computed again.

    Attributes:
        sections: When, and by which ops.
        time: When: on the GPU where there is one, else on the CPU.
        cost_ns: That time per step.
        edit: The step without it; None without a GPU.
        needed_bytes: What a forward pass would keep instead, at most; None without shapes.
    """

    sections: RecomputedSections
    time: Intervals
    cost_ns: int
    edit: Edit | None
    needed_bytes: int | None


class NeedlessRecompute(RankAnalyzer):
    """The backward pass computes activations again, and there is memory to keep them."""

    rule = "PD307"
    name = "needless-recompute"
    needs = frozenset({"work", "cpu"})
    # min_share: of the step. A third of a checkpointed step is computed again; below this it is a block or two.
    # min_fit: the least share of what would be kept that must fit, else hardly a block can be left out. min_left: with
    # less than a twentieth of the memory left one longer batch ends the run. min_free: where no shapes say what keeping
    # takes, from half of the memory on it is plentiful.
    defaults = {"min_share": 0.02, "min_fit": 0.25, "min_left": 0.05, "min_free": 0.5}
    references = (_CHECKPOINT, "https://arxiv.org/abs/1604.06174")

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where computing again takes at least `min_share` of the step, and not all of it is needed."""
        checkpointing = rank.facts.checkpointing
        recompute = find_recompute(rank, uses_checkpoint=bool(checkpointing.calls))
        if recompute is None or not self.exceeds_min_share(rank, recompute.cost_ns):
            return
        memory = read_memory(rank)
        fits = self._share_that_fits(memory, recompute.needed_bytes)
        if fits is None or fits >= self.settings["min_fit"]:
            yield self._report(rank, recompute, memory, fits, checkpointing)

    def _share_that_fits(self, memory: Memory | None, needed_bytes: int | None) -> float | None:
        """The share (0 to 1) of what is computed again that could be kept; None where memory is not known."""
        if memory is None:
            return None
        if needed_bytes is None:
            return 1.0 if memory.free_share >= self.settings["min_free"] else 0.0
        if memory.free_share < self.settings["min_left"]:
            return 0.0
        return min(memory.left_bytes / max(needed_bytes, 1), 1.0)

    def _report(
        self,
        rank: Rank,
        recompute: Recompute,
        memory: Memory | None,
        fits: float | None,
        checkpointing: CheckpointingFacts,
    ) -> Finding:
        cost_ns, sections = recompute.cost_ns, recompute.sections
        finding = self.finding(
            rank,
            title=_title_of(rank, cost_ns, memory, fits),
            cost_ns=cost_ns,
            saving=_saving_of(cost_ns, fits),
            advice=Advice(
                _advice_of(checkpointing, memory, fits),
                _fix_of(checkpointing, fits),
                _CHECKPOINT,
                actions=(Action("no-checkpoint"),) if fits == 1.0 else (),
            ),
            claim=Claim(recompute.time),
            location=(captured_location(checkpointing.location) or rank.places.line_of_named("^CheckpointFunction$")),
            edit=recompute.edit if fits == 1.0 else None,
            evidence=(
                Evidence("computed again per {unit}", cost_ns, "ns"),
                Evidence("ops that do so per {unit}", rank.count_per_step(len(sections.ops)), "count"),
                Evidence("calls of checkpoint per {unit}", checkpointing.calls_per_step),
                Evidence("use_reentrant", yes_or_no(checkpointing.use_reentrant)),
                Evidence("keeping it takes at most", recompute.needed_bytes, "bytes"),
                Evidence("memory left, less a tenth", None if memory is None else memory.left_bytes, "bytes"),
                Evidence("memory in use at most", None if memory is None else memory.peak_bytes, "bytes"),
            ),
        )
        # Without a figure of the memory nobody knows whether the time could be saved.
        return replace(finding, severity="info") if fits is None else finding


def find_recompute(rank: Rank, *, uses_checkpoint: bool) -> Recompute | None:
    """What the backward passes of a rank compute again; None where they do not, or where nothing shows it."""
    trace = rank.trace
    sections = recomputed_sections_of(trace, rank.window, uses_checkpoint=uses_checkpoint)
    if not len(sections.ops):
        return None
    edit = None
    for thread, of_thread in sections.by_thread:
        section = remove_sections(trace, thread, of_thread, rank.window)
        edit = section if edit is None else edit | section
    needed_bytes = _bytes_of(rank, uses_checkpoint)
    if rank.device_kind != "gpu" or edit is None:
        return Recompute(sections, sections.time, rank.per_step(iv.total(sections.time)), None, needed_bytes)
    # The GPU lags behind: what it runs in the window may have been launched before it.
    everywhere = recomputed_sections_of(trace, iv.window(*trace.extent_ns), uses_checkpoint=uses_checkpoint)
    time = rank.time_in_window(_items_of(trace, everywhere, edit))
    return Recompute(sections, time, rank.per_step(iv.total(time)), edit, needed_bytes)


def _items_of(trace: Trace, sections: RecomputedSections, edit: Edit) -> BoolArray:
    """For each GPU item whether a section launched it, by its call or, where that is missing, by its op."""
    inside = np.zeros(len(trace.ops) + 1, bool)  # the last entry is for items without an op
    for thread, of_thread in sections.by_thread:
        inside[:-1] |= (trace.ops.thread == thread) & iv.contains(of_thread, trace.ops.start_ns)
    items: BoolArray = inside[trace.gpu.op]
    items[edit.items.index] = True
    return items


def _bytes_of(rank: Rank, uses_checkpoint: bool) -> int | None:
    """What a forward pass would keep, by the trace that has shapes."""
    trace = rank.trace if "shapes" in rank.available_data else rank.evidence_trace
    if trace is None:
        return None
    steps = find_steps(trace)
    window = steps.window if steps.count else iv.window(*trace.extent_ns)
    sections = recomputed_sections_of(trace, window, uses_checkpoint=uses_checkpoint)
    counts = [each for each in rank.facts.base.backwards if each]
    return bound_recomputed_bytes(trace, sections.time, max(steps.count, 1) * min(counts, default=1))


def _title_of(rank: Rank, cost_ns: int, memory: Memory | None, fits: float | None) -> str:
    share = rank.share(cost_ns) or 0
    what = f"Activation checkpointing computes {share:.0%} of the {rank.unit_name} again"
    if memory is None or fits is None:
        return what
    return f"{what}, and {format_bytes(memory.left_bytes)} of {memory.name} are left"


def _saving_of(cost_ns: int, fits: float | None) -> Saving:
    if fits is None:
        return Saving()
    if fits < 1.0:  # at least what fits by the bound; the bound counts weights and some tensors twice
        return Saving(round(_LOW_SHARE * fits * cost_ns), round(fits * cost_ns), cost_ns, "bounded")
    return Saving(round(_LOW_SHARE * cost_ns), cost_ns, cost_ns, "bounded")


def _advice_of(checkpointing: CheckpointingFacts, memory: Memory | None, fits: float | None) -> str:
    if memory is None or fits is None:
        return (
            "Whether it is needed depends on the memory, which was not recorded: run the program under `perfdoctor "
            "run`, or read torch.cuda.max_memory_reserved() after some steps. If much of it is free, checkpoint fewer "
            "blocks."
        )
    if fits == 1.0:
        return (
            "Do not checkpoint: the memory that is left holds what the forward pass computes. If batches or sequences "
            "grow later, a selective policy keeps products and attention, and computes only cheap ops again."
        )
    calls = checkpointing.calls_per_step
    which = f"about {max(round(fits * calls), 1):.0f} of {calls:.0f} blocks" if calls else f"about {fits:.0%} of them"
    return (
        f"Checkpoint fewer blocks: the memory that is left holds what {which} compute. Or keep products and attention, "
        "which take the time, by a selective policy, and compute only cheap ops again."
    )


def _fix_of(checkpointing: CheckpointingFacts, fits: float | None) -> str | None:
    if fits is None:
        return None
    if fits == 1.0:
        return "x = block(x)   # instead of checkpoint(block, x); Hugging Face: gradient_checkpointing=False"
    calls = checkpointing.calls_per_step
    if not calls:
        return "checkpoint(block, x, use_reentrant=False, context_fn=selective_policy)"
    kept = max(round(fits * calls), 1)
    return f"x = block(x) if number < {kept} else checkpoint(block, x, use_reentrant=False)"
