"""Reports on real traces, each made once in a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from real_traces import analyze_once

from perfdoctor.report.report import Report


@pytest.fixture(scope="session")
def report_on(corpus: Path) -> Callable[[str], Report]:
    """The report on a file or folder of the corpus, by its name there."""
    return lambda name: analyze_once(corpus / name)
