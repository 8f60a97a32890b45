"""Laws for every analyzer on any trace: time has no origin, a file no order, and no saving is promised twice."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from trace_strategies import EXERCISED_RULES, File, any_file, lawful, rank_of

from perfdoctor import pipeline
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.report.report import Report
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run

laws = settings(suppress_health_check=[HealthCheck.too_slow])
# Amounts a step are rounded to a nanosecond, and what is left for one finding depends on the amounts before it. A
# replay cuts a share of each shortened activity down to a whole nanosecond: twice 666 of 1,000 are not 1,333 of 2,000.
ROUNDING_NS = 8
ROUNDING_PER_EVENT_NS = 1


def report_of(files: Sequence[File], scale: int = 1, shift_us: float = 0) -> Report:
    ranks = tuple(rank_of(file, scale, shift_us) for file in files)
    return pipeline.diagnose_run(Run(ranks), registry.load_analyzers(), AnalysisOptions(tables=()))


def findings_and_times(report: Report) -> dict[str, Any]:
    """All that a report says about time and faults, without how long the analyzers took."""
    whole = report.to_dict()
    return {key: whole[key] for key in ("steps", "timeline", "account", "findings")}


@laws
@given(lawful(), st.sampled_from((-777_000_777, -3, 12_345_678_900)), st.randoms(use_true_random=False))
def test_time_has_no_origin_and_a_file_no_order_and_twice_the_time_costs_twice_as_much(
    files: Sequence[File], shift_us: int, dice: random.Random
) -> None:
    """Three laws in one test, because most of its time goes to the report that all of them compare with."""
    once = report_of(files)
    expected = findings_and_times(once)
    assert findings_and_times(report_of(files, shift_us=shift_us)) == expected
    shuffled = [file | {"traceEvents": dice.sample(file["traceEvents"], len(file["traceEvents"]))} for file in files]
    assert findings_and_times(report_of(shuffled)) == expected
    rounding_ns = ROUNDING_NS + ROUNDING_PER_EVENT_NS * sum(len(file["traceEvents"]) for file in files)
    check_doubled(once, report_of(files, scale=2), rounding_ns)
    check_no_rule_failed(once)
    check_promises(once)


def check_doubled(once: Report, twice: Report, rounding_ns: int) -> None:
    if once.once or twice.once:
        return  # a launch of 0.6 ms loads a module and one of 0.3 ms need not: how long a first use takes is absolute
    for a, b in zip(once.account, twice.account, strict=True):
        assert b.window_ns == 2 * a.window_ns
        assert {k: 2 * v for k, v in a.detail.items()} == dict(b.detail)
    pairs = list(zip(sorted(once.findings, key=finding_key), sorted(twice.findings, key=finding_key), strict=True))
    assert [finding_key(a) for a, _ in pairs] == [finding_key(b) for _, b in pairs]
    for a, b in pairs:
        if a.rule in ("PD101", "PD116"):
            continue  # they leave 0.3 ms in for handing a batch over, and 10 us for each launch, on any clock
        assert a.severity == b.severity
        replayed = a.saving.basis == "replayed"
        assert abs(b.cost_ns - 2 * a.cost_ns) <= (rounding_ns if replayed else 1)
        assert abs((b.saving.high_ns or 0) - 2 * (a.saving.high_ns or 0)) <= rounding_ns


def finding_key(finding: Any) -> tuple[str, str, str, int]:
    return finding.rule, finding.subject, str(finding.location), -1 if finding.rank is None else finding.rank


def check_promises(report: Report) -> None:
    """No saving above its cost, its step, or what the step has left."""
    steps_ns = [rank.window_ns / max(len(rank.steps), 1) for rank in report.account]
    for finding in report.findings:
        assert 0 <= (finding.saving.high_ns or 0) <= finding.cost_ns <= max(steps_ns) + 1
        assert finding.share_of_step is None or 0 <= finding.share_of_step <= 1
    assert sum(f.saving.high_ns or 0 for f in report.findings) <= max(steps_ns)


def check_no_rule_failed(report: Report) -> None:
    assert [f.title for f in report.findings if f.rule == "PD901"] == []


@laws
@given(st.one_of(lawful(), any_file().map(lambda file: [file])))
def test_savings_never_exceed_the_cost_nor_together_the_step(files: Sequence[File]) -> None:
    report = report_of(files)
    check_no_rule_failed(report)
    check_promises(report)


@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="284 traces: at night")
def test_the_traces_of_these_laws_make_the_exercised_rules_report() -> None:
    reporting: set[str] = set()

    @seed(4)  # of the first dozen the one that makes all of them speak soonest, after 284 traces
    @settings(laws, database=None, max_examples=800)
    @given(lawful())
    def collect(files: Sequence[File]) -> None:
        # Making more traces is cheap, analysing them is not: no rule is asked again that has spoken.
        missing = [rule for rule in registry.load_analyzers() if rule.rule in EXERCISED_RULES - reporting]
        if missing:
            report = pipeline.diagnose_run(Run(tuple(rank_of(file) for file in files)), missing)
            reporting.update(finding.rule for finding in report.findings)

    collect()
    assert reporting >= EXERCISED_RULES
