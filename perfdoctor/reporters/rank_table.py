"""The ranks of a report as a table, and which of them a finding is about. Values only, no layout."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from perfdoctor.analysis.timeline.account import Account
from perfdoctor.report.finding import Finding
from perfdoctor.report.merge_findings import RANKS, format_ranges
from perfdoctor.report.report import Report
from perfdoctor.reporters.wording import clean, counted, share

# Of more ranks than this only the outliers are shown: so many of each column.
MOST_RANKS = 16
_OUTLIERS_A_COLUMN = 2

COLUMNS = ("compute", "exposed communication", "idle")
"""The parts of a rank's step, which add up to it: work, waiting for the network or other ranks, and nothing at all."""


class RankRow(NamedTuple):
    """One rank.

    Attributes:
        rank: Its name.
        step_ns: Its average step, or its window where there are no steps.
        parts_ns: What the step holds of each of COLUMNS.
        late_ns: How much later than the second-latest it comes to the collectives of a step; None where not known.
    """

    rank: str
    step_ns: float
    parts_ns: tuple[float, ...]
    late_ns: float | None

    @property
    def shares(self) -> tuple[float, ...]:
        """The parts as shares of the step, 0 to 1."""
        return tuple(part / self.step_ns if self.step_ns else 0.0 for part in self.parts_ns)


def rank_rows(report: Report, steps_of: Sequence[int]) -> tuple[list[RankRow], str]:
    """A row a rank and a sentence about those that were left out, empty when none was.

    Args:
        report: the report.
        steps_of: how many steps the account of each rank is about.
    """
    rows = [_row(a, steps, report) for a, steps in zip(report.account, steps_of, strict=True)]
    if len(rows) <= MOST_RANKS:
        return rows, ""
    figures = [(row.step_ns, *row.parts_ns, row.late_ns or 0.0) for row in rows]
    middle = [median(column) for column in zip(*figures, strict=True)]
    away = [[abs(value - mid) for value, mid in zip(row, middle, strict=True)] for row in figures]
    shown = sorted({i for column in zip(*away, strict=True) for i in _largest(column)})
    others = [row for i, row in enumerate(away) if i not in set(shown)]
    within = max(max(row) for row in others) / (middle[0] or 1.0)
    return [rows[i] for i in shown], (
        f"and {counted(len(others), 'other')}, each figure within {share(within)} of a step from the median"
    )


def _row(account: Account, steps: int, report: Report) -> RankRow:
    communication = account.detail["communication"]
    idle = sum(ns for name, ns in account.detail.items() if name.startswith("idle_"))
    parts = (account.window_ns - communication - idle, communication, idle)
    return RankRow(
        "?" if account.rank is None else str(account.rank),
        account.window_ns / steps,
        tuple(part / steps for part in parts),
        report.late_ns.get(account.rank),
    )


def _largest(column: Sequence[float]) -> list[int]:
    """The rows of the largest values of a column, those of zero left out."""
    order = sorted(range(len(column)), key=lambda i: (-column[i], i))
    return [i for i in order[:_OUTLIERS_A_COLUMN] if column[i] > 0]


def whose(report: Report, finding: Finding) -> str:
    """The words that name a finding's ranks, where there are several to choose from: " on ranks 0-3"."""
    if len(report.traces) < 2:
        return ""
    if finding.rank is not None:
        return f" on rank {finding.rank}"
    ranks = next((clean(str(e.value)) for e in finding.evidence if e.label == RANKS), None)
    if ranks is None:
        return ""
    every = format_ranges(a.rank for a in report.account if a.rank is not None)
    return f" on all {len(report.account)} ranks" if ranks == every else f" on ranks {ranks}"


def missing(report: Report) -> str | None:
    """A sentence about the ranks that could not be analysed; None when there are none."""
    if not report.missing:
        return None
    first = report.missing[0]
    names = [clean(trace.path) if trace.rank is None else f"rank {trace.rank}" for trace in report.missing]
    numbers = [trace.rank for trace in report.missing if trace.rank is not None]
    if len(names) == 1:
        return f"{names[0]}: {clean(first.warnings[0])}"
    which = f"ranks {format_ranges(numbers)} are" if len(numbers) == len(names) else f"{len(names)} files are"
    return f"{which} missing from the analysis; the first, {names[0]}: {clean(first.warnings[0])}"
