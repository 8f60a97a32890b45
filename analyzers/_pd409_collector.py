"""What Python's garbage collector takes of the steps of ranks, as a capture recorded it of every step."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoctor.rules import RankSummary

# From this share of the waiting on the collector is why ranks enter the step apart.
_MIN_SHARE = 0.5


def collector_ns_per_step(rank: RankSummary) -> int:
    """The mean pause of the collector in a step without the profiler; 0 where there is none or none was captured."""
    pauses = _pauses_of(rank)
    return round(sum(pauses) / len(pauses)) if pauses else 0


def collects_apart(ranks: Sequence[RankSummary], waiting_ns: int) -> bool:
    """Whether the collector runs in different steps on the ranks, for at least half of the waiting in a step."""
    pauses = [_pauses_of(rank) for rank in ranks]
    steps = min(map(len, pauses), default=0)
    if not steps:
        return False
    # Where all ranks collect in the same step none waits for another: only the longest beyond the shortest counts.
    apart_ns = sum(max(column) - min(column) for column in zip(*(each[-steps:] for each in pauses), strict=True))
    return bool(apart_ns >= _MIN_SHARE * waiting_ns * steps)


def _pauses_of(rank: RankSummary) -> list[int]:
    """The collector's pauses in each step of the base window, in ns; empty where they were not captured."""
    known = [ns for ns in rank.facts.base.gc_ns if ns is not None]
    return known if len(known) == len(rank.facts.base.gc_ns) else []
