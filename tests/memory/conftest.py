"""Programs with torch, each run to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fork_server import ForkServer


@pytest.fixture
def run_program(fork_server: ForkServer | None, tmp_path: Path) -> Callable[..., None]:
    """Runs a program with some arguments, as a fork: torch is there in 0.1 s instead of 2."""
    if fork_server is None:
        pytest.skip("torch is not installed")

    def run(*argv: object) -> None:
        with (tmp_path / "printed").open("w+") as printed:
            program = fork_server.popen([sys.executable, *map(str, argv)], stdout=printed, stderr=printed)
            assert program.wait(300) == 0, printed.seek(0) or printed.read()

    return run
