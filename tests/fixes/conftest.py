"""A project of one file, and findings about lines of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from plain_finding import AT, CALL, find_mark, finding_at, take_marks_out

from perfdoctor.fixes.choose_edits import EDITS, apply_edits
from perfdoctor.fixes.project import Project


@pytest.fixture
def edit_text(tmp_path: Path) -> Callable[..., str]:
    """Edits a text as one action asks; the finding is at the line with the mark, which is taken out first."""

    def edit(text: str, action: str, setting: str = "", device_kind: str = "cpu", command: tuple[str, ...] = ()) -> str:
        line, called = find_mark(text, AT), find_mark(text, CALL)
        script = tmp_path / "train.py"
        script.write_text(take_marks_out(text))
        project = Project(script, tmp_path, device_kind, command)
        finding = finding_at(line, action, setting, called=f"train.py:{called}" if called else "")
        [after] = apply_edits([EDITS[action](finding, setting, project)]).values()
        assert script.read_text() == take_marks_out(text)
        return after.decode()

    return edit
