"""Changes that may make room for a request that failed, each tried by a replay with the memory that there was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from perfdoctor.analyzers._memory_of_rank import bytes_at_peak, command_with, grows_with_batch, name_setting
from perfdoctor.analyzers.pd701_peak_owner import PeakOwner
from perfdoctor.analyzers.pd702_large_logits import LargeLogits
from perfdoctor.analyzers.pd703_attention_scores import AttentionScores
from perfdoctor.analyzers.pd704_optimizer_memory import OptimizerMemory
from perfdoctor.analyzers.pd705_kept_values import KeptValues
from perfdoctor.analyzers.pd707_memory_growth import MemoryGrowth
from perfdoctor.rules import AllocatorReplay, AllocatorSettings, MemoryEdit, Rank, format_bytes, shrink

_RULES = (MemoryGrowth, KeptValues, OptimizerMemory, LargeLogits, AttentionScores, PeakOwner)
_MAX_SPLIT_BYTES = 256 << 20
# Of GPUs less far apart nobody gains by moving work.
_UNEVEN = 0.5


class Change(NamedTuple):
    """A change of the program or of its settings.

    Attributes:
        name: What to do, in words.
        code: As code or a command; None where no line is right.
        edit: What it does at least.
        settings: The allocator's settings with it; None for those of the recording.
    """

    name: str
    code: str | None
    edit: MemoryEdit | None = None
    settings: AllocatorSettings | None = None


def possible_changes(rank: Rank, number: int) -> Iterator[Change]:
    """What may make room on a device: settings, what costs no time, another split over GPUs, what costs time."""
    memory, allocator = rank.memory[number], rank.allocators[number]
    yield from _settings_of(allocator)
    edits = list(_edits_of_rules(rank, number))
    yield from (change for change, costs_time in edits if not costs_time)
    yield from _even_split(rank, number)
    yield from (change for change, costs_time in edits if costs_time)
    yield Change("halve the batch", None, shrink(memory, number, grows_with_batch(memory), 0.5))


def bytes_left(allocator: AllocatorReplay, changes: Sequence[Change]) -> int | None:
    """What is free at least, when all requests up to the one that failed have room, and that one; None where not."""
    capacity_bytes, place = allocator.capacity_bytes, allocator.memory.failed_request
    assert capacity_bytes is not None
    assert place is not None
    edits = [change.edit for change in changes if change.edit is not None]
    settings = next((change.settings for change in changes if change.settings is not None), None)
    result = allocator.replay(edits, settings, capacity_bytes)
    if result.failed is not None or not result.served:
        return None
    memory = allocator.memory
    asked_bytes = int(memory.trace.memory.requested_bytes[memory.allocations.rows[place]])
    in_use = max(int(result.blocks_bytes[: place + 1].max()), int(result.blocks_bytes[place]) + asked_bytes)
    return capacity_bytes - in_use


def _settings_of(allocator: AllocatorReplay) -> Iterator[Change]:
    now = allocator.settings
    if now.expandable_segments:
        return
    tried = [replace(now, expandable_segments=True)]
    if now.max_split_bytes is None:
        split = replace(now, max_split_bytes=_MAX_SPLIT_BYTES)
        if allocator.what_if(settings=split).reason is None:
            tried.append(split)
    for settings in tried:
        yield Change(f"set {name_setting(settings)}", command_with(settings), settings=settings)


def _edits_of_rules(rank: Rank, number: int) -> Iterator[tuple[Change, bool]]:
    """What the other rules on memory advise for the device, and whether it costs time."""
    for rule in _RULES:
        for found in rule().analyze_rank(rank):
            edit = found.memory_edit
            if edit is not None and edit.device == number:
                yield Change(f"follow {found.rule} ({found.title})", found.fix, edit.at_least or edit), edit.costs_time


def _even_split(rank: Rank, number: int) -> Iterator[Change]:
    """The work shared evenly among the GPUs of the recording, where others hold far less."""
    peaks = [each.peak.allocated_bytes for each in rank.memory if each.peak is not None and not each.is_cpu]
    memory, mean_bytes = rank.memory[number], sum(peaks) / max(len(peaks), 1)
    assert memory.peak is not None
    most = memory.peak.allocated_bytes
    if len(peaks) < 2 or (sum(peaks) - most) / (len(peaks) - 1) > _UNEVEN * most:
        return
    movable = grows_with_batch(memory)
    share = min((most - mean_bytes) / max(bytes_at_peak(memory, movable), 1), 1.0)
    name = f"split the work evenly over the {len(peaks)} GPUs, {format_bytes(mean_bytes)} on each"
    yield Change(name, None, shrink(memory, number, movable, share))
