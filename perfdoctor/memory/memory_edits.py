"""What the peak of a device would be if some of its allocations were smaller, or lived for a shorter time.

Every saving is a new sum over the whole recording: without the first peak the next one is the highest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.device_memory import DeviceMemory
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.model import AllocatorSettings


@frozen_dataclass(eq=False)
class MemoryEdit:
    """What a fix changes in the allocations of a device: some bytes of each are not there for some events.

    Attributes:
        device: The device, a position in `Rank.memory`.
        places: The allocations, places in its columns, each once.
        bytes: How much of each is not there.
        begins, ends: From which event on, and before which one it is not there.
        at_least: The same of what the fix does in any case; None where it does all of this.
        costs_time: Whether the fix pays with time or with accuracy.
        settings: Other settings of the allocator: what they save is of what is reserved. None for those of the
            recording.
    """

    device: int
    places: Int64Array
    bytes: Int64Array
    begins: Int64Array
    ends: Int64Array
    at_least: MemoryEdit | None = None
    costs_time: bool = False
    settings: AllocatorSettings | None = None

    def without(self, taken: Int64Array) -> MemoryEdit:
        """The same for the allocations that are not among some others."""
        left = ~np.isin(self.places, taken)
        at_least = None if self.at_least is None else self.at_least.without(taken)
        places, size, begins, ends = (each[left] for each in (self.places, self.bytes, self.begins, self.ends))
        return replace(self, places=places, bytes=size, begins=begins, ends=ends, at_least=at_least)


def shrink(
    memory: DeviceMemory,
    device: int,
    places: Int64Array,
    share: float = 1.0,
    begins: Int64Array | None = None,
    ends: Int64Array | None = None,
) -> MemoryEdit:
    """The edit by which a share (0 to 1) of some allocations is not there, between some events or for their lives."""
    allocations = memory.allocations
    begins = allocations.begins[places] if begins is None else np.maximum(begins, allocations.begins[places])
    ends = allocations.ends[places] if ends is None else np.minimum(ends, allocations.ends[places])
    lasts = ends > begins
    size = np.floor(allocations.bytes[places] * share).astype(np.int64)
    return MemoryEdit(device, places[lasts], size[lasts], np.maximum(begins[lasts], 0), ends[lasts])


def change_settings(device: int, settings: AllocatorSettings) -> MemoryEdit:
    """The edit by which all allocations stay and the allocator has other settings."""
    none = np.empty(0, np.int64)
    return MemoryEdit(device, none, none, none, none, settings=settings)


def allocated_after(memory: DeviceMemory, edits: Iterable[MemoryEdit]) -> Int64Array:
    """What is allocated after each event with some edits; an allocation is changed by the first edit that names it."""
    rows = memory.allocations.rows
    change = np.zeros(len(rows) + 1, np.int64)
    taken = np.empty(0, np.int64)
    for edit in edits:
        left = edit.without(taken)
        np.subtract.at(change, left.begins, left.bytes)
        np.add.at(change, left.ends, left.bytes)
        taken = np.append(taken, left.places)
    result: Int64Array = memory.trace.memory.allocated_bytes[rows] + np.cumsum(change)[:-1]
    return result


def peak_after(memory: DeviceMemory, edits: Iterable[MemoryEdit]) -> int:
    """The highest that is allocated with some edits, in bytes."""
    return int(allocated_after(memory, edits).max(initial=0))
