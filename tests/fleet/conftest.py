"""The way to the fleets of the rules' cases, and fleets in files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "analyzers"):
    if str(folder) not in sys.path:  # importlib mode puts no test folder on the path
        sys.path.append(str(folder))


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A folder of four ranks, of which the third is late."""
    from cases_ranks import fleet, one_late

    folder = tmp_path / "run"
    folder.mkdir()
    for rank, trace in enumerate(fleet(one_late(2, 200))):
        trace.write(folder / f"rank{rank}.json")
    return folder
