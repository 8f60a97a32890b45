"""Read a trace file: the door to this package."""

from __future__ import annotations

import os

from perfdoctor.errors import TraceError
from perfdoctor.trace.columns import Columns
from perfdoctor.trace.events import EventReader
from perfdoctor.trace.kineto import Reading, build
from perfdoctor.trace.model import Trace
from perfdoctor.trace.source import Text, load


def read(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that PyTorch's profiler wrote: .json or .json.gz, current or legacy form.

    A file that is cut short, or stops being JSON somewhere, is read as far as it goes: `complete` is False then, and
    `warnings` says so.

    Args:
        path: The file. How it is compressed is told by its first bytes, not by its name.

    Returns:
        The Trace, with all times in int64 nanoseconds, exact.

    Raises:
        TraceError: the file cannot be opened, is empty, or is no such trace.
    """
    return parse(load(path), os.fspath(path))


def parse(text: Text, path: str) -> Trace:
    """Read a trace from its JSON text; `path` names it.

    Raises:
        TraceError: it is no such trace.
    """
    events = EventReader(text)
    columns = Columns()
    for chunk in events:
        columns.add(chunk)
    if not events.found:
        raise _no_trace(events, path)
    cut_at = None if events.complete else events.position
    return build(columns, Reading(path=path, top=events.kept, cut_at=cut_at, dropped=events.dropped))


def _no_trace(events: EventReader, path: str) -> TraceError:
    """Why a text holds no list of events at all."""
    export = "give the file that torch.profiler's export_chrome_trace writes"
    if not events.opened:
        return TraceError(f"{path}: not JSON, so no trace; {export}")
    if events.complete:
        return TraceError(f"{path}: JSON, but without traceEvents, so no trace; {export}")
    return TraceError(f"{path}: cut short, or not JSON, from byte {events.position} on, before any event; {export}")
