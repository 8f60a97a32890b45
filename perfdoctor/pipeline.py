"""Runs the analyzers: each rank by itself becomes a summary, and the summaries together become the Report.

Checks what analyzers need, keeps a crash to the rule that crashed, and times each.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TypeAlias

from perfdoctor.errors import UsageError
from perfdoctor.rank import Rank, Run
from perfdoctor.report.finding import Finding, describe_error, failed_rule_finding
from perfdoctor.report.merge_findings import merge_ranks
from perfdoctor.report.rank_summary import Fleet, RankSummary, summary_of
from perfdoctor.report.reduce_ranks import Part, leaf, merged
from perfdoctor.report.report import Outcome, Report, StepSummary, TraceSummary
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer
from perfdoctor.rules.registry import broken
from perfdoctor.rules.requirements import NEEDS
from perfdoctor.savings.ledger import Ledger, prioritize_fleet, prioritize_rank

Settings = Mapping[str, Mapping[str, float]]
Kinds: TypeAlias = Iterable[type[Analyzer]]


def diagnose(
    run: Run, analyzers: Kinds, settings: Settings | None = None, missing: Iterable[TraceSummary] = ()
) -> Report:
    """Analyse ranks that are all in this process.

    Args:
        run: the ranks.
        analyzers: the rules to apply.
        settings: thresholds by rule id, as {"PD101": {"min_share": 0.1}}.
        missing: ranks that could not be read.

    Raises:
        UsageError: `settings` names a rule or threshold that does not exist.
    """
    analyzers = tuple(analyzers)
    whole = len(run.ranks) == 1
    given: dict[int | None, list[Finding]] = {rank.trace.rank: [] for rank in run.ranks}
    over_all: list[Finding] = []
    outcomes: list[Outcome] = []
    for analyzer in _made([a for a in analyzers if sees_all(a)], settings):
        found, outcome = run_one(analyzer, run)
        outcomes.append(outcome)
        for finding in found:
            given.get(finding.claim.rank, over_all).append(finding)
    mine = [a for a in analyzers if not sees_all(a)]
    summaries = [summarize(r, mine, settings, given=given[r.trace.rank], whole=whole) for r in run.ranks]
    return combine(map(leaf, summaries), analyzers, settings, found=over_all, outcomes=outcomes, missing=missing)


def summarize(
    rank: Rank,
    analyzers: Kinds,
    settings: Settings | None = None,
    *,
    given: Sequence[Finding] = (),
    whole: bool = False,
) -> RankSummary:
    """Let the rules look at one rank, and keep of it what the report and rules over ranks need. Pure.

    Args:
        rank: the rank.
        analyzers: the rules to apply; those that compare ranks wait for `combine`.
        settings: thresholds by rule id.
        given: findings on this rank that are known already.
        whole: keep all that an annotated trace needs, see `summary_of`.
    """
    findings, outcomes = list(given), []
    run = Run((rank,))
    for analyzer in _made([a for a in analyzers if not issubclass(a, FleetAnalyzer)], settings):
        found, outcome = run_one(analyzer, run)
        findings += found
        outcomes.append(outcome)
    return summary_of(rank, prioritize_rank(rank, findings), outcomes, whole=whole)


def combine(
    parts: Iterable[Part],
    analyzers: Kinds,
    settings: Settings | None = None,
    *,
    found: Iterable[Finding] = (),
    outcomes: Iterable[Outcome] = (),
    missing: Iterable[TraceSummary] = (),
) -> Report:
    """The Report over all ranks, from their summaries in any order and grouping.

    Args:
        parts: the ranks, see `reduction`.
        analyzers: the rules that were applied, in the order of their outcomes, and those that compare ranks.
        settings: thresholds by rule id.
        found: findings over several ranks that are known already.
        outcomes: what became of rules that did not run rank by rank.
        missing: ranks that could not be analysed.
    """
    analyzers = tuple(analyzers)
    part = merged(parts)
    fleet = Fleet(part.summaries)
    findings = list(found)
    became = {**part.outcomes, **{outcome.rule: outcome for outcome in outcomes}}
    for analyzer in _made([a for a in analyzers if issubclass(a, FleetAnalyzer)], settings):
        more, became[analyzer.rule] = run_one(analyzer, fleet)
        findings += more
    own = [finding for shared in part.shared.values() for finding in shared.findings()]
    ledgers = {s.rank: Ledger(s.window_ns, max(s.steps.count, 1), s.cpu_wait_ns) for s in fleet.summaries}
    return Report(
        version=version("perfdoctor"),
        traces=(*(summary.trace for summary in fleet.summaries), *missing),
        steps=next((s.steps for s in fleet.summaries if s.steps.count), StepSummary()),
        timeline=tuple(summary.timeline for summary in fleet.summaries),
        account=tuple(summary.account for summary in fleet.summaries),
        findings=prioritize_fleet(own, merge_ranks(findings), ledgers),
        outcomes=(
            *(Outcome(plugin.name, "failed", plugin.why) for plugin in broken()),
            *(became[analyzer.rule] for analyzer in analyzers if analyzer.rule in became),
        ),
        late_ns=fleet.late_ns,
    )


def sees_all(analyzer: type[Analyzer]) -> bool:
    """Whether an analyzer wants all ranks at once, as they are, which takes all of them in one process."""
    return not issubclass(analyzer, RankAnalyzer | FleetAnalyzer)


def _made(analyzers: Kinds, settings: Settings | None) -> list[Analyzer]:
    return [analyzer((settings or {}).get(analyzer.rule)) for analyzer in analyzers]


def check_settings(settings: Settings, analyzers: Kinds) -> None:
    """See that every rule and threshold that `settings` names exists.

    Raises:
        UsageError: it does not.
    """
    known = {a.rule: a for a in analyzers}
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise UsageError(
            f"settings name the rule '{unknown[0]}', which is not registered; `perfdoctor rules` lists them"
        )
    _made([known[rule] for rule in settings], settings)


def run_one(analyzer: Analyzer, run: Run | Fleet) -> tuple[list[Finding], Outcome]:
    """The findings of one analyzer and what became of it; a crash becomes finding PD901."""
    each = [rank.available_data for rank in (run.ranks if isinstance(run, Run) else run.summaries)]
    lacking = sorted(analyzer.needs - run.available_data)
    if lacking or not any(analyzer.needs - {"ranks"} <= evidence for evidence in each):
        partly = sorted(need for need in analyzer.needs if not all(need in evidence for evidence in each))
        return [], Outcome(analyzer.rule, "skipped", _what_to_capture((lacking or partly)[0]))
    began = time.perf_counter()
    try:
        findings, status, why = [_checked(finding) for finding in _found(analyzer, run)], "ran", None
    except Exception as error:  # the others go on: law 6
        only = run.ranks[0].trace.rank if isinstance(run, Run) and len(run.ranks) == 1 else None
        findings = [failed_rule_finding(analyzer.rule, analyzer.name, error, only)]
        status, why = "failed", describe_error(error)
    return findings, Outcome(analyzer.rule, status, why, round(time.perf_counter() - began, 6))  # type: ignore[arg-type]


def _found(analyzer: Analyzer, run: Run | Fleet) -> Iterable[Finding]:
    if isinstance(run, Run):
        return analyzer.analyze(run)
    return analyzer.analyze_fleet(run) if isinstance(analyzer, FleetAnalyzer) else ()


def _checked(finding: Finding) -> Finding:
    """What an analyzer yields, if it is a finding: a stranger's mistake must not reach the ranking of all others."""
    if not isinstance(finding, Finding):
        raise TypeError(f"it yields a {type(finding).__name__} instead of a Finding")
    return finding


def _what_to_capture(need: str) -> str:
    """What is missing, and how to get it."""
    return NEEDS.get(need, f"it needs '{need}', which is not known here")
