"""Recordings that several tests compare, each written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from programs import Program

import perfdoctor
from perfdoctor.compare_traces import Comparison


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Program], Path]:
    """The file of a recording of a program."""
    folder = tmp_path_factory.mktemp("recordings")
    return cache(lambda program: program.write(folder / f"{abs(hash(program))}.json"))


@pytest.fixture(scope="session")
def compare(record: Callable[[Program], Path]) -> Callable[..., Comparison]:
    """The comparison of two programs, or of several recordings of each."""

    def compare_programs(before: Program | list[Program], after: Program | list[Program]) -> Comparison:
        sides = [[side] if isinstance(side, Program) else side for side in (before, after)]
        return perfdoctor.compare(*([record(program) for program in side] for side in sides))

    return compare_programs
