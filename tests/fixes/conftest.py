"""A project of one file, and findings about lines of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from plain_finding import finding_at

from perfdoctor.fixes.choose_edits import EDITS, apply_edits
from perfdoctor.fixes.project import Project

MARK = "  # <-"


@pytest.fixture
def edit_text(tmp_path: Path) -> Callable[..., str]:
    """Edits a text as one action asks; the finding is at the line with the mark, which is taken out first."""

    def edit(text: str, action: str, setting: str = "", device_kind: str = "cpu", command: tuple[str, ...] = ()) -> str:
        lines = text.splitlines(keepends=True)
        line = next((number for number, each in enumerate(lines, 1) if MARK in each), None)
        script = tmp_path / "train.py"
        script.write_text(text.replace(MARK, ""))
        project = Project(script, tmp_path, device_kind, command)
        found = EDITS[action](finding_at(line, action, setting), setting, project)
        [after] = apply_edits([found]).values()
        assert script.read_text() == text.replace(MARK, "")
        return after.decode()

    return edit
