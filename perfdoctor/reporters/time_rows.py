"""Rows of times below a heading: what happens once, the passes of an engine. Values only, no layout."""

from __future__ import annotations

from typing import NamedTuple


class TimeRow(NamedTuple):
    """A time, a share of or in it, and what it is."""

    time: str
    share: str
    what: str


class TimeRows(NamedTuple):
    """Rows with their heading, and what to do about them; "" where there is nothing to be done."""

    title: str
    rows: tuple[TimeRow, ...]
    advice: str = ""
