"""Paths as people read them: relative to the program, and of what is installed from its package on.

Reports for programs keep the whole paths; those that people read name a file as they would.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perfdoctor.report.chart_data import RankCharts
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.report.table import Column, Table
from perfdoctor.report.trial_result import Trial

# Up to the package: what lies before is where a machine has its Python.
_INSTALLED = re.compile(r"(?<![\w/])[^\s\"'()]*/(?:(?:site|dist)-packages|lib/python\d[\d.]*)/")


def with_relative_paths(report: Report) -> Report:
    """The report with the paths in its findings, sentences and tables shortened by leading folders."""
    shorten = make_shortener(report.program_folders)
    return replace(
        report,
        findings=tuple(_shorten_finding(finding, shorten) for finding in report.findings),
        places=tuple(replace(each, file=each.file and shorten(each.file)) for each in report.places),
        unexplained=tuple(replace(each, sentence=shorten(each.sentence)) for each in report.unexplained),
        trials=tuple(_shorten_trial(trial, shorten) for trial in report.trials),
        tables={
            name: tuple({key: _shorten_value(value, shorten) for key, value in row.items()} for row in rows)
            for name, rows in report.tables.items()
        },
        charts=None if report.charts is None else _shorten_charts(report.charts, shorten),
    )


def make_shortener(folders: tuple[str, ...]) -> Callable[[str], str]:
    """What takes the first folder of the program that fits away from the paths in a text."""
    prefixes = [f"{folder.rstrip('/')}/" for folder in folders if len(folder) > 1]
    ours = re.compile("|".join(rf"(?<![\w/.]){re.escape(prefix)}" for prefix in prefixes)) if prefixes else None

    def shorten(text: str) -> str:
        text = _INSTALLED.sub("", text) if "/" in text else text
        return text if ours is None else ours.sub("", text)

    return shorten


def _shorten_finding(finding: Finding, shorten: Callable[[str], str]) -> Finding:
    location = finding.location
    return replace(
        finding,
        title=shorten(finding.title),
        advice=shorten(finding.advice),
        location=None if location is None else replace(location, file=shorten(location.file)),
        evidence=tuple(replace(each, value=_shorten_value(each.value, shorten)) for each in finding.evidence),
    )


def _shorten_trial(trial: Trial, shorten: Callable[[str], str]) -> Trial:
    places = tuple(replace(place, file=shorten(place.file)) for place in trial.locations)
    return replace(trial, locations=places, why=shorten(trial.why))


def _shorten_value(value: Any, shorten: Callable[[str], str]) -> Any:
    return shorten(value) if isinstance(value, str) else value


def _shorten_charts(charts: RankCharts, shorten: Callable[[str], str]) -> RankCharts:
    timeline, flames = charts.timeline, charts.flames
    if flames is not None:
        places = {node: replace(each, file=each.file and shorten(each.file)) for node, each in flames.places.items()}
        flames = replace(flames, places=places)
    return replace(
        charts,
        timeline=None if timeline is None else replace(timeline, names=tuple(map(shorten, timeline.names))),
        flames=flames,
        tables=tuple(_shorten_table(table, shorten) for table in charts.tables),
    )


def _shorten_table(table: Table, shorten: Callable[[str], str]) -> Table:
    def shorten_cells(column: Column) -> Column:
        values = tuple(_shorten_value(value, shorten) for value in column.values)
        return replace(column, values=values) if column.unit == "text" else column

    return replace(table, columns=tuple(map(shorten_cells, table.columns)))
