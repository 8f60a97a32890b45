"""PD701: values of the forward pass fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._memory_of_rank import bytes_at_peak, devices_of, line_of, name_device, peak_evidence
from perfdoctor.analyzers._pd701_loss_parts import LossParts
from perfdoctor.rules import (
    BACKWARD,
    FORWARD,
    NONE,
    Action,
    Advice,
    BoolArray,
    DeviceMemory,
    Evidence,
    Finding,
    MemoryEdit,
    Rank,
    RankAnalyzer,
    Selection,
    distinct,
    format_bytes,
    memory_categories,
    shrink,
)
from perfdoctor.rules import intervals as iv

# Blocks of a model are alike: what a line and an op allocate in one size so often, and in this share of all
# activations, belongs to as many blocks.
_MIN_BLOCKS = 4
_MIN_VALUE_SHARE = 0.03
# Of a graph that is never used each value is needed until the next ones are made: three of a chain of ops, twelve of a
# block with branches.
_CHAIN, _BRANCHES = 3, 12


class PeakOwner(RankAnalyzer):
    """Values that the forward pass keeps for the backward pass fill the memory."""

    rule = "PD701"
    name = "peak-owner"
    needs = frozenset({"memory"})
    # min_share: of the peak. Below a quarter something else is the owner.
    defaults = {"min_share": 0.25}
    references = ("https://arxiv.org/abs/1604.06174", "https://docs.pytorch.org/docs/stable/checkpoint.html")

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each device whose peak is made of activations."""
        # A program that ran out of memory in its forward pass would have gone on to the backward pass.
        ran_out = any(memory.failed_request is not None for memory in rank.memory)
        for number, memory in devices_of(rank):
            large = memory.large
            chosen = Selection(memory, large.places[large.is_for(memory_categories.ACTIVATIONS)])
            assert memory.peak is not None
            min_bytes = self.settings["min_share"] * memory.peak.allocated_bytes
            held_bytes = bytes_at_peak(memory, chosen.places)
            is_forward_alone = not ran_out and not (memory.phases.phase == BACKWARD).any()
            if held_bytes < min_bytes:
                left = _left_at_the_end(memory) if is_forward_alone else chosen
                if (left_bytes := bytes_at_peak(memory, left.places)) >= min_bytes:
                    yield self._report_cut_recording(rank, number, left, left_bytes)
            elif is_forward_alone:
                yield self._report_unused_graph(rank, number, chosen, held_bytes)
            elif not rank.context.is_forward_only:
                yield self._report_activations(rank, number, chosen, held_bytes)

    def _report_unused_graph(self, rank: Rank, number: int, chosen: Selection, held_bytes: int) -> Finding:
        title = f"A forward pass keeps {format_bytes(held_bytes)} for a backward pass that never runs"
        advice = Advice(
            "Run it without a graph: nothing in the recording asked for gradients, and without a graph each value is "
            "freed as soon as the next ones are made.",
            "with torch.inference_mode():   # torch.no_grad() where results enter a graph later",
            "https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation",
        )
        edit = _free_behind(chosen, number, _CHAIN)
        edit = replace(edit, at_least=_free_behind(chosen, number, _BRANCHES))
        return self._report(rank, chosen, title, held_bytes, edit, advice)

    def _report_cut_recording(self, rank: Rank, number: int, chosen: Selection, held_bytes: int) -> Finding:
        title = f"{format_bytes(held_bytes)} of a forward pass are still there where the recording ends"
        advice = Advice(
            "Run it under torch.inference_mode() if no backward pass follows: then each value is freed as soon as the "
            "next ones are made. Else record to the end of the backward pass, so that there is more to say.",
            "with torch.inference_mode():   # torch.no_grad() where results enter a graph later",
            "https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation",
        )
        edit = replace(_free_behind(chosen, number, _CHAIN), at_least=shrink(chosen.memory, number, chosen.places[:0]))
        return replace(self._report(rank, chosen, title, held_bytes, edit, advice), confidence=0.5)

    def _report_activations(self, rank: Rank, number: int, chosen: Selection, held_bytes: int) -> Finding:
        memory = chosen.memory
        title = f"Activations hold {format_bytes(held_bytes)} at the peak of {name_device(memory)}"
        if (parts := LossParts(chosen)).count:
            advice = Advice(
                f"Call backward for each of the {parts.count} parts of the loss as soon as it is made, not once for "
                "their sum: gradients add up, and the values of one part are freed before the next ones are made.",
                f"(loss / {parts.count}).backward()   # in the loop; sum up loss.detach() to print it",
                "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
            )
            return self._report(rank, chosen, title, held_bytes, parts.run_backward_for_each(number), advice)
        blocks = _Blocks(chosen)
        if not blocks.count:
            advice = Advice(
                "Halve the batch and accumulate the gradients of two: activations are half as large, and the gradients "
                "are the same (batch norms aside).",
                "(loss / 2).backward()   # twice, then optimizer.step()",
                "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
            )
            edit = replace(shrink(memory, number, chosen.places, 0.5), costs_time=True)
            return self._report(rank, chosen, title, held_bytes, edit, advice)
        advice = Advice(
            f"Checkpoint the blocks that repeat (about {blocks.count}): each keeps its input alone, and computes the "
            "rest again in the backward pass, which takes up to its forward time.",
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            "https://docs.pytorch.org/docs/stable/checkpoint.html",
            () if (name := blocks.find_class(rank)) is None else (Action("checkpoint", name),),
        )
        most, least = blocks.checkpoint(number)
        edit = replace(most, at_least=least, costs_time=True)
        return self._report(rank, chosen, title, held_bytes, edit, advice)

    def _report(
        self, rank: Rank, chosen: Selection, title: str, held_bytes: int, edit: MemoryEdit, advice: Advice
    ) -> Finding:
        evidence = peak_evidence(chosen.memory, ("of it activations", held_bytes))
        forward = rank.phases.get("forward") if edit.costs_time and rank.steps.count else None
        if forward is not None and len(forward):
            evidence = (*evidence, Evidence("forward time per {unit}, spent twice at most", iv.total(forward), "ns"))
        return self.finding(
            rank,
            title=title,
            advice=advice,
            location=line_of(chosen),
            evidence=evidence,
            subject=name_device(chosen.memory),
            memory_edit=edit,
        )


