"""Fixtures for every test: the shared corpus when it is there, and a file system in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import settings

# No test is timed: the first example of some compiles machine code, which takes seconds.
settings.register_profile("perfdoctor", deadline=None)
settings.load_profile("perfdoctor")

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what comes out")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared material beside the repository; the test is skipped where it is not mounted."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "traces").is_dir():
        pytest.skip("the shared trace corpus (../shared) is not here")
    return folder


@pytest.fixture(scope="session")
def corpus(shared: Path) -> Path:
    """The folder of real traces."""
    return shared / "traces"


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system of memory:// URLs, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()
