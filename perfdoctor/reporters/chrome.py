"""The annotated trace: a trace file as it is, with the report as additional tracks, for Perfetto and chrome://tracing."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from perfdoctor.errors import TraceError, UsageError
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.output import open_atomically
from perfdoctor.reporters.printable_findings import with_printable_findings
from perfdoctor.reporters.splice import splice_events
from perfdoctor.reporters.tracks import track_events
from perfdoctor.trace.io.remote import STDIN
from perfdoctor.trace.io.stream import TextStream
from perfdoctor.trace.nsight.export_files import is_nsight

NVML_FILE = "nvml.jsonl"
_BLOCK_BYTES = 1 << 20
# Level 1 makes a trace about 1.3 times as large as level 9 does, in a quarter of the time.
_COMPRESSION_LEVEL = 1


def export_chrome_trace(report: Report, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
    """Write one trace of a report with our tracks in it, compressed when the name ends in .gz.

    The trace is streamed from its file; it must still be where the report says.

    Args:
        report: A report with the intervals of its account and claims, as analysis makes it.
        path: The file to write.
        rank: Which rank, where the report holds several.

    Raises:
        UsageError: There are several ranks and none was chosen, or the file is the trace itself.
        InputError: The trace cannot be read again, or the file cannot be written.
    """
    report = with_printable_findings(report)
    index = _choose_trace(report, rank)
    trace = report.traces[index]
    if os.path.realpath(trace.path) == os.path.realpath(path):
        raise UsageError(
            f"{clean_line(str(path))} is the trace itself, which is never overwritten; choose another name"
        )
    events = track_events(report, index, _read_nvml_samples(trace.path))
    text = splice_events(_read_blocks(trace.path, cut=not trace.complete), events, cut=not trace.complete)
    with open_atomically(path) as out:
        if str(path).lower().endswith(".gz"):
            # No name and no time in the header: the same report gives the same file.
            with gzip.GzipFile(
                filename="", mode="wb", compresslevel=_COMPRESSION_LEVEL, fileobj=out, mtime=0
            ) as compressed:
                _write_in_blocks(text, cast(BinaryIO, compressed))
        else:
            _write_in_blocks(text, out)


def _write_in_blocks(pieces: Iterable[bytes], out: BinaryIO) -> None:
    """Write many small pieces in large blocks."""
    pending: list[bytes] = []
    pending_bytes = 0
    for piece in pieces:
        pending.append(piece)
        pending_bytes += len(piece)
        if pending_bytes >= _BLOCK_BYTES:
            out.write(b"".join(pending))
            pending, pending_bytes = [], 0
    out.write(b"".join(pending))


def _choose_trace(report: Report, rank: int | None) -> int:
    """The index of the trace to annotate."""
    if not report.traces:
        raise UsageError("there is no trace to annotate")
    if rank is None and len(report.traces) > 1:
        raise UsageError(
            f"an annotated trace shows one rank, and there are {len(report.traces)}; choose one with --rank"
        )
    matching = [i for i, t in enumerate(report.traces) if rank is None or t.rank == rank or len(report.traces) == 1]
    if not matching:
        raise UsageError(f"none of the traces is of rank {rank}")
    return matching[0]


def _read_nvml_samples(trace: str) -> bytes:
    """The NVML samples that a capture has beside the trace; empty where there are none."""
    try:
        return Path(trace).with_name(NVML_FILE).read_bytes()
    except (OSError, ValueError):
        return b""


def _read_blocks(path: str, *, cut: bool) -> Iterator[bytes]:
    """The text of a trace in blocks, decompressed; of a trace that is known to be cut, as much as there is."""
    if path == STDIN:
        raise UsageError("a trace from standard input cannot be annotated, it is gone; save it in a file first")
    try:
        with TextStream(path) as stream:
            if is_nsight(stream.head):
                raise UsageError(
                    f"{clean_line(path)}: an export of Nsight Systems cannot be annotated, only what torch.profiler "
                    "writes; choose .md or .json"
                )
            read_into, block = stream.source(), memoryview(bytearray(_BLOCK_BYTES))
            while count := read_into(block):
                yield bytes(block[:count])
            if not cut and (stream.truncated or stream.disconnected):
                raise TraceError(f"{clean_line(path)}: {stream.disconnected or 'its compressed text ends early'}")
    except TraceError as error:
        reason = f"the trace cannot be read again, and must stay where it was analysed: {error}"
        raise TraceError(reason) from error
