"""Every rule against its cases: those that must make it speak, and as many that must not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from all_cases import CASES
from rule_cases import Case, Says, healthy

import perfdoctor
from perfdoctor import pipeline as engine
from perfdoctor.rank import Rank, Run
from perfdoctor.report.finding import Finding
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Analyzer

RULES = {analyzer.rule: analyzer for analyzer in registry.registered()}


def by_itself(rule: type[Analyzer]) -> type[Analyzer]:
    """A rule whose findings are not replayed: what it says of savings is its own."""

    class ByItself(rule):  # type: ignore[misc, valid-type]
        def finding(self, *given: Any, **named: Any) -> Finding:
            found: Finding = super().finding(*given, **named)
            return replace(found, edit=None)

    return ByItself


def found_in(case: Case, rule: type[Analyzer] | None = None) -> tuple[Finding, ...]:
    """What the rule says, through the engine."""
    ranks = tuple(Rank(trace.trace(), facts=case.facts) for trace in case.ranks())
    report = engine.diagnose(Run(ranks), [rule or RULES[case.rule]])
    assert [o.status for o in report.outcomes if o.rule == case.rule] != ["failed"], report.outcomes
    return report.findings


def check(finding: Finding, says: Says) -> None:
    assert (finding.severity, finding.cost_ns) == (says.severity, says.cost_ns)
    if says.saving is not None:
        saving = finding.saving
        assert (saving.low_ns, saving.expected_ns, saving.high_ns) == says.saving
    for text, wanted in ((finding.title, says.title), (finding.advice, says.advice), (finding.fix or "", says.fix)):
        assert wanted in text
    assert (str(finding.location) if finding.location else None) == says.location
    assert says.rank is None or finding.rank == says.rank
    assert says.confidence is None or finding.confidence == says.confidence
    evidence: dict[str, Any] = {e.label: e.value for e in finding.evidence}
    assert {label: evidence[label] for label in says.evidence} == says.evidence


@pytest.mark.parametrize("case", [c for c in CASES if c.says], ids=str)
def test_a_rule_speaks_where_it_must(case: Case) -> None:
    findings = found_in(case, by_itself(RULES[case.rule]))
    assert [f.rule for f in findings] == [case.rule] * len(case.says)
    for finding, says in zip(findings, case.says, strict=True):
        check(finding, says)


@pytest.mark.parametrize("case", [c for c in CASES if not c.says], ids=str)
def test_a_rule_keeps_quiet_where_it_must(case: Case) -> None:
    assert found_in(case) == ()


@pytest.mark.parametrize("case", [c for c in CASES if c.via_file], ids=str)
def test_the_same_comes_out_of_a_file_and_the_public_door(case: Case, tmp_path: Path) -> None:
    ranks = case.ranks()
    for rank, trace in enumerate(ranks):
        trace.write(tmp_path / ("run.json.gz" if len(ranks) == 1 else f"rank{rank}.json.gz"))
    report = perfdoctor.analyze(tmp_path, select=[case.rule])
    assert [f.to_dict() for f in report.findings] == [f.to_dict() for f in found_in(case)]


def test_a_healthy_step_gets_no_finding_from_any_rule() -> None:
    report = engine.diagnose(Run((Rank(healthy(5).trace()),)), registry.registered())
    assert report.findings == ()


def test_every_rule_has_as_many_quiet_cases_as_speaking_ones_and_at_least_five() -> None:
    speaking = Counter(c.rule for c in CASES if c.says)
    quiet = Counter(c.rule for c in CASES if not c.says)
    assert set(speaking) == {a.rule for a in registry.registered() if a.__module__.startswith("perfdoctor.analyzers.")}
    assert speaking == quiet
    assert min(speaking.values()) >= 5


def test_every_case_has_a_name_of_its_own() -> None:
    assert max(Counter(map(str, CASES)).values()) == 1
