"""The annotated trace: a trace file as it is, with the report as tracks of its own, for Perfetto and chrome://tracing."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from typing import BinaryIO, cast

from perfdoctor.errors import TraceError, UsageError
from perfdoctor.report.report import Report
from perfdoctor.reporters.output import replacing
from perfdoctor.reporters.splice import spliced
from perfdoctor.reporters.tracks import track_events
from perfdoctor.reporters.wording import clean
from perfdoctor.trace.io.remote import STDIN
from perfdoctor.trace.io.stream import TextStream
from perfdoctor.trace.nsight.export_files import is_nsight

_BLOCK_BYTES = 1 << 20
# Level 1 packs a trace to about 1.3 times the size of level 9 in a quarter of the time.
_LEVEL = 1


def export_chrome_trace(report: Report, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
    """Write one trace of a report with our tracks in it, compressed when the name ends in .gz.

    The source is streamed from its file; it must still be where the report says.

    Args:
        report: a report with the intervals of its account and claims, as analysis makes it.
        path: the file to write.
        rank: which rank, where the report holds several.

    Raises:
        UsageError: several ranks and none chosen, or the file is the trace itself.
        InputError: the trace cannot be read again, or the file cannot be written.
    """
    index = _index(report, rank)
    summary = report.traces[index]
    source = summary.path
    if os.path.realpath(source) == os.path.realpath(path):
        raise UsageError(f"{clean(str(path))} is the trace itself, which is never overwritten; choose another name")
    text = spliced(_blocks(source, cut=not summary.complete), track_events(report, index), cut=not summary.complete)
    with replacing(path) as out:
        if str(path).lower().endswith(".gz"):
            # No name and no time in the header: the same report gives the same file.
            with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=out, mtime=0) as packed:
                _copy(text, cast(BinaryIO, packed))
        else:
            _copy(text, out)


def _copy(blocks: Iterator[bytes], out: BinaryIO) -> None:
    """Write many small pieces in large ones."""
    pieces: list[bytes] = []
    waiting = 0
    for block in blocks:
        pieces.append(block)
        waiting += len(block)
        if waiting >= _BLOCK_BYTES:
            out.write(b"".join(pieces))
            pieces, waiting = [], 0
    out.write(b"".join(pieces))


def _index(report: Report, rank: int | None) -> int:
    """Which of the report's traces to annotate."""
    if not report.traces:
        raise UsageError("there is no trace to annotate")
    if rank is None and len(report.traces) > 1:
        raise UsageError(
            f"an annotated trace shows one rank, and there are {len(report.traces)}; choose one with --rank"
        )
    fitting = [i for i, t in enumerate(report.traces) if rank is None or t.rank == rank or len(report.traces) == 1]
    if not fitting:
        raise UsageError(f"none of the traces is of rank {rank}")
    return fitting[0]


def _blocks(source: str, *, cut: bool) -> Iterator[bytes]:
    """The text of a trace in blocks, inflated; of one that is known to be cut, what there is."""
    if source == STDIN:
        raise UsageError("a trace from standard input cannot be annotated, it is gone; save it in a file first")
    try:
        with TextStream(source) as stream:
            if is_nsight(stream.head):
                raise UsageError(
                    f"{clean(source)}: an export of Nsight Systems cannot be annotated, only what torch.profiler "
                    "writes; choose .md or .json"
                )
            read_into, block = stream.source(), memoryview(bytearray(_BLOCK_BYTES))
            while count := read_into(block):
                yield bytes(block[:count])
            if not cut and (stream.truncated or stream.disconnected):
                raise TraceError(f"{clean(source)}: {stream.disconnected or 'its compressed text ends early'}")
    except TraceError as error:
        reason = f"the trace cannot be read again, and must stay where it was analysed: {error}"
        raise TraceError(reason) from error
