"""Findings as edits read them."""

from __future__ import annotations

from typing import Any

from perfdoctor.report.finding import CALLED_AT, USED_AT

AT, CALL = "  # <-", "  # <call"
"""Marks in a text: the line of the finding, and the line where the module is called which it is about."""


def take_marks_out(text: str) -> str:
    """A text without the marks."""
    return text.replace(AT, "").replace(CALL, "")


def find_mark(text: str, mark: str) -> int | None:
    """The number of the line with a mark."""
    return next((number for number, each in enumerate(text.splitlines(), 1) if mark in each), None)


def finding_at(
    line: int | None, action: str, setting: str = "", file: str = "train.py", used: str = "", called: str = ""
) -> dict[str, Any]:
    """A finding as in the JSON report, with what an edit reads of it."""
    places = {USED_AT: used, CALLED_AT: called}
    return {
        "rule": "PD000",
        "covered_by": None,
        "location": None if line is None else {"file": file, "line": line, "function": None},
        "evidence": [
            {"label": name, "value": place, "unit": "", "id": name} for name, place in places.items() if place
        ],
        "actions": [{"id": action, "value": setting or None}],
    }
