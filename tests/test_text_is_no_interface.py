"""Text is no interface: with every sentence of rules and advice turned around, nothing but the text changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from all_cases import CASES
from hypothesis import settings

import perfdoctor
from perfdoctor.api import Report
from perfdoctor.comparison.baseline import baseline_of_report, match_baseline
from perfdoctor.comparison.match_findings import match_findings
from perfdoctor.comparison.seen_finding import SeenFinding, finding_of_json, finding_of_report
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.report.finding import Finding
from perfdoctor.report.to_plain import to_plain
from perfdoctor.rules import Action, Advice, Analyzer, registry
from perfdoctor.testing.check_rule import findings_of_rule
from perfdoctor.trials import choose_candidates
from perfdoctor.trials.changes import allocator
from perfdoctor.trials.load_changes import load_changes

REPOSITORY = Path(__file__).resolve().parents[1]
SAMPLES = sorted((REPOSITORY / "sample_traces").glob("*.json.gz"))
SHARED = (
    "a100-moe-before", "cpu-kernelforge-chrome.json.gz", "mac-pinn.json.gz", "rtx4060-default.json.gz",
    "rtx4090d-break.json.gz", "t4-andrewlala-cpu.json.gz", "t4-vgg16.json.gz",
)  # fmt: skip
RULES = {analyzer.rule: analyzer for analyzer in registry.load_analyzers()}
CHANGES = [(change, None) for change in load_changes()[0]]
_JOB = {"devices": [{"capability": "9.0"}], "world_size": 2, "loaders": [{"num_workers": 1}]}
FACTS_OF_JOBS = (CapturedFacts.parse({}), CapturedFacts.parse(_JOB))


def turn(text: str) -> str:
    """Another text without a word of this one."""
    return text[::-1].swapcase()


def make_turned_advice(
    cls: type[Advice], sentence: str, code: str | None = None, source: str = "", actions: tuple[Action, ...] = ()
) -> Advice:
    """Advice, of the table or of a rule itself, whose sentence and code begin at their end."""
    return cls._make((sentence[::-1], code and code[::-1], source, actions))


@contextmanager
def turned_texts(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every sentence and line of code of the advice, and every title and label of a finding, is another text."""
    make_finding = Analyzer.finding

    def finding(*args: Any, **kwargs: Any) -> Finding:
        made = make_finding(*args, **kwargs)
        return replace(
            made,
            title=turn(made.title),
            advice=turn(made.advice),
            fix=None if made.fix is None else turn(made.fix),
            evidence=tuple(replace(each, label=turn(each.label)) for each in made.evidence),
        )

    with patch.context() as inside:
        inside.setattr(Analyzer, "finding", finding)
        # Turned once more in a finding, these words come back in the other case.
        inside.setattr(Advice, "__new__", make_turned_advice)
        yield


def facts_of(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """All of some findings that code may rely on; what evidence says in words may quote a title."""
    found: list[dict[str, Any]] = to_plain(findings)
    for each, finding in zip(found, findings, strict=True):
        for text in ("title", "advice"):
            del each[text]
        each["fix"] = finding.fix is not None
        each["evidence"] = [(e.id, e.unit, isinstance(e.value, str) or e.value) for e in finding.evidence]
        each["topics"] = finding.topics
    return found


def trials_of(findings: Sequence[Finding]) -> list[Any]:
    """What `try` makes of findings: its candidates in their order, and which findings each of them answers."""
    plain, tried = to_plain(findings), list[Any]()
    for facts in FACTS_OF_JOBS:
        choices, _ = choose_candidates.choose_candidates(CHANGES, facts, plain, only_advised=False)
        tried += [(choice.label, choose_candidates.match_findings(choice, (), plain)) for choice in choices]
    return tried


def changes_of(before: Sequence[SeenFinding], after: Sequence[SeenFinding]) -> list[Any]:
    """What a comparison says of findings, without their titles."""
    changes = match_findings(before, after)
    return [(c.rule, c.status, c.file, c.line, c.before_cost_ns, c.after_cost_ns) for c in changes]


def test_with_other_words_every_rule_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "find_library", cache(allocator.find_library))  # a quarter of the time of this test
    firing = [case for case in CASES if case.expected]
    few = settings().max_examples // 8  # of each rule: all at night
    cases = [case for rule in RULES for case in [c for c in firing if c.rule == rule][:few]]
    runs = [case.run() for case in cases]
    plain = [findings_of_rule(RULES[case.rule], run) for case, run in zip(cases, runs, strict=True)]
    with turned_texts(monkeypatch):
        turned = [findings_of_rule(RULES[case.rule], run) for case, run in zip(cases, runs, strict=True)]
    assert [str(c) for c, a, b in zip(cases, plain, turned, strict=True) if facts_of(a) != facts_of(b)] == []
    trials = [trials_of(findings) for findings in plain]
    assert [str(c) for c, a, b in zip(cases, trials, turned, strict=True) if a != trials_of(b)] == []
    assert not any(a.title == b.title for x, y in zip(plain, turned, strict=True) for a, b in zip(x, y, strict=True))
    answered = {label for each in trials for label, positions in each if positions}
    assert len({label.partition("=")[0] for label in answered}) >= 12  # else there is nothing to lose


def test_with_other_words_reports_guides_comparisons_and_baselines_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = REPOSITORY.parent / "shared" / "recordings"
    paths = [*SAMPLES, SAMPLES[0].parent / "straggler", *(shared / name for name in SHARED if (shared / name).exists())]
    plain = [perfdoctor.analyze(path) for path in paths]
    guides = [guide_of(report) for report in plain]
    with turned_texts(monkeypatch):
        turned = [perfdoctor.analyze(path) for path in paths]
        assert [guide_of(report) for report in turned] == guides
    for path, one, other in zip(paths, plain, turned, strict=True):
        assert facts_of(one.findings) == facts_of(other.findings), path.name
        assert trials_of(one.findings) == trials_of(other.findings), path.name
        states = match_baseline(baseline_of_report(one, "baseline.json"), other).states
        assert {state.state for state in states} <= {"accepted"}, path.name
    for seen in (seen_in_report, seen_in_json):
        for position in range(len(paths)):
            before, after = (map(seen, (side[position - 1], side[position])) for side in (plain, turned))
            assert changes_of(*before) == changes_of(*after)
            assert {c[1] for c in changes_of(seen(plain[position]), seen(turned[position]))} <= {"still there"}


def guide_of(report: Report) -> list[Any]:
    return [(a.number, a.answer, a.findings, a.share_of_step) for a in report.guide().answers]


def seen_in_report(report: Report) -> list[SeenFinding]:
    return [finding_of_report(finding) for finding in report.findings]


def seen_in_json(report: Report) -> list[SeenFinding]:
    return [finding_of_json(finding) for finding in report.to_dict()["findings"]]
