"""The machine code of the scanner, see `perfdoctor.trace.scanner.machine_code`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfdoctor.trace import arrays
from perfdoctor.trace.scanner import layout
from perfdoctor.trace.scanner.machine_code import Native

_SOURCES = [
    Path(__file__).with_name(f"{name}.py")
    for name in ("intrinsics", "intern_words", "json_grammar", "store_values", "nest_events", "event_rows")
]


def _dispatcher() -> Any:
    from perfdoctor.trace.scanner.event_rows import enter

    return enter


enter = Native("scanner", (*_SOURCES, Path(layout.__file__), Path(arrays.__file__)), 6, _dispatcher)
"""Runs an operation of the compiled code; see `event_rows.enter`."""
load, is_loaded, cached_in = enter.load, enter.is_loaded, enter.cached_in
