"""What a finding says of a late rank: who is late, how often, in how many steps, and how far its clock is ahead."""

from __future__ import annotations

from perfdoctor.rules import HOT_PATH, Evidence, Finding, LateRank, format_ranges, format_time

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


def describe_lateness(late: LateRank, wait_ns: int) -> str:
    """The predicate of the title: how late the rank is, and how often.

    Args:
        late: The late rank.
        wait_ns: How long another one waits for it in the window.
    """
    steps = late.step_count if late.persists else late.late_step_count
    by = f"{'is' if len(late.co_late) == 1 else 'are'} {format_time(wait_ns / max(steps, 1))} late"
    return f"{by} {describe_frequency(late)}"


def describe_frequency(late: LateRank) -> str:
    """In how many steps the others wait for the rank."""
    if not late.step_count:
        return "in all"
    return "in each step" if late.persists else f"in {late.late_step_count} of {late.step_count} steps"


def name_hot_path(cause: Finding | None) -> str | None:
    """What the CPU of the late rank is in where a finding about its pauses says it; else None."""
    names = cause.find_evidence(HOT_PATH) if cause else None
    return names.rsplit(" > ", 1)[-1] if isinstance(names, str) else None


def clock_evidence(late: LateRank) -> tuple[Evidence, ...]:
    """How far the late rank's clock is ahead of the first rank's, beyond what the files say, and what it gains."""
    first, clock = late.matched.tables[0], late.matched.clocks[late.index]
    ahead_ns = late.table.base_ns - first.base_ns - clock.offset_ns
    evidence = []
    if abs(ahead_ns) >= _MIN_CLOCK_DIFFERENCE_NS:
        evidence.append(Evidence(f"its clock was ahead of that of rank {first.rank} by", ahead_ns, "ns"))
    if clock.drift:
        gained_ns = -round(clock.drift * 1e9)
        evidence.append(Evidence(f"its clock gains on that of rank {first.rank}, each second", gained_ns, "ns"))
    return tuple(evidence)
