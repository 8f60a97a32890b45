"""The report as workflow commands of GitHub Actions, which puts them beside the lines of a pull request.

GitHub reads them from the log of a step: ``::error file=train.py,line=41,title=PD101 ...::message``. It shows ten of
each level a step, so the findings come in their order, those of severity info only where they fail the gate, and those
that a baseline accepts not at all.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import Finding, Severity
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.finding_gate import DEFAULT_GATE, Gate
from perfdoctor.reporters.finding_texts import plain_message
from perfdoctor.reporters.relative_paths import with_relative_paths
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.source_files import is_file_name
from perfdoctor.reporters.verdict import describe_ladder, verdict_of

_LEVELS: Mapping[Severity, str] = {"high": "error", "medium": "warning", "low": "notice", "info": "notice"}
_ESCAPES_OF_DATA = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
_ESCAPES_OF_PROPERTY = (*_ESCAPES_OF_DATA, (":", "%3A"), (",", "%2C"))


@frozen_dataclass
class GithubAnnotations(Reporter):
    """A command for each finding, and a notice with the verdict before them."""

    suffix = ".github"

    gate: Gate = DEFAULT_GATE
    source_files: Mapping[str, str] = field(default_factory=dict)

    def render_prepared(self, report: Report) -> str:
        """The commands, a line each."""
        return "\n".join(self._commands(report)) + "\n"

    def _commands(self, report: Report) -> Iterator[str]:
        readable = with_relative_paths(report)
        verdict = [verdict_of(readable), describe_ladder(readable)]
        yield _command("notice", {"title": "perfdoctor"}, "\n".join(filter(None, verdict)))
        for recorded, judged in zip(self.gate.judge(report), self.gate.judge(readable), strict=True):
            finding = judged.finding
            is_accepted = judged.known is not None and judged.known.state == "accepted"
            if judged.fails or not (is_accepted or finding.severity == "info"):
                place = self._place(recorded.finding)
                title = clean_line(f"{finding.rule} {finding.name}")
                yield _command(_LEVELS[finding.severity], place | {"title": title}, plain_message(readable, finding))

    def _place(self, finding: Finding) -> dict[str, str]:
        location = finding.location
        if location is None or not is_file_name(location.file):
            return {}
        file = clean_line(self.source_files.get(location.file, location.file))
        return {"file": file} if location.line is None else {"file": file, "line": str(location.line)}


def _command(level: str, properties: Mapping[str, str], message: str) -> str:
    listed = ",".join(f"{name}={_escape(value, _ESCAPES_OF_PROPERTY)}" for name, value in properties.items())
    return f"::{level} {listed}::{_escape(message, _ESCAPES_OF_DATA)}"


def _escape(text: str, escapes: tuple[tuple[str, str], ...]) -> str:
    for character, escaped in escapes:
        text = text.replace(character, escaped)
    return text
