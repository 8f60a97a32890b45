"""Golden files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file in golden/; with --update-golden it writes the file instead."""

    def compare(name: str, text: str) -> None:
        path = HERE / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        assert path.is_file(), (
            f"no golden file {name}: run pytest tests/reporters --update-golden and read what it wrote"
        )
        assert text == path.read_text(encoding="utf-8")

    return compare
