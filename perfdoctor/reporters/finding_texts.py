"""A finding in a few lines of plain text, for formats that show little more than a message."""

from __future__ import annotations

from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_block, clean_line
from perfdoctor.reporters.format_values import format_duration, format_finding_saving, format_place, format_share
from perfdoctor.reporters.rank_table import format_finding_ranks
from perfdoctor.reporters.report_facts import per_step_suffix


def describe_cost(report: Report, finding: Finding) -> str:
    """What a finding costs, and what its fix saves: "costs 19.0 ms a step (44%); saves about 15.0 ms (replayed)"."""
    if not finding.cost_ns:
        return format_finding_saving(finding)
    share = format_share(finding.share_of_step)
    cost = f"{format_duration(finding.cost_ns)}{per_step_suffix(report)} ({share})"
    return f"costs {cost}{format_finding_ranks(report, finding)}; {format_finding_saving(finding)}"


def plain_message(report: Report, finding: Finding) -> str:
    """The finding as paragraphs: its title, what it costs and where, what to do, and the fix."""
    place = f"\nAt {format_place(finding)}." if finding.location else ""
    if finding.covered_by is not None:
        covering = report.findings[finding.covered_by]
        place += f"\nThe fix of {covering.rule} ({clean_line(covering.title)}) makes this one pointless."
    cost = describe_cost(report, finding)
    parts = [
        f"{clean_line(finding.title).rstrip('.')}.",
        f"It {cost}.{place}" if finding.cost_ns else f"{cost.capitalize()}.{place}",
        f"What to do: {clean_line(finding.advice)}",
    ]
    return "\n\n".join([*parts, *([clean_block(finding.fix)] if finding.fix else [])])
