"""A finding in a few lines of plain text, for formats that show little more than a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfdoctor.report.finding import Finding, Severity
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_block, clean_line
from perfdoctor.reporters.format_values import format_finding_saving, format_place
from perfdoctor.reporters.rank_table import format_finding_ranks
from perfdoctor.reporters.report_facts import per_step_suffix, share_of_step
from perfdoctor.savings.saving import SavingAlone
from perfdoctor.units import UNKNOWN, format_duration, format_share, format_size

SEVERITY_MARKS: Mapping[Severity, str] = {"high": "🔴", "medium": "🟠", "low": "🟡", "info": "⚪"}
"""A mark for each severity, which stands beside its word."""


def short_cost(report: Report, finding: Finding) -> str:
    """What a finding costs, for a cell of a table: "19.0 ms (44%) on rank 2"; "-" where it costs no time."""
    if not finding.cost_ns:
        return f"wrong results{format_finding_ranks(report, finding)}" if finding.makes_results_wrong else "-"
    cost = f"{format_duration(finding.cost_ns)} ({format_share(share_of_step(report, finding))})"
    return f"{cost}{format_finding_ranks(report, finding)}"


def short_saving(finding: Finding) -> str:
    """What its fix saves, for a cell of a table: "15.0 ms", "up to 19.0 ms", "1.20 GB"; "n/a" where it is not known.

    "-" where it is not about time or memory that a fix gives back.
    """
    saving = finding.saving
    if finding.saved_bytes is not None:
        saved = finding.saved_bytes
        return format_size(saved.expected) if saved.low > 0 else f"up to {format_size(saved.high)}"
    if saving.expected_ns is not None and (saving.basis != "bounded" or saving.low_ns):
        return format_duration(saving.expected_ns)
    if saving.high_ns is None:
        return UNKNOWN if saves_anything(finding) else "-"
    return f"up to {format_duration(saving.high_ns)}"


def saves_anything(finding: Finding) -> bool:
    """Whether there is something to say on cost and saving: an error that ends a program has neither."""
    saving = finding.saving
    is_known = finding.saved_bytes is not None or saving.promised is not None or saving.alone != SavingAlone()
    return is_known or finding.cost_ns > 0 or finding.makes_results_wrong


def describe_cost(report: Report, finding: Finding) -> str:
    """What a finding costs, and what its fix saves: "costs 19.0 ms a step (44%); saves about 15.0 ms (replayed)".

    Empty where it has no cost in time and no saving.
    """
    if not saves_anything(finding):
        return ""
    if not finding.cost_ns:
        ranks = format_finding_ranks(report, finding) if finding.makes_results_wrong else ""
        return f"{format_finding_saving(finding)}{ranks}"
    share = format_share(share_of_step(report, finding))
    cost = f"{format_duration(finding.cost_ns)}{per_step_suffix(report)} ({share})"
    return f"costs {cost}{format_finding_ranks(report, finding)}; {format_finding_saving(finding)}"


def describe_info(report: Report, finding: Finding) -> str:
    """The same in a few words, behind a title: "19.0 ms a step", "lowers the peak by 1.20 GB"; empty for neither."""
    if finding.cost_ns:
        return f"{format_duration(finding.cost_ns)}{per_step_suffix(report)}"
    return "" if finding.saved_bytes is None else format_finding_saving(finding)


def describe_covered(finding: Finding, escape: Callable[[str], str]) -> str:
    """A finding that the fix of another makes pointless: its title, its rule, and what its own fix would save.

    `escape` is the format's own for texts.
    """
    worth_ns = finding.saving.alone.expected_ns
    worth = f" (alone its fix saves {format_duration(worth_ns)})" if worth_ns else ""
    return f"{escape(finding.title)}, {escape(finding.rule)}{worth}"


def describe_recurrence(finding: Finding) -> str:
    """In how many steps a finding occurs, and its worst: "3 of 20 steps, 12.0 ms at most"; "" where not counted."""
    times = finding.recurrence
    return "" if times is None else f"{times.steps} of {times.of} steps, {format_duration(times.max_ns)} at most"


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
