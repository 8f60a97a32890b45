"""What `perfdoctor try` writes for each run: lines of 80 columns, and a bar that fits the terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoctor.cli.try_progress import TryBar, TryLines

LABEL = "two changes together: DataLoader(num_workers=2, persistent_workers=True) and torch.set_num_threads(1)"
RUN: Any = SimpleNamespace(error=None, mean_step_ns=181_000_000, seconds=7.2, steps_made=30)
BEST = SimpleNamespace(choice=SimpleNamespace(label=LABEL), median_ratio=0.72)


def state(best: Any) -> Any:
    return SimpleNamespace(candidates=[1, 2], best=best, expected_seconds=200.0, expected_runs=9)


@pytest.mark.parametrize("best", [None, BEST])
def test_lines_are_at_most_80_columns_wide_and_lose_no_word(best: Any) -> None:
    stream = io.StringIO()
    TryLines(stream).end_run(LABEL, RUN, state(best))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("    ") for line in lines[1:])
    text = " ".join(" ".join(lines).split())
    assert text.startswith(f"perfdoctor: run 1, {LABEL}: 181 ms a step (7 s)")
    assert text.endswith("about 3 min left")


def test_the_bar_stays_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    bar = TryBar(stream)
    try:
        bar.begin_run(LABEL, state(BEST))
        assert bar._progress is not None
        assert len(bar._progress.tasks[0].description) <= 48
    finally:
        bar.close()
