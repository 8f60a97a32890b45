"""Fixtures: the trace files of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A folder with the traces of four ranks; the third is late."""
    from cases_ranks import fleet, one_late

    folder = tmp_path / "run"
    folder.mkdir()
    for rank, trace in enumerate(fleet(one_late(2, 200))):
        trace.write(folder / f"rank{rank}.json")
    return folder
