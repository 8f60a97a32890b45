"""Reduces the summaries of many ranks in a tree; every order and grouping gives the same result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import field, replace
from itertools import chain, islice
from typing import Any

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import HOT_PATH, Finding, FindingKey
from perfdoctor.report.merge_findings import SharedFinding, group_findings, merge_groups
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.report import Outcome, TraceSummary
from perfdoctor.savings.saving import Claim

# Rules over ranks name only the worst findings of a single rank.
_WORST_FINDINGS = 3
_FAN_IN = 64  # parts that are merged at a time
_NO_CLAIM = Claim()


@frozen_dataclass
class FleetPart:
    """The findings and summaries of some ranks of a fleet.

    Attributes:
        summaries: The ranks, sorted by number, each with only its worst findings, without claims, and of their evidence
            only the hot path. Their collectives are packed, and only the rank with the longest step has tables.
        shared: All findings of these ranks by rule, subject and location.
        outcomes: What became of each rule on these ranks.
    """

    summaries: tuple[RankSummary, ...] = ()
    shared: Mapping[FindingKey, SharedFinding] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)


def from_rank(summary: RankSummary) -> FleetPart:
    """The part of a fleet that consists of one rank."""
    worst = tuple(map(_drop_details, summary.findings[:_WORST_FINDINGS]))
    collectives = None if summary.collectives is None else summary.collectives.pack()
    return FleetPart(
        (replace(summary, findings=worst, outcomes=(), collectives=collectives),),
        group_findings(summary.findings),
        {outcome.rule: outcome for outcome in summary.outcomes},
    )


def _drop_details(finding: Finding) -> Finding:
    """The finding without claim, fix and most evidence; `replace` checks what stays again, four times as long."""
    short = copy(finding)
    evidence = tuple(each for each in finding.evidence if each.id == HOT_PATH)
    for name, value in {"claim": _NO_CLAIM, "evidence": evidence, "fix": None, "actions": ()}.items():
        object.__setattr__(short, name, value)
    return short


def reduce_parts(parts: Iterable[FleetPart]) -> FleetPart:
    """The union of some parts: associative, commutative, and in memory for the result and `_FAN_IN` parts."""
    unread = iter(parts)
    merged: list[FleetPart] = []
    while batch := list(islice(unread, _FAN_IN)):
        merged.append(_merge(batch))
    while len(merged) > 1:
        merged = [_merge(merged[i : i + _FAN_IN]) for i in range(0, len(merged), _FAN_IN)]
    return merged[0] if merged else FleetPart()


def _merge(parts: list[FleetPart]) -> FleetPart:
    if len(parts) == 1:
        return parts[0]
    summaries = sorted(chain.from_iterable(part.summaries for part in parts), key=_rank_order)
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in chain.from_iterable(part.outcomes.values() for part in parts):
        outcomes[outcome.rule].append(outcome)
    kept: Iterable[RankSummary] = drop_charts_of_shorter_steps(summaries)
    # Parts of several ranks share equal values already, if not each other's.
    if all(len(part.summaries) == 1 for part in parts):
        kept = _share_equal_values(kept)
    return FleetPart(
        tuple(kept),
        merge_groups(part.shared for part in parts),
        {rule: _merge_outcomes(of_parts) for rule, of_parts in outcomes.items()},
    )


def leave_out_unrecorded(summaries: Sequence[RankSummary]) -> tuple[list[RankSummary], list[TraceSummary]]:
    """The ranks to compare, and the traces of those left out: their GPU is not recorded, and that of others is.

    So are a file that was cut short before its kernels, and a rank recorded without the GPU. All of its step would be
    idle time, and the longest.
    """
    if not any(summary.trace.ran_on == "gpu" for summary in summaries):
        return list(summaries), []
    compared = [summary for summary in summaries if summary.trace.ran_on != "gpu_not_recorded"]
    traces = [summary.trace for summary in summaries if summary.trace.ran_on == "gpu_not_recorded"]
    return compared, [replace(trace, warnings=(_warn_unrecorded(trace), *trace.warnings)) for trace in traces]


def _warn_unrecorded(trace: TraceSummary) -> str:
    why = "its file has no GPU events" if trace.complete else "its file was cut short before the first GPU event"
    return f"this rank is left out of the analysis: {why}"


def drop_charts_of_shorter_steps(summaries: Sequence[RankSummary]) -> list[RankSummary]:
    """The summaries; only that of the rank with the longest step keeps its charts and tables, which take megabytes.

    A report has them of no other rank. Of equally long steps it is the first rank that keeps its charts, and all keep
    their tables, as ranks may be numbered anew.
    """
    candidates = sorted((summary for summary in summaries if summary.charts is not None), key=_rank_order)
    longest = max(candidates, key=lambda summary: summary.mean_step_ns, default=None)
    longest_ns = max((summary.mean_step_ns for summary in summaries if summary.tables), default=0)
    kept = []
    for summary in summaries:
        charts = summary.charts if summary is longest else None
        tables = summary.tables if summary.mean_step_ns == longest_ns else {}
        is_same = charts is summary.charts and len(tables) == len(summary.tables)
        kept.append(summary if is_same else replace(summary, charts=charts, tables=tables))
    return kept


def _share_equal_values(summaries: Iterable[RankSummary]) -> Iterator[RankSummary]:
    """The summaries; what is equal on several ranks, as on those of one program, is in memory and in a file once."""
    known: dict[object, Any] = {}
    for summary in summaries:
        names = ("context", "available_data")
        shared = {name: known.setdefault(getattr(summary, name), getattr(summary, name)) for name in names}
        flops = known.setdefault(summary.step_flops.tobytes(), summary.step_flops)
        is_shared = flops is summary.step_flops and all(shared[name] is getattr(summary, name) for name in names)
        yield summary if is_shared else replace(summary, step_flops=flops, **shared)


def _rank_order(summary: RankSummary) -> tuple[float, str]:
    return (float("inf") if summary.rank is None else summary.rank), summary.trace.path


def _merge_outcomes(outcomes: list[Outcome]) -> Outcome:
    """Failed if the rule failed on any rank, else ran if it ran on any; the reason is the first one in the alphabet."""

    def with_status(status: str) -> Iterator[Outcome]:
        return (outcome for outcome in outcomes if outcome.status == status)

    first = next(chain(with_status("failed"), with_status("ran"), with_status("skipped")))
    whys = sorted(outcome.why for outcome in with_status(first.status) if outcome.why is not None)
    return replace(first, why=whys[0] if whys else None, seconds=round(sum(o.seconds for o in outcomes), 6))
