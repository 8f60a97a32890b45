"""What a report says of the memory of each device: the peak and what holds it, the end, and a request that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation, name_files_alike
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.categories import CATEGORIES
from perfdoctor.memory.device_memory import DeviceMemory, Peak
from perfdoctor.memory.evidence import PHASES
from perfdoctor.trace.arrays import NONE
from perfdoctor.trace.tables.steps import Steps
from perfdoctor.units import format_share, format_size

Phase: TypeAlias = Annotated[str, ("enum", PHASES)]

_MAX_LINES = 5
_MIN_SECOND_SHARE = 0.1
MIN_SHOWN_BYTES = 1 << 20  # counters and scalars of a program that computes elsewhere
_PHASE_NAMES = {"forward": "in the forward part", "backward": "in the backward pass", "optimizer": "in the optimizer"}
NAMES_OF_CATEGORIES: Mapping[str, str] = {
    "optimizer_state": "optimizer state",
    "collectives": "buffers of collectives",
    "before_recording": "from before the recording",
    "unknown": "of unknown purpose",
}


@frozen_dataclass
class LineMemory:
    """A line of the user's code, and what is allocated by it."""

    file: str
    line: int | None
    function: str | None
    bytes: int

    @property
    def place(self) -> str:
        """The line in short: "model.py:39"."""
        return SourceLocation(self.file, self.line).short


@frozen_dataclass
class PeakMemory:
    """What is allocated on a device at the first instant at which that is most.

    Attributes:
        allocated_bytes: Of a snapshot as it was requested, in a trace rounded as the allocator does.
        reserved_bytes: What the allocator holds of the device; null on the CPU.
        phase: The part of the loop.
        step: The number of the step, as its mark has it, else counted from 0; null outside of the analysed steps.
        time_ns: On the clock of the trace; of a snapshot since the epoch.
        by_category: What it is for; the parts add up to `allocated_bytes`.
        by_line: The lines that allocated most of it.
    """

    allocated_bytes: int
    reserved_bytes: int | None
    phase: Phase
    step: int | None
    time_ns: int | None
    by_category: Annotated[Mapping[str, int], ("required", CATEGORIES)]
    by_line: tuple[LineMemory, ...] = ()


@frozen_dataclass
class EndMemory:
    """What a snapshot says of a device at its end."""

    allocated_bytes: int
    reserved_bytes: int
    slack_bytes: int


@frozen_dataclass
class FailedRequest:
    """The last request for which there was no room.

    Attributes:
        free_bytes: What was free of the device; null where the recording does not say.
        slack_bytes: What the allocator had reserved and not allocated.
    """

    requested_bytes: int
    free_bytes: int | None
    slack_bytes: int | None


@frozen_dataclass
class MemorySummary:
    """The memory of one device of a rank.

    Attributes:
        device: Its number; null for the CPU.
        consistent: Whether the recorded events fit their totals, and lead to the end of a snapshot.
        peak: Null where only an end state is known, or nothing fits.
    """

    rank: int | None
    device: int | None
    source: Literal["snapshot", "trace"]
    consistent: bool
    peak: PeakMemory | None = None
    end: EndMemory | None = None
    oom: FailedRequest | None = None


def summarize_memory(rank: int | None, devices: tuple[DeviceMemory, ...], steps: Steps) -> tuple[MemorySummary, ...]:
    """The memory of the devices of a rank; `steps` are those of its recording."""
    return tuple(
        MemorySummary(
            rank,
            None if memory.is_cpu else memory.device,
            "trace" if memory.end is None else "snapshot",
            memory.is_consistent,
            None if memory.peak is None else _summarize_peak(memory.peak, steps),
            _summarize_end(memory),
            _summarize_failure(memory),
        )
        for memory in devices
    )


