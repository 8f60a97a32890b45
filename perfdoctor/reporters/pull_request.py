"""The report as Markdown for a pull request: the verdict and a table of findings, and the rest folded away.

A suffix of its own, .pr.md, because -o report.md is the whole report, which others read and parse: a comment has a
limit of 65,536 characters, and who reviews code reads one screen.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from perfdoctor.comparison.baseline import FindingState
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters import markdown, report_notes
from perfdoctor.reporters.clean_text import clean_line, shorten_end
from perfdoctor.reporters.escape_markdown import escape
from perfdoctor.reporters.finding_gate import DEFAULT_GATE, Gate
from perfdoctor.reporters.finding_texts import SEVERITY_MARKS, short_cost, short_saving
from perfdoctor.reporters.format_values import format_place
from perfdoctor.reporters.report_facts import has_trials, info_findings, main_findings, one_off_findings
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.trial_reports import trial_markdown
from perfdoctor.reporters.verdict import describe_ladder, describe_recorded_step, verdict_of
from perfdoctor.units import format_count

MARKER = "<!-- perfdoctor -->"
"""The first line, by which a bot finds its comment again to replace it."""
# GitHub takes 65,536 characters, and counts some as two: bytes are never fewer.
_MAX_BYTES = 65_000
_MAX_ROWS = 30
_MAX_TITLE, _MAX_PLACE = 160, 80


@frozen_dataclass
class PullRequest(Reporter):
    """Verdict, ladder, and a table of findings with place, cost and saving; details are folded."""

    suffix = ".pr.md"
    shortens_paths = True

    gate: Gate = DEFAULT_GATE

    def render_prepared(self, report: Report) -> str:
        """The report as Markdown text; details that do not fit into a comment are left out from the end."""
        text = "\n\n".join(self._head(report))
        details = list(_details(report))
        for number, detail in enumerate(details):
            rest = f"\n\n{format_count(len(details) - number, 'part')} of the report did not fit into this comment.\n"
            if len(f"{text}\n\n{detail}{rest}".encode()) > _MAX_BYTES:
                return f"{text}{rest}"
            text = f"{text}\n\n{detail}"
        return f"{text}\n"

    def _head(self, report: Report) -> Iterator[str]:
        yield MARKER
        yield "### perfdoctor"
        yield f"**{escape(verdict_of(report))}**"
        lines = filter(None, (describe_ladder(report), describe_recorded_step(report, always=True)))
        yield from (escape(line) for line in lines)
        incomplete = report_notes.describe_incomplete_input(report)
        if incomplete:
            yield f"> **Note:** {escape(incomplete)}"
        if places := markdown.place_items(report, with_source=False):
            yield "\n".join(places)
        findings = main_findings(report)
        if findings:
            known = {id(judged.finding): judged.known for judged in self.gate.judge(report)}
            rows = [_row(number, each, report, known[id(each)]) for number, each in enumerate(findings[:_MAX_ROWS], 1)]
            yield "\n".join([*_HEADING, *rows])
        if len(findings) > _MAX_ROWS:
            yield f"and {format_count(len(findings) - _MAX_ROWS, 'more finding')} below"


_HEADING = ("| | finding | where | costs | a fix saves |", "|---|---|---|---:|---:|")


def _row(number: int, finding: Finding, report: Report, known: FindingState | None) -> str:
    title = f"**{number}. {escape(shorten_end(clean_line(finding.title), _MAX_TITLE))}** ({escape(finding.rule)})"
    place = escape(format_place(finding, _MAX_PLACE)) or "-"
    mark = f"{SEVERITY_MARKS[finding.severity]} {finding.severity}{f', {known.state}' if known else ''}"
    return f"| {mark} | {title} | {place} | {escape(short_cost(report, finding))} | {escape(short_saving(finding))} |"


def _details(report: Report) -> Iterator[str]:
    """What is folded away, the most useful first."""
    if has_trials(report):
        yield _folded("What was tried", trial_markdown(report))
    for number, finding in enumerate(main_findings(report), 1):
        yield _folded(f"{number}. {finding.rule}: evidence and fix", markdown.finding_body(finding, report))
    others = [markdown.one_off_line(finding) for finding in one_off_findings(report)]
    others += [markdown.info_line(finding, report) for finding in info_findings(report)]
    if others:
        yield _folded(f"Also seen ({len(others)})", ["\n".join(others)])
    if report.account:
        yield _folded("Where the time goes", [*markdown.time_split_blocks(report), *_rank_blocks(report)])
    notes = list(markdown.note_blocks(report))
    if notes:
        yield _folded("How far this goes", notes)


def _rank_blocks(report: Report) -> Iterator[str]:
    if len(report.account) > 1:
        yield markdown.rank_table(report)


def _folded(title: str, blocks: Iterator[str] | list[str]) -> str:
    """Blocks of Markdown that a click opens. The blank lines make GitHub read them as Markdown."""
    summary = html.escape(clean_line(title)).replace("@", "@\N{WORD JOINER}")
    return "\n\n".join([f"<details><summary>{summary}</summary>", *blocks, "</details>"])
