"""Prices findings on memory: by how many bytes each fix lowers the peak of the device, alone and in its turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from perfdoctor.memory.allocator_replay import AllocatorReplay
from perfdoctor.memory.device_memory import DeviceMemory
from perfdoctor.memory.memory_edits import MemoryEdit, peak_after
from perfdoctor.report.finding import Finding, severity_of
from perfdoctor.savings.fix_order import MASKED_SHARE
from perfdoctor.savings.saved_bytes import SavedBytes

# A fix that lowers the peak by less, alone and in its turn, is not worth its line.
_MIN_SHARE_OF_PEAK = 0.02
_WORTH_WITH_COST = 0.5
# On the CPU a process takes more RAM than its tensors, and how much more moves when a program is changed: pages of
# libraries that other ops touch, what malloc keeps for itself. 1.4 MB and less in the clinic's pairs (benchmarks/).
_RAM_MARGIN_BYTES = 2 << 20
# From here on the next larger batch, or a longer sequence, does not fit: memory is a limit.
_FULL = 0.9


def price_memory(
    findings: Sequence[Finding], devices: Sequence[DeviceMemory], *, beside_time: bool = False
) -> tuple[Finding, ...]:
    """Findings of a rank, those with an edit of memory priced by it and in the order of their bytes; others stay first.

    In its turn each fix saves what the peak is lower than after the ones before it: next the one that saves most, where
    one that costs time has to save twice as much. What lowers the peak neither alone nor in its turn is left out. Where
    memory is no limit the findings are for information; a snapshot `beside_time`, in a capture, does not ask about it.
    """
    others = [finding for finding in findings if finding.memory_edit is None]
    priced: list[Finding] = []
    for number, memory in enumerate(devices):
        mine = [each for each in findings if each.memory_edit is not None and each.memory_edit.device == number]
        if memory.peak is not None:
            binds = is_full(memory) if beside_time else is_limit(memory)
            priced += _price(mine, memory, memory.peak.allocated_bytes, binds=binds)
    return (*others, *sorted(priced, key=lambda each: each.order_key_ns or 0, reverse=True))


def _price(findings: list[Finding], memory: DeviceMemory, peak_bytes: int, *, binds: bool) -> list[Finding]:
    allocator = AllocatorReplay(memory)
    left = [
        (finding, finding.memory_edit, _saved(allocator, (), finding.memory_edit, peak_bytes))
        for finding in findings
        if finding.memory_edit is not None
    ]
    done: list[MemoryEdit] = []
    result: list[Finding] = []
    before_bytes = peak_bytes
    while left:
        # A replay takes as long as hundreds of sums: what other settings save is asked for once more, in their turn.
        ranges = [
            alone if edit.settings is not None else _saved(allocator, done, edit, before_bytes)
            for _, edit, alone in left
        ]
        worths = [
            sum(each) * (_WORTH_WITH_COST if edit.costs_time else 1)
            for each, (_, edit, _) in zip(ranges, left, strict=True)
        ]
        best = worths.index(max(worths))
        finding, edit, alone = left.pop(best)
        is_known = edit.settings is None or not done
        low, high = ranges[best] if is_known else _saved(allocator, done, edit, before_bytes)
        before_bytes = peak_after(memory, [*done, edit])
        done.append(edit)
        if max(high, alone[1]) < _MIN_SHARE_OF_PEAK * peak_bytes:
            continue
        of: Literal["allocated", "reserved"] = "allocated" if edit.settings is None else "reserved"
        margin = _RAM_MARGIN_BYTES if memory.is_cpu else 0
        saved = SavedBytes(max(low - margin, 0), (low + high) // 2, high + margin, sum(alone) // 2, of)
        worth = max(saved.expected, saved.alone) / peak_bytes
        is_covered = saved.expected < MASKED_SHARE * saved.alone and result
        result.append(
            replace(
                finding,
                saved_bytes=saved,
                covering_key=result[0].key if is_covered else None,
                severity=severity_of(worth) if binds else "info",
                # Behind all that saves time, in this order.
                order_key_ns=-float(len(result)),
                memory_edit=None,  # places mean nothing without their recording
            )
        )
    return result


def _saved(
    allocator: AllocatorReplay, done: Sequence[MemoryEdit], edit: MemoryEdit, before_bytes: int
) -> tuple[int, int]:
    """The least and the most that a fix saves after others."""
    if edit.settings is not None:
        saved = allocator.bytes_saved_by(edit.settings, done)
        return saved, saved
    memory = allocator.memory
    high = before_bytes - peak_after(memory, [*done, edit])
    low = high if edit.at_least is None else before_bytes - peak_after(memory, [*done, edit.at_least])
    return min(low, high), high


def is_limit(memory: DeviceMemory) -> bool:
    """Whether memory is what the user asks about, as with a snapshot, or what there is too little of."""
    return memory.end is not None or is_full(memory)


def is_full(memory: DeviceMemory) -> bool:
    """Whether a request failed, or the peak takes nearly all of the device."""
    if memory.failed_request is not None:
        return True
    peak, capacity_bytes = memory.peak, memory.capacity_bytes
    if peak is None or capacity_bytes is None:
        return False
    return (peak.reserved_bytes or peak.allocated_bytes) >= _FULL * capacity_bytes
