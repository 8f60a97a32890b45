"""All charts and tables of one rank for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from perfdoctor.charts.flames import flames_of
from perfdoctor.charts.memory_timeline import memory_timelines_of
from perfdoctor.charts.roofline import roofline_of
from perfdoctor.charts.step_series import step_series_of
from perfdoctor.charts.step_timeline import step_timeline_of
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import ClaimKey, RankCharts, StepTimeline, claim_key
from perfdoctor.report.finding import Finding, describe_error
from perfdoctor.report.table import Table
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals

_Made = TypeVar("_Made")

TABLE_ROWS = 200
"""How many rows of a table the page has."""
_TIME = "step_ns"
_MAX_SPANS = 200


def rank_charts_of(
    rank: Rank, tables: Mapping[str, Callable[[Rank], Table]] = MappingProxyType({}), findings: Sequence[Finding] = ()
) -> RankCharts:
    """The charts of a rank, None where the trace lacks their data, and of its tables those with rows.

    What fails costs only itself, and is among the notes: the report is worth more than a chart.
    """
    notes: list[str] = []

    def make(what: str, build: Callable[[Rank], _Made]) -> _Made | None:
        try:
            return build(rank)
        except Exception as error:
            notes.append(f"{what} could not be made, which is our fault: {describe_error(error)}")
            return None

    timeline = make("the timeline", step_timeline_of)
    flames = make("the flame graph", flames_of)
    roofline = make("the roofline", roofline_of)
    steps = make("the series of steps", lambda rank: step_series_of(rank, findings))
    memory = make("the memory over time", lambda rank: memory_timelines_of(rank, findings)) or ()
    made = [make(f"the table of {name}", build) for name, build in tables.items()]
    filled = tuple(_largest_rows(table) for table in made if table is not None and len(table))
    claims = {} if timeline is None else _claims_in(timeline, findings)
    return RankCharts(rank.rank, timeline, flames, roofline, steps, memory, filled, claims, tuple(notes))


def _claims_in(timeline: StepTimeline, findings: Sequence[Finding]) -> dict[ClaimKey, Intervals]:
    claims: dict[ClaimKey, Intervals] = {}
    for finding in findings:
        inside = iv.clip(finding.claim.intervals, timeline.start_ns, timeline.start_ns + timeline.span_ns)
        longest = np.argsort(inside[:, 0] - inside[:, 1], kind="stable")[:_MAX_SPANS]
        if len(inside):
            claims[claim_key(finding)] = inside[np.sort(longest)] - timeline.start_ns
    return claims


def _largest_rows(table: Table) -> Table:
    """The rows with the most time, in their order: of a tree, whose parents take more than what is in them, the top."""
    if len(table) <= TABLE_ROWS or all(column.name != _TIME for column in table.columns):
        return table.top(TABLE_ROWS)
    times = table.column(_TIME).values
    order = sorted(range(len(table)), key=lambda row: (-float(times[row] or 0), row))
    return table.take(sorted(order[:TABLE_ROWS]))
