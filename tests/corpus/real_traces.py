"""The recordings of ../shared, each read and analysed once in a process: that is most of the time of tests on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import perfdoctor
from perfdoctor.report.report import Report
from perfdoctor.trace import Trace


@cache
def read_once(path: Path) -> Trace:
    """The trace in a file. It is a frozen value, so that all tests may share it; all 45 take 0.2 GB."""
    return perfdoctor.read(path)


@cache
def analyze_once(path: Path) -> Report:
    """The report on a file or folder, as users get it without options."""
    return perfdoctor.analyze(path)
