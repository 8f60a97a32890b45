"""The short form of a report or a comparison as HTML for the cell of a notebook.

It stands in somebody else's page: no script, no style sheet and no class, only styles of its own elements, which take
the colours of their surroundings, light or dark. The colours of the bar are seen on both.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfdoctor.comparison.comparison import Comparison
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import Finding, Severity
from perfdoctor.report.report import Report
from perfdoctor.reporters import comparison_facts, report_notes
from perfdoctor.reporters.clean_text import clean_block, clean_line
from perfdoctor.reporters.finding_texts import describe_cost, short_cost, short_saving
from perfdoctor.reporters.format_values import format_evidence, format_place
from perfdoctor.reporters.place_text import PLACES_TITLE, PlaceText, place_texts
from perfdoctor.reporters.report_facts import info_findings, main_findings, one_off_findings
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.time_split import TimeSplit, time_split_of
from perfdoctor.reporters.verdict import describe_ladder, describe_recorded_step, verdict_of
from perfdoctor.units import format_count, format_share

# Of Okabe and Ito, who chose them for all kinds of colour vision: seen on white and on black.
_COLORS: Mapping[str, str] = {
    "compute": "#009e73",
    "bandwidth": "#0072b2",
    "communication": "#cc79a7",
    "overhead": "#e69f00",
}
_SEVERITY_COLORS: Mapping[Severity, str] = {"high": "#d55e00", "medium": "#e69f00", "low": "#56b4e9", "info": "#999999"}
_LINE = "1px solid rgba(128, 128, 128, .4)"
_QUIET = "opacity: .75; margin: .3em 0"
_BOX = "max-width: 62em; line-height: 1.45; overflow-wrap: break-word"
_MAX_ROWS = 12


@frozen_dataclass
class NotebookHtml(Reporter):
    """Verdict, ladder, main places, the step as a bar, and a table of findings; evidence and fix open with a click."""

    suffix = ".html"
    shortens_paths = True

    def render_prepared(self, report: Report) -> str:
        """The report as a piece of HTML."""
        return _tag("div", "".join(_report_parts(report)), _BOX) + "\n"


def render_comparison_html(comparison: Comparison) -> str:
    """The short form of a comparison as a piece of HTML: what became of the step, where, and of which findings."""
    return _tag("div", "".join(_comparison_parts(comparison)), _BOX) + "\n"


def _report_parts(report: Report) -> Iterator[str]:
    yield _verdict(verdict_of(report))
    notes = [describe_ladder(report), describe_recorded_step(report, always=True)]
    yield from (_tag("p", _text(note), _QUIET) for note in (*notes, _describe_incomplete(report)) if note)
    yield from _list(PLACES_TITLE, map(_place, place_texts(report)))
    split = time_split_of(report)
    if split is not None:
        yield _bar(split)
    findings = main_findings(report)[:_MAX_ROWS]
    if findings:
        head = ("", "finding", "where", "costs", "a fix saves")
        yield _table(
            head, [_row(number, finding, report) for number, finding in enumerate(findings, 1)], numbers=(3, 4)
        )
        yield from (_details(number, finding, report) for number, finding in enumerate(findings, 1))
    rest = len(main_findings(report)) - len(findings)
    others = rest + len(one_off_findings(report)) + len(info_findings(report))
    if others:
        yield _tag("p", f"{format_count(others, 'more finding')}: <code>report.print()</code>", _QUIET)


def _describe_incomplete(report: Report) -> str | None:
    text = report_notes.describe_incomplete_input(report)
    return f"Note: {text}" if text else None


def _place(text: PlaceText) -> str:
    source = f"<div><code>{_text(text.line)} | {_text(text.source)}</code></div>" if text.source else ""
    return f"<b>{text.share}</b> ({text.time}) <code>{_text(text.name)}</code>: {_text(text.what)}{source}"


def _verdict(text: str) -> str:
    return _tag("p", _text(text), "font-size: 1.1em; font-weight: 600; margin: .3em 0")


def _bar(split: TimeSplit) -> str:
    """The average step as a bar of its buckets, and what each colour means."""
    parts = [(part, _COLORS[part.label]) for part in split.buckets if part.share > 0]
    bar = "".join(_tag("span", "", f"width: {100 * part.share:.2f}%; background: {color}") for part, color in parts)
    legend = "".join(
        _tag("span", f"{_swatch(color)}{_text(part.label_with_roof)} {format_share(part.share)}", "margin-right: 1.2em")
        for part, color in parts
    )
    words = html.escape(", ".join(f"{part.label} {format_share(part.share)}" for part, _ in parts))
    style = "display: flex; height: 1em; max-width: 40em; border-radius: 3px; overflow: hidden; margin: .5em 0 .2em"
    drawn = f'<div role="img" aria-label="{words}" style="{style}">{bar}</div>'
    return f"{_tag('p', _text(split.title), _QUIET)}{drawn}{_tag('div', legend, 'font-size: .9em')}"


def _swatch(color: str) -> str:
    style = f"display: inline-block; width: .7em; height: .7em; margin-right: .35em; background: {color}"
    return _tag("span", "", style)


def _row(number: int, finding: Finding, report: Report) -> list[str]:
    title = f"<b>{number}. {_text(finding.title)}</b> ({_text(finding.rule)})"
    mark = f'<span style="white-space: nowrap">{_swatch(_SEVERITY_COLORS[finding.severity])}{finding.severity}</span>'
    cells = (format_place(finding, 60) or "-", short_cost(report, finding), short_saving(finding))
    return [mark, title, *map(_text, cells)]


def _details(number: int, finding: Finding, report: Report) -> str:
    """What opens below the table: cost, place, evidence, what to do, and the fix."""
    lines = [_text(cost)] if (cost := describe_cost(report, finding)) else []
    if finding.location:
        lines.append(f"at <code>{_text(format_place(finding))}</code>")
    lines += [f"{_text(each.label)}: {_text(format_evidence(each))}" for each in finding.evidence]
    listed = "".join(f"<li>{line}</li>" for line in lines)
    fix = f"<pre>{html.escape(clean_block(finding.fix))}</pre>" if finding.fix else ""
    summary = f'<summary style="cursor: pointer">{number}. {_text(finding.rule)}: evidence and fix</summary>'
    return (
        f'<details style="margin: .3em 0">{summary}<ul>{listed}</ul>'
        f"<p><b>What to do:</b> {_text(finding.advice)}</p>{fix}</details>"
    )


def _comparison_parts(comparison: Comparison) -> Iterator[str]:
    yield _verdict(comparison_facts.verdict_of(comparison))
    noise = comparison_facts.describe_noise(comparison)
    above = (*comparison_facts.reason_lines(comparison), *comparison_facts.memory_lines(comparison))
    lines = [*above, *([noise] if noise else [])]
    yield from (_tag("p", _text(line), _QUIET) for line in (*lines, *comparison_facts.describe_sides(comparison)))
    for table in comparison_facts.shown_tables(comparison, verbose=False):
        yield _tag("p", f"<b>{_text(table.title)}</b>", "margin: .8em 0 .2em")
        rows = [[_text(cell) for cell in row] for row in table.rows]
        yield _table(("change", "before", "after", ""), rows, numbers=(0, 1, 2))
    findings = comparison_facts.finding_lines(comparison, verbose=False)
    yield from _list("Findings", [f"<b>{_text(status)}</b>: {_text(line)}" for status, line in findings])
    yield from _list("Promised, and what came", map(_text, comparison_facts.promise_lines(comparison)))
    yield from _list("Notes", map(_text, comparison_facts.note_lines(comparison)))


def _list(title: str, items: Iterable[str]) -> Iterator[str]:
    listed = "".join(f"<li>{item}</li>" for item in items)
    if listed:
        yield f'<p style="margin: .8em 0 .2em"><b>{title}</b></p><ul>{listed}</ul>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    """A table of cells that are HTML already; the columns `numbers` are aligned to the right."""

    def line(tag: str, cells: Sequence[str]) -> str:
        sides = ["right; white-space: nowrap" if column in numbers else "left" for column in range(len(cells))]
        styled = (
            _tag(tag, cell, f"text-align: {side}; vertical-align: top; padding: .25em .6em; border-bottom: {_LINE}")
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(styled)}</tr>"

    body = "".join(line("td", row) for row in rows)
    style = "border-collapse: collapse; margin: .6em 0; background: none; color: inherit; font-size: inherit"
    return f'<table style="{style}"><thead>{line("th", head)}</thead><tbody>{body}</tbody></table>'


def _tag(name: str, content: str, style: str) -> str:
    return f'<{name} style="{style}">{content}</{name}>'


def _text(text: str) -> str:
    """A text as HTML that shows it literally, on one line."""
    return html.escape(clean_line(text))
