"""Which ranks there are: one number each, who is missing, and whether all are of one job and one window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfdoctor.errors import InputError
from perfdoctor.report.merge_findings import format_ranges
from perfdoctor.report.rank_summary import RankSummary


def roster(summaries: Sequence[RankSummary], unreadable: Iterable[int | None] = ()) -> list[RankSummary]:
    """The ranks of one job, each with a number of its own; what is odd about them is among their warnings.

    A rank is what the trace says, else what its file is called; where that does not tell all of them apart, their order
    does.

    Args:
        summaries: what was read, in the order of the files.
        unreadable: ranks whose files could not be analysed; they are told of elsewhere.

    Raises:
        InputError: the traces are of different jobs, or of different windows of one.
    """
    ranks = list(summaries)
    if len(ranks) < 2:
        return ranks
    _check_one_job(ranks)
    return _with_missing(_numbered(ranks), set(unreadable))


def _check_one_job(ranks: Sequence[RankSummary]) -> None:
    """See that nothing in the traces rules out that they were recorded together.

    Only what cannot be otherwise counts: worlds of different sizes, two traces that both say that they are of one rank,
    steps with different numbers at different times. Clocks alone are no proof: hosts can be hours apart.

    Raises:
        InputError: they were not.
    """
    sizes: dict[int, RankSummary] = {}
    recorded: dict[int, RankSummary] = {}
    for rank in ranks:
        if rank.trace.world_size is None:
            continue
        other = sizes.setdefault(rank.trace.world_size, rank)
        if len(sizes) > 1:
            first = next(iter(sizes.values()))
            raise InputError(
                f"{first.trace.path} is of a job of {first.trace.world_size} ranks and {other.trace.path} of one of "
                f"{other.trace.world_size}: traces of different jobs cannot be compared; give those of one"
            )
        if rank.rank is not None and recorded.setdefault(rank.rank, rank) is not rank:
            raise InputError(
                f"{recorded[rank.rank].trace.path} and {rank.trace.path} are both of rank {rank.rank}: they are of "
                "different windows or jobs; give one trace a rank"
            )
    _check_one_window(ranks)


def _check_one_window(ranks: Sequence[RankSummary]) -> None:
    """See that no trace recorded other steps than the first one, at another time.

    Raises:
        InputError: one did.
    """
    known = [rank for rank in ranks if rank.collectives is not None and rank.collectives.step_numbers]
    for rank in known[1:]:
        if set(_numbers(rank)).isdisjoint(_numbers(known[0])) and _apart(rank, known[0]):
            first, other = (f"{format_ranges(_numbers(r))} ({r.trace.path})" for r in (known[0], rank))
            raise InputError(
                f"the traces are of different windows: one has the steps {first}, another {other}; give traces that "
                "were recorded over the same steps"
            )


def _numbers(rank: RankSummary) -> tuple[int, ...]:
    return rank.collectives.step_numbers if rank.collectives is not None else ()


def _apart(a: RankSummary, b: RankSummary) -> bool:
    """Whether the analysed times of two ranks, by their own clocks, have no instant in common."""
    (start, end), (other_start, other_end) = _extent(a), _extent(b)
    return end <= other_start or other_end <= start


def _extent(rank: RankSummary) -> tuple[int, int]:
    steps = rank.account.steps + rank.trace.base_ns
    return int(steps[0, 0]), int(steps[-1, 1])


def _numbered(ranks: list[RankSummary]) -> list[RankSummary]:
    """The ranks; where several do not say their number, or two say the same, their order does."""
    often = Counter(rank.rank for rank in ranks)
    if None not in often and len(often) == len(ranks):
        return ranks
    twice = sorted(number for number, count in often.items() if number is not None and count > 1)
    why = (
        f"rank {format_ranges(twice)} comes more than once" if twice else f"{often[None]} of them do not say their rank"
    )
    note = f"the files do not tell their ranks apart ({why}): they are numbered in the order given"
    return [rank.renumber(number, note) for number, rank in enumerate(ranks)]


def _with_missing(ranks: list[RankSummary], unreadable: set[int | None]) -> list[RankSummary]:
    """The ranks, the first of them with a sentence about those of the job that have no trace."""
    world = next((rank.trace.world_size for rank in ranks if rank.trace.world_size is not None), None)
    missing = sorted(set(range(world or 0)) - {rank.rank for rank in ranks} - unreadable)
    if not missing:
        return ranks
    which = format_ranges(missing)
    note = f"{len(missing)} of the job's {world} ranks have no trace here ({which}): a slower one may be among them"
    first = ranks[0]
    return [replace(first, trace=replace(first.trace, warnings=(*first.trace.warnings, note))), *ranks[1:]]
