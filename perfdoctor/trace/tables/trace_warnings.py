"""Warnings about a trace, in sentences that all readers share."""

from __future__ import annotations

from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.unrecorded_tail import find_unrecorded_tail

_SKEWED_SHARE = 0.1  # a few items before their launch are rounding and jitter


def link_warnings(trace: Trace) -> list[str]:
    """Warnings about the links from GPU items to their launches, one sentence each."""
    warnings: list[str] = []
    gpu, calls = trace.gpu, trace.calls
    linked = gpu.call >= 0
    missing = int((~linked).sum())
    if missing:
        warnings.append(
            f"{missing} of {count_of(len(gpu), 'GPU item')} have no launching call in the file: "
            "they were launched before the recording began, or launches were not recorded"
        )
    if linked.any():
        early = int((gpu.start_ns[linked] < calls.start_ns[gpu.call[linked]]).sum())
        if early:
            cause = (
                "the clocks of CPU and GPU disagree" if early > _SKEWED_SHARE * linked.sum() else "times are rounded"
            )
            warnings.append(
                f"{early} of {count_of(int(linked.sum()), 'launched GPU item')} start before their launch: {cause}"
            )
    tail = find_unrecorded_tail(trace)
    if len(tail):
        warnings.append(
            "the recording ended while the GPU was behind: "
            f"the work of the last {len(tail):,} kernel launches is not in the file"
        )
    return warnings


def merged_warning(ranks: int) -> str:
    """The warning that a file holds several ranks."""
    return f"the file holds {ranks} ranks merged into one; they are analysed as one"


def impossible_warning(count: int) -> str:
    """The warning that GPU items were dropped because of their durations."""
    return f"left out because their duration is negative or longer than the trace: {count_of(count, 'GPU item')}"


def count_of(number: int, noun: str) -> str:
    """A number with its noun in the right form."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
