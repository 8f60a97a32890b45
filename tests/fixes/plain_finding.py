"""Findings as edits read them."""

from __future__ import annotations

from typing import Any

from perfdoctor.report.finding import USED_AT


def finding_at(
    line: int | None, action: str, setting: str = "", file: str = "train.py", used: str = ""
) -> dict[str, Any]:
    """A finding as in the JSON report, with what an edit reads of it."""
    return {
        "rule": "PD000",
        "covered_by": None,
        "location": None if line is None else {"file": file, "line": line, "function": None},
        "evidence": [{"label": "used", "value": used, "unit": "", "id": USED_AT}] if used else [],
        "actions": [{"id": action, "value": setting or None}],
    }
