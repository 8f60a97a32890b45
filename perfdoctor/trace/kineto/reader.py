"""Read a trace of PyTorch's profiler, with the reader that is faster for its size."""

from __future__ import annotations

import os

from perfdoctor.errors import TraceError
from perfdoctor.trace.io.stream import TextStream, disconnect_error, empty_file_error
from perfdoctor.trace.kineto import reader_choice
from perfdoctor.trace.kineto.build_trace import ReaderResult, build_trace
from perfdoctor.trace.kineto.event_columns import EventColumns
from perfdoctor.trace.kineto.event_walker import CHUNK_BYTES, EVENT_BORDER, EventReader, JsonEventWalker
from perfdoctor.trace.kineto.multiprocessors import MultiprocessorCounter
from perfdoctor.trace.scanner.text_window import BLOCK, Source, Text, TextWindow, sliding_window
from perfdoctor.trace.tables.model import Trace


def read_stream(stream: TextStream, *, threads: int | None = None) -> Trace:
    """Read a trace that PyTorch's profiler wrote, current or legacy form, from an open stream.

    Memory holds the columns and a few blocks of the text, however long the text is.

    Args:
        stream: The text.
        threads: Threads to read with; by default two, or one where the machine has one core.

    Raises:
        TraceError: the stream is empty or no such trace, or its connection ended before the first event.
    """
    choice = reader_choice.choose_reader(stream)
    walker: JsonEventWalker
    if choice.fast:
        threads = min(2, _count_cores()) if threads is None else threads
        counter = MultiprocessorCounter(stream.source(prefetch=threads > 1))
        walker, columns = _read_fast(stream, counter, threads)
    else:
        counter = MultiprocessorCounter(stream.source())
        walker = EventReader(TextWindow(counter, block=CHUNK_BYTES))
        columns = _collect_columns(walker)
    stream.report_progress(last=True)
    if walker.is_empty:
        raise empty_file_error(stream)
    disconnected = (stream.disconnected,) if stream.disconnected and not walker.complete else ()
    try:
        return _build(walker, columns, stream.path, counter, *choice.notes, *disconnected)
    except TraceError as error:
        if disconnected:
            raise disconnect_error(stream) from error
        raise


def parse(text: Text, path: str, *, block: int | None = None) -> Trace:
    """Read a trace from its JSON text.

    Args:
        text: The text, which need not be large: the reference reader reads it, unless the environment says otherwise.
        path: The name of the file, for messages and reports.
        block: Read with the fast reader, that many bytes at a time.

    Raises:
        TraceError: it is no such trace.
    """
    if block is None and reader_choice.reader_from_environment() == reader_choice.FAST:
        block = BLOCK
    counter = MultiprocessorCounter(lambda _: 0)
    counter.look_at(bytes(text))
    if block is None:
        walker = EventReader(text)
        return _build(walker, _collect_columns(walker), path, counter)
    from perfdoctor.trace.kineto.compiled_reader import FastReader

    reader = FastReader(sliding_window(text, block))
    return _build(reader, reader.read_columns(), path, counter)


def _read_fast(stream: TextStream, source: Source, threads: int) -> tuple[JsonEventWalker, EventColumns]:
    from perfdoctor.trace.kineto.compiled_reader import FastReader

    def split(start: int) -> list[TextWindow]:
        return stream.split(start, threads, EVENT_BORDER)

    reader = FastReader(TextWindow(source), split if stream.can_split else None, stream.report_progress)
    return reader, reader.read_columns()


def _count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _collect_columns(reader: EventReader) -> EventColumns:
    columns = EventColumns()
    for events in reader:
        columns.add_events(events)
    return columns


def _build(
    walker: JsonEventWalker, columns: EventColumns, path: str, counter: MultiprocessorCounter, *notes: str
) -> Trace:
    if not walker.has_events:
        raise _no_trace_error(walker, path)
    result = ReaderResult(
        path=path,
        top_level=walker.top_level,
        truncated_at=None if walker.complete else walker.position,
        dropped=walker.dropped,
        notes=notes,
        sm_count=counter.number,
    )
    return build_trace(columns, result)


def _no_trace_error(walker: JsonEventWalker, path: str) -> TraceError:
    """The error for a text without any list of events."""
    export = "give the file that torch.profiler's export_chrome_trace writes"
    if not walker.looks_like_json:
        return TraceError(f"{path}: not JSON, so no trace; {export}")
    if walker.complete:
        return TraceError(f"{path}: JSON, but without traceEvents, so no trace; {export}")
    return TraceError(f"{path}: cut short, or not JSON, from byte {walker.position} on, before any event; {export}")
