"""Finds the slices of a rank's account that no finding claims, and says what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from perfdoctor.rank import Rank
from perfdoctor.report.report import UnexplainedSlice
from perfdoctor.report.unexplained import MIN_SHARE
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.unexplained.explain_gpu_time import (
    explain_communication,
    explain_copies,
    explain_kernels,
    explain_latency,
    find_time_below_roof,
)
from perfdoctor.unexplained.explain_idle_time import (
    explain_allocator,
    explain_dataloader,
    explain_idle_communication,
    explain_launch,
    explain_sync,
    explain_unexplained,
)

_EXPLANATIONS: Mapping[str, Callable[[Rank, Intervals], str]] = MappingProxyType(
    {
        "compute": explain_kernels,
        "bandwidth": explain_kernels,
        "memcpy": explain_copies,
        "communication": explain_communication,
        "latency": explain_latency,
        "idle_dataloader": explain_dataloader,
        "idle_sync": explain_sync,
        "idle_launch": explain_launch,
        "idle_communication": explain_idle_communication,
        "idle_allocator": explain_allocator,
        "idle_unexplained": explain_unexplained,
    }
)


def find_unexplained(rank: Rank, claimed: Iterable[Intervals]) -> tuple[UnexplainedSlice, ...]:
    """The slices of a rank's account over MIN_SHARE of the window that no finding claims, the largest first.

    Compute and memory time counts only as far as its kernels are not known to be near their roof: what is near needs no
    excuse.

    Args:
        rank: The rank.
        claimed: The time that its findings claim, a set of intervals each.
    """
    window_ns = rank.window_ns
    taken = iv.union_of(claimed)
    slices = []
    for detail, explain in _EXPLANATIONS.items():
        part = rank.account.parts.get(detail, iv.EMPTY)
        if iv.total(part) <= MIN_SHARE * window_ns:
            continue
        left = iv.subtract(part, taken)
        if detail in ("compute", "bandwidth") and iv.total(left) > MIN_SHARE * window_ns:
            left = find_time_below_roof(rank, left)
        left_ns = iv.total(left)
        if left_ns > MIN_SHARE * window_ns:
            sentence = explain(rank, left)
            slices.append(UnexplainedSlice(rank.rank, detail, left_ns, left_ns / window_ns, sentence))
    return tuple(sorted(slices, key=lambda each: (-each.ns, each.detail)))
