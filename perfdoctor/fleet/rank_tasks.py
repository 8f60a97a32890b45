"""The analysis of one file of a fleet, in any process or on any machine: read it and summarise its ranks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import orjson

from perfdoctor import pipeline
from perfdoctor.analysis.captured_facts import RunSteps, parse_run_steps
from perfdoctor.analysis_options import AnalysisOptions, min_roof_share_of
from perfdoctor.errors import InputError, TraceError, UsageError
from perfdoctor.facts.captured import NO_FACTS, CapturedFacts
from perfdoctor.fleet.discover import TraceFile, TracePath
from perfdoctor.fleet.read_progress import ProgressTracker
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.report import TraceSummary
from perfdoctor.rules import registry
from perfdoctor.trace import read
from perfdoctor.trace.io.remote import redact
from perfdoctor.trace.io.stream import Progress
from perfdoctor.trace.io.untrusted_files import check_beside_trace, read_beside_trace
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.split_ranks import split_ranks
from perfdoctor.trace.tables.steps import leave_out_steps

_STEPS_NAME = "steps.jsonl"
# What `run --memory` writes beside the facts: of the evidence window, and where a request failed.
_SNAPSHOT_NAMES = ("memory.pickle", "oom.pickle")


# A dataclass, because a NamedTuple would be a sequence as the summaries are, of length 2.
@frozen_dataclass
class FailedFile:
    """A file of the fleet that could not be analysed, and the reason."""

    file: TraceFile
    reason: str

    def summary(self) -> TraceSummary:
        """Its row in the report."""
        return TraceSummary(
            path=redact(self.file.path),
            rank=self.file.rank,
            world_size=None,
            device=None,
            vendor=None,
            complete=False,
            events=0,
            span_ns=0,
            warnings=(f"this rank is missing from the analysis: {self.reason}",),
        )


FileResult: TypeAlias = Sequence[RankSummary] | FailedFile


def analyze_file(file: TraceFile, options: AnalysisOptions, progress: Progress | None = None) -> FileResult:
    """The summaries of the ranks in one file, nearly always one, or why it failed: other files are analysed anyway.

    Raises:
        UsageError: the options are wrong, for any file.
    """
    try:
        return summarize_file(file, options, progress)
    except InputError as error:
        return FailedFile(file, str(error))
    except UsageError:
        raise
    except Exception as error:  # a fault of ours on one rank of thousands: the others are worth reporting
        return FailedFile(file, f"internal error, which is our fault: {type(error).__name__}: {error}")


def analyze_file_remotely(file: TraceFile, options: AnalysisOptions, folder: str) -> FileResult:
    """The same as `analyze_file`, called on another machine, which may not see the files of this one.

    Args:
        file: the file, with paths as the user wrote them.
        options: how to analyse it.
        folder: the folder that relative paths start from.
    """
    local = file.map_paths(partial(_resolve, folder))
    if isinstance(local.path, Path) and not local.path.exists():
        return FailedFile(
            file,
            f"{local.path} cannot be seen by the worker on {platform.node()}; put the traces where all workers "
            "can read them, or give a URL of an object store",
        )
    result = analyze_file(local, options)
    if isinstance(result, FailedFile):
        return FailedFile(file, result.reason)
    return [replace(summary, trace=replace(summary.trace, path=redact(file.path))) for summary in result]


def summarize_file(file: TraceFile, options: AnalysisOptions, progress: Progress | None = None) -> list[RankSummary]:
    """The summaries of the ranks in one file.

    Raises:
        InputError: the file cannot be read.
    """
    rules = registry.choose_analyzers(registry.list_rules(), options.select, options.ignore)
    rules = tuple(filter(pipeline.runs_on_each_rank, rules))
    ranks = read_ranks(file, options, progress)
    options = replace(options, is_only_rank=options.is_only_rank and len(ranks) == 1)
    return [pipeline.summarize_rank(rank, rules, options) for rank in ranks]


def read_ranks(file: TraceFile, options: AnalysisOptions, progress: Progress | None = None) -> list[Rank]:
    """The ranks in one file; of a file with several ranks only the one of `options.rank`.

    Raises:
        InputError: the trace, its evidence trace or its facts cannot be read.
    """
    read_trace = partial(read, threads=options.read_threads, max_text_bytes=options.max_text_bytes)
    traces = split_ranks(read_trace(file.path, progress))
    facts = _read_facts(file)
    min_roof_share = min_roof_share_of(options.settings)
    if len(traces) > 1:  # merged by another tool: no capture, so neither evidence nor step times
        selected = [trace for trace in traces if options.rank in (None, trace.rank)]
        return [Rank(trace, options.device, options.steps, facts, min_roof_share=min_roof_share) for trace in selected]
    trace = traces[0]
    if trace.rank is None and file.rank is not None:
        trace = replace(trace, rank=file.rank)
    trace = leave_out_steps(trace, facts.recorder_worked)
    evidence = None
    if file.evidence_path is not None:
        evidence = leave_out_steps(read_trace(file.evidence_path, progress), facts.recorder_worked)
    step_times = _read_step_times(file)
    early = None if file.early is None else _read_early(file.early, options)
    snapshot, unread = _read_snapshot(file, facts, trace)
    trace = replace(trace, warnings=(*trace.warnings, *unread))
    return [Rank(trace, options.device, options.steps, facts, evidence, step_times, min_roof_share, early, snapshot)]


def _read_early(file: TraceFile, options: AnalysisOptions) -> Rank | None:
    """The first windows of a run that has changed since; None where they cannot be read: the others can be."""
    try:
        early = read_ranks(file, replace(options, rank=None, steps=slice(None)))[0]
    except (InputError, TraceError):
        return None
    return replace(early, run_steps=None)


def _read_snapshot(file: TraceFile, facts: CapturedFacts, trace: Trace) -> tuple[Rank | None, tuple[str, ...]]:
    """The snapshot that a capture took, and a warning where it cannot be read; that of a request that failed first."""
    names = (facts.memory.out_of_memory.file, facts.memory.snapshot)
    name = next((name for name in names if name in _SNAPSHOT_NAMES), None)
    if name is None or file.facts_path is None:
        return None, ()
    path = file.facts_path.parent / name
    try:
        check_beside_trace(path, file.path)
        snapshot = read(path)
    except (OSError, TraceError) as error:
        return None, (f"the snapshot {name} of the capture is not in this report: {error}",)
    # A snapshot does not say what device it is of.
    device = snapshot.device if snapshot.device.memory_bytes else trace.device
    return Rank(replace(snapshot, device=device)), ()


def _read_facts(file: TraceFile) -> CapturedFacts:
    path = file.facts_path
    if path is None:
        return NO_FACTS
    try:
        return CapturedFacts.parse(orjson.loads(read_beside_trace(path, file.path)))
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as captured facts ({error}); remove it or capture again") from None


def steps_path_of(facts_path: TracePath | None) -> TracePath | None:
    """Where a capture writes the times of a rank's steps: beside its facts."""
    return None if facts_path is None else facts_path.parent / _STEPS_NAME


