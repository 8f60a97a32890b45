"""The contract that every registered analyzer keeps, and what the pipeline does with analyzers that break it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from all_cases import CASES

from perfdoctor import pipeline
from perfdoctor.analysis_options import check_settings
from perfdoctor.errors import UsageError
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.to_plain import to_plain
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Analyzer, RankAnalyzer, Run
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import (
    MALFORMED_ARGUMENTS,
    build_tiny_traces,
    check_declaration,
    check_malformed_arguments,
    check_tiny_trace,
)

ANALYZERS = registry.load_analyzers()
FIRING = [case for case in CASES if case.expected]
BY_RULE = {analyzer.rule: analyzer for analyzer in ANALYZERS}


def for_each_analyzer() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("analyzer", ANALYZERS, ids=lambda a: a.rule)


@for_each_analyzer()
def test_what_an_analyzer_declares_is_known_and_its_docstring_is_a_manual_page(analyzer: type[Analyzer]) -> None:
    check_declaration(analyzer)


@for_each_analyzer()
def test_a_threshold_that_does_not_exist_is_refused(analyzer: type[Analyzer]) -> None:
    with pytest.raises(UsageError, match=f"{analyzer.rule} has no setting 'minimum_share'; its settings are: "):
        analyzer({"minimum_share": 0.5})


@pytest.mark.parametrize("name", build_tiny_traces())
def test_no_trace_is_too_small(name: str) -> None:
    check_tiny_trace(ANALYZERS, name)


@pytest.mark.parametrize("value", MALFORMED_ARGUMENTS)
def test_no_argument_is_too_odd(value: object) -> None:
    check_malformed_arguments(ANALYZERS, value)


# --- what the pipeline does with analyzers that break it ------------------------------------------------------------


class Crashing(RankAnalyzer):
    """Divides by zero after its first finding."""

    rule = "XX001"
    name = "crashing"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        yield self.finding(rank, title="half", cost_ns=1, advice="", saving=Saving(), claim=Claim())
        _ = 1 // 0


class YieldingText(Analyzer):
    """Yields a text instead of a finding."""

    rule = "XX002"
    name = "babbling"

    def analyze(self, run: Run) -> Iterator[Finding]:
        yield f"{len(run.ranks)} ranks"  # type: ignore[misc]


class PromisingTooMuch(Analyzer):
    """Promises the whole step three times over."""

    rule = "XX003"
    name = "greedy"

    def analyze(self, run: Run) -> Iterator[Finding]:
        for subject in "abc":
            yield self.finding(
                run.ranks[0],
                title=subject,
                cost_ns=run.ranks[0].window_ns,
                advice="",
                saving=Saving(0, None, run.ranks[0].window_ns, "bounded"),
                claim=Claim(),
                subject=subject,
            )


class NeedingUnknownData(Analyzer):
    """Needs what no rank has."""

    rule = "XX004"
    name = "demanding"
    needs = frozenset({"kernels", "moonlight"})

    def analyze(self, run: Run) -> Iterator[Finding]:
        raise AssertionError(f"it must not be asked about {run}")


def firing_run() -> Run:
    return next(case for case in FIRING if case.rule == "PD101").run()


@pytest.mark.parametrize(
    ("analyzer", "error"), [(Crashing, "ZeroDivisionError"), (YieldingText, "TypeError: it yields a str")]
)
def test_a_crash_becomes_pd901_and_the_others_go_on(analyzer: type[Analyzer], error: str) -> None:
    report = pipeline.diagnose_run(firing_run(), [analyzer, *ANALYZERS])
    fault = next(f for f in report.findings if f.rule == "PD901")
    assert analyzer.rule in fault.title
    assert error in fault.title
    assert (fault.severity, fault.cost_ns, fault.saving) == ("info", 0, Saving())
    statuses = {o.rule: (o.status, o.why) for o in report.outcomes}
    assert statuses[analyzer.rule][0] == "failed"
    assert error in (statuses[analyzer.rule][1] or "")
    assert statuses["PD101"] == ("ran", None)
    others = to_plain([f for f in report.findings if f.rule != "PD901"])
    assert others == to_plain(pipeline.diagnose_run(firing_run(), ANALYZERS).findings) != []


def test_promises_of_a_plugin_are_capped() -> None:
    run = firing_run()
    report = pipeline.diagnose_run(run, [PromisingTooMuch])
    assert len(report.findings) == 3
    assert sum(f.saving.high_ns or 0 for f in report.findings) == run.ranks[0].window_ns


def test_an_analyzer_without_its_data_is_skipped_with_how_to_record_it() -> None:
    cpu_only = Run((Rank(TraceBuilder(device=None).op("aten::mm", 0, 10).trace()),))
    statuses = {
        o.rule: (o.status, o.why) for o in pipeline.diagnose_run(cpu_only, [*ANALYZERS, NeedingUnknownData]).outcomes
    }
    assert statuses["PD201"] == ("skipped", REQUIREMENTS["kernels"])
    assert statuses["PD401"][0] == "skipped"
    assert statuses["XX004"] == ("skipped", REQUIREMENTS["kernels"])
    assert statuses["PD101"] == ("ran", None)


def test_an_unknown_need_is_named() -> None:
    report = pipeline.diagnose_run(firing_run(), [NeedingUnknownData])
    assert [(o.status, o.why) for o in report.outcomes if o.rule == "XX004"] == [
        ("skipped", "it needs 'moonlight', which is not known here")
    ]


def test_for_one_rank_alone_the_report_asks_for_the_others() -> None:
    outcome = {o.rule: o for o in pipeline.diagnose_run(firing_run(), ANALYZERS).outcomes}["PD401"]
    assert (outcome.status, outcome.why) == ("skipped", REQUIREMENTS["ranks"])


@pytest.mark.parametrize("need", REQUIREMENTS)
def test_every_need_says_what_to_do(need: str) -> None:
    fault, _, remedy = REQUIREMENTS[need].partition(": ")
    assert fault
    assert re.match(r"record|call|give", remedy)


def test_settings_for_an_unknown_rule_are_refused() -> None:
    with pytest.raises(UsageError, match="the rule 'XX999', which is not registered"):
        check_settings({"XX999": {}}, ANALYZERS)
    with pytest.raises(UsageError, match=r"the rule 'PD804', which is not registered\. The rule went"):
        check_settings({"PD804": {"min_share": 0.1}}, ANALYZERS)


@pytest.mark.parametrize(("rule", "name"), [("pd1", "fine"), ("PD123", "Not Fine"), ("PD12", "fine")])
def test_a_rule_needs_a_proper_id_and_name(rule: str, name: str) -> None:
    with pytest.raises(TypeError, match="needs a rule like 'PD101' and a name like 'dataloader-stall'"):
        type("Odd", (Crashing,), {"rule": rule, "name": name})
