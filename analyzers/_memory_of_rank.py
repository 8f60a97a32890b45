"""What the rules on memory look at: devices with a peak, what allocations hold then, and the line of most of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    FORWARD,
    OPTIMIZER,
    AllocatorSettings,
    DeviceMemory,
    Evidence,
    Int64Array,
    MemoryEdit,
    Rank,
    Selection,
    SourceLocation,
    distinct,
    memory_categories,
)

# Of less nobody runs out.
MIN_PEAK_BYTES = 64 << 20


def devices_of(rank: Rank) -> Iterator[tuple[int, DeviceMemory]]:
    """The devices whose peak is known and worth a look, each with its position in `Rank.memory`."""
    for number, memory in enumerate(rank.memory):
        if memory.peak is not None and memory.peak.allocated_bytes >= MIN_PEAK_BYTES:
            yield number, memory


def bytes_at_peak(memory: DeviceMemory, places: Int64Array) -> int:
    """What some allocations hold at the peak."""
    assert memory.peak is not None
    common = np.intersect1d(distinct(places), distinct(memory.peak.holders.places), assume_unique=True)
    return int(memory.allocations.bytes[common].sum())


def grows_with_batch(memory: DeviceMemory) -> Int64Array:
    """The large allocations that grow with the batch: what passes make for themselves, and inputs.

    What is of unknown purpose may be gradients or states of the last step, unless a module's forward pass made it.
    """
    large, made = memory.large, memory.allocations.begins[memory.large.places]
    phase = memory.phases.phase[made]
    of_pass = large.is_for(memory_categories.ACTIVATIONS, memory_categories.TEMPORARIES, memory_categories.INPUTS)
    in_forward = large.is_for(memory_categories.UNKNOWN) & large.evidence.in_module & (phase == FORWARD)
    places: Int64Array = large.places[(of_pass & (phase != OPTIMIZER)) | in_forward]
    return places


def most_at_once(memory: DeviceMemory, edit: MemoryEdit) -> int:
    """The most of an edit's bytes that are allocated at one instant."""
    change = np.zeros(len(memory.allocations.rows) + 1, np.int64)
    np.add.at(change, edit.begins, edit.bytes)
    np.subtract.at(change, edit.ends, edit.bytes)
    return int(np.cumsum(change).max(initial=0))


def line_of(chosen: Selection) -> SourceLocation | None:
    """The user's line that allocated most of some allocations; None where none is known."""
    locations, code = chosen.lines
    known = code >= 0
    if not known.any():
        return None
    of_line = np.zeros(len(locations), np.int64)
    np.add.at(of_line, code[known], chosen.bytes[known])
    return locations[int(of_line.argmax())]


def peak_evidence(memory: DeviceMemory, *more: tuple[str, int]) -> tuple[Evidence, ...]:
    """The peak and other figures in bytes, as evidence."""
    assert memory.peak is not None
    figures = (("allocated at the peak", memory.peak.allocated_bytes), *more)
    return tuple(Evidence(label, size, "bytes") for label, size in figures)


def name_device(memory: DeviceMemory) -> str:
    """The device as titles and subjects name it."""
    return "the CPU" if memory.is_cpu else f"GPU {memory.device}"


def name_setting(settings: AllocatorSettings) -> str:
    """The setting of the allocator that a rule advises, as PYTORCH_CUDA_ALLOC_CONF takes it."""
    if settings.expandable_segments:
        return "expandable_segments:True"
    return f"max_split_size_mb:{(settings.max_split_bytes or 0) >> 20}"


def command_with(settings: AllocatorSettings) -> str:
    """The command that starts a program with that setting."""
    return f"PYTORCH_CUDA_ALLOC_CONF={name_setting(settings)} python ..."
