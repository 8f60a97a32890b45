"""All charts and tables of one rank for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from perfdoctor.charts.idle_flames import idle_flames_of
from perfdoctor.charts.roofline import roofline_of
from perfdoctor.charts.step_series import step_series_of
from perfdoctor.charts.step_timeline import step_timeline_of
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import RankCharts
from perfdoctor.report.finding import describe_error
from perfdoctor.report.table import Table

_Made = TypeVar("_Made")

TABLE_ROWS = 200
"""How many rows of a table the page has."""


def rank_charts_of(rank: Rank, tables: Mapping[str, Callable[[Rank], Table]] = MappingProxyType({})) -> RankCharts:
    """The charts of a rank, None where the trace lacks their data, and of its tables those with rows.

    What fails costs only itself, and is among the notes: the report is worth more than a chart.

    Args:
        rank: The rank.
        tables: By name what makes each table.
    """
    notes: list[str] = []

    def make(what: str, build: Callable[[Rank], _Made]) -> _Made | None:
        try:
            return build(rank)
        except Exception as error:
            notes.append(f"{what} could not be made, which is our fault: {describe_error(error)}")
            return None

    timeline = make("the timeline", step_timeline_of)
    flames = make("the flame graph", idle_flames_of)
    roofline = make("the roofline", roofline_of)
    steps = make("the series of steps", step_series_of)
    made = [make(f"the table of {name}", build) for name, build in tables.items()]
    filled = tuple(table.top(TABLE_ROWS) for table in made if table is not None and len(table))
    return RankCharts(rank.rank, timeline, flames, roofline, steps, filled, tuple(notes))
