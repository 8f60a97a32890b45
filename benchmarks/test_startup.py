"""How long the command line takes to say something."""

from __future__ import annotations

import sys

from measure import perfdoctor, start


def test_help_against_pip(compare):
    """`perfdoctor --help` against `python -m pip --version`: under 2."""
    compare(
        "perfdoctor --help / pip --version",
        lambda: perfdoctor("--help"),
        lambda: start(sys.executable, "-m", "pip", "--version"),
    )
