"""What a finding says of a late rank: what it delays, who waits, in how many steps, how far its clock is ahead."""

from __future__ import annotations

from perfdoctor.rules import HOT_PATH, Evidence, Finding, LateRank, LongerPlace, RankSummary, format_ranges, format_time
from perfdoctor.rules import intervals as iv

# Clocks that differ by less are synchronized well enough.
_MIN_CLOCK_DIFFERENCE_NS = 10_000_000


def name_ranks(late: LateRank) -> str:
    """The subject of the title: the late rank, or all that are late with it."""
    if len(late.co_late) == 1:
        return f"Rank {late.rank}"
    numbers = format_ranges(late.matched.tables[index].rank or 0 for index in late.co_late)
    return f"Ranks {numbers}{' (all of one host)' if late.is_whole_host else ''}"


def format_lateness(late: LateRank, rank: RankSummary, delay_ns: int) -> str:
    """By how much the rank is too late, and how often.

    Args:
        late: The late rank.
        rank: One of the others.
        delay_ns: By how much it delays the mean step, see `Fleet.delay_ns`.
    """
    is_now_and_then = late.step_count > 0 and not late.persists
    each_ns = delay_ns * rank.steps.count / late.late_step_count if is_now_and_then else delay_ns
    if not late.step_count:
        frequency = "in all"
    else:
        frequency = "in each step" if late.persists else f"in {late.late_step_count} of {late.step_count} steps"
    return f"{format_time(each_ns)} late {frequency}"


def blame_evidence(late: LateRank, victim: RankSummary, *own: Evidence) -> tuple[Evidence, ...]:
    """What a late rank causes, some figures of the finding itself, and who waits: most of that may go without it."""
    wait_ns = victim.per_step(iv.total(late.wait_time(late.victim)))
    steps = f"{late.late_step_count} of {late.step_count}"
    return (
        Evidence("collectives matched over all ranks", late.collective_count, "count"),
        Evidence("share of all waiting that it causes", round(100 * late.blame, 1), "%"),
        *own,
        Evidence("rank that waits longest", victim.rank),
        Evidence("its wait per {unit}", wait_ns, "ns"),
        *((Evidence("steps in which it is the one to wait for", steps),) if late.step_count else ()),
    )


def cause_evidence(late: LateRank, cause: Finding | None, line: LongerPlace | None) -> tuple[Evidence, ...]:
    """What explains that a rank is late, and its clock."""
    evidence = [] if cause is None else [Evidence("its own finding", f"{cause.rule}: {cause.title}")]
    if line is not None:
        evidence.append(Evidence(f"at {line.name.location}, per {{unit}} more than the others", line.more_ns, "ns"))
    return (*evidence, *clock_evidence(late))


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
