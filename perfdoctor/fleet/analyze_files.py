"""Files become a report: read and summarised in this process, in several, or on a cluster, and put together here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from perfdoctor import pipeline
from perfdoctor.errors import InputError, TraceError
from perfdoctor.fleet.budget import jobs_for, text_bytes
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import Missing, Plan, Result, ranks_of, summaries_of, work
from perfdoctor.fleet.read_progress import Tracker
from perfdoctor.fleet.reconcile_ranks import roster
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.reduce_ranks import from_rank
from perfdoctor.report.report import Outcome, Report
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, Run
from perfdoctor.trace.kineto import reader_choice as choice

_Rank = TypeVar("_Rank", Rank, RankSummary)

_APART = "it wants to see all ranks in one process, and they are shared among several: run with --jobs 1"


def analyzed(
    files: Sequence[TraceFile],
    plan: Plan,
    analyzers: Sequence[type[Analyzer]],
    tracker: Tracker,
    *,
    jobs: int | None = None,
    dask: str | None = None,
) -> Report:
    """The Report over all files; those that cannot be analysed are missing in it.

    Args:
        files: the files.
        plan: what to do with each.
        analyzers: the rules to apply.
        tracker: hears how far it is.
        jobs: how many processes of this machine to use, 1 for this one; as many as pay when None.
        dask: address of the scheduler of a cluster that does the work instead.

    Raises:
        InputError: not one of the files can be analysed: the reason of the first. Or the cluster cannot be reached.
        UsageError: the plan cannot be followed.
    """
    processes = jobs_for(files, jobs)
    all_here = dask is None and processes == 1
    if all_here and any(map(pipeline.needs_all_ranks, analyzers)):
        return _at_once(files, plan, analyzers, tracker)
    refused = [a.rule for a in analyzers if pipeline.needs_all_ranks(a) and "ranks" in a.needs]
    mapped = [a.rule for a in analyzers if not issubclass(a, FleetAnalyzer) and a.rule not in refused]
    plan = replace(plan, rules=tuple(mapped))
    results = dict(_results(files, plan, tracker, processes, dask))
    missing: list[Missing] = []
    summaries: list[RankSummary] = []
    for _, result in sorted(results.items()):
        if isinstance(result, Missing):
            missing.append(result)
        else:
            summaries += result
    summaries = _checked(summaries, missing, plan)
    summaries = roster(summaries, [file.file.rank for file in missing]) if plan.rank is None else summaries
    return pipeline.report_on_summaries(
        map(from_rank, summaries),
        analyzers,
        plan.settings,
        outcomes=[Outcome(rule, "skipped", _APART) for rule in refused],
        missing=[file.summary() for file in missing],
    )


def _results(
    files: Sequence[TraceFile], plan: Plan, tracker: Tracker, jobs: int, dask: str | None
) -> Iterator[tuple[int, Result]]:
    if dask is not None:
        from perfdoctor.fleet.cluster import over_cluster

        yield from over_cluster(files, replace(plan, threads=1), dask, tracker)
    elif jobs > 1:
        from perfdoctor.fleet.pool import over_processes

        choice.compile_ahead(sum(map(text_bytes, files)))
        yield from over_processes(files, replace(plan, threads=1), jobs, tracker)
    else:
        for index, file in enumerate(files):
            yield index, (summaries_of if len(files) == 1 else work)(file, plan, tracker.of(index))
            tracker.finished(index)


def _at_once(files: Sequence[TraceFile], plan: Plan, analyzers: Sequence[type[Analyzer]], tracker: Tracker) -> Report:
    """As `analyzed`, with all ranks in memory, for rules that want to see them so."""
    ranks: list[Rank] = []
    missing: list[Missing] = []
    for index, file in enumerate(files):
        try:
            ranks += ranks_of(file, plan, tracker.of(index))
        except InputError as error:
            if len(files) == 1:
                raise
            missing.append(Missing(file, str(error)))
        tracker.finished(index)
    kept = _in_order(_checked(ranks, missing, plan), missing, plan)
    run = Run(tuple(kept))
    return pipeline.diagnose_run(run, analyzers, plan.settings, [file.summary() for file in missing])


def _in_order(ranks: list[Rank], missing: Sequence[Missing], plan: Plan) -> list[Rank]:
    """As `roster`, for ranks that are in memory."""
    if plan.rank is not None or len(ranks) < 2:
        return ranks
    before = list(map(pipeline.summarize_rank, ranks))
    after = roster(before, [file.file.rank for file in missing])
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        for note in new.trace.warnings[len(old.trace.warnings) :]:
            ranks[index] = ranks[index].renumber(new.rank or 0, note)
    return ranks


def _checked(ranks: list[_Rank], missing: Sequence[Missing], plan: Plan) -> list[_Rank]:
    """The ranks that the plan wants.

    Raises:
        TraceError: there are none, because nothing can be read.
        InputError: there are none of the rank that is wanted.
    """
    if not ranks and missing:
        raise TraceError(missing[0].why)
    if plan.rank is None:
        return ranks
    wanted = (plan.rank,) if len(ranks) > 1 else (plan.rank, None)  # a file that does not say its rank may be of any
    kept = [rank for rank in ranks if rank.rank in wanted]
    if not kept:
        raise InputError(f"none of the traces is of rank {plan.rank}")
    return kept
