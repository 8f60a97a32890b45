"""Reports on real traces, each made once a session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.diagnosis.report import Report

DIAGNOSIS = Path(__file__).parent.parent / "diagnosis"
if str(DIAGNOSIS) not in sys.path:  # importlib mode puts no test folder on the path
    sys.path.append(str(DIAGNOSIS))


@pytest.fixture(scope="session")
def report_on(corpus: Path) -> Callable[[str], Report]:
    """The report on a file or folder of the corpus, by its name there."""
    return cache(lambda name: perfdoctor.analyze(corpus / name))
