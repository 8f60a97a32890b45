from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import report_samples as samples
import xmlschema

from perfdoctor.report.finding import Severity
from perfdoctor.report.report import Outcome, Report
from perfdoctor.reporters.finding_gate import Gate
from perfdoctor.reporters.junit import Junit

SCHEMA = Path(__file__).parent / "schemas" / "junit-10.xsd"


@lru_cache(maxsize=1)
def _schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(SCHEMA)


def render(report: Report, level: Severity = "medium") -> ET.Element:
    """The testsuite of a report's XML, which is valid."""
    text = Junit(Gate(level)).render(report)
    _schema().validate(text)
    root = ET.fromstring(text.encode())
    (suite,) = root.findall("testsuite")
    for name in ("tests", "failures", "errors"):
        assert root.get(name) == suite.get(name)
    return suite


def _statuses(suite: ET.Element) -> dict[str, Sequence[str]]:
    return {str(case.get("name")): [child.tag for child in case] for case in suite.iter("testcase")}


@pytest.mark.parametrize("name", samples.ALL)
def test_every_report_is_valid_and_counts_its_tests(name):
    report = samples.ALL[name]()
    suite = render(report)
    cases = suite.findall("testcase")
    assert len(cases) == int(suite.get("tests")) == len(report.outcomes)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(name)) == len(suite.findall(f"testcase/{tag}"))


def test_a_rule_fails_by_its_findings_and_the_others_pass_or_are_skipped():
    statuses = _statuses(render(samples.loader_stall()))
    assert statuses["PD101 dataloader-stall"] == ["failure"]
    assert statuses["PD201 gemm-without-tensor-cores"] == []
    assert statuses["PD401 straggler"] == ["skipped"]


def test_a_failure_says_what_it_costs_where_it_is_and_what_to_do():
    suite = render(samples.loader_stall())
    failure = suite.find("testcase/failure")
    assert (failure.get("type"), failure.get("message")) == ("high", "The GPU waits for the DataLoader")
    for words in ("costs 19.0 ms a step (44%)", "train.py:41 in train_one_epoch", "num_workers is 0", "num_workers=4"):
        assert words in failure.text
    assert "needs the traces of several ranks" in suite.find("testcase/skipped").get("message")
    assert "Your step takes" in suite.find("system-out").text


@pytest.mark.parametrize(("level", "failing"), [("high", 1), ("medium", 2), ("low", 2), ("info", 2)])
def test_the_level_of_the_gate_decides_what_fails(level, failing):
    report = samples.kernel()  # PD201 high, PD102 medium, PD103 low
    statuses = _statuses(render(report, level))
    assert sum("failure" in tags for tags in statuses.values()) == failing + (level in ("low", "info"))


def test_a_finding_that_passes_is_in_the_output_of_its_test():
    suite = render(samples.kernel(), "high")
    passed = next(case for case in suite.iter("testcase") if case.get("name").startswith("PD102"))
    assert [child.tag for child in passed] == ["system-out"]
    assert "The host waits for the GPU" in passed[0].text


def test_a_rule_that_crashed_is_an_error():
    suite = render(samples.incomplete())
    assert suite.find("testcase/error").get("message") == "KeyError: 'x'"
    assert (suite.get("errors"), suite.get("skipped")) == ("1", "5")


def test_several_findings_of_a_rule_are_one_failure():
    report = samples.loader_stall()
    first = report.findings[0]
    report = replace(report, findings=(first, replace(first, title="And once more")))
    (failure,) = render(report).findall("testcase/failure")
    assert failure.get("message").endswith("(and 1 more)")
    assert "And once more" in failure.text


def test_characters_that_xml_lacks_are_left_out():
    evil = "a\0b\x0bc\ufffed\uffffe\ud800f <script>&amp; ]]> \"'"
    report = samples.loader_stall()
    outcome = Outcome(evil, "skipped", evil)
    finding = replace(report.findings[0], title=evil, advice=evil, fix=evil)
    report = replace(report, findings=(finding,), outcomes=(*report.outcomes, outcome), traces=(samples.summary(evil),))
    suite = render(report)
    text = suite.find("testcase/failure").text
    assert "<script>&amp; ]]> \"'" in text
    assert not re.search("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "".join(suite.itertext()))
