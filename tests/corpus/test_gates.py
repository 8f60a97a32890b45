"""What code reviews and CI services get of real traces: valid, short, and at one with itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import xmlschema

from perfdoctor.comparison.baseline import match_baseline, update_baseline
from perfdoctor.comparison.baseline_file import format_baseline, read_baseline
from perfdoctor.report.report import Report
from perfdoctor.reporters.finding_gate import Gate
from perfdoctor.reporters.github_annotations import GithubAnnotations
from perfdoctor.reporters.junit import Junit
from perfdoctor.reporters.notebook_html import NotebookHtml
from perfdoctor.reporters.pull_request import PullRequest
from perfdoctor.reporters.relative_paths import with_relative_paths
from perfdoctor.reporters.sarif import Sarif

SCHEMAS = Path(__file__).resolve().parents[1] / "reporters" / "schemas"
Reports = Callable[[str], Report]
# By what they have: one rank and many, lines and none, steps and none, a CPU alone, AMD, a cut file.
NAMES = (
    "h100-qwen-bf16.json.gz",
    "v100-torchrec-4ranks",
    "mi300x-resnet-ddp.json.gz",
    "v100-bare-list-workers0.json.gz",
    "rtx4090-llama-2ranks",
    "cpu-only-rank34.json.gz",
    "b300-decode-graph.json.gz",
    "mi210-gpu-only.json.gz",
)
pytestmark = [pytest.mark.corpus, pytest.mark.parametrize("name", NAMES)]


def test_formats_are_valid_and_agree_on_the_findings(name: str, report_on: Reports) -> None:
    report = report_on(name)
    log = json.loads(Sarif().render(report))
    jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_bytes())).validate(log)
    results = log["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == [finding.rule for finding in report.findings]
    prints = [result["partialFingerprints"]["perfdoctorFinding/v1"] for result in results]
    assert len({*prints}) == len(prints)

    text = Junit(Gate("high")).render(report)
    xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd").validate(text)
    failed = {
        str(case.get("name"))[:5] for case in ET.fromstring(text).iter("testcase") if case.find("failure") is not None
    }
    assert failed == {finding.rule for finding in report.findings if finding.severity == "high"}

    commands = GithubAnnotations().render(report).splitlines()
    assert all(re.match(r"::(error|warning|notice) [^\n]+::", command) for command in commands)
    assert len(commands) == 1 + sum(finding.severity != "info" for finding in report.findings)


def test_short_forms_are_short(name: str, report_on: Reports) -> None:
    text = PullRequest().render(report_on(name))
    assert len(text.encode()) < 65_536
    assert len(text.partition("<details>")[0].splitlines()) < 30
    assert "did not fit" not in text
    assert len(NotebookHtml().render(report_on(name))) < 40_000


def test_a_report_is_known_to_its_own_baseline(name: str, report_on: Reports, tmp_path: Path) -> None:
    report = with_relative_paths(report_on(name))
    text = format_baseline(update_baseline(None, report, "b.json"), "1")
    (tmp_path / "b.json").write_text(text)
    baseline = read_baseline(tmp_path / "b.json")
    match = match_baseline(baseline, report)
    assert {state.state for state in match.states} <= {"accepted"}
    assert match.gone == match.not_judged == ()
    assert format_baseline(update_baseline(baseline, report, "b.json"), "1") == text
    assert not any(judged.fails for judged in Gate("info", baseline).judge(report_on(name)))
