"""A comparison as Markdown, with headings from the second level on, for a pull request or a longer text."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.comparison.comparison import Comparison
from perfdoctor.reporters import comparison_facts as facts
from perfdoctor.reporters.device_comparison_text import device_lines
from perfdoctor.reporters.escape_markdown import code_span, escape


def render_comparison_markdown(comparison: Comparison) -> str:
    """The comparison as Markdown text, with all tables in the long form."""
    return "\n\n".join(_blocks(comparison)) + "\n"


def _blocks(comparison: Comparison) -> Iterator[str]:
    yield "## perfdoctor compare"
    yield f"**{escape(facts.verdict_of(comparison))}**"
    if reasons := facts.reason_lines(comparison):
        yield "\n".join(f"- {escape(reason)}" for reason in reasons)
    if comparison.devices is not None:
        yield "\n".join(("```", *device_lines(comparison.devices), "```"))
    if noise := facts.describe_noise(comparison):
        yield escape(noise)
    if memory := facts.memory_lines(comparison):
        yield escape("\n".join(memory))
    yield "\n".join(f"- {escape(side)}" for side in facts.describe_sides(comparison))
    for table in facts.shown_tables(comparison, verbose=True):
        yield f"### {escape(table.title)}"
        yield _table(table)
    lists = {
        "Findings": [f"**{status}**: {escape(line)}" for status, line in facts.finding_lines(comparison, verbose=True)],
        "Promised, and what came": list(map(escape, facts.promise_lines(comparison))),
        "Notes": list(map(escape, facts.note_lines(comparison))),
    }
    for title, items in lists.items():
        if items:
            yield f"### {title}"
            yield "\n".join(f"- {item}" for item in items)


def _table(table: facts.ShownTable) -> str:
    rows = ["| change | before | after | |", "|---:|---:|---:|---|"]
    rows += [f"| {row.difference} | {row.before} | {row.after} | {code_span(row.what)} |" for row in table.rows]
    return "\n".join(rows)
