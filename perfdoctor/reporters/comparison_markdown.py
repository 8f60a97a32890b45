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
    reasons = facts.reason_lines(comparison)
    if reasons:
        yield "\n".join(f"- {escape(reason)}" for reason in reasons)
    if comparison.devices is not None:
        yield "\n".join(("```", *device_lines(comparison.devices), "```"))
    noise = facts.describe_noise(comparison)
    if noise:
        yield escape(noise)
    memory = facts.memory_lines(comparison)
    if memory:
        yield escape("\n".join(memory))
    yield "\n".join(f"- {escape(side)}" for side in facts.describe_sides(comparison))
    known = (facts.account_table(comparison), facts.memory_table(comparison))
    tables = [table for table in known if table is not None]
    for table in (*tables, *facts.change_tables(comparison, verbose=True)):
        yield f"### {escape(table.title)}"
        yield _table(table)
    findings = facts.finding_lines(comparison, verbose=True)
    if findings:
        yield "### Findings"
        yield "\n".join(f"- **{status}**: {escape(line)}" for status, line in findings)
    promises = facts.promise_lines(comparison)
    if promises:
        yield "### Promised, and what came"
        yield "\n".join(f"- {escape(line)}" for line in promises)
    notes = facts.note_lines(comparison)
    if notes:
        yield "### Notes"
        yield "\n".join(f"- {escape(note)}" for note in notes)


def _table(table: facts.ShownTable) -> str:
    rows = ["| change | before | after | |", "|---:|---:|---:|---|"]
    rows += [f"| {row.difference} | {row.before} | {row.after} | {code_span(row.what)} |" for row in table.rows]
    return "\n".join(rows)
