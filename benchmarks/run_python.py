"""Runs programs of the benchmarks in processes of their own, each with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 180


class ProgramFailedError(Exception):
    """A program, or perfdoctor, ended with an error or did not end in time."""


def run_python(
    arguments: Sequence[str],
    folder: Path,
    seconds: float = SECONDS,
    environment: Mapping[str, str] | None = None,
    accept: Sequence[int] = (0,),
) -> str:
    """Run this Python in a folder; returns what it printed.

    Args:
        arguments: What follows the interpreter.
        folder: Its working directory.
        seconds: It and all processes that it started are ended after this time.
        environment: Variables beside those of this process.
        accept: Exit codes that are no failure.

    Raises:
        ProgramFailedError: It ended with another exit code, or not in time.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ranks and loader workers are ended with their parent.
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ProgramFailedError(f"not done after {seconds:.0f} s: {' '.join(arguments)[-120:]}") from error
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode not in accept:
        raise ProgramFailedError((errors or output).strip())
    return output
