"""Which tables a command makes: those that somebody will see."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.api import analyze_traces
from perfdoctor.cli.report_output import ReportOutput
from perfdoctor.fleet.discover import find_traces
from perfdoctor.report.report import SHORT_TEXT_TABLES, TABLES
from perfdoctor.reporters.reporter import RenderOptions
from perfdoctor.reporters.write_report import render_report

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.mark.parametrize(
    ("output", "tables"),
    [
        (ReportOutput(), SHORT_TEXT_TABLES),
        (ReportOutput(verbosity=-1), SHORT_TEXT_TABLES),
        (ReportOutput(verbosity=1), TABLES),
        (ReportOutput("json"), TABLES),
        (ReportOutput(files=("report.md",)), TABLES),
    ],
)
def test_short_text_alone_makes_fewer_tables(output: ReportOutput, tables: tuple[str, ...]) -> None:
    assert output.tables == tables


@pytest.mark.parametrize("file", sorted(path.name for path in SAMPLES.glob("*.json*"))[:4])
@pytest.mark.parametrize("verbosity", [-1, 0])
def test_short_text_is_the_same_with_fewer_tables(file: str, verbosity: int) -> None:
    short, full = (
        analyze_traces(find_traces([SAMPLES / file]), AnalysisOptions(tables=tables))
        for tables in (SHORT_TEXT_TABLES, TABLES)
    )
    assert {name for name, rows in short.tables.items() if rows} <= set(SHORT_TEXT_TABLES)
    assert full.tables["ops"] == short.tables["ops"]
    options = RenderOptions(verbosity)
    assert render_report(short, ".txt", options) == render_report(full, ".txt", options)
