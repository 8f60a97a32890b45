"""Processes of their own to measure, and lines for the table at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LINES = pytest.StashKey[list[str]]()
SCRIPT = Path(sys.executable).parent / "perfdoctor"
# What pip installs is compiled, too: without that an analysis takes 0.15 s more.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
_MEASURE_CHILD = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def start(*command: object) -> None:
    """Run a process of its own to its end, output thrown away."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(list(map(str, command)), **quiet, check=True, env=_ENVIRONMENT)


def perfdoctor(*argv: object) -> None:
    """Run the command line with this interpreter."""
    start(SCRIPT, *argv)


def perfdoctor_peak_bytes(*argv: object) -> int:
    """The most memory that the command line had at once.

    A small process in between starts it: Linux counts what the parent had at the fork as the child's own, and the
    process that measures has read traces before.
    """
    measured = subprocess.run(
        [sys.executable, "-c", _MEASURE_CHILD, SCRIPT, *map(str, argv)],
        stdout=subprocess.PIPE,
        check=True,
        env=_ENVIRONMENT,
    )
    return int(measured.stdout) * _MAXRSS_UNIT


def tell(request: pytest.FixtureRequest, line: str) -> None:
    """A line for the table at the end."""
    request.config.stash.setdefault(LINES, []).append(line)
