"""The report as GitHub flavoured Markdown, for pull requests, issues and notes.

What comes from a trace is escaped: it cannot open a tag, a link, a table cell or a code fence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters import rank_table as ranks
from perfdoctor.reporters import report_text as summary
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.wording import clean, clean_block, duration, place, quantity, saving, share

_SPECIAL = re.compile(r"([\\`*\[\]|~$])")
# Underscores within a word are no emphasis, and num_workers stays readable.
_EDGE_UNDERSCORE = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")

_MOST_PATHS = 8  # in the heading
_ADDRESS = re.compile(r"https://[\w./#?=&%~+-]+")


def escape(text: str) -> str:
    """`text` as Markdown that shows it literally, on one line: no tag, link, emphasis, table cell, code or mention."""
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _EDGE_UNDERSCORE.sub(r"\\_", _SPECIAL.sub(r"\\\1", text))
    # GitHub links bare addresses, and tells whoever is @named; an entity or a word joiner stops both.
    text = text.replace("://", "&#58;//").replace("www.", "www&#46;")
    return text.replace("@", "@\N{WORD JOINER}")


def code(text: str) -> str:
    """`text` as a code span, whatever backticks it holds. Not for table cells: a pipe would end the cell."""
    text = clean(text)
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def fenced(text: str, language: str = "") -> str:
    """`text` as a code block whose fence is longer than any run of backticks in it."""
    block = clean_block(text)
    fence = "`" * max(3, _longest_run(block) + 1)
    return f"{fence}{language}\n{block}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


@dataclass(frozen=True, slots=True)
class Markdown(Reporter):
    """The whole report, headings from the second level on, so that it fits into a longer text."""

    suffix: ClassVar[str] = ".md"

    def render(self, report: Report) -> str:
        """The report as Markdown text."""
        return "\n\n".join(self._blocks(report)) + "\n"

    def _blocks(self, report: Report) -> Iterator[str]:
        yield f"## perfdoctor: {', '.join(code(t.path) for t in report.traces[:_MOST_PATHS]) or 'no trace'}"
        yield f"**{escape(summary.verdict(report))}**"
        cut = summary.cut_short(report)
        if cut:
            yield f"> **Note:** {cut}"
        yield from _split(report)
        if len(report.account) > 1:
            yield _ranks(report)
        together = summary.together(report)
        if together:
            yield f"**{escape(together)}**"
        for number, finding in enumerate(summary.advised(report), 1):
            yield from _finding(number, finding, report)
        notes = summary.noted(report)
        if notes:
            yield "### Also seen"
            yield "\n".join(_note(finding, summary.per_step(report)) for finding in notes)
        skipped = summary.skipped(report)
        if skipped:
            yield "### Not judged"
            yield "\n".join(f"- {escape(', '.join(group.rules))}: {escape(group.why)}" for group in skipped)
        oddities = summary.oddities(report)
        if oddities:
            yield "### About the trace"
            yield "\n".join(f"- {escape(oddity)}" for oddity in oddities)


def _split(report: Report) -> Iterator[str]:
    split = summary.split(report)
    if split is None:
        return
    yield f"### {escape(split.title)}"
    rows = ["| | time | share |", "|---|---:|---:|"]
    rows += [f"| {part.words} | {duration(part.ns)} | {escape(share(part.share))} |" for part in split.buckets]
    yield "\n".join(rows)
    if split.details:
        yield "\n".join(f"- {part.words}: {duration(part.ns)} ({escape(share(part.share))})" for part in split.details)
    said = [escape(line) for line in (split.tensor_cores, split.rates) if line]
    if said:
        yield "  \n".join(said)


def _ranks(report: Report) -> str:
    rows, left_out = summary.rank_rows(report)
    step = "step" if summary.has_steps(report) else "window"
    lines = [f"| rank | {step} | {' | '.join(ranks.COLUMNS)} | late by |", "|---:" * (3 + len(ranks.COLUMNS)) + "|"]
    lines += [
        f"| {row.rank} | {duration(row.step_ns)} | {' | '.join(escape(share(s)) for s in row.shares)} "
        f"| {duration(row.late_ns)} |"
        for row in rows
    ]
    return "\n".join(lines) + (f"\n\n{escape(left_out)}" if left_out else "")


def _finding(number: int, finding: Finding, report: Report) -> Iterator[str]:
    yield f"### {number}. {escape(finding.title)} ({finding.severity}, {escape(finding.rule)})"
    per = summary.per_step(report)
    cost = f"{duration(finding.cost_ns)}{per} ({escape(share(finding.share_of_step))}){ranks.whose(report, finding)}"
    lines = [f"- costs {cost}; {escape(saving(finding.saving, per))}"]
    if finding.confidence < 0.8:
        lines.append(f"- confidence {escape(share(finding.confidence))}")
    if finding.location:
        lines.append(f"- at {code(place(finding.location))}")
    lines += [f"- {escape(e.label)}: {_value(e.value, quantity(e))}" for e in finding.evidence]
    yield "\n".join(lines)
    yield f"**What to do:** {escape(finding.advice)}"
    if finding.fix:
        yield fenced(finding.fix)
    if finding.references:
        yield "See " + ", ".join(_reference(reference) for reference in finding.references)


def _value(value: object, words: str) -> str:
    """Texts are names as a rule, and names read best as code."""
    return code(words) if isinstance(value, str) else escape(words)


def _reference(text: str) -> str:
    """A link where it is nothing but an address."""
    return f"<{text}>" if _ADDRESS.fullmatch(text) else escape(text)


def _note(finding: Finding, per: str) -> str:
    where = f", at {code(str(finding.location))}" if finding.location else ""
    cost = f" ({duration(finding.cost_ns)}{per})" if finding.cost_ns else ""
    return f"- {escape(finding.rule)}: {escape(finding.title)}{cost}{where}"
