"""A line of a program, as it is captured."""

from __future__ import annotations

from perfdoctor.facts.part import CapturedPart, Written


class CapturedLine(CapturedPart):
    """A line of the program and the function that it is in."""

    file: Written[str] = None
    line: Written[int] = None
    function: Written[str] = None
