"""Reports on real traces, each made once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.report.report import Report


@pytest.fixture(scope="session")
def report_of() -> Callable[[Path], Report]:
    """The report on a file or folder, by its path."""
    return cache(lambda path: perfdoctor.analyze(path))


@pytest.fixture(scope="session")
def report_on(corpus: Path, report_of: Callable[[Path], Report]) -> Callable[[str], Report]:
    """The report on a file or folder of the corpus, by its name there."""
    return lambda name: report_of(corpus / name)
