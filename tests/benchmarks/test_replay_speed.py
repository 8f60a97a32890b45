"""The benchmark of replays measures a trace and prints the checks of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay_speed import SAMPLE, measure, print_gates


def test_a_row_of_the_table_has_events_calls_times_and_memory() -> None:
    cells = measure(SAMPLE, repeat=1).strip("| ").split(" | ")
    assert cells[:2] == ["3,952", "853"]
    assert all(float(cell) > 0 for cell in cells[2:])
    assert len(cells) == 7


def test_the_checks_of_each_trace_of_a_folder_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.json.gz").write_bytes(SAMPLE.read_bytes())
    print_gates(tmp_path)
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| short | 853 | 840 | ")
    assert row.endswith("| 0.0% | 100.0% | 100% | replayed |")
