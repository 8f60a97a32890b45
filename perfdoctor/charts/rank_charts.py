"""All charts of one rank."""

from __future__ import annotations

from perfdoctor.charts.idle_flames import idle_flames_of
from perfdoctor.charts.roofline import roofline_of
from perfdoctor.charts.step_series import step_series_of
from perfdoctor.charts.step_timeline import step_timeline_of
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import RankCharts


def rank_charts_of(rank: Rank) -> RankCharts:
    """The charts of a rank; each is None where the trace lacks its data."""
    return RankCharts(rank.rank, step_timeline_of(rank), idle_flames_of(rank), roofline_of(rank), step_series_of(rank))
