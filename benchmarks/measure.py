"""Runs commands in separate processes to measure them, and collects lines for the summary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUMMARY_LINES = pytest.StashKey[list[str]]()
PERFDOCTOR = Path(sys.executable).parent / "perfdoctor"
# Without bytecode, which an installed package has, an analysis takes 0.15 s more.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
_PRINT_CHILD_PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def run_process(*command: object) -> None:
    """Run a command to its end; its output is discarded."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(list(map(str, command)), **quiet, check=True, env=_ENVIRONMENT)


def run_perfdoctor(*arguments: object) -> None:
    """Run the command line with this interpreter."""
    run_process(PERFDOCTOR, *arguments)


def measure_peak_bytes(*arguments: object) -> int:
    """The peak memory of the command line with these arguments, in bytes.

    A small process starts the command line, because Linux counts the memory of the parent at the fork as the child's,
    and this process may have read traces before.
    """
    measured = subprocess.run(
        [sys.executable, "-c", _PRINT_CHILD_PEAK, PERFDOCTOR, *map(str, arguments)],
        stdout=subprocess.PIPE,
        check=True,
        env=_ENVIRONMENT,
    )
    return int(measured.stdout) * _MAXRSS_BYTES


def add_summary_line(request: pytest.FixtureRequest, line: str) -> None:
    """Add a line to the summary at the end of the run."""
    request.config.stash.setdefault(SUMMARY_LINES, []).append(line)
