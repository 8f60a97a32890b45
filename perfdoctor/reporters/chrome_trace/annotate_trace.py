"""The annotated trace: a trace file as it is, with the report as additional tracks, for Perfetto and chrome://tracing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import BinaryIO

from perfdoctor.errors import UsageError
from perfdoctor.report.report import Report
from perfdoctor.reporters.chrome_trace.copy_events import Changes, copy_list
from perfdoctor.reporters.chrome_trace.side_lanes import find_side_lanes, lane_names
from perfdoctor.reporters.chrome_trace.splice import splice_events
from perfdoctor.reporters.chrome_trace.trace_source import TraceSource
from perfdoctor.reporters.chrome_trace.tracks import track_events
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.compressed import open_compressed
from perfdoctor.reporters.output import open_atomically
from perfdoctor.reporters.printable_findings import with_printable_findings

_BLOCK_BYTES = 1 << 20


def export_chrome_trace(report: Report, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
    """Write one trace of a report with our tracks in it, compressed when the name ends in .gz.

    The trace is streamed from its file; it must still be where the report says. Its events stay byte for byte, but for
    the thread ids of those that move to a side lane, see `side_lanes`.

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
    source = TraceSource.of(report.traces[index])
    if os.path.realpath(source.path) == os.path.realpath(path):
        raise UsageError(
            f"{clean_line(str(path))} is the trace itself, which is never overwritten; choose another name"
        )
    source.check()
    text = _annotated(report, index, source)
    with open_atomically(path) as out:
        if str(path).lower().endswith(".gz"):
            with open_compressed(out) as compressed:
                _write_in_blocks(text, compressed)
        else:
            _write_in_blocks(text, out)


def _annotated(report: Report, index: int, source: TraceSource) -> Iterator[bytes]:
    """The text of a trace with our tracks in it."""
    lanes = find_side_lanes(source.slices())
    events = chain(track_events(report, index, source.nvml_samples()), lane_names(lanes))
    changes = Changes(tids=lanes.tid_of_moved())
    changed = partial(copy_list, changes=changes) if changes.tids else iter
    return splice_events(source.blocks(), events, cut=source.cut, changed=changed)


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
