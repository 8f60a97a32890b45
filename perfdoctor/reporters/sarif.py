"""The report as SARIF 2.1.0, which code scanning of GitHub, Azure DevOps and editors show beside the lines.

What a trace says is data: brackets and braces that a viewer would take for a link or a placeholder are escaped, and a
file name becomes an encoded URI.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

from perfdoctor.comparison.baseline import BaselineState
from perfdoctor.comparison.seen_finding import finding_of_report
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import ENGINE_RULE, SOURCE_LINE, Finding, Severity
from perfdoctor.report.report import Outcome, Report
from perfdoctor.report.to_plain import to_plain
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.escape_markdown import escape
from perfdoctor.reporters.finding_gate import DEFAULT_GATE, Gate
from perfdoctor.reporters.finding_texts import plain_message
from perfdoctor.reporters.json_ import render_plain
from perfdoctor.reporters.markdown import finding_body
from perfdoctor.reporters.relative_paths import with_relative_paths
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.source_files import is_file_name
from perfdoctor.rules.registry import load_analyzers

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
# Where the repository lies is left to who reads the file: GitHub takes its own checkout.
_ROOT = "%SRCROOT%"
_LEVELS: Mapping[Severity, str] = {"high": "error", "medium": "warning", "low": "note", "info": "note"}
_BASELINE_STATES: Mapping[BaselineState, str] = {"new": "new", "dearer": "updated", "accepted": "unchanged"}
# GitHub tracks alerts by this one, and computes it itself where a result has a line of a file that it has.
_GITHUB_FINGERPRINT = "primaryLocationLineHash"
_FINGERPRINT = "perfdoctorFinding/v1"
# In a message "[text](link)" is a link, and "{0}" the first argument.
_LINK, _PLACEHOLDER = re.compile(r"\](?=\()"), re.compile(r"\{(\d+)\}")
_PROPERTIES = ("severity", "confidence", "cost_ns", "share_of_step", "saving", "recurrence", "covered_by", "evidence")


@frozen_dataclass
class Sarif(Reporter):
    """One run: its rules with their manual pages, the findings as results, skipped and failed rules as notifications.

    A finding without a line is put on the first trace: GitHub refuses files in which a result has no place.
    """

    suffix = ".sarif"

    source_files: Mapping[str, str] = field(default_factory=dict)
    gate: Gate = DEFAULT_GATE

    def render_prepared(self, report: Report) -> str:
        """The report as SARIF text."""
        return render_plain({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [self._run(report)]})

    def _run(self, report: Report) -> dict[str, Any]:
        # That a rule failed is a notification.
        found = (finding.rule for finding in report.findings if finding.rule != ENGINE_RULE)
        rules = list(dict.fromkeys([*(outcome.rule for outcome in report.outcomes), *found]))
        positions = {rule: position for position, rule in enumerate(rules)}
        driver = {"name": "perfdoctor", "version": report.version, "rules": list(_describe_rules(rules))}
        return {
            "tool": {"driver": driver},
            "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _notifications(report)}],
            "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
            "columnKind": "unicodeCodePoints",
            "results": list(self._results(report, positions)),
        }

    def _results(self, report: Report, positions: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        readable, seen = with_relative_paths(report), Counter[str]()
        trace = report.traces[0].path if report.traces else "trace"
        judged = zip(self.gate.judge(report), self.gate.judge(readable), strict=True)
        for number, (recorded, (finding, _, known)) in enumerate(judged, 1):
            fingerprint = _fingerprint(finding)
            seen[fingerprint] += 1
            name = f"{fingerprint}:{seen[fingerprint]}"
            location, has_file = self._location(recorded.finding, trace)
            message = {
                "text": _escape_message(plain_message(report, finding)),
                "markdown": _markdown(readable, finding),
            }
            yield {
                "ruleId": finding.rule,
                "ruleIndex": positions[finding.rule],
                "level": _LEVELS[finding.severity],
                "message": message,
                "locations": [location],
                "partialFingerprints": {_FINGERPRINT: name} | ({} if has_file else {_GITHUB_FINGERPRINT: name}),
                "rank": round(100 * (finding.share_of_step or 0.0), 1),
                **({"baselineState": _BASELINE_STATES[known.state]} if known is not None else {}),
                # The figures by the names of the report's schema, the place in the order, and the rank.
                "properties": {"number": number, "gpu_rank": finding.rank}
                | {name: to_plain(getattr(finding, name)) for name in _PROPERTIES},
            }

    def _location(self, finding: Finding, trace: str) -> tuple[dict[str, Any], bool]:
        """The place of a result, and whether that is a line of a source file."""
        location = finding.location
        if location is None or not is_file_name(location.file):
            # A path that leads out of the repository is not one of its files.
            name = PurePosixPath(trace).name if trace.startswith(("/", "..")) or "://" in trace else trace
            place: dict[str, Any] = {"physicalLocation": _physical_location(clean_line(name), 1)}
            if location is not None:
                place["logicalLocations"] = [{"name": clean_line(str(location)), "kind": "module"}]
            return place, False
        file = self.source_files.get(location.file, location.file)
        source = finding.find_evidence(SOURCE_LINE)
        text = None if source is None else str(source)
        place = {"physicalLocation": _physical_location(clean_line(file), location.line or 1, text)}
        if location.function:
            place["logicalLocations"] = [{"name": clean_line(location.function), "kind": "function"}]
        return place, True


def _fingerprint(finding: Finding) -> str:
    """What stays the same in the next recording of a program: other figures and lines above change nothing."""
    identity = "\0".join(finding_of_report(finding).identity)
    return hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:16]


def _physical_location(file: str, line: int, source: str | None = None) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": max(line, 1)}
    if source is not None:
        region["snippet"] = {"text": clean_line(source)}
    return {"artifactLocation": _artifact(file), "region": region}


def _artifact(file: str) -> dict[str, str]:
    """The URI of a file: relative to the root of the repository, or absolute as far as that is not known."""
    windows = PureWindowsPath(file)
    path = quote(windows.as_posix() if windows.drive else file, safe="/~!$&'()*+,;=@", errors="replace")
    if windows.drive and windows.root:
        return {"uri": f"file:///{path.replace('%3A', ':', 1)}"}
    return {"uri": f"file://{path}"} if file.startswith("/") else {"uri": path or "trace", "uriBaseId": _ROOT}


def _describe_rules(rules: list[str]) -> Iterator[dict[str, Any]]:
    """The descriptor of each rule, with its manual page where it is registered."""
    analyzers = {analyzer.rule: analyzer for analyzer in load_analyzers()}
    for rule in rules:
        analyzer = analyzers.get(rule)
        if analyzer is None:  # of a plugin that another machine of a cluster has
            yield {"id": rule}
            continue
        text = analyzer.read_manual() or analyzer.name
        summary = " ".join(text.partition("\n\n")[0].split())
        descriptor = {
            "id": rule,
            "name": analyzer.__name__,  # in the form that SARIF asks for: DataLoaderStall
            "shortDescription": {"text": summary},
            "fullDescription": {"text": summary},
            "help": {"text": text, "markdown": page_markdown(text)},
            "defaultConfiguration": {"level": "warning"},
            "properties": {"tags": ["performance", analyzer.name]},
        }
        yield descriptor | ({"helpUri": analyzer.references[0]} if analyzer.references else {})


_HEADING = re.compile(r"(?m)^(\S[^\n]*):\n(?= {4})")


def page_markdown(text: str) -> str:
    """The manual page of a rule, which is its docstring, as Markdown: each part with its heading."""
    parts = _HEADING.split(inspect.cleandoc(text))
    sections = [parts[0].strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        sections.append(f"**{title}**\n\n{inspect.cleandoc(body)}")
    return "\n\n".join(sections) + "\n"


def _notifications(report: Report) -> list[dict[str, Any]]:
    """The rules that did not judge, and what is incomplete about the traces."""
    return [_describe_outcome(outcome) for outcome in report.outcomes if outcome.status != "ran"] + [
        {"level": "warning", "message": {"text": _escape_message(clean_line(warning))}}
        for trace in report.traces
        for warning in trace.warnings
    ]


def _describe_outcome(outcome: Outcome) -> dict[str, Any]:
    why = clean_line(outcome.why or "no reason was given")
    return {
        "level": "error" if outcome.status == "failed" else "note",
        "message": {"text": _escape_message(f"{outcome.rule} {outcome.status}: {why}")},
        "associatedRule": {"id": outcome.rule},
    }


def _escape_message(text: str) -> str:
    return _PLACEHOLDER.sub(r"{{\1}}", _LINK.sub(r"\\]", text))


def _markdown(report: Report, finding: Finding) -> str:
    """The whole finding, for viewers that show Markdown."""
    blocks = (f"**{escape(finding.title)}**", *finding_body(finding, report))
    return _PLACEHOLDER.sub(r"{{\1}}", "\n\n".join(blocks))
