"""Ranks in, Report out: runs the rules, prices their findings and puts them in order.

`summarize_rank` turns each rank into a summary, and `report_on_summaries` turns the summaries into the Report. Rules
may come from third parties: a rule that fails in any way becomes finding PD901 and stops no other rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from perfdoctor.analysis.context.context import UNKNOWN_CONTEXT
from perfdoctor.analysis_options import AnalysisOptions, Settings
from perfdoctor.errors import UsageError
from perfdoctor.facts.captured import NO_FACTS, CapturedFacts
from perfdoctor.installed_packages import find_version
from perfdoctor.places.account_by_place import MAX_PLACES
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import RankCharts
from perfdoctor.report.finding import Finding, FindingScope, describe_error, finding_of_failure
from perfdoctor.report.memory_pricing import price_memory
from perfdoctor.report.merge_findings import merge_findings
from perfdoctor.report.own_steps import steps_without_waits
from perfdoctor.report.places_of_findings import locate_findings, with_findings
from perfdoctor.report.pricing import doubt_prices, price_findings, prioritize_fleet, step_after_fixes_ns
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.report.reduce_ranks import FleetPart, from_rank, leave_out_unrecorded, reduce_parts
from perfdoctor.report.report import (
    TABLES,
    UNKNOWN_LIMIT,
    Limit,
    OnceOnly,
    OncePart,
    Outcome,
    Report,
    StepSummary,
    TraceSummary,
)
from perfdoctor.report.unexplained import find_unexplained_in_fleet
from perfdoctor.report.waits_at_late_rank import places_of_ranks
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, Run, scope_of
from perfdoctor.rules.registry import ListedRule, find_broken_plugins, list_rule
from perfdoctor.rules.requirements import OF_THE_JOB, explain_missing
from perfdoctor.run_watch.hang import HangReading
from perfdoctor.savings.ledger import Ledger
from perfdoctor.tables.report_tables import ReportRows, report_tables
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.unclaimed_time import find_unexplained

AnyRule: TypeAlias = ListedRule | type[Analyzer]
_DEFAULTS = AnalysisOptions()
# Places of each rank in a report on several: the largest. A report on thousands of ranks stays readable.
_PLACES_OF_SEVERAL_RANKS = 10


def diagnose_run(
    run: Run,
    analyzers: Iterable[AnyRule],
    options: AnalysisOptions = _DEFAULTS,
    missing: Iterable[TraceSummary] = (),
    hang: HangReading | None = None,
) -> Report:
    """The Report on ranks that are all in this process; `missing` are those that could not be read.

    Raises:
        UsageError: The settings name a threshold that a rule does not have.
    """
    rules = tuple(map(list_rule, analyzers))
    options = replace(options, is_only_rank=len(run.ranks) == 1)
    by_rank: dict[int | None, list[Finding]] = {rank.rank: [] for rank in run.ranks}
    of_fleet: list[Finding] = []
    outcomes: list[Outcome] = []
    for rule in rules:
        if rule.scope == "run":
            found, outcome = run_rule(rule, run, options.settings)
            outcomes.append(outcome)
            for finding in found:
                by_rank.get(finding.claim.rank, of_fleet).append(finding)
    rank_rules = [rule for rule in rules if rule.scope != "run"]
    summaries = [summarize_rank(rank, rank_rules, options, known_findings=by_rank[rank.rank]) for rank in run.ranks]
    return report_on_summaries(
        map(from_rank, summaries),
        rules,
        options,
        known_findings=of_fleet,
        outcomes=outcomes,
        missing=missing,
        hang=hang,
    )


def summarize_rank(
    rank: Rank,
    analyzers: Iterable[AnyRule] = (),
    options: AnalysisOptions = _DEFAULTS,
    *,
    known_findings: Sequence[Finding] = (),
) -> RankSummary:
    """The summary of one rank with the findings of the rules on it. Pure.

    Args:
        rank: The rank.
        analyzers: The rules to apply; those that compare ranks only where it is the only one, as its trace can then
            price what they find. Else they are left to `report_on_summaries`.
        options: What the summary has, and thresholds.
        known_findings: Findings on this rank that exist already.
    """
    findings, outcomes = list(known_findings), []

    def run_rules(rules: Iterable[ListedRule], data: Run | Fleet) -> None:
        for rule in rules:
            found, outcome = run_rule(rule, data, options.settings)
            findings.extend(found)
            outcomes.append(outcome)

    listed = tuple(map(list_rule, analyzers))
    run_rules((rule for rule in listed if rule.scope != "fleet"), Run((rank,)))
    collectives = rank.collectives
    is_whole = options.is_only_rank and not options.breakdown
    # Without collectives neither sizes nor FLOPs are missing: there is no other rank to compare with.
    alone = not len(collectives)
    flops = () if alone else rank.step_flops
    has = {"sizes": alone or bool((collectives.bytes >= 0).any()), "flops": alone or bool(flops)}
    summary = RankSummary(
        trace=_summarize_trace(rank),
        steps=_summarize_steps(rank),
        timeline=rank.timeline,
        account=rank.account if is_whole else replace(rank.account, parts={}),
        available_data=rank.available_data | {name for name, available in has.items() if available},
        cpu_wait_ns=rank.cpu_wait_ns,
        collectives=collectives,
        places=rank.places.rows(MAX_PLACES if options.is_only_rank else _PLACES_OF_SEVERAL_RANKS),
        step_flops=np.array(flops, np.int64),
        half_precision_share=None if alone else rank.half_precision_share,
        facts=rank.facts,
        findings=tuple(findings),
        context=rank.context,
        limit=Limit(rank.limit.step_ns, rank.limit.known_share, basis=rank.limit.basis),
        once=_summarize_once(rank),
        tables=report_tables(rank, options.tables),
        memory=rank.memory_summary,
        passes=rank.pass_summary,
        run=rank.run_series,
        breakdown=rank.breakdown if options.breakdown else None,
    )
    if options.is_only_rank:
        items = rank.kernels.of_category("communication").rows if collectives.on_gpu else None
        fleet = Fleet((replace(summary, collective_items=items),))
        run_rules((rule for rule in listed if rule.scope == "fleet" and "hang" not in rule.needs), fleet)
    findings = locate_findings(findings, rank.places)
    # Before their edits are gone, which say what device each is about.
    charts = charts_of(rank, findings) if options.charts else None
    if any(finding.memory_edit is not None for finding in findings):
        findings = list(price_memory(findings, rank.memory, beside_time=rank.snapshot is not None))
    return replace(
        summary,
        findings=price_rank(rank, findings, shareable=None if options.is_only_rank else collectives.exposed),
        outcomes=tuple(outcomes),
        unexplained=find_unexplained(rank, (finding.claim.intervals for finding in findings)),
        charts=charts,
    )


def charts_of(rank: Rank, findings: Sequence[Finding] = ()) -> RankCharts:
    """What the page draws of a rank: its charts, where the findings on it claim time, the top of its tables."""
    # Few reports are pages: others do without these imports.
    from perfdoctor.charts.rank_charts import rank_charts_of
    from perfdoctor.tables.catalog import TABLES as CATALOG
    from perfdoctor.tables.catalog import build_table

    return rank_charts_of(rank, {name: partial(build_table, name=name) for name in CATALOG}, findings)


def report_on_summaries(
    parts: Iterable[FleetPart],
    analyzers: Iterable[AnyRule],
    options: AnalysisOptions = _DEFAULTS,
    *,
    known_findings: Iterable[Finding] = (),
    outcomes: Iterable[Outcome] = (),
    missing: Iterable[TraceSummary] = (),
    hang: HangReading | None = None,
) -> Report:
    """The Report on all ranks, from their summaries in any order and grouping.

    Args:
        parts: The summaries, see `reduce_ranks`.
        analyzers: All rules: those that were applied to each rank, and those that compare ranks, which run now unless
            they ran on an only rank. The outcomes have the same order.
        options: Has the thresholds.
        known_findings: Findings about several ranks that exist already.
        outcomes: The outcomes of rules that ran on all ranks at once.
        missing: Ranks that could not be analysed.
        hang: What was read of the flight recorders of the job; None where there are none.
    """
    rules = tuple(map(list_rule, analyzers))
    part = reduce_parts(parts)
    compared, unrecorded = leave_out_unrecorded(part.summaries)
    fleet = Fleet(tuple(compared), hang)
    of_fleet = list(known_findings)
    outcome_of = {**part.outcomes, **{outcome.rule: outcome for outcome in outcomes}}
    for rule in rules:
        if rule.scope == "fleet" and rule.rule not in outcome_of:
            found, outcome_of[rule.rule] = run_rule(rule, fleet, options.settings)
            of_fleet += found
    of_ranks = [finding for group in part.shared.values() for finding in group.merge()]
    shared = merge_findings(of_fleet)
    ledgers = {summary.rank: ledger_of(summary) for summary in fleet.summaries}
    own_steps_ns = steps_without_waits(fleet, [*of_ranks, *shared])
    findings = prioritize_fleet(of_ranks, shared, ledgers, own_steps_ns)
    return Report(
        version=find_version(),
        traces=(*(summary.trace for summary in fleet.summaries), *unrecorded, *missing),
        steps=_steps_of_report(fleet),
        timeline=tuple(summary.timeline for summary in fleet.summaries),
        account=tuple(summary.account for summary in fleet.summaries),
        findings=findings,
        places=with_findings(places_of_ranks(fleet), findings),
        outcomes=(
            *(Outcome(plugin.name, "failed", plugin.why) for plugin in find_broken_plugins()),
            *(outcome_of[rule.rule] for rule in rules if rule.rule in outcome_of),
        ),
        late_ns=fleet.late_ns,
        context=fleet.summaries[0].context if fleet.summaries else UNKNOWN_CONTEXT,
        limit=_limit_of_longest_step(fleet, findings, own_steps_ns),
        once=tuple(s.once for s in fleet.summaries if s.once is not None),
        unexplained=find_unexplained_in_fleet(fleet, of_fleet),
        tables=_tables_of_longest_step(fleet),
        program_folders=_program_folders(fleet),
        program_name=_facts_of_first_rank(fleet).script,
        memory=tuple(memory for s in fleet.summaries for memory in s.memory),
        passes=tuple(row for s in fleet.summaries for row in s.passes),
        run=next((s.run for s in fleet.summaries if s.run is not None), None),
        breakdowns=tuple(s.breakdown for s in fleet.summaries if s.breakdown is not None),
        charts=next((s.charts for s in fleet.summaries if s.charts is not None), None),
        hang=None if hang is None else hang.hang,
        hang_reading=hang,
    )


def price_rank(rank: Rank, findings: Sequence[Finding], shareable: Intervals | None = None) -> tuple[Finding, ...]:
    """The findings of one rank in order, with what their fixes save; see `price_findings`.

    A finding whose pricing fails becomes PD901, and the others are priced without it.
    """

    def price(some: Sequence[Finding]) -> tuple[Finding, ...]:
        has_edits = any(finding.edit is not None for finding in some)
        return price_findings(
            some, rank.rank, ledger_of(rank), rank.replay if has_edits else None, shareable, rank.saving_bounds
        )

    try:
        priced = price(findings)
    except Exception:  # to find the culprit each finding is priced by itself
        priced = price([_replace_unpriceable(finding, price) for finding in findings])
    contention = rank.contention
    return doubt_prices(priced, contention.core_share) if contention.is_severe else priced


def _replace_unpriceable(finding: Finding, price: Callable[[Sequence[Finding]], object]) -> Finding:
    """The finding, or PD901 in its place where pricing it fails."""
    try:
        price([finding])
    except Exception as error:
        return finding_of_failure(finding.rule, finding.name, error, finding.rank)
    return finding


def ledger_of(rank: Rank | RankSummary) -> Ledger:
    """The ledger of a rank before any promise."""
    scale = rank.account.time_scale
    return Ledger(rank.window_ns, max(rank.steps.count, 1), rank.cpu_wait_ns, time_scale=scale)


def runs_on_each_rank(rule: ListedRule) -> bool:
    """Whether a rule says anything of a rank whose process has no other."""
    return not (rule.scope == "run" and "ranks" in rule.needs)


def run_rule(rule: AnyRule, data: Run | Fleet, settings: Settings | None = None) -> tuple[list[Finding], Outcome]:
    """The findings of one rule, and its outcome. The rule is imported if the ranks have what it needs.

    An exception of the rule, at construction or in its analysis, and a malformed finding become finding PD901.

    Raises:
        UsageError: `settings` names a threshold that the rule does not have.
    """
    rule, thresholds = list_rule(rule), (settings or {}).get(rule.rule)
    began = time.perf_counter()
    try:
        analyzer = rule.load()(thresholds) if thresholds else None  # a wrong one is refused even where it is skipped
        missing = _missing_requirement(rule.needs, data)
        if missing is not None:
            return [], Outcome(rule.rule, "skipped", missing)
        analyzer = analyzer or rule.load()()
        began = time.perf_counter()
        findings = [_check_finding(finding, data) for finding in _apply_rule(analyzer, data)]
    except Exception as error:  # the other rules run all the same
        if isinstance(error, UsageError) and thresholds:
            raise  # the fault lies in the user's thresholds, not in the rule
        only = data.ranks[0].rank if isinstance(data, Run) and len(data.ranks) == 1 else None
        outcome = Outcome(rule.rule, "failed", describe_error(error), _seconds_since(began))
        return [finding_of_failure(rule.rule, rule.name, error, only)], outcome
    return findings, Outcome(rule.rule, "ran", None, _seconds_since(began))


def _seconds_since(began: float) -> float:
    return round(time.perf_counter() - began, 6)


def _missing_requirement(needs: frozenset[str], data: Run | Fleet) -> str | None:
    """A sentence about data that a rule needs and no rank has; None where a rank has all that the rule needs."""
    of_ranks = [rank.available_data for rank in (data.ranks if isinstance(data, Run) else data.summaries)]
    missing = sorted(needs - data.available_data)
    if not missing and (needs <= OF_THE_JOB or any(needs - OF_THE_JOB <= available for available in of_ranks)):
        return None
    partly = sorted(need for need in needs if not all(need in available for available in of_ranks))
    need = (missing or partly)[0]
    return explain_missing(need, data.available_data)


def _apply_rule(analyzer: Analyzer, data: Run | Fleet) -> Iterable[Finding]:
    if isinstance(data, Run):
        return analyzer.analyze(data)
    return analyzer.analyze_fleet(data) if isinstance(analyzer, FleetAnalyzer) else ()


def _check_finding(finding: Finding, data: Run | Fleet) -> Finding:
    """The finding, checked against the limits of its rank.

    Raises:
        TypeError, ValueError: The finding is none, or does not fit.
    """
    if not isinstance(finding, Finding):
        raise TypeError(f"it yields a {type(finding).__name__} instead of a Finding")
    if finding.scope is not None:
        return finding
    return replace(finding, scope=_scope_in(finding, data))  # checks again


def _scope_in(finding: Finding, data: Run | Fleet) -> FindingScope | None:
    """The limits of a finding without a scope: those of the rank whose time it claims."""
    if isinstance(data, Run):
        return next((scope_of(rank) for rank in data.ranks if rank.rank == finding.claim.rank), None)
    return FindingScope(data.longest_step_ns)


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
        device_from=rank.hardware.source,
        ran_on=rank.device_kind,
        core_share=rank.contention.core_share if rank.contention.is_severe else None,
    )


def _summarize_once(rank: Rank) -> OnceOnly | None:
    once = rank.first_use
    if not once.parts:
        return None
    parts = []
    for cause, spans in once.parts.items():
        longest = once.longest.get(cause)
        parts.append(
            OncePart(
                cause,
                iv.total(spans),
                iv.total(spans) / once.recording_ns,
                once.calls[cause],
                None if longest is None else f"{longest.name} in {longest.op}" if longest.op else longest.name,
                None if longest is None else longest.time_ns,
            )
        )
    return OnceOnly(
        rank.rank,
        once.recording_ns,
        iv.total(once.time),
        once.share,
        once.is_first_run,
        iv.total(rank.recorded_window) - iv.total(once.window),
        once.cold_steps,
        tuple(sorted(parts, key=lambda part: -part.time_ns)),
    )


def _summarize_steps(rank: Rank) -> StepSummary:
    steps = rank.steps
    if not steps.count:
        return StepSummary()
    return StepSummary(
        steps.count,
        steps.source,
        None if steps.median_ns is None else rank.to_unprofiled_ns(steps.median_ns),
        rank.mean_step_ns,
        steps.median_ns,
        steps.variation,
        one_off_ns=iv.total(iv.union_of((rank.one_offs, rank.first_use.time))),
        timed_median_ns=rank.facts.base.median_ns if rank.contention.is_severe else None,
        # Between steps that the recorder found lies its own work and nothing of the program's.
        between_ns=steps.mean_ns_between if rank.facts.step_source in (None, "session") else None,
    )


def _tables_of_longest_step(fleet: Fleet) -> ReportRows:
    longest = max(fleet.summaries, key=lambda summary: summary.mean_step_ns, default=None)
    return {name: () if longest is None else longest.tables.get(name, ()) for name in TABLES}


def _steps_of_report(fleet: Fleet) -> StepSummary:
    """The steps of the first rank that has some."""
    return next((summary.steps for summary in fleet.summaries if summary.steps.count), StepSummary())


def _program_folders(fleet: Fleet) -> tuple[str, ...]:
    """Where the program runs, and where it lies, as captured on the first rank."""
    program = _facts_of_first_rank(fleet).program
    folders = (program.working_directory, program.folder)
    return tuple(folder for folder in folders if folder is not None and folder.startswith("/"))


def _facts_of_first_rank(fleet: Fleet) -> CapturedFacts:
    return fleet.summaries[0].facts if fleet.summaries else NO_FACTS


def _limit_of_longest_step(fleet: Fleet, findings: Sequence[Finding], own_steps_ns: Mapping[int | None, int]) -> Limit:
    """The limit of the rank whose mean step is longest: the others wait for it; and its step after all fixes.

    Waits for late ranks are no part of the limit, though a rank by itself sees them as communication. Fixes that leave
    out work, such as fused kernels, may lead below it: then the limit is what they lead to.
    """
    longest = max(fleet.summaries, key=lambda summary: summary.mean_step_ns, default=None)
    if longest is None:
        return UNKNOWN_LIMIT
    mean_ns = longest.mean_step_ns
    now_ns = _steps_of_report(fleet).median_ns or mean_ns
    after_fixes_ns, limit_ns = step_after_fixes_ns(findings, mean_ns, now_ns, own_steps_ns), longest.limit.step_ns
    if limit_ns is not None:
        limit_ns = max(limit_ns - longest.per_step(_waits_for_ranks_ns(fleet, longest)), 0)
        limit_ns = min(limit_ns, now_ns if after_fixes_ns is None else after_fixes_ns)
    return replace(longest.limit, step_ns=limit_ns, after_fixes_ns=after_fixes_ns)


def _waits_for_ranks_ns(fleet: Fleet, summary: RankSummary) -> int:
    """How much of a rank's exposed communication is waiting for ranks that come later."""
    late, table = fleet.late_rank, summary.collectives
    if late is None or table is None:
        return 0
    return iv.total(iv.intersect(late.any_wait_time_of(table), table.exposed))
