"""The look whether the steps of a running program grow, and the early windows that are kept when they do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from long_runs import drifting_runs, healthy_runs

from perfdoctor.capture.inject._perfdoctor_inject.rank_folder import RankFolder
from perfdoctor.capture.inject._perfdoctor_inject.run_totals import MAX_LEVELS, MIN_LEVELS, StepLevels

# Three epochs or fewer that are sorted by length look like growth while they run: that costs a window, no finding.
_LOOKS_LIKE_GROWTH = "epochs sorted by length"


def levels_of(steps: list[float]) -> StepLevels:
    levels = StepLevels()
    for step in steps:
        levels.add(step)
    return levels


@pytest.mark.parametrize("name", [name for name in healthy_runs() if not name.startswith(_LOOKS_LIKE_GROWTH)])
def test_a_healthy_hour_asks_for_no_window_at_its_end(name: str) -> None:
    levels = levels_of(healthy_runs()[name].tolist())
    assert MIN_LEVELS <= len(levels.levels) <= MAX_LEVELS
    assert not levels.have_risen()


@pytest.mark.parametrize("name", drifting_runs())
def test_a_drift_asks_for_a_window(name: str) -> None:
    assert levels_of(drifting_runs()[name][0].tolist()).have_risen()


def test_a_short_run_asks_for_none() -> None:
    assert not levels_of([float(step) for step in range(1, 10 * MIN_LEVELS)]).have_risen()


@pytest.mark.parametrize("has_links", [True, False])
def test_the_first_windows_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:
        monkeypatch.delattr(os, "link")
        monkeypatch.setattr(os, "link", refuse, raising=False)
    folder = RankFolder(str(tmp_path), 0)
    for text in ("first", "second"):
        for name in ("timing.json.gz", "facts.json"):
            replaced = Path(folder.path, f".{name}")
            replaced.write_text(text)
            replaced.rename(Path(folder.path, name))
        folder.keep_early_windows()
    folder.close()
    kept = {path.name: path.read_text() for path in Path(folder.path).glob("early_*")}
    assert kept == {"early_timing.json.gz": "first", "early_facts.json": "first"}


def refuse(*_: object) -> None:
    raise OSError(1, "Operation not permitted")
