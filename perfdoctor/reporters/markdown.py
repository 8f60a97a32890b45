"""The report as GitHub flavoured Markdown, for pull requests, issues and notes.

What comes from a trace is escaped: it cannot open a tag, a link, a table cell or a code fence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters import report_facts, report_notes
from perfdoctor.reporters.escape_markdown import code_block, code_span, escape
from perfdoctor.reporters.finding_texts import (
    describe_cost,
    describe_covered,
    describe_info,
    describe_recurrence,
    short_cost,
    short_saving,
)
from perfdoctor.reporters.format_values import format_evidence, format_place
from perfdoctor.reporters.once_only import once_text_of
from perfdoctor.reporters.pass_rows import pass_text_of
from perfdoctor.reporters.place_text import PLACES_TITLE, place_texts
from perfdoctor.reporters.rank_table import COLUMNS, rank_rows
from perfdoctor.reporters.report_facts import has_trials
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.time_split import time_split_of
from perfdoctor.reporters.top_rows import top_tables
from perfdoctor.reporters.trial_reports import trial_markdown
from perfdoctor.reporters.verdict import describe_ladder, describe_recorded_step, verdict_of
from perfdoctor.units import format_duration, format_share

_MAX_PATHS = 8  # in the heading
# A program that reads the report has little room for it, and people have little patience.
_MAX_LINES = 199
_MAX_LISTED = 12  # items of a list, one-offs or warnings
_MAX_ROWS = 30  # of findings in short
_URL = re.compile(r"https://[\w./#?=&%~+-]+")


@frozen_dataclass
class Markdown(Reporter):
    """The report in less than 200 lines, with headings from the second level on, so that it fits into a longer text.

    Where the findings take more, those that are worth least have a line each.
    """

    suffix = ".md"
    shortens_paths = True

    def render_prepared(self, report: Report) -> str:
        """The report as Markdown text."""
        return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: Report) -> list[str]:
    above, below = list(_blocks_above(report)), list(_blocks_below(report))
    return [*above, *_finding_blocks(report, _MAX_LINES - _count_lines([*above, *below])), *below]


def _blocks_above(report: Report) -> Iterator[str]:
    paths = ", ".join(code_span(trace.path) for trace in report.traces[:_MAX_PATHS])
    yield f"## perfdoctor: {paths or 'no trace'}"
    yield f"**{escape(verdict_of(report))}**"
    for line in (describe_ladder(report), describe_recorded_step(report, always=True)):
        if line:
            yield escape(line)
    if incomplete := report_notes.describe_incomplete_input(report):
        yield f"> **Note:** {incomplete}"
    if has_trials(report):
        yield from trial_markdown(report)
    if places := place_items(report, with_source=True):
        yield f"### {PLACES_TITLE}"
        yield "\n".join(places)
    yield from time_split_blocks(report)
    for part in filter(None, (once_text_of(report), pass_text_of(report))):
        yield f"### {escape(part.title)}"
        yield "\n".join(f"- {row.time} ({row.share}): {escape(row.what)}" for row in part.rows)
        if part.advice:
            yield escape(part.advice)
    if len(report.account) > 1:
        yield rank_table(report)


def place_items(report: Report, *, with_source: bool) -> list[str]:
    """The first of the main places as items of a list; with their source lines below them."""
    items = []
    for text in place_texts(report):
        item = f"- **{escape(text.share)}** ({text.time}) {code_span(text.name)}: {escape(text.what)}"
        source = f"  \n  {code_span(f'{text.line} | {text.source}')}" if with_source and text.source else ""
        items.append(f"{item}{source}")
    return items


def _finding_blocks(report: Report, max_lines: int) -> list[str]:
    """The findings: as many whole as there is room for, the others in a table."""
    findings = report_facts.main_findings(report)
    whole = [list(_finding(number, finding, report)) for number, finding in enumerate(findings, 1)]
    for count in range(len(findings), -1, -1):
        blocks = [block for each in whole[:count] for block in each]
        if count < len(findings):
            blocks += ["### More findings", _finding_table(findings, count, report)]
        if _count_lines(blocks) <= max_lines:
            break
    return blocks


def _finding_table(findings: list[Finding], first: int, report: Report) -> str:
    """The findings from a number on, a row each."""
    rows = ["| | finding | where | costs | a fix saves |", "|---:|---|---|---:|---:|"]
    for number, finding in enumerate(findings[first : first + _MAX_ROWS], first + 1):
        title = f"{escape(finding.title)} ({finding.severity}, {escape(finding.rule)})"
        cells = format_place(finding) or "-", short_cost(report, finding), short_saving(finding)
        rows.append(f"| {number} | {title} | {' | '.join(map(escape, cells))} |")
    left_out = len(findings) - first - _MAX_ROWS
    return "\n".join(rows) + (f"\n\nand {left_out} more" if left_out > 0 else "")


def _count_lines(blocks: Iterable[str]) -> int:
    return sum(block.count("\n") + 2 for block in blocks)


def _blocks_below(report: Report) -> Iterator[str]:
    yield from _list_of("Not in every step", map(one_off_line, report_facts.one_off_findings(report)))
    yield from _list_of("Also seen", (info_line(finding, report) for finding in report_facts.info_findings(report)))
    for table in top_tables(report, in_full=True):
        yield f"### {table.title}"
        rows = ["| share | time | | |", "|---:|---:|---|---|"]
        rows += [f"| {escape(r.share)} | {r.time} | {escape(r.name)} | {escape(r.what)} |" for r in table.rows]
        yield "\n".join(rows)
    yield from note_blocks(report)


def _list_of(title: str, items: Iterable[str]) -> Iterator[str]:
    """The first items of a list below their heading, and how many more there are; nothing without any."""
    lines = list(items)
    if lines:
        yield f"### {title}"
        more = len(lines) - _MAX_LISTED
        yield "\n".join(lines if more <= 1 else [*lines[:_MAX_LISTED], f"- and {more} more"])


def note_blocks(report: Report) -> Iterator[str]:
    """What stands below the findings: time without a finding, rules that did not judge, warnings about the traces."""
    unexplained = report_notes.unexplained_lines(report, of_work=False)
    lists: dict[str, Iterable[str]] = {
        "Not explained by a finding": [f"{escape(share)}: {escape(sentence)}" for share, sentence in unexplained],
        "Memory": map(escape, report_notes.memory_lines(report)),
        "Not judged": map(_skipped_line, report_notes.skipped_rules(report)),
        "About the trace": map(escape, report_notes.group_trace_warnings(report)),
    }
    for title, items in lists.items():
        yield from _list_of(title, (f"- {item}" for item in items))


def _skipped_line(group: report_notes.SkippedRules) -> str:
    if group.needs_gpu:
        return escape(report_notes.describe_gpu_rules(group))
    return f"{escape(', '.join(group.rules))}: {escape(group.why)}"


def time_split_blocks(report: Report) -> Iterator[str]:
    """Where the time of a step went, as a table with its heading; nothing where that is not known."""
    split = time_split_of(report)
    if split is None:
        return
    yield f"### {escape(split.title)}"
    rows = ["| | time | share |", "|---|---:|---:|"]
    rows += [
        f"| {escape(part.label_with_roof)} | {format_duration(part.ns)} | {escape(format_share(part.share))} |"
        for part in split.buckets
    ]
    yield "\n".join(rows)
    if split.details:
        yield "\n".join(
            f"- {part.label}: {format_duration(part.ns)} ({escape(format_share(part.share))})" for part in split.details
        )
    rates = [escape(line) for line in (split.tensor_cores, split.rates) if line]
    if rates:
        yield "  \n".join(rates)


def rank_table(report: Report) -> str:
    """The ranks of the job, a row each."""
    rows, left_out = rank_rows(report)
    step = "step" if report_facts.has_steps(report) else "window"
    lines = [f"| rank | {step} | {' | '.join(COLUMNS)} | late by |", "|---:" * (3 + len(COLUMNS)) + "|"]
    lines += [
        f"| {row.rank} | {format_duration(row.step_ns)} | {' | '.join(escape(format_share(s)) for s in row.shares)} "
        f"| {format_duration(row.late_ns)} |"
        for row in rows
    ]
    return "\n".join(lines) + (f"\n\n{escape(left_out)}" if left_out else "")


def _finding(number: int, finding: Finding, report: Report) -> Iterator[str]:
    yield f"### {number}. {escape(finding.title)} ({finding.severity}, {escape(finding.rule)})"
    yield from finding_body(finding, report)


def finding_body(finding: Finding, report: Report) -> Iterator[str]:
    """What stands below the heading of a finding: its cost, its place, the evidence, what to do and the fix."""
    lines = [f"- {escape(cost)}"] if (cost := describe_cost(report, finding)) else []
    if finding.confidence < 0.8:
        lines.append(f"- confidence {escape(format_share(finding.confidence))}")
    if finding.location:
        lines.append(f"- at {code_span(format_place(finding))}")
    lines += [f"- {escape(evidence.label)}: {_evidence_value(evidence)}" for evidence in finding.evidence]
    yield "\n".join(lines)
    yield f"**What to do:** {escape(finding.advice)}"
    if finding.fix:
        yield code_block(finding.fix)
    if covered := report_facts.covered_findings(report, finding):
        yield "\n".join(f"- also true: {describe_covered(each, escape)}" for each in covered)
    if finding.references:
        # A link where the text is nothing but a URL.
        yield "See " + ", ".join(f"<{each}>" if _URL.fullmatch(each) else escape(each) for each in finding.references)


def _evidence_value(evidence: Evidence) -> str:
    """The value; a text is a name as a rule, and a name reads best as code."""
    value = format_evidence(evidence)
    return code_span(value) if isinstance(evidence.value, str) else escape(value)


def one_off_line(finding: Finding) -> str:
    """A finding about what happens now and then, as an item of a list."""
    place = f", at {code_span(str(finding.location))}" if finding.location else ""
    what = f"{escape(finding.rule)}: {escape(finding.title)} ({describe_recurrence(finding)})"
    return f"- {what}{place}. {escape(finding.advice)}"


def info_line(finding: Finding, report: Report) -> str:
    """A finding that is only mentioned, as an item of a list."""
    place = f", at {code_span(str(finding.location))}" if finding.location else ""
    cost = f" ({escape(cost)})" if (cost := describe_info(report, finding)) else ""
    return f"- {escape(finding.rule)}: {escape(finding.title)}{cost}{place}"