class _Blocks:
    """The blocks alike of a model, by the values that they keep: those of one line, op and size.

    Attributes:
        count: How many there are; 0 where nothing repeats.
    """

    def __init__(self, chosen: Selection) -> None:
        self._chosen, memory = chosen, chosen.memory
        keys = np.stack((chosen.lines[1].astype(np.int64), chosen.evidence.op_name, chosen.bytes))
        _, group = np.unique(keys, axis=1, return_inverse=True)
        self._group = group.reshape(-1)
        allocations, place = memory.allocations, 0 if memory.peak is None else memory.peak.place
        is_forward = memory.phases.phase[allocations.begins[chosen.places]] == FORWARD
        at_peak = is_forward & allocations.alive_at(place)[chosen.places]
        counts = np.bincount(self._group[at_peak], minlength=self._group.max(initial=-1) + 1)
        kept_bytes = np.bincount(self._group[at_peak], chosen.bytes[at_peak], minlength=len(counts))
        # A block makes some of its values several times: the rarest of the large ones tells how many blocks there are.
        repeats = (kept_bytes >= _MIN_VALUE_SHARE * kept_bytes.sum()) & (counts >= _MIN_BLOCKS)
        self.count = int(counts[repeats].min()) if repeats.any() else 0
        self._movable = is_forward & (counts >= _MIN_BLOCKS)[self._group]
        # The input of a block is the smallest of its values, or at most as large as they are in the mean.
        self._input = int(np.where(repeats, kept_bytes, np.inf).argmin()) if repeats.any() else NONE
        self._mean_share = self.count / max(int(counts[counts >= _MIN_BLOCKS].sum()), 1)

    def find_class(self, rank: Rank) -> str | None:
        """The class of the blocks: of those that are called at so many places, the outermost with half of the values.

        None where no module was recorded, as in a snapshot.
        """
        source, memory = rank.memory_source, self._chosen.memory
        if source is None or not len(source.module_tree):
            return None
        tree, table = source.module_tree, memory.trace.memory
        origin = memory.allocations.origin[self._chosen.places[self._movable]]
        module = np.append(tree.module, NONE)[tree.calls_at(table.time_ns[origin], table.thread[origin])]
        is_in_module = (origin >= 0) & (module >= 0)
        values = self._chosen.bytes[self._movable][is_in_module]
        own = np.bincount(module[is_in_module], values, minlength=len(tree)).astype(np.int64)
        classes, depth, inclusive = np.array(tree.classes), tree.depth, tree.add_to_parents(own)
        for level in range(int(depth.max()) + 1):
            for name in distinct(classes[depth == level]).tolist():
                is_block = (classes == name) & (depth == level)
                if is_block.sum() >= _MIN_BLOCKS and 2 * inclusive[is_block].sum() >= own.sum() > 0:
                    return str(name)
        return None

    def checkpoint(self, number: int) -> tuple[MemoryEdit, MemoryEdit]:
        """What checkpointing all of them takes away at most and at least.

        The values of a block are gone from the begin of the next block to the end of the next one's backward pass.
        """
        chosen, allocations = self._chosen, self._chosen.memory.allocations
        rows = np.flatnonzero(self._movable)
        begins, ends = allocations.begins[chosen.places[rows]], allocations.ends[chosen.places[rows]]
        phase = chosen.memory.phases.phase
        of_pass = np.cumsum(np.diff(phase, prepend=phase[:1]) != 0)[begins]
        # The values of one pass and group in their order: as many of them for each block.
        order = np.lexsort((begins, self._group[rows], of_pass))
        _, start, group, count = np.unique(
            np.stack((of_pass, self._group[rows]))[:, order],
            axis=1,
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        group = group.reshape(-1)
        position = np.arange(len(order)) - start[group]
        block = np.empty(len(order), np.int64)
        block[order] = position * self.count // np.maximum(count[group], self.count)
        number_of = of_pass * self.count + block
        block_begins = np.full(int(number_of.max(initial=0)) + 2, len(phase), np.int64)
        block_ends = np.zeros(len(block_begins), np.int64)
        np.minimum.at(block_begins, number_of, begins)
        np.maximum.at(block_ends, number_of, ends)
        has_next = block < self.count - 1
        others = has_next & (self._group[rows] != self._input)

        def leave_out(which: BoolArray, share: float) -> MemoryEdit:
            following = number_of[which] + 1
            places = chosen.places[rows[which]]
            return shrink(chosen.memory, number, places, share, block_begins[following], block_ends[following])

        return leave_out(others, 1.0), leave_out(has_next, 1 - self._mean_share)


def _left_at_the_end(memory: DeviceMemory) -> Selection:
    """What modules made in forward passes and nobody freed; nothing where less than half of what they made is left.

    Without a graph most of it is freed at once, and caches and results are left.
    """
    large = memory.large
    is_made = large.evidence.in_module & (memory.phases.phase[memory.allocations.begins[large.places]] == FORWARD)
    is_left = is_made & (memory.allocations.ends[large.places] >= len(memory.allocations.rows))
    is_most = 2 * large.bytes[is_left].sum() >= large.bytes[is_made].sum()
    return Selection(memory, large.places[is_left & is_most & large.is_for(memory_categories.UNKNOWN)])


def _free_behind(chosen: Selection, number: int, count: int) -> MemoryEdit:
    """The edit by which each of some values is freed when so many later ones have been made."""
    begins = chosen.memory.allocations.begins[chosen.places]
    order = np.argsort(begins, kind="stable")
    ends = np.full(len(order), len(chosen.memory.allocations.rows), np.int64)
    ends[order[:-count]] = begins[order[count:]] + 1
    return shrink(chosen.memory, number, chosen.places, begins=ends)
