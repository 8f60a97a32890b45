"""The report as JUnit XML, which GitLab, Jenkins and most other CI services show as a table of tests.

By the schema that Jenkins publishes (junit-10.xsd of its xUnit plugin), which has no attributes beyond what all read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Outcome, Report
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.finding_gate import DEFAULT_GATE, Gate
from perfdoctor.reporters.finding_texts import plain_message
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.verdict import describe_ladder, verdict_of
from perfdoctor.rules.registry import list_rules

# What XML 1.0 cannot hold, not even as an entity.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STATUSES = ("failure", "error", "skipped")


@frozen_dataclass
class Junit(Reporter):
    """A test for each rule: failed by its findings that fail the gate, skipped with what it lacks.

    Findings that pass the gate are in the output of their test. A rule that crashed is an error.
    """

    suffix = ".xml"
    shortens_paths = True

    gate: Gate = DEFAULT_GATE

    def render_prepared(self, report: Report) -> str:
        """The report as XML text."""
        names = {rule.rule: rule.name for rule in list_rules()}
        judged = self.gate.judge(report)
        cases = []
        for outcome in report.outcomes:
            failing = [each.finding for each in judged if each.fails and each.finding.rule == outcome.rule]
            passing = [each.finding for each in judged if not each.fails and each.finding.rule == outcome.rule]
            cases.append(_test_case(report, outcome, names, failing, passing))
        root = ET.Element("testsuites", {"name": "perfdoctor", **_counts(cases)})
        path = clean_line(report.traces[0].path) if report.traces else "no trace"
        suite = ET.SubElement(root, "testsuite", _legal({"name": f"perfdoctor {path}", **_counts(cases)}))
        suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
        suite.set("time", f"{sum(outcome.seconds for outcome in report.outcomes):.3f}")
        suite.extend(cases)
        lines = [verdict_of(report), describe_ladder(report) or ""]
        ET.SubElement(suite, "system-out").text = _ILLEGAL.sub("", "\n".join(filter(None, lines)))
        ET.indent(root)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _test_case(
    report: Report, outcome: Outcome, names: Mapping[str, str], failing: Sequence[Finding], passing: Sequence[Finding]
) -> ET.Element:
    rule = clean_line(outcome.rule)
    name = f"{rule} {names.get(outcome.rule, '')}".rstrip()
    family = f"perfdoctor.{rule[:3]}xx"
    case = ET.Element("testcase", _legal({"classname": family, "name": name, "time": f"{outcome.seconds:.3f}"}))
    why = clean_line(outcome.why or "no reason was given")
    if outcome.status != "ran":
        ET.SubElement(case, "skipped" if outcome.status == "skipped" else "error", _legal({"message": why}))
    if failing:
        more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
        message = {"type": failing[0].severity, "message": f"{clean_line(failing[0].title)}{more}"}
        ET.SubElement(case, "failure", _legal(message)).text = _messages(report, failing)
    if passing:
        ET.SubElement(case, "system-out").text = _messages(report, passing)
    return case


def _messages(report: Report, findings: Sequence[Finding]) -> str:
    return _ILLEGAL.sub("", "\n\n\n".join(plain_message(report, finding) for finding in findings))


def _legal(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: _ILLEGAL.sub("", value) for name, value in attributes.items()}


def _counts(cases: Sequence[ET.Element]) -> dict[str, str]:
    """How many tests there are, and how many of them failed or crashed."""
    failures, errors, _ = (sum(case.find(status) is not None for case in cases) for status in _STATUSES)
    return {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors)}
