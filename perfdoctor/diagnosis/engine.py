"""Runs the analyzers over a run.

Checks what they need, keeps a crash to the rule that crashed, times each, and makes the Report.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from perfdoctor.diagnosis.analyzer import Analyzer
from perfdoctor.diagnosis.captured import captured_median_ns
from perfdoctor.diagnosis.finding import Finding, Saving
from perfdoctor.diagnosis.gain import cpu_wait_ns
from perfdoctor.diagnosis.needs import NEEDS
from perfdoctor.diagnosis.ranking import Ledger, rank_findings
from perfdoctor.diagnosis.registry import broken
from perfdoctor.diagnosis.report import Outcome, Report, StepSummary, TraceSummary
from perfdoctor.diagnosis.run import RankRun, Run
from perfdoctor.errors import UsageError

Settings = Mapping[str, Mapping[str, float]]


def diagnose(run: Run, analyzers: Iterable[type[Analyzer]], settings: Settings | None = None) -> Report:
    """Analyse a run.

    Args:
        run: the ranks.
        analyzers: the rules to apply.
        settings: thresholds by rule id, as {"PD101": {"min_share": 0.1}}.

    Raises:
        UsageError: `settings` names a rule or threshold that does not exist.
    """
    chosen = [analyzer((settings or {}).get(analyzer.rule)) for analyzer in analyzers]
    findings: list[Finding] = []
    outcomes = [Outcome(plugin.name, "failed", plugin.why) for plugin in broken()]
    for analyzer in chosen:
        found, outcome = run_one(analyzer, run)
        findings += found
        outcomes.append(outcome)
    return Report(
        version=version("perfdoctor"),
        traces=tuple(_trace_summary(rank) for rank in run.ranks),
        steps=_step_summary(run),
        timeline=tuple(rank.timeline for rank in run.ranks),
        account=tuple(rank.account for rank in run.ranks),
        findings=rank_findings(findings, {rank.trace.rank: _ledger(rank) for rank in run.ranks}),
        outcomes=tuple(outcomes),
    )


def check_settings(settings: Settings, analyzers: Iterable[type[Analyzer]]) -> None:
    """See that every rule that `settings` names exists.

    Raises:
        UsageError: it does not.
    """
    unknown = sorted(set(settings) - {a.rule for a in analyzers})
    if unknown:
        raise UsageError(
            f"settings name the rule '{unknown[0]}', which is not registered; `perfdoctor rules` lists them"
        )


def run_one(analyzer: Analyzer, run: Run) -> tuple[list[Finding], Outcome]:
    """The findings of one analyzer and what became of it; a crash becomes finding PD901."""
    lacking = sorted(analyzer.needs - run.evidence)
    if lacking or not any(analyzer.needs - {"ranks"} <= rank.evidence for rank in run.ranks):
        return [], Outcome(analyzer.rule, "skipped", _what_to_capture(analyzer, run))
    began = time.perf_counter()
    try:
        findings, status, why = [_checked(finding) for finding in analyzer.analyze(run)], "ran", None
    except Exception as error:  # the others go on: law 6
        findings, status, why = [_crashed(analyzer, error)], "failed", f"{type(error).__name__}: {error}"
    return findings, Outcome(analyzer.rule, status, why, round(time.perf_counter() - began, 6))  # type: ignore[arg-type]


def _checked(finding: Finding) -> Finding:
    """What an analyzer yields, if it is a finding: a stranger's mistake must not reach the ranking of all others."""
    if not isinstance(finding, Finding):
        raise TypeError(f"it yields a {type(finding).__name__} instead of a Finding")
    return finding


def _what_to_capture(analyzer: Analyzer, run: Run) -> str:
    """The first thing that is missing, and how to get it."""
    lacking = sorted(analyzer.needs - run.evidence) or sorted(
        need for need in analyzer.needs if not all(need in rank.evidence for rank in run.ranks)
    )
    return NEEDS.get(lacking[0], f"it needs '{lacking[0]}', which is not known here")


def _crashed(analyzer: Analyzer, error: Exception) -> Finding:
    return Finding(
        rule="PD901",
        name="analyzer-failed",
        title=f"{analyzer.rule} {analyzer.name} failed: {type(error).__name__}: {error}",
        cost_ns=0,
        share_of_step=None,
        severity="info",
        saving=Saving(),
        advice="The other rules ran. Please report this with the trace, if you can share it.",
        subject=analyzer.rule,
    )


def _ledger(rank: RankRun) -> Ledger:
    return Ledger(rank.window_ns, max(rank.steps.count, 1), cpu_wait_ns(rank))


def _trace_summary(rank: RankRun) -> TraceSummary:
    trace = rank.trace
    first, last = trace.extent_ns
    return TraceSummary(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        device=rank.device_label,
        vendor=trace.vendor,
        complete=trace.complete,
        events=trace.events,
        span_ns=last - first,
        warnings=(*trace.warnings, *rank.notes),
        base_ns=trace.base_ns,
    )


def _step_summary(run: Run) -> StepSummary:
    """The steps of the first rank that has any: ranks of one job step together."""
    for rank in run.ranks:
        if rank.steps.count:
            steps = rank.steps
            unprofiled_ns = captured_median_ns(rank.facts, "base")
            return StepSummary(steps.count, steps.source, steps.median_ns, steps.variation, unprofiled_ns)
    return StepSummary()
