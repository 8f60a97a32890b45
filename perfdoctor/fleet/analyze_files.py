"""The report over many files: each is analysed in this process, in several, or on a cluster, and reduced here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from perfdoctor import pipeline
from perfdoctor.errors import InputError, TraceError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import (
    AnalysisOptions,
    FailedFile,
    FileResult,
    analyze_file,
    read_ranks,
    summarize_file,
)
from perfdoctor.fleet.read_progress import ProgressTracker
from perfdoctor.fleet.reconcile_ranks import reconcile_ranks
from perfdoctor.fleet.worker_count import choose_worker_count
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.reduce_ranks import drop_charts_of_shorter_steps, from_rank
from perfdoctor.report.report import Outcome, Report
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, Run

_AnyRank = TypeVar("_AnyRank", Rank, RankSummary)

_NEEDS_ALL_RANKS = "it wants to see all ranks in one process, and they are shared among several: run with --jobs 1"


def analyze_files(
    files: Sequence[TraceFile],
    options: AnalysisOptions,
    analyzers: Sequence[type[Analyzer]],
    tracker: ProgressTracker,
    *,
    jobs: int | None = None,
    dask: str | None = None,
) -> Report:
    """The Report over all files; those that cannot be analysed are in `Report.missing`.

    Args:
        files: the files.
        options: how to analyse each.
        analyzers: the rules to apply.
        tracker: gets the progress.
        jobs: how many processes of this machine to use, 1 for this one; None for as many as are worth starting.
        dask: address of the scheduler of a cluster that does the work instead.

    Raises:
        InputError: none of the files can be analysed: the reason of the first. Or the cluster cannot be reached.
        UsageError: the options are wrong.
    """
    return analyze_jobs((files,), options, analyzers, tracker, jobs=jobs, dask=dask)[0]


def analyze_jobs(
    job_files: Sequence[Sequence[TraceFile]],
    options: AnalysisOptions,
    analyzers: Sequence[type[Analyzer]],
    tracker: ProgressTracker,
    *,
    jobs: int | None = None,
    dask: str | None = None,
) -> list[Report]:
    """The Report on each of several jobs, whose files the same processes share; the arguments as of `analyze_files`.

    Raises:
        InputError: none of the files of a job can be analysed: the reason of the first. Or the cluster cannot be
            reached.
        UsageError: the options are wrong.
    """
    files = [file for job in job_files for file in job]
    needs_all_ranks = any(map(pipeline.needs_all_ranks, analyzers))
    workers = choose_worker_count(files, jobs, prefers_one=needs_all_ranks)
    if dask is None and workers == 1 and needs_all_ranks:
        return [_analyze_in_memory(job, options, analyzers, tracker) for job in job_files]
    skipped = [a.rule for a in analyzers if pipeline.needs_all_ranks(a) and "ranks" in a.needs]
    of_single_ranks = [a.rule for a in analyzers if not issubclass(a, FleetAnalyzer) and a.rule not in skipped]
    options = replace(options, rule_ids=tuple(of_single_ranks))
    results = _keep_one_set_of_charts(_analyze_each(files, options, tracker, workers, dask), job_files)
    first, reports = 0, []
    for job in job_files:
        of_job = [results[index] for index in range(first, first + len(job))]
        reports.append(_report_on_results(of_job, options, analyzers, skipped))
        first += len(job)
    return reports


def _keep_one_set_of_charts(
    found: Iterable[tuple[int, FileResult]], job_files: Sequence[Sequence[TraceFile]]
) -> dict[int, FileResult]:
    """The results by file; of each job only the rank with the longest step so far keeps its charts and tables."""
    job_of = [number for number, job in enumerate(job_files) for _ in job]
    results: dict[int, FileResult] = {}
    longest: dict[int, tuple[int, Sequence[RankSummary]]] = {}
    for index, result in found:
        results[index] = result
        if isinstance(result, FailedFile):
            continue
        before, of_longest = longest.get(job_of[index], (index, ()))
        both = drop_charts_of_shorter_steps([*of_longest, *result])
        results[before], results[index] = both[: len(of_longest)], both[len(of_longest) :]
        if before == index or any(s.charts is not None or s.tables for s in both[len(of_longest) :]):
            longest[job_of[index]] = index, both[len(of_longest) :]
    return results


def _report_on_results(
    results: Sequence[FileResult], options: AnalysisOptions, analyzers: Sequence[type[Analyzer]], skipped: Sequence[str]
) -> Report:
    """The Report on the files of one job; `skipped` are the rules that could not run on single ranks."""
    failures: list[FailedFile] = []
    summaries: list[RankSummary] = []
    for result in results:
        if isinstance(result, FailedFile):
            failures.append(result)
        else:
            summaries += result
    summaries = _select_rank(summaries, failures, options)
    if options.rank is None:
        summaries = reconcile_ranks(summaries, [failure.file.rank for failure in failures])
    return pipeline.report_on_summaries(
        map(from_rank, summaries),
        analyzers,
        options.settings,
        outcomes=[Outcome(rule, "skipped", _NEEDS_ALL_RANKS) for rule in skipped],
        missing=[failure.summary() for failure in failures],
    )


def _analyze_each(
    files: Sequence[TraceFile], options: AnalysisOptions, tracker: ProgressTracker, workers: int, dask: str | None
) -> Iterator[tuple[int, FileResult]]:
    """The index of each file with its result, in the order in which they finish."""
    if dask is not None:
        from perfdoctor.fleet.cluster import analyze_on_cluster

        yield from analyze_on_cluster(files, replace(options, read_threads=1), dask, tracker)
    elif workers > 1:
        from perfdoctor.fleet.pool import analyze_in_processes

        yield from analyze_in_processes(files, replace(options, read_threads=1), workers, tracker)
    else:
        # The error of a single file is the user's answer; of several files the others are analysed.
        analyze = summarize_file if len(files) == 1 else analyze_file
        for index, file in enumerate(files):
            yield index, analyze(file, options, tracker.reader_callback(index))
            tracker.finish(index)


def _analyze_in_memory(
    files: Sequence[TraceFile], options: AnalysisOptions, analyzers: Sequence[type[Analyzer]], tracker: ProgressTracker
) -> Report:
    """The same as `analyze_files`, with all ranks in memory at once, for rules that look at them together."""
    ranks: list[Rank] = []
    failures: list[FailedFile] = []
    for index, file in enumerate(files):
        try:
            ranks += read_ranks(file, options, tracker.reader_callback(index))
        except InputError as error:
            if len(files) == 1:
                raise
            failures.append(FailedFile(file, str(error)))
        tracker.finish(index)
    ranks = _reconcile_in_memory(_select_rank(ranks, failures, options), failures, options)
    missing = [failure.summary() for failure in failures]
    run = Run(tuple(ranks))
    return pipeline.diagnose_run(
        run,
        analyzers,
        options.settings,
        missing,
        with_breakdown=options.breakdown,
        with_charts=options.charts,
        tables=options.tables,
    )


def _reconcile_in_memory(ranks: list[Rank], failures: Sequence[FailedFile], options: AnalysisOptions) -> list[Rank]:
    """The same as `reconcile_ranks`, for ranks that are in memory."""
    if options.rank is not None or len(ranks) < 2:
        return ranks
    before = [pipeline.summarize_rank(rank, tables=()) for rank in ranks]
    after = reconcile_ranks(before, [failure.file.rank for failure in failures])
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        for warning in new.trace.warnings[len(old.trace.warnings) :]:
            ranks[index] = ranks[index].renumber(new.rank or 0, warning)
    return ranks


def _select_rank(ranks: list[_AnyRank], failures: Sequence[FailedFile], options: AnalysisOptions) -> list[_AnyRank]:
    """The ranks that the options ask for: all, or one.

    Raises:
        TraceError: there are none, because no file can be read.
        InputError: none of the ranks has that number.
    """
    if not ranks and failures:
        raise TraceError(failures[0].reason)
    if options.rank is None:
        return ranks
    # A single file that does not say its rank may be of any.
    wanted = (options.rank,) if len(ranks) > 1 else (options.rank, None)
    selected = [rank for rank in ranks if rank.rank in wanted]
    if not selected:
        raise InputError(f"none of the traces is of rank {options.rank}")
    return selected
