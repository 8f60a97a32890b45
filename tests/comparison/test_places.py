"""Which lines of the user's code grew between two recordings."""

from __future__ import annotations

from pathlib import Path

import perfdoctor
from perfdoctor.compare_traces import Comparison
from perfdoctor.reporters.comparison_facts import change_tables
from perfdoctor.testing import TraceBuilder


def record(path: Path, *lines: tuple[int, str, float]) -> Path:
    """Ten steps in which lines of `step` call an op each, for so many us."""
    trace, at = TraceBuilder(device=None), 0.0
    for _ in range(10):
        begin = at
        for line, op, dur_us in lines:
            trace.range(f"@/home/me/train.py:{line} step", at, dur_us).op(op, at, dur_us)
            at += dur_us
        trace.step(begin, at - begin)
    trace.write(path)
    return path


def rows_of(comparison: Comparison) -> list[tuple[str, str | None, str, int]]:
    return [(row.name, row.new_name, row.status, row.difference_ns // 1000) for row in comparison.places.rows]


def test_the_line_that_grew_comes_first(tmp_path: Path) -> None:
    before = record(tmp_path / "a.json", (10, "aten::mm", 300), (12, "aten::cat", 200))
    after = record(tmp_path / "b.json", (10, "aten::mm", 300), (12, "aten::cat", 900))
    comparison = perfdoctor.compare(before, after)
    assert rows_of(comparison)[0] == ("train.py:12", None, "slower", 700)
    assert (
        sum(row.difference_ns for row in comparison.places.rows) == comparison.after.mean_ns - comparison.before.mean_ns
    )
    shown = change_tables(comparison, verbose=False)[0]
    assert shown.title.startswith("By line")
    assert shown.rows[0].what == "train.py:12 (cat)"


def test_a_line_that_moved_its_function_is_the_same_and_one_that_is_written_anew_is_itself(tmp_path: Path) -> None:
    before = record(tmp_path / "a.json", (10, "aten::mm", 300), (12, "aten::cat", 200))
    after = record(tmp_path / "b.json", (9, "aten::mul", 50), (13, "aten::mm", 300), (12, "aten::stack", 90))
    assert rows_of(perfdoctor.compare(before, after)) == [
        ("train.py:12", None, "replaced", -110),
        ("train.py:9", None, "came", 50),
        ("train.py:10", "train.py:13", "replaced", 0),
    ]


def test_the_same_program_has_no_line_that_grew(tmp_path: Path) -> None:
    same = (10, "aten::mm", 300), (12, "aten::cat", 200)
    comparison = perfdoctor.compare(record(tmp_path / "a.json", *same), record(tmp_path / "b.json", *same))
    assert {row.status for row in comparison.places.rows} == {"same"}
    assert change_tables(comparison, verbose=False) == []


def test_without_lines_there_is_no_table_of_lines(tmp_path: Path) -> None:
    for name, dur_us in (("a.json", 100), ("b.json", 200)):
        TraceBuilder(device=None).step(0, dur_us).step(dur_us, dur_us).op("aten::mm", 0, dur_us).write(tmp_path / name)
    comparison = perfdoctor.compare(tmp_path / "a.json", tmp_path / "b.json")
    assert comparison.places.is_known
    assert not any(table.title.startswith("By line") for table in change_tables(comparison, verbose=True))
