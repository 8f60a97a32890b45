"""What a finding says of a late rank: who is late, how often, in how many steps, and how far its clock is ahead."""

from __future__ import annotations

from perfdoctor.report.merge_findings import format_ranges
from perfdoctor.rules import Evidence, LateRank

# Clocks that differ by less are synchronized well enough.
_MIN_CLOCK_DIFFERENCE_NS = 10_000_000


def step_evidence(late: LateRank) -> tuple[Evidence, ...]:
    """In how many of the steps the others waited for this rank; nothing where there are no steps."""
    if not late.step_count:
        return ()
    return (Evidence("steps in which it is the one to wait for", f"{late.late_step_count} of {late.step_count}"),)


def name_ranks(late: LateRank) -> str:
    """The subject of the title: the late rank, or all that are late with it."""
    if len(late.co_late) == 1:
        return f"Rank {late.rank}"
    numbers = format_ranges(late.matched.tables[index].rank or 0 for index in late.co_late)
    return f"Ranks {numbers}{' (all of one host)' if late.is_whole_host else ''}"


def describe_frequency(late: LateRank) -> str:
    """The predicate of the title: at how many collectives, or in how many steps, the rank is late."""
    is_single = len(late.co_late) == 1
    if late.persists:
        share = float(late.arrives_last.sum()) / late.collective_count
        return f"{'arrives' if is_single else 'arrive'} last at {share:.0%} of collectives"
    return f"{'is' if is_single else 'are'} late now and then, in {late.late_step_count} of {late.step_count} steps"


def clock_evidence(late: LateRank) -> tuple[Evidence, ...]:
    """How far the late rank's clock is ahead of the first rank's, beyond what the files say."""
    first = late.matched.tables[0]
    ahead_ns = late.table.base_ns - first.base_ns - int(late.matched.offset_ns[late.index])
    if abs(ahead_ns) < _MIN_CLOCK_DIFFERENCE_NS:
        return ()
    return (Evidence(f"its clock was ahead of that of rank {first.rank} by", ahead_ns, "ns"),)
