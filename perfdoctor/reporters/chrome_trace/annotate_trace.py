"""The annotated trace: the events of one rank or of several, and the report as additional tracks.

It is for Perfetto and chrome://tracing. The tests ask a real Perfetto what it imports: nothing of the original is lost,
and no error is counted.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.errors import UsageError
from perfdoctor.report.report import Report
from perfdoctor.reporters.chrome_trace.copy_events import Changes, copy_list
from perfdoctor.reporters.chrome_trace.join_ranks import join_files
from perfdoctor.reporters.chrome_trace.rank_tracks import FileTracks, read_file_tracks
from perfdoctor.reporters.chrome_trace.side_lanes import lane_names
from perfdoctor.reporters.chrome_trace.splice import splice_events
from perfdoctor.reporters.chrome_trace.track_writer import PID, TrackWriter
from perfdoctor.reporters.chrome_trace.tracks import rank_events
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.output import open_atomically

# Of Python's gzip: level 1 makes a trace about 1.3 times as large as level 9 does, in a quarter of the time. Of isal:
# level 1 makes it no larger than that, in a fifth of the time again.
_LEVEL = 1
_BLOCK_BYTES = 1 << 20


def open_compressed(out: BinaryIO) -> AbstractContextManager[BinaryIO]:
    """A file that compresses what is written to it into another; neither name nor time are in its header."""
    kind: Any = gzip.GzipFile
    with suppress(ImportError):  # no wheel for this machine
        from isal import igzip

        kind = igzip.IGzipFile
    file: AbstractContextManager[BinaryIO] = kind(filename="", mode="wb", compresslevel=_LEVEL, fileobj=out, mtime=0)
    return file


def export_chrome_trace(
    report: Report, path: str | os.PathLike[str], *, rank: int | None = None, options: AnalysisOptions | None = None
) -> str | None:
    """Write the traces of a report with our tracks in them, compressed when the name ends in .gz.

    The traces are streamed from their files, which must still be where the report says. The events of one file stay
    byte for byte, but for the thread ids of those that move to a side lane (see `side_lanes`). Those of several files
    get process ids, times and ids of arrows that fit together (see `join_ranks`), and their processes the number of the
    rank in their names.

    Args:
        report: A report as analysis makes it.
        path: The file to write.
        rank: Which rank, where the report holds several; None for all.
        options: How the ranks were analysed, for those that must be looked at again alone.

    Returns:
        How the clocks of several files were aligned, in a sentence; None for one file.

    Raises:
        UsageError: There is no such rank, there are more than a viewer can show, or the file is one of the traces.
        InputError: A trace cannot be read again, or the file cannot be written.
    """
    by_file: dict[str, list[int]] = {}
    for index in _choose_traces(report, rank):
        by_file.setdefault(report.traces[index].path, []).append(index)
    if os.path.realpath(path) in map(os.path.realpath, by_file):
        raise UsageError(
            f"{clean_line(str(path))} is the trace itself, which is never overwritten; choose another name"
        )
    options = options or AnalysisOptions()
    files = [read_file_tracks(report, indices, options) for indices in by_file.values()]
    text, sentence = (_annotate(files[0]), None) if len(files) == 1 else join_files(files)
    with open_atomically(path) as out:
        if str(path).lower().endswith(".gz"):
            with open_compressed(out) as compressed:
                _write_in_blocks(text, compressed)
        else:
            _write_in_blocks(text, out)
    return sentence


def _annotate(file: FileTracks) -> Iterator[bytes]:
    """The text of a file with our tracks in it."""
    changes = Changes(tids=file.lanes.tid_of_moved())
    changed = iter if not changes.tids else partial(copy_list, changes=changes)
    events = chain(_process_events(file), lane_names(file.lanes, changes))
    return splice_events(file.source.blocks(), events, cut=file.source.cut, changed=changed)


def _process_events(file: FileTracks) -> Iterator[bytes]:
    """Our tracks of one file: a process for each rank in it."""
    several = len(file.ranks) > 1
    nvml = file.source.nvml_samples()
    for number, of_rank in enumerate(file.ranks):
        writer = TrackWriter(PID - number)
        yield from writer.name_process(f"{of_rank.label}: perfdoctor" if several else "perfdoctor", -1)
        yield from rank_events(of_rank, nvml, writer)


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


def _choose_traces(report: Report, rank: int | None) -> list[int]:
    """The indices of the traces to annotate."""
    analysed = range(len(report.timeline))
    if not analysed:
        raise UsageError("there is no trace to annotate")
    chosen = [at for at in analysed if rank is None or len(analysed) == 1 or report.traces[at].rank == rank]
    if not chosen:
        raise UsageError(f"none of the traces is of rank {rank}")
    return chosen
