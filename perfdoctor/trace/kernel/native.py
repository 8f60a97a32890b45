"""The machine code of the scanner, see `perfdoctor.trace.native`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfdoctor.trace import layout, times
from perfdoctor.trace.native import Native

_SOURCES = [
    Path(__file__).with_name(f"{name}.py") for name in ("machine", "words", "grammar", "values", "nest", "events")
]


def _dispatcher() -> Any:
    from perfdoctor.trace.kernel.events import enter

    return enter


enter = Native("kernel", (*_SOURCES, Path(layout.__file__), Path(times.__file__)), 6, _dispatcher)
"""Runs an operation of the kernel; see `events.enter`."""
load, is_loaded, kept_in = enter.load, enter.is_loaded, enter.kept_in
