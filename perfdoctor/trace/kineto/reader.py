"""Read a trace file of PyTorch's profiler, with the reader that is the faster one for its size."""

from __future__ import annotations

import os

from perfdoctor.errors import TraceError
from perfdoctor.trace.io.stream import Stream, ended_early, nothing_in
from perfdoctor.trace.kineto import reader_choice as choice
from perfdoctor.trace.kineto.build_trace import Reading, build
from perfdoctor.trace.kineto.event_columns import Columns
from perfdoctor.trace.kineto.event_walker import CHUNK, EDGE, EventReader, Walk
from perfdoctor.trace.scanner.window import BLOCK, Text, Window, piecewise
from perfdoctor.trace.tables.model import Trace


def read_stream(stream: Stream, *, threads: int | None = None) -> Trace:
    """Read a trace from a stream that is open; see `read`.

    Memory holds the columns and a few blocks of the text, however long the text is.

    Raises:
        TraceError: it is empty or no such trace, or ended before its first event.
    """
    chosen = choice.choose(stream)
    walk: Walk
    if chosen.fast:
        walk, columns = _fast(stream, min(2, _cores()) if threads is None else threads)
    else:
        walk = EventReader(Window(stream.source(), block=CHUNK))
        columns = _all(walk)
    stream.tell(last=True)
    if walk.empty:
        raise nothing_in(stream)
    broken = (stream.broken,) if stream.broken and not walk.complete else ()
    try:
        return _built(walk, columns, stream.path, *chosen.notes, *broken)
    except TraceError as error:
        if broken:
            raise ended_early(stream) from error
        raise


def parse(text: Text, path: str, *, block: int | None = None) -> Trace:
    """Read a trace from its JSON text; `path` names it.

    Args:
        text: The text, which need not be large: the reference reader reads it, unless the environment says otherwise.
        path: What the file is called.
        block: Read with the fast reader, that many bytes at a time.

    Raises:
        TraceError: it is no such trace.
    """
    if block is None and choice.named() == choice.FAST:
        block = BLOCK
    if block is None:
        walk = EventReader(text)
        return _built(walk, _all(walk), path)
    from perfdoctor.trace.kineto.compiled_reader import FastReader

    reader = FastReader(piecewise(text, block))
    return _built(reader, reader.columns(), path)


def _fast(stream: Stream, threads: int) -> tuple[Walk, Columns]:
    from perfdoctor.trace.kineto.compiled_reader import FastReader

    def split(start: int) -> list[Window]:
        return stream.parts(start, threads, EDGE)

    reader = FastReader(Window(stream.source(ahead=threads > 1)), split if stream.can_split else None, stream.tell)
    return reader, reader.columns()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _all(walk: EventReader) -> Columns:
    columns = Columns()
    for events in walk:
        columns.add(events)
    return columns


def _built(walk: Walk, columns: Columns, path: str, *notes: str) -> Trace:
    if not walk.found:
        raise _no_trace(walk, path)
    cut_at = None if walk.complete else walk.position
    return build(columns, Reading(path=path, top=walk.kept, cut_at=cut_at, dropped=walk.dropped, notes=notes))


def _no_trace(walk: Walk, path: str) -> TraceError:
    """Why a text holds no list of events at all."""
    export = "give the file that torch.profiler's export_chrome_trace writes"
    if not walk.opened:
        return TraceError(f"{path}: not JSON, so no trace; {export}")
    if walk.complete:
        return TraceError(f"{path}: JSON, but without traceEvents, so no trace; {export}")
    return TraceError(f"{path}: cut short, or not JSON, from byte {walk.position} on, before any event; {export}")
