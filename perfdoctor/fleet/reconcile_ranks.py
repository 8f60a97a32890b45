"""Gives each rank of a fleet one number, names missing ranks, and refuses traces of different jobs or windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfdoctor.errors import InputError
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.units import format_ranges


def reconcile_ranks(summaries: Sequence[RankSummary], unreadable_ranks: Iterable[int | None] = ()) -> list[RankSummary]:
    """The ranks of one job, each with another number; doubtful numbers and missing ranks are among their warnings.

    The number is in the trace, else in the file's name. Where several ranks have the same number or none, all are
    numbered in the order given.

    Args:
        summaries: the ranks in the order of the files.
        unreadable_ranks: ranks whose files could not be analysed; no warning calls them missing.

    Raises:
        InputError: the traces are of different jobs, or of different windows of one job.
    """
    ranks = list(summaries)
    if len(ranks) < 2:
        return ranks
    _check_one_job(ranks)
    return _warn_of_missing_ranks(_number_uniquely(ranks), set(unreadable_ranks))


def _check_one_job(ranks: Sequence[RankSummary]) -> None:
    """Check that the traces can be of one job.

    Only contradictions count: jobs of different sizes, two traces that both say that they are of one rank, other steps
    at another time. Clocks alone prove nothing: hosts can be hours apart.

    Raises:
        InputError: they cannot.
    """
    first_of_size: dict[int, RankSummary] = {}
    first_of_rank: dict[int, RankSummary] = {}
    for rank in ranks:
        if rank.trace.world_size is None:
            continue
        same_size = first_of_size.setdefault(rank.trace.world_size, rank)
        if len(first_of_size) > 1:
            first = next(iter(first_of_size.values()))
            raise InputError(
                f"{first.trace.path} is of a job of {first.trace.world_size} ranks and {same_size.trace.path} of one "
                f"of {same_size.trace.world_size}: traces of different jobs cannot be compared; give those of one"
            )
        if rank.rank is not None and first_of_rank.setdefault(rank.rank, rank) is not rank:
            raise InputError(
                f"{first_of_rank[rank.rank].trace.path} and {rank.trace.path} are both of rank {rank.rank}: they are "
                "of different windows or jobs; give one trace a rank"
            )
    _check_one_window(ranks)


def _check_one_window(ranks: Sequence[RankSummary]) -> None:
    """Check that no trace recorded other steps than the first one, at another time.

    Raises:
        InputError: one did.
    """
    numbered = [(rank, numbers) for rank in ranks if (numbers := _step_numbers(rank))]
    for rank, numbers in numbered[1:]:
        if set(numbers).isdisjoint(numbered[0][1]) and not _windows_overlap(rank, numbered[0][0]):
            first, other = (f"{format_ranges(n)} ({r.trace.path})" for r, n in (numbered[0], (rank, numbers)))
            raise InputError(
                f"the traces are of different windows: one has the steps {first}, another {other}; give traces that "
                "were recorded over the same steps"
            )


def _step_numbers(rank: RankSummary) -> tuple[int, ...]:
    return rank.collectives.step_numbers if rank.collectives is not None else ()


def _windows_overlap(a: RankSummary, b: RankSummary) -> bool:
    """Whether the analysed windows of two ranks, by the clocks of their hosts, have an instant in common."""
    (a_start, a_end), (b_start, b_end) = _window_of(a), _window_of(b)
    return a_start < b_end and b_start < a_end


def _window_of(rank: RankSummary) -> tuple[int, int]:
    """Start and end of the analysed steps, in ns of the rank's clock."""
    steps_ns = rank.account.steps + rank.trace.base_ns
    return int(steps_ns[0, 0]), int(steps_ns[-1, 1])


def _number_uniquely(ranks: list[RankSummary]) -> list[RankSummary]:
    """The ranks; numbered in their order where several have no number, or the same one."""
    counts = Counter(rank.rank for rank in ranks)
    if None not in counts and len(counts) == len(ranks):
        return ranks
    repeated = sorted(number for number, count in counts.items() if number is not None and count > 1)
    if repeated:
        reason = f"rank {format_ranges(repeated)} comes more than once"
    else:
        reason = f"{counts[None]} of them do not say their rank"
    warning = f"the files do not tell their ranks apart ({reason}): they are numbered in the order given"
    return [rank.renumber(number, warning) for number, rank in enumerate(ranks)]


def _warn_of_missing_ranks(ranks: list[RankSummary], unreadable_ranks: set[int | None]) -> list[RankSummary]:
    """The ranks, the first of them with a warning that names the ranks of the job without a trace."""
    world_size = next((rank.trace.world_size for rank in ranks if rank.trace.world_size is not None), None)
    missing = sorted(set(range(world_size or 0)) - {rank.rank for rank in ranks} - unreadable_ranks)
    if not missing:
        return ranks
    which = format_ranges(missing)
    warning = (
        f"{len(missing)} of the job's {world_size} ranks have no trace here ({which}): a slower one may be among them"
    )
    first = ranks[0]
    return [replace(first, trace=replace(first.trace, warnings=(*first.trace.warnings, warning))), *ranks[1:]]