def _read_step_times(file: TraceFile) -> RunSteps | None:
    """The step times in the folder of the facts; None where there are none or they cannot be read."""
    path = steps_path_of(file.facts_path)
    try:
        return None if path is None else parse_run_steps(read_beside_trace(path, file.path))
    except (OSError, TraceError):
        return None


def _resolve(folder: str, path: TracePath) -> TracePath:
    """A local path as seen from `folder`; a URL as it is."""
    return Path(folder, path) if isinstance(path, Path) else path


def read_longest_rank(
    files: Sequence[TraceFile],
    options: AnalysisOptions,
    tracker: ProgressTracker,
    visit: Callable[[Rank], object] | None = None,
) -> tuple[Rank, tuple[str, ...]]:
    """The rank with the longest step, and sentences that say which it is and what could not be read.

    The files are read one after the other, and one trace stays in memory.

    Args:
        files: The files.
        options: Which rank and which steps; the rules do not matter.
        tracker: Gets the progress.
        visit: Called with each rank while its trace is in memory.

    Raises:
        InputError: None of the files can be read: the reason of the first.
        UsageError: The options fit none of them.
    """
    longest: Rank | None = None
    count, failures = 0, []
    for index, file in enumerate(files):
        try:
            ranks = read_ranks(file, options, tracker.reader_callback(index))
        except InputError as error:
            if len(files) == 1:
                raise
            failures.append(error)
            continue
        finally:
            tracker.finish(index)
        for rank in ranks:
            count += 1
            if visit is not None:
                visit(rank)
            if longest is None or rank.mean_step_ns > longest.mean_step_ns:
                longest = rank
    if longest is None:
        raise failures[0] if failures else InputError(f"none of the traces is of rank {options.rank}")
    if options.steps != slice(None) and not longest.steps.count:
        raise UsageError("no steps are left: the trace has none, or --steps names none of them")
    notes = [f"could not be read: {error}" for error in failures]
    if count > 1:
        which = longest.trace.path if longest.rank is None else f"rank {longest.rank}"
        notes.insert(0, f"of {count} ranks this is {which}, which has the longest step")
    return longest, tuple(notes)
