"""What happens once in a recording: how much of it by which cause, and how to avoid it or leave it out. No layout."""

from __future__ import annotations

from typing import Literal

from perfdoctor.analysis.timeline.first_use import OnceCause
from perfdoctor.data_rows import read_rows
from perfdoctor.report.report import OnceOnly, OncePart, Report
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.report_facts import has_steps
from perfdoctor.reporters.time_rows import TimeRow, TimeRows
from perfdoctor.units import format_count, format_duration, format_share

# A smaller share of what happens once is not shown.
_MIN_SHARE = 0.02
_SHOWN = 4
# So many causes are named in a sentence.
_NAMED = 2

_CAUSES = {row["cause"]: row for row in read_rows("reporters/once_causes.csv")}
_RECORD_LATER = (
    "Record after it: `perfdoctor run`, or torch.profiler.schedule(wait=1, warmup=3, active=3) with profiler.step() in "
    "each iteration."
)


def once_of(report: Report) -> OnceOnly | None:
    """What happens once on the rank where that is most; None where nothing does."""
    return max(report.once, key=lambda once: (once.left_out_ns, once.time_ns), default=None)


def is_first_run(report: Report) -> bool:
    """Whether nothing comes back on any rank."""
    return len(report.once) == len(report.account) > 0 and all(once.is_first_run for once in report.once)


def once_text_of(report: Report) -> TimeRows | None:
    """What happens once, in words: its causes with their shares of the recording; None where nothing does."""
    once = once_of(report)
    if once is None:
        return None
    rank = f" on rank {once.rank}" if len(report.account) > 1 else ""
    title = f"Once{rank}: {format_duration(once.time_ns)} of {format_duration(once.recording_ns)} recorded"
    if once.left_out_ns:
        title += ", left out of all other figures"
        title += f", with {format_count(once.cold_steps, 'cold step')}" if once.cold_steps else ""
    elif has_steps(report):
        title += ", before the steps"
    shown = [part for part in once.parts if part.time_ns >= _MIN_SHARE * once.time_ns][:_SHOWN]
    rows = tuple(
        TimeRow(format_duration(part.time_ns), format_share(part.share), _describe(part, report)) for part in shown
    )
    avoid = _word("avoid", once.parts[0].cause, report)
    advice = f"{_RECORD_LATER} {avoid}".strip() if once.left_out_ns else ""
    return TimeRows(title, rows, advice)


def name_causes(report: Report, once: OnceOnly, whole_ns: float) -> str:
    """The causes that take most of what happens once: "loading GPU code (5.55 s) and ...".

    Their times are left out where `whole_ns` does not include them: some of it lies before.
    """
    shown = [part for part in once.parts[:_NAMED] if part.time_ns >= once.time_ns / 10]
    is_part = sum(part.time_ns for part in shown) <= whole_ns
    return " and ".join(
        _word("name", part.cause, report) + (f" ({format_duration(part.time_ns)})" if is_part else "") for part in shown
    )


def name_largest(report: Report, once: OnceOnly) -> str:
    """The cause that takes most of what happens once."""
    return _word("name", once.parts[0].cause, report)


def _describe(part: OncePart, report: Report) -> str:
    what = _word("name", part.cause, report)
    if part.longest is None or part.longest_ns is None or part.cause in ("warm_up", "compilation"):
        return what
    longest = f"{clean_line(part.longest)} {format_duration(part.longest_ns)}"
    return f"{what}: {longest}" if part.calls == 1 else f"{what}: {format_count(part.calls, 'call')}, longest {longest}"


def _word(kind: Literal["name", "avoid"], cause: OnceCause, report: Report) -> str:
    words = _CAUSES[cause]
    is_amd = any(trace.vendor == "amd" for trace in report.traces)
    return (words[f"amd_{kind}"] if is_amd else "") or words[kind]
