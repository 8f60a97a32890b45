"""The ranks of a report as a table, and the ranks of a finding in words. Values only, no layout."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from perfdoctor.analysis.timeline.account import Account
from perfdoctor.report.finding import RANKS, Finding
from perfdoctor.report.report import Report
from perfdoctor.report.table import Column, Table
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.report_facts import step_count_of
from perfdoctor.units import format_count, format_ranges, format_share

# Of more ranks than this only the outliers are shown: so many for each column.
MAX_RANKS = 16
_OUTLIERS_PER_COLUMN = 2
_MAX_RANGES = 8  # of ranks in a sentence

COLUMNS = ("compute", "exposed communication", "idle")
"""The parts of a rank's step, which add up to it: work, waiting for the network or other ranks, and nothing at all."""


class RankRow(NamedTuple):
    """One rank.

    Attributes:
        rank: Its number, "?" where unknown.
        step_ns: Its average step, or its window where there are no steps.
        parts_ns: How much of the step each of COLUMNS takes.
        late_ns: How much later than the second-latest rank it comes to the collectives of a step; None where unknown.
    """

    rank: str
    step_ns: float
    parts_ns: tuple[float, ...]
    late_ns: float | None

    @property
    def shares(self) -> tuple[float, ...]:
        """The parts as shares of the step, 0 to 1."""
        return tuple(part / self.step_ns if self.step_ns else 0.0 for part in self.parts_ns)


def rank_table(report: Report, max_rows: int) -> Table:
    """All ranks, or the first so many, as a table."""
    rows = [_rank_row(account, report) for account in report.account[:max_rows]]
    shares = zip(*(row.shares for row in rows), strict=True)
    return Table(
        "ranks",
        "rank",
        (
            Column("name", "rank", "text", tuple(row.rank for row in rows)),
            Column("step_ns", "mean step", "ns", tuple(round(row.step_ns) for row in rows), "without the profiler"),
            *(
                Column(f"{name.replace(' ', '_')}_share", name, "share", share, f"{name} as a share of the step")
                for name, share in zip(COLUMNS, shares, strict=True)
            ),
            Column(
                "late_ns",
                "late",
                "ns",
                tuple(None if row.late_ns is None else round(row.late_ns) for row in rows),
                "how much later than the second-latest rank it comes to the collectives of a step",
            ),
        ),
    )


def rank_rows(report: Report) -> tuple[list[RankRow], str]:
    """One row for each rank, and a sentence about the ranks that were left out; "" where all are shown."""
    rows = [_rank_row(account, report) for account in report.account]
    if len(rows) <= MAX_RANKS:
        return rows, ""
    figures = [(row.step_ns, *row.parts_ns, row.late_ns or 0.0) for row in rows]
    medians = [median(column) for column in zip(*figures, strict=True)]
    deviations = [[abs(value - middle) for value, middle in zip(row, medians, strict=True)] for row in figures]
    shown = sorted({i for column in zip(*deviations, strict=True) for i in _largest_rows(column)})
    others = [row for i, row in enumerate(deviations) if i not in set(shown)]
    largest = max(max(row) for row in others) / (medians[0] or 1.0)
    count = format_count(len(others), "other")
    left_out = f"and {count}, each figure within {format_share(largest)} of a step from the median"
    return [rows[i] for i in shown], left_out


def _rank_row(account: Account, report: Report) -> RankRow:
    steps = step_count_of(account, report)
    communication = account.detail["communication"]
    idle = sum(ns for name, ns in account.detail.items() if name.startswith("idle_"))
    parts = (account.window_ns - communication - idle, communication, idle)
    per_step = account.time_scale / steps
    return RankRow(
        "?" if account.rank is None else str(account.rank),
        account.window_ns * per_step,
        tuple(part * per_step for part in parts),
        report.late_ns.get(account.rank),
    )


def _largest_rows(column: Sequence[float]) -> list[int]:
    """The rows with the largest values of a column, without rows of zero."""
    order = sorted(range(len(column)), key=lambda i: (-column[i], i))
    return [i for i in order[:_OUTLIERS_PER_COLUMN] if column[i] > 0]


def format_finding_ranks(report: Report, finding: Finding) -> str:
    """The ranks of a finding: " on rank 2", " on ranks 0-3", " on all 4 ranks"; "" where the report has one trace."""
    if len(report.traces) < 2:
        return ""
    if finding.rank is not None:
        return f" on rank {finding.rank}"
    listed = finding.find_evidence(RANKS)
    if listed is None:
        return ""
    ranks = clean_line(str(listed))
    every = format_ranges(account.rank for account in report.account if account.rank is not None)
    if ranks != every:
        return f" on ranks {_cut_ranges(ranks)}"
    return " on both ranks" if len(report.account) == 2 else f" on all {len(report.account)} ranks"


def _cut_ranges(ranges: str) -> str:
    """The first ranges of many, for a sentence: hundreds of ranks may have something in common."""
    parts = ranges.split(", ")
    return ranges if len(parts) <= _MAX_RANGES else f"{', '.join(parts[:_MAX_RANGES])} and more"


def describe_missing_ranks(report: Report) -> str | None:
    """A sentence about the ranks that could not be analysed; None where there are none."""
    if not report.missing:
        return None
    first = report.missing[0]
    names = [clean_line(trace.path) if trace.rank is None else f"rank {trace.rank}" for trace in report.missing]
    numbers = [trace.rank for trace in report.missing if trace.rank is not None]
    if len(names) == 1:
        return f"{names[0]}: {clean_line(first.warnings[0])}"
    which = (
        f"ranks {_cut_ranges(format_ranges(numbers))} are" if len(numbers) == len(names) else f"{len(names)} files are"
    )
    return f"{which} missing from the analysis; the first, {names[0]}: {clean_line(first.warnings[0])}"
