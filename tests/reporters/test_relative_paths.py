"""Paths as people read them: relative to the program, never cut in their middle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import report_samples as samples

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.places.place import PlaceName
from perfdoctor.report.chart_data import FlameGraph, RankCharts
from perfdoctor.report.finding import USED_AT, Evidence
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import shorten_path, shorten_words
from perfdoctor.reporters.format_values import format_place
from perfdoctor.reporters.relative_paths import with_relative_paths
from perfdoctor.reporters.terminal import Terminal


def report_at(file: str, *folders: str) -> Report:
    report = samples.loader_stall()
    finding = replace(report.findings[0], location=SourceLocation(file, 41, "main"))
    return replace(report, findings=(finding,), program_folders=folders)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/me/job/src/train.py", "src/train.py"),
        ("/data/tools/train.py", "train.py"),
        ("/home/me/job2/train.py", "/home/me/job2/train.py"),
        ("/usr/lib/python3.11/json/decoder.py", "json/decoder.py"),
        ("/home/me/job/.venv/lib/python3.11/site-packages/lightning/pytorch/loop.py", "lightning/pytorch/loop.py"),
        ("train.py", "train.py"),
    ],
)
def test_paths_are_relative_to_the_program_or_to_the_package(file: str, shown: str) -> None:
    report = with_relative_paths(report_at(file, "/home/me/job", "/data/tools"))
    location = report.findings[0].location
    assert location is not None
    assert location.file == shown


def test_sentences_and_tables_name_files_alike() -> None:
    report = report_at("/job/a.py", "/job")
    finding = replace(report.findings[0], evidence=(Evidence("line", "called at /job/b.py:3"), Evidence("n", 3)))
    line = {"file": "/job/c.py", "line": 4, "function": None, "part": None, "source": None, "step_ns": 9, "share": 0.5}
    report = replace(report, findings=(finding,), tables={**report.tables, "lines": (line,)})
    shown = with_relative_paths(report)
    assert [each.value for each in shown.findings[0].evidence] == ["called at b.py:3", 3]
    assert shown.tables["lines"][0]["file"] == "c.py"
    assert "/job/c.py" not in Terminal().render(report)


def test_places_of_a_chart_are_those_of_the_report() -> None:
    report = samples.placed(report_at("/job/a.py", "/job"), file="/job/a.py")
    column = np.zeros(1, np.int32)
    flames = FlameGraph(("a.py:36",), column, column - 1, column, column, ("place",), {0: report.places[0].name})
    shown = with_relative_paths(replace(report, charts=RankCharts(None, flames=flames)))
    assert shown.charts is not None
    assert shown.charts.flames is not None
    assert shown.charts.flames.places[0] == shown.places[0].name == PlaceName("line", "a.py", 36, "forward")


def test_a_long_path_loses_leading_folders_only() -> None:
    path = "/home/someone/projects/vision/segmentation/train.py:41"
    assert shorten_path(path, 40) == ".../vision/segmentation/train.py:41"
    assert shorten_path(path, 5) == ".../train.py:41"
    assert shorten_path(path, 80) == path
    assert shorten_words(f"at {path}, here", 30) == "at .../segmentation/train.py:41, here"


def test_the_line_of_use_stands_beside_the_line_to_change() -> None:
    finding = report_at("train.py").findings[0]
    used = replace(finding, evidence=(Evidence("used at", "train.py:60", id=USED_AT),))
    assert format_place(finding) == "train.py:41 in main"
    assert format_place(used) == "train.py:41 in main (used at train.py:60)"
    text = Terminal().render(replace(report_at("train.py"), findings=(used,)))
    assert "at train.py:41 in main (used at train.py:60)" in text
    assert "seen: used at" not in text
