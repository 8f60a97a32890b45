"""What is done with one file of a fleet, in whatever process or machine: read it, analyse its ranks, summarise them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import orjson

from perfdoctor import pipeline
from perfdoctor.analysis.captured_facts import RunSteps, run_steps
from perfdoctor.errors import InputError, TraceError, UsageError
from perfdoctor.fleet.discover import Place, TraceFile
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.report import TraceSummary
from perfdoctor.rules import registry
from perfdoctor.trace import read
from perfdoctor.trace.io.remote import redact
from perfdoctor.trace.io.stream import Progress
from perfdoctor.trace.tables.split_ranks import split_ranks

_STEPS = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class Plan:
    """How the files are analysed; the same for all of them.

    Attributes:
        rules: Ids of the rules that look at single ranks.
        settings: Thresholds by rule id.
        device: The device's name, where the trace does not say it.
        steps: Which steps to look at.
        rank: The only rank to look at; None for all.
        whole: Keep what an annotated trace needs, where only one rank comes out.
        threads: Threads to read a file with; None for as many as pay.
    """

    rules: tuple[str, ...] = ()
    settings: pipeline.Settings = field(default_factory=dict)
    device: str | None = None
    steps: slice = field(default_factory=lambda: slice(None))
    rank: int | None = None
    whole: bool = False
    threads: int | None = None


class Missing(NamedTuple):
    """A file of the fleet that could not be analysed, and why."""

    file: TraceFile
    why: str

    def summary(self) -> TraceSummary:
        """Its line in the report."""
        return TraceSummary(
            path=redact(self.file.path),
            rank=self.file.rank,
            world_size=None,
            device=None,
            vendor=None,
            complete=False,
            events=0,
            span_ns=0,
            warnings=(f"this rank is missing from the analysis: {self.why}",),
        )


Result: TypeAlias = Sequence[RankSummary] | Missing


def work(file: TraceFile, plan: Plan, progress: Progress | None = None) -> Result:
    """The ranks of one file, nearly always one, as summaries; what is wrong with it costs no other file.

    Raises:
        UsageError: the plan cannot be followed for any file.
    """
    try:
        return summaries_of(file, plan, progress)
    except InputError as error:
        return Missing(file, str(error))
    except UsageError:
        raise
    except Exception as error:  # a fault of ours on one rank of thousands: the others are worth having
        return Missing(file, f"internal error, which is our fault: {type(error).__name__}: {error}")


def work_elsewhere(file: TraceFile, plan: Plan, folder: str) -> Result:
    """`work` on another machine, which may not see the files of this one, that are relative to `folder` there."""
    place = replace(
        file,
        path=_within(folder, file.path),
        facts=None if file.facts is None else _within(folder, file.facts),
        evidence=None if file.evidence is None else _within(folder, file.evidence),
    )
    if isinstance(place.path, Path) and not place.path.exists():
        return Missing(
            file,
            f"{place.path} cannot be seen by the worker on {socket.gethostname()}; put the traces where all workers "
            "can read them, or give a URL of an object store",
        )
    result = work(place, plan)
    if isinstance(result, Missing):
        return Missing(file, result.why)
    return [replace(summary, trace=replace(summary.trace, path=redact(file.path))) for summary in result]


def summaries_of(file: TraceFile, plan: Plan, progress: Progress | None = None) -> list[RankSummary]:
    """As `work`, but errors are raised.

    Raises:
        InputError: the file cannot be read.
    """
    rules = [analyzer for analyzer in registry.registered() if analyzer.rule in plan.rules]
    ranks = ranks_of(file, plan, progress)
    whole = plan.whole and len(ranks) == 1
    return [pipeline.summarize_rank(rank, rules, plan.settings, keep_all=whole) for rank in ranks]


def ranks_of(file: TraceFile, plan: Plan, progress: Progress | None = None) -> list[Rank]:
    """The ranks that a file holds, those that the plan wants.

    Raises:
        InputError: the file, or what lies beside it, cannot be read.
    """
    traces = split_ranks(read(file.path, progress, threads=plan.threads))
    facts = _facts(file.facts)
    if len(traces) > 1:  # merged by another tool, so no capture of ours
        return [Rank(trace, plan.device, plan.steps, facts) for trace in traces if plan.rank in (None, trace.rank)]
    trace = traces[0]
    if trace.rank is None and file.rank is not None:
        trace = replace(trace, rank=file.rank)
    detail = read(file.evidence, progress, threads=plan.threads) if file.evidence is not None else None
    return [Rank(trace, plan.device, plan.steps, facts, detail, _run_steps(file.facts))]


def _facts(path: Place | None) -> Mapping[str, Any] | None:
    if path is None:
        return None
    try:
        facts = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as captured facts ({error}); remove it or capture again") from None
    return facts if isinstance(facts, dict) else None


def _within(folder: str, place: Place) -> Place:
    return Path(folder, place) if isinstance(place, Path) else place


def _run_steps(facts: Place | None) -> RunSteps | None:
    """The step times beside the facts; None where there are none, or where they cannot be read."""
    try:
        return None if facts is None else run_steps((facts.parent / _STEPS).read_bytes())
    except (OSError, TraceError):
        return None
