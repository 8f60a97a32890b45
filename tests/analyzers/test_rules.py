"""Every rule against its cases: those in which it must fire, and as many in which it must stay quiet."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest
from all_cases import CASES, HERE, RULES_WITH_OWN_TEST
from jsonschema import Draft202012Validator

import perfdoctor
from perfdoctor import pipeline
from perfdoctor.rank import Rank
from perfdoctor.report.to_plain import to_plain
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import FleetAnalyzer, Run
from perfdoctor.testing import RuleCase, check_case, check_laws
from perfdoctor.testing.check_rule import build_healthy_trace, findings_of_rule

FACTS_SCHEMA = json.loads(resources.files("perfdoctor.capture").joinpath("facts.schema.json").read_text())
RULES = {analyzer.rule: analyzer for analyzer in registry.load_analyzers()}
# They tell what a capture counted in all steps of a run.
OF_WHOLE_RUNS = {"PD003", "PD108", "PD110", "PD113", "PD515"}
BUILT_IN = {rule for rule, analyzer in RULES.items() if analyzer.__module__.startswith("perfdoctor.analyzers.")}


@pytest.mark.parametrize("case", [c for c in CASES if c.expected], ids=str)
def test_a_rule_fires_where_it_must_and_keeps_the_laws(case: RuleCase) -> None:
    run = case.run()
    check_case(RULES[case.rule], case, run)
    check_laws(RULES[case.rule], case, run, has_figures_of_run=case.rule in OF_WHOLE_RUNS)


@pytest.mark.parametrize("case", [c for c in CASES if not c.expected], ids=str)
def test_a_rule_stays_quiet_where_it_must(case: RuleCase) -> None:
    rule, run = RULES[case.rule], case.run()
    found = findings_of_rule(rule, run)
    # Of one rank a report has what the rule yields, or less.
    if found or len(run.ranks) > 1 or issubclass(rule, FleetAnalyzer):
        report = pipeline.diagnose_run(run, [rule])
        assert report.findings == ()
        assert [outcome.why for outcome in report.outcomes if outcome.status == "failed"] == []
    # Where pricing drops what the rule yields, it has to do so without replays, too.
    if found:
        check_case(rule, case, run)


@pytest.mark.parametrize("case", [c for c in CASES if c.via_file], ids=str)
def test_the_public_api_finds_the_same_in_a_file(case: RuleCase, tmp_path: Path) -> None:
    traces = case.traces()
    for rank, trace in enumerate(traces):
        trace.write(tmp_path / ("run.json.gz" if len(traces) == 1 else f"rank{rank}.json.gz"))
    report = perfdoctor.analyze(tmp_path, select=[case.rule])
    assert to_plain(report.findings) == to_plain(pipeline.diagnose_run(case.run(), [RULES[case.rule]]).findings)


def test_a_healthy_step_gets_no_finding_from_any_rule() -> None:
    report = pipeline.diagnose_run(Run((Rank(build_healthy_trace(5).trace()),)), [RULES[rule] for rule in BUILT_IN])
    assert report.findings == ()


def test_every_rule_has_as_many_quiet_cases_as_firing_ones_and_at_least_five() -> None:
    firing = Counter(c.rule for c in CASES if c.expected)
    quiet = Counter(c.rule for c in CASES if not c.expected)
    assert firing.keys() | RULES_WITH_OWN_TEST == BUILT_IN
    assert firing == quiet
    assert min(firing.values()) >= 5


def test_every_case_has_a_name_of_its_own() -> None:
    assert max(Counter(map(str, CASES)).values()) == 1


def test_what_files_of_scenes_import_or_make_is_used() -> None:
    """Linters do not see the rows that name it."""
    texts = {path: path.read_text(encoding="utf-8") for path in HERE.parent.rglob("*.py")}
    unused = []
    for rows in HERE.glob("cases_*.toml"):
        file = rows.with_suffix(".py")
        tree = ast.parse(texts[file])
        imports = (each for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names)
        imported = {each.asname or each.name for each in imports} - {"annotations"}
        made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        named |= set(re.findall(r"\w+", rows.read_text(encoding="utf-8")))
        unused += [f"{file.name}: {name}" for name in imported - named]
        others = [text for path, text in texts.items() if path != file]
        unused += [f"{file.name}: {name}" for name in made - named if not any(name in text for text in others)]
    assert unused == []


@pytest.mark.parametrize("rule", sorted({case.rule for case in CASES if case.facts}))
def test_facts_of_cases_have_keys_that_a_capture_writes(rule: str) -> None:
    """A key that no capture writes lets a rule pass its test and fail its users."""
    cases = [case for case in CASES if case.rule == rule and case.facts]
    facts = [each for case in cases for each in ([case.facts] if isinstance(case.facts, Mapping) else case.facts or ())]
    errors = [error for each in facts for error in Draft202012Validator(FACTS_SCHEMA).iter_errors(each)]
    assert [error.message for error in errors if error.validator == "additionalProperties"] == []
