"""Accounts for every large slice: those of a rank's account that no finding claims, each with what is known of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from perfdoctor.report.explain_gpu_time import (
    explain_communication,
    explain_copies,
    explain_kernels,
    explain_latency,
    find_time_below_roof,
)
from perfdoctor.report.explain_idle_time import (
    explain_allocator,
    explain_dataloader,
    explain_idle_communication,
    explain_launch,
    explain_sync,
    explain_unexplained,
)
from perfdoctor.report.merge_findings import format_ranges
from perfdoctor.report.report import UnexplainedSlice
from perfdoctor.report.slice_facts import SliceFacts
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals

MIN_SHARE = 0.05
"""Slices from this share of the window on are explained: less would not change what to do first."""

_EXPLANATIONS: Mapping[str, Callable[[SliceFacts, Intervals], str]] = MappingProxyType(
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


def find_unexplained(facts: SliceFacts, claimed: Iterable[Intervals]) -> tuple[UnexplainedSlice, ...]:
    """The slices of a rank's account over MIN_SHARE of the window that no finding claims, the largest first.

    Compute and memory time counts only as far as its kernels are not known to be near their roof: what is near needs no
    excuse.

    Args:
        facts: The facts of the rank.
        claimed: The time that its findings claim, a set of intervals each.
    """
    window_ns = facts.window_ns
    taken = iv.union_of(claimed)
    slices = []
    for detail, explain in _EXPLANATIONS.items():
        part = facts.parts.get(detail, iv.EMPTY)
        if iv.total(part) <= MIN_SHARE * window_ns:
            continue
        left = iv.subtract(part, taken)
        if detail in ("compute", "bandwidth") and iv.total(left) > MIN_SHARE * window_ns:
            left = find_time_below_roof(facts, left)
        left_ns = iv.total(left)
        if left_ns > MIN_SHARE * window_ns:
            sentence = explain(facts, left)
            slices.append(UnexplainedSlice(facts.rank, detail, left_ns, left_ns / window_ns, sentence))
    return tuple(sorted(slices, key=lambda each: (-each.ns, each.detail)))


def reduce_slice(slices: Iterable[UnexplainedSlice], detail: str, by_ns: int) -> tuple[UnexplainedSlice, ...]:
    """The slices of a rank after a finding that compares ranks has claimed `by_ns` of one of them."""
    kept = []
    for each in slices:
        if each.detail == detail and each.ns:
            left_ns = max(each.ns - by_ns, 0)
            each = replace(each, ns=left_ns, share=each.share * left_ns / each.ns)
        if each.share > MIN_SHARE:
            kept.append(each)
    return tuple(kept)


def merge_slices(slices: Iterable[UnexplainedSlice]) -> tuple[UnexplainedSlice, ...]:
    """One slice for each detail, the largest first: that of the rank with most of it, which names the other ranks."""
    by_detail: dict[str, list[UnexplainedSlice]] = defaultdict(list)
    for each in slices:
        by_detail[each.detail].append(each)
    merged = []
    for group in by_detail.values():
        largest = max(group, key=lambda each: (each.share, -(each.rank or 0)))
        others = [each.rank for each in group if each is not largest and each.rank is not None]
        if others:
            ranks = f"Rank {others[0]} has" if len(others) == 1 else f"Ranks {format_ranges(others)} have"
            largest = replace(largest, sentence=f"{largest.sentence} {ranks} such a slice, too.")
        merged.append(largest)
    return tuple(sorted(merged, key=lambda each: (-each.share, each.detail)))
