"""The way from traces to a Report, in whichever processes.

::

    discover     discover.find_traces           paths      -> files
    read         rank_tasks.read_ranks          a file     -> its ranks, nearly always one
    summarize    pipeline.summarize_rank        a rank     -> its account and findings, some ten kilobytes
    reduce       pipeline.report_on_summaries   summaries  -> the Report
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

from perfdoctor import pipeline
from perfdoctor.analysis_options import AnalysisOptions, choose_rules
from perfdoctor.errors import InputError, TraceError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import FailedFile, FileResult, analyze_file, read_ranks, summarize_file
from perfdoctor.fleet.read_progress import Progress, ProgressTracker
from perfdoctor.fleet.reconcile_ranks import reconcile_ranks
from perfdoctor.fleet.worker_count import choose_worker_count
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.reduce_ranks import drop_charts_of_shorter_steps, from_rank
from perfdoctor.report.report import Outcome, Report
from perfdoctor.rules.analyzer import Run
from perfdoctor.rules.registry import ListedRule
from perfdoctor.run_watch.hang import HangReading

_AnyRank = TypeVar("_AnyRank", Rank, RankSummary)

_NEEDS_ALL_RANKS = "it wants to see all ranks in one process, and they are shared among several: run with --jobs 1"


def analyze_jobs(
    jobs: Sequence[Sequence[TraceFile]],
    options: AnalysisOptions,
    progress: Progress | None = None,
    hang: HangReading | None = None,
) -> list[Report]:
    """The Report on each of several jobs, whose files the same processes share.

    Files are read, and their ranks summarized, in this process, in several, or on a cluster. The summaries of a job
    are then reduced to its report, which has the files that cannot be analysed in `Report.missing`.

    Args:
        jobs: The files of each job, as `find_traces` discovers them.
        options: How to analyse them.
        progress: Called repeatedly while the files are read.
        hang: What was read of the flight recorders of an only job, which then needs no files.

    Raises:
        InputError: None of the files of a job can be analysed: the reason of the first. Or the cluster cannot be
            reached.
        UsageError: The options are wrong.
    """
    rules = choose_rules(options)
    files = [file for job in jobs for file in job]
    tracker = ProgressTracker(files, progress)
    needs_all_ranks = any(rule.scope == "run" for rule in rules)
    workers = choose_worker_count(files, options.jobs, prefers_one=needs_all_ranks)
    if options.dask is None and workers == 1 and needs_all_ranks:
        return [_analyze_in_memory(job, options, rules, tracker, hang) for job in jobs]
    job_of = [number for number, job in enumerate(jobs) for _ in job]
    summaries: dict[int, Sequence[RankSummary]] = {}
    failures: dict[int, FailedFile] = {}
    longest: dict[int, int] = {}
    for index, result in _read_and_summarize(files, options, tracker, workers):
        if isinstance(result, FailedFile):
            failures[index] = result
            continue
        summaries[index] = result
        before = longest.setdefault(job_of[index], index)
        longest[job_of[index]] = keep_longest_step(summaries, before, index)
    reports = []
    for end, job in zip(accumulate(map(len, jobs)), jobs, strict=True):
        own = range(end - len(job), end)
        found = [summary for index in own for summary in summaries.get(index, ())]
        reports.append(_reduce(found, [failures[index] for index in own if index in failures], rules, options, hang))
    return reports


def _read_and_summarize(
    files: Sequence[TraceFile], options: AnalysisOptions, tracker: ProgressTracker, workers: int
) -> Iterator[tuple[int, FileResult]]:
    """The index of each file with its result, in the order in which they finish."""
    if options.dask is not None:
        from perfdoctor.fleet.cluster import analyze_on_cluster

        yield from analyze_on_cluster(files, replace(options, read_threads=1), options.dask, tracker)
    elif workers > 1:
        from perfdoctor.fleet.pool import analyze_in_processes

        yield from analyze_in_processes(files, replace(options, read_threads=1), workers, tracker)
    else:
        # The error of a single file is the user's answer; of several files the others are analysed.
        analyze = summarize_file if len(files) == 1 else analyze_file
        for index, file in enumerate(files):
            yield index, analyze(file, options, tracker.reader_callback(index))
            tracker.finish(index)


def keep_longest_step(summaries: dict[int, Sequence[RankSummary]], before: int, index: int) -> int:
    """Drop the charts and tables, which take megabytes, of the shorter steps of two files; which file keeps its own."""
    if before == index:
        return index
    kept = drop_charts_of_shorter_steps([*summaries[before], *summaries[index]])
    count = len(summaries[before])
    summaries[before], summaries[index] = kept[:count], kept[count:]
    return index if any(each.charts is not None or each.tables for each in summaries[index]) else before


def _reduce(
    summaries: list[RankSummary],
    failures: Sequence[FailedFile],
    rules: Sequence[ListedRule],
    options: AnalysisOptions,
    hang: HangReading | None,
) -> Report:
    """The Report on the ranks of one job."""
    summaries = _select_rank(summaries, failures, options)
    if options.rank is None:
        summaries = reconcile_ranks(summaries, [failure.file.rank for failure in failures])
    skipped = [rule for rule in rules if not pipeline.runs_on_each_rank(rule)]
    return pipeline.report_on_summaries(
        map(from_rank, summaries),
        rules,
        options,
        outcomes=[Outcome(rule.rule, "skipped", _NEEDS_ALL_RANKS) for rule in skipped],
        missing=[failure.summary() for failure in failures],
        hang=hang,
    )


def _analyze_in_memory(
    files: Sequence[TraceFile],
    options: AnalysisOptions,
    rules: Sequence[ListedRule],
    tracker: ProgressTracker,
    hang: HangReading | None,
) -> Report:
    """The Report on one job, with all ranks in memory at once, for rules that look at them together."""
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
    return pipeline.diagnose_run(Run(tuple(ranks)), rules, options, [failure.summary() for failure in failures], hang)


def _reconcile_in_memory(ranks: list[Rank], failures: Sequence[FailedFile], options: AnalysisOptions) -> list[Rank]:
    """The same as `reconcile_ranks`, for ranks that are in memory."""
    if options.rank is not None or len(ranks) < 2:
        return ranks
    before = [pipeline.summarize_rank(rank, options=AnalysisOptions(tables=())) for rank in ranks]
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