def _summarize_peak(peak: Peak, steps: Steps) -> PeakMemory:
    of_category = np.zeros(len(CATEGORIES), np.int64)
    np.add.at(of_category, peak.categories, peak.bytes)
    locations, code = peak.lines
    of_line = np.zeros(len(locations) + 1, np.int64)  # the last is that of no line
    np.add.at(of_line, code, peak.bytes)
    largest = np.argsort(-of_line[:-1], kind="stable")[:_MAX_LINES].tolist()
    lines = zip(name_files_alike([locations[each] for each in largest]), of_line[largest].tolist(), strict=True)
    step = NONE if peak.time_ns is None else int(steps.at(np.array([peak.time_ns], np.int64))[0])
    return PeakMemory(
        peak.allocated_bytes,
        peak.reserved_bytes,
        PHASES[peak.phase],
        None if step == NONE else steps.numbers[step] if steps.numbers else step,
        peak.time_ns,
        dict(zip(CATEGORIES, of_category.tolist(), strict=True)),
        tuple(LineMemory(at.file, at.line, at.function, size) for at, size in lines if at is not None and size),
    )


def _summarize_end(memory: DeviceMemory) -> EndMemory | None:
    end = memory.end
    if end is None:
        return None
    return EndMemory(end.allocated_bytes, end.reserved_bytes, max(end.reserved_bytes - end.allocated_bytes, 0))


def _summarize_failure(memory: DeviceMemory) -> FailedRequest | None:
    place = memory.failed_request
    if place is None:
        return None
    table, row = memory.trace.memory, memory.allocations.rows[place]
    reserved, allocated = int(table.reserved_bytes[row]), int(table.allocated_bytes[row])
    return FailedRequest(
        int(table.requested_bytes[row]),
        None if memory.end is None else memory.end.free_bytes,
        max(reserved - allocated, 0) if reserved > 0 else None,
    )


def describe_memory(memory: MemorySummary) -> str:
    """A device's memory in a sentence: the peak, what most of it is for, and the line that allocated most."""
    peak, end = memory.peak, memory.end
    device = name_device(memory)
    if peak is None and not memory.consistent:
        return f"the memory events of {device} contradict each other, so that its peak is not known; record them again"
    if peak is None:
        used = (
            "" if end is None else f"{format_size(end.allocated_bytes)} of {format_size(end.reserved_bytes)} allocated "
        )
        return f"{used}at the end on {device}; its history is not recorded, and so its peak is not known"
    shares = [(size / max(peak.allocated_bytes, 1), name) for name, size in peak.by_category.items()]
    largest, *others = sorted(shares, key=lambda each: -each[0])[:2]
    shown = [largest, *(each for each in others if each[0] >= _MIN_SECOND_SHARE)]
    parts = [f"{format_share(share)} {NAMES_OF_CATEGORIES.get(name, name)}" for share, name in shown]
    text = f"{format_size(peak.allocated_bytes)} at the peak on {device}, {' and '.join(parts)}"
    if peak.by_line:
        first = peak.by_line[0]
        text += f"; {format_size(first.bytes)} at {first.place}"
    return text


def name_device(memory: MemorySummary) -> str:
    """What people call the device: "GPU 0", "the CPU"."""
    return "the CPU" if memory.device is None else f"GPU {memory.device}"


def describe_instant(memory: MemorySummary) -> str | None:
    """When the peak is, and what the allocator holds then beside what is allocated; None where that is not known."""
    peak = memory.peak
    if peak is None:
        return None
    when = f"the peak is {_PHASE_NAMES[peak.phase]}" + ("" if peak.step is None else f" of step {peak.step}")
    if peak.reserved_bytes is None:
        return when
    slack = format_size(peak.reserved_bytes - peak.allocated_bytes)
    return f"{when}; {format_size(peak.reserved_bytes)} are reserved then, {slack} of it not allocated"


def describe_failure(memory: MemorySummary) -> str | None:
    """The request for which there was no room, in a sentence; None where there was room for all."""
    oom = memory.oom
    if oom is None:
        return None
    free = "" if oom.free_bytes is None else f": {format_size(oom.free_bytes)} of the device were free"
    slack = "" if oom.slack_bytes is None else f", {format_size(oom.slack_bytes)} reserved and not allocated"
    return f"no room for {format_size(oom.requested_bytes)}{free}{slack}; the peak that was needed is higher"


def is_worth_showing(memory: MemorySummary) -> bool:
    """Whether a report mentions a device's memory."""
    sizes = [part.allocated_bytes for part in (memory.peak, memory.end) if part is not None]
    return max(sizes, default=0) >= MIN_SHOWN_BYTES
