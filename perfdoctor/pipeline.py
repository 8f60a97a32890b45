"""Ranks in, Report out: what rules find is collected, priced, put in order, and told.

Each rank by itself becomes a summary (`summarize_rank`), and the summaries together become the Report
(`report_on_summaries`). Rules may be a stranger's: one that fails, in whatever way, becomes finding PD901 and stops no
other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TypeAlias

from perfdoctor.errors import UsageError
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding, FindingScope, describe_error, failed_rule_finding
from perfdoctor.report.merge_findings import merge_ranks
from perfdoctor.report.pricing import price_findings, prioritize_fleet
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.report.reduce_ranks import Part, from_rank, reduce_parts
from perfdoctor.report.report import Outcome, Report, StepSummary, TraceSummary
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer, Run, scope_of
from perfdoctor.rules.registry import broken
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.savings.ledger import Ledger
from perfdoctor.trace.tables.intervals import Intervals

Settings: TypeAlias = Mapping[str, Mapping[str, float]]
Kinds: TypeAlias = Iterable[type[Analyzer]]


def diagnose_run(
    run: Run, analyzers: Kinds, settings: Settings | None = None, missing: Iterable[TraceSummary] = ()
) -> Report:
    """Analyse ranks that are all in this process.

    Args:
        run: The ranks.
        analyzers: The rules to apply.
        settings: Thresholds by rule id, as {"PD101": {"min_share": 0.1}}.
        missing: Ranks that could not be read.

    Raises:
        UsageError: `settings` names a rule or threshold that does not exist.
    """
    analyzers = tuple(analyzers)
    keep_all = len(run.ranks) == 1
    of_rank: dict[int | None, list[Finding]] = {rank.rank: [] for rank in run.ranks}
    of_several: list[Finding] = []
    outcomes: list[Outcome] = []
    for rule in analyzers:
        if needs_all_ranks(rule):
            found, outcome = run_rule(rule, run, settings)
            outcomes.append(outcome)
            for finding in found:
                of_rank.get(finding.claim.rank, of_several).append(finding)
    rank_rules = [rule for rule in analyzers if not needs_all_ranks(rule)]
    summaries = [
        summarize_rank(rank, rank_rules, settings, given=of_rank[rank.rank], keep_all=keep_all) for rank in run.ranks
    ]
    return report_on_summaries(
        map(from_rank, summaries), analyzers, settings, given=of_several, outcomes=outcomes, missing=missing
    )


def summarize_rank(
    rank: Rank,
    analyzers: Kinds = (),
    settings: Settings | None = None,
    *,
    given: Sequence[Finding] = (),
    keep_all: bool = False,
) -> RankSummary:
    """Let the rules look at one rank, and keep of it what the report and rules over ranks need. Pure.

    Args:
        rank: The rank.
        analyzers: The rules to apply; those that compare ranks wait for `report_on_summaries`.
        settings: Thresholds by rule id.
        given: Findings on this rank that are known already.
        keep_all: It is the only rank: keep the intervals behind the account and the claims, which an annotated trace
            needs, and leave out what only a comparison does.
    """
    findings, outcomes = list(given), []
    run = Run((rank,))
    for rule in analyzers:
        if not issubclass(rule, FleetAnalyzer):
            found, outcome = run_rule(rule, run, settings)
            findings += found
            outcomes.append(outcome)
    collectives = rank.collectives
    priced = price_rank(rank, findings, shareable=None if keep_all else collectives.exposed)
    # Without collectives nothing is missing: there is nothing to tell the size of, and nobody to compare with.
    alone = not len(collectives)
    flops = () if alone else rank.step_flops
    recorded = {"sizes": alone or bool((collectives.bytes >= 0).any()), "flops": alone or bool(flops)}
    return RankSummary(
        trace=_summarize_trace(rank),
        steps=_summarize_steps(rank),
        timeline=rank.timeline,
        account=rank.account if keep_all else replace(rank.account, parts={}),
        available_data=rank.available_data | {name for name, there in recorded.items() if there},
        cpu_wait_ns=rank.cpu_wait_ns,
        collectives=collectives,
        host_time=() if keep_all else rank.host_time,
        step_flops=flops,
        facts=rank.facts,
        findings=priced,
        outcomes=tuple(outcomes),
    )


def report_on_summaries(
    parts: Iterable[Part],
    analyzers: Kinds,
    settings: Settings | None = None,
    *,
    given: Iterable[Finding] = (),
    outcomes: Iterable[Outcome] = (),
    missing: Iterable[TraceSummary] = (),
) -> Report:
    """The Report over all ranks, from their summaries in any order and grouping.

    Args:
        parts: The ranks, see `reduce_ranks`.
        analyzers: The rules that were applied, in the order of their outcomes, and those that compare ranks.
        settings: Thresholds by rule id.
        given: Findings over several ranks that are known already.
        outcomes: What became of rules that did not run rank by rank.
        missing: Ranks that could not be analysed.
    """
    analyzers = tuple(analyzers)
    part = reduce_parts(parts)
    fleet = Fleet(part.summaries)
    of_fleet = list(given)
    outcome_of = {**part.outcomes, **{outcome.rule: outcome for outcome in outcomes}}
    for rule in analyzers:
        if issubclass(rule, FleetAnalyzer):
            found, outcome_of[rule.rule] = run_rule(rule, fleet, settings)
            of_fleet += found
    of_ranks = [finding for shared in part.shared.values() for finding in shared.findings()]
    return Report(
        version=version("perfdoctor"),
        traces=(*(summary.trace for summary in fleet.summaries), *missing),
        steps=next((s.steps for s in fleet.summaries if s.steps.count), StepSummary()),
        timeline=tuple(summary.timeline for summary in fleet.summaries),
        account=tuple(summary.account for summary in fleet.summaries),
        findings=prioritize_fleet(of_ranks, merge_ranks(of_fleet), {s.rank: ledger_of(s) for s in fleet.summaries}),
        outcomes=(
            *(Outcome(plugin.name, "failed", plugin.why) for plugin in broken()),
            *(outcome_of[rule.rule] for rule in analyzers if rule.rule in outcome_of),
        ),
        late_ns=fleet.late_ns,
    )


def price_rank(rank: Rank, findings: Sequence[Finding], shareable: Intervals | None = None) -> tuple[Finding, ...]:
    """The findings of one rank with what their fixes save, in order; see `price_findings`.

    A finding that cannot be priced becomes PD901, so that it costs no other its place.
    """

    def price(some: Sequence[Finding]) -> tuple[Finding, ...]:
        has_edits = any(finding.edit is not None for finding in some)
        return price_findings(some, rank.rank, ledger_of(rank), rank.replay if has_edits else None, shareable)

    try:
        return price(findings)
    except Exception:  # whose fault it is shows where each is priced by itself
        return price([_priceable(finding, price) for finding in findings])


def _priceable(finding: Finding, price: Callable[[Sequence[Finding]], object]) -> Finding:
    try:
        price([finding])
    except Exception as error:
        return failed_rule_finding(finding.rule, finding.name, error, finding.rank)
    return finding


def ledger_of(rank: Rank | RankSummary) -> Ledger:
    """What can be promised on a rank before any promise."""
    return Ledger(rank.window_ns, max(rank.steps.count, 1), rank.cpu_wait_ns)


def needs_all_ranks(analyzer: type[Analyzer]) -> bool:
    """Whether an analyzer wants all ranks at once, as they are, which takes all of them in one process."""
    return not issubclass(analyzer, RankAnalyzer | FleetAnalyzer)


def check_settings(settings: Settings, analyzers: Kinds) -> None:
    """See that every rule and threshold that `settings` names exists.

    Raises:
        UsageError: it does not.
    """
    known = {analyzer.rule: analyzer for analyzer in analyzers}
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise UsageError(
            f"settings name the rule '{unknown[0]}', which is not registered; `perfdoctor rules` lists them"
        )
    for rule, thresholds in settings.items():
        known[rule](thresholds)


def run_rule(
    kind: type[Analyzer], data: Run | Fleet, settings: Settings | None = None
) -> tuple[list[Finding], Outcome]:
    """The findings of one rule and what became of it.

    Whatever it raises, when it is made, when it looks, or because what it yields is malformed, becomes finding PD901.

    Raises:
        UsageError: `settings` names a threshold that the rule does not have.
    """
    began = time.perf_counter()
    try:
        analyzer = kind((settings or {}).get(kind.rule))
        lacking = _missing_requirement(analyzer, data)
        if lacking is not None:
            return [], Outcome(kind.rule, "skipped", lacking)
        findings = [_check_finding(finding, data) for finding in _ask(analyzer, data)]
    except Exception as error:  # the others go on: law 6
        if isinstance(error, UsageError) and (settings or {}).get(kind.rule):
            raise  # the user's thresholds, not the rule
        only = data.ranks[0].rank if isinstance(data, Run) and len(data.ranks) == 1 else None
        outcome = Outcome(kind.rule, "failed", describe_error(error), _since(began))
        return [failed_rule_finding(kind.rule, kind.name, error, only)], outcome
    return findings, Outcome(kind.rule, "ran", None, _since(began))


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 6)


def _missing_requirement(analyzer: Analyzer, data: Run | Fleet) -> str | None:
    """What is missing of the data that a rule needs, and how to record it; None where a rank has all of it."""
    of_ranks = [rank.available_data for rank in (data.ranks if isinstance(data, Run) else data.summaries)]
    lacking = sorted(analyzer.needs - data.available_data)
    if not lacking and any(analyzer.needs - {"ranks"} <= available for available in of_ranks):
        return None
    partly = sorted(need for need in analyzer.needs if not all(need in available for available in of_ranks))
    need = (lacking or partly)[0]
    return REQUIREMENTS.get(need, f"it needs '{need}', which is not known here")


def _ask(analyzer: Analyzer, data: Run | Fleet) -> Iterable[Finding]:
    if isinstance(data, Run):
        return analyzer.analyze(data)
    return analyzer.analyze_fleet(data) if isinstance(analyzer, FleetAnalyzer) else ()


def _check_finding(finding: Finding, data: Run | Fleet) -> Finding:
    """What a rule yields, if it is a finding, and fits its rank."""
    if type(finding) is not Finding:  # a subclass may go around its check
        raise TypeError(f"it yields a {type(finding).__name__} instead of a Finding")
    if finding.scope is not None:
        return finding
    return replace(finding, scope=_scope_in(finding, data))


def _scope_in(finding: Finding, data: Run | Fleet) -> FindingScope | None:
    """What a finding has to fit into where its rule did not say: the rank that it claims time of."""
    if isinstance(data, Run):
        return next((scope_of(rank) for rank in data.ranks if rank.rank == finding.claim.rank), None)
    return FindingScope(max((summary.per_step(summary.window_ns) for summary in data.summaries), default=0))


def _summarize_trace(rank: Rank) -> TraceSummary:
    trace = rank.trace
    first, last = trace.extent_ns
    return TraceSummary(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        device=rank.hardware.label,
        vendor=trace.vendor,
        complete=trace.complete,
        events=trace.events,
        span_ns=last - first,
        warnings=(*trace.warnings, *rank.notes),
        base_ns=trace.base_ns,
    )


def _summarize_steps(rank: Rank) -> StepSummary:
    steps = rank.steps
    if not steps.count:
        return StepSummary()
    return StepSummary(steps.count, steps.source, steps.median_ns, steps.variation, rank.unprofiled_step_ns)
