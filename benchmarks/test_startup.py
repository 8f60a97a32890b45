"""How long the command line takes to start."""

from __future__ import annotations

import sys

from benchmarks.measure import run_perfdoctor, run_process


def test_help_against_pip(compare):
    """`perfdoctor --help` against `python -m pip --version`: under 2."""
    compare(
        "perfdoctor --help / pip --version",
        lambda: run_perfdoctor("--help"),
        lambda: run_process(sys.executable, "-m", "pip", "--version"),
    )
