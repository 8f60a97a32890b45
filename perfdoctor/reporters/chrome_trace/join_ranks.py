"""The files of several ranks as one trace: one list of events, with what tells their processes, times and arrows apart.

Process ids get rank x 1e8 added, as other tools that merge ranks do, so this program reads the result as the ranks that
it is of. Ids of arrows get rank x 2^40 added: viewers look for an arrow's end in all processes. Times get the offset of
their clock. All else of an event stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import orjson

from perfdoctor.errors import UsageError
from perfdoctor.reporters.chrome_trace.align_clocks import align_clocks
from perfdoctor.reporters.chrome_trace.copy_events import Changes, copy_elements
from perfdoctor.reporters.chrome_trace.rank_tracks import FileTracks
from perfdoctor.reporters.chrome_trace.side_lanes import lane_names
from perfdoctor.reporters.chrome_trace.splice import members_before_events, read_head
from perfdoctor.reporters.chrome_trace.track_writer import TrackWriter, metadata
from perfdoctor.reporters.chrome_trace.tracks import rank_events
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.trace.kineto.merged_pids import RANK_STRIDE

_LIMIT = (1 << 31) - 1  # of process ids in viewers
_NARROW_STRIDE = 1 << 22  # the process ids of Linux lie below it
_ID_STRIDE = 1 << 40  # ids of arrows are correlations of 32 bits
_SORT_STRIDE = 1 << 30


class _Place(NamedTuple):
    """Where the processes of a file go: what is added to their ids, the id of ours, and their place in the order."""

    pid_shift: int
    own_pid: int
    slot: int


def join_files(files: Sequence[FileTracks]) -> tuple[Iterator[bytes], str]:
    """The text of several files as one trace with our tracks, and how their clocks were aligned.

    Raises:
        UsageError: There are more ranks than process ids can tell apart.
    """
    clocks = align_clocks(files)
    places = _places(files)
    reference = files[clocks.reference]
    head = _head(files, reference, clocks.sentence)
    parts = (
        _part(file, place, offset_ns) for file, place, offset_ns in zip(files, places, clocks.offset_ns, strict=True)
    )
    return chain(_joined(head, chain.from_iterable(parts))), clocks.sentence


def _places(files: Sequence[FileTracks]) -> list[_Place]:
    """The places of some files. One that holds several ranks has distinct process ids already."""
    numbers = [file.ranks[0].rank for file in files]
    slots = [at if number is None else number for at, number in enumerate(numbers)]
    if len(set(slots)) < len(slots):
        slots = list(range(len(files)))
    stride = RANK_STRIDE if RANK_STRIDE * (max(slots) + 1) <= _LIMIT else _NARROW_STRIDE
    if stride * (max(slots) + 1) > _LIMIT:
        raise UsageError(f"{len(files)} ranks are more than a viewer can show in one trace; choose one with --rank")
    return [
        _Place(0 if len(file.ranks) > 1 else stride * slot, stride * slot + stride - 1, slot)
        for file, slot in zip(files, slots, strict=True)
    ]


def _head(files: Sequence[FileTracks], reference: FileTracks, sentence: str) -> bytes:
    """The members of the trace before its events: what readers need, of the rank whose clock it has."""
    whole: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms"}
    if reference.base_ns:
        whole["baseTimeNanoseconds"] = reference.base_ns
    members = members_before_events(reference.source.blocks())
    whole |= {key: members[key] for key in ("deviceProperties",) if key in members}
    shown = [each.report.traces[0] for file in files for each in file.ranks]
    whole["perfdoctor"] = {
        "clocks": sentence,
        "ranks": [{"rank": trace.rank, "path": clean_line(trace.path), "device": trace.device} for trace in shown],
    }
    return orjson.dumps(whole)[:-1] + b',"traceEvents":[\n'


def _joined(head: bytes, events: Iterator[bytes]) -> Iterator[bytes]:
    """The text of the whole trace; `events` are single ones, or several with commas between."""
    yield head
    first = True
    for event in events:
        yield event if first else b",\n" + event
        first = False
    yield b"\n]}\n"


def _part(file: FileTracks, place: _Place, offset_ns: int) -> Iterator[bytes]:
    """The events of one file and our tracks of it, each or several with commas between."""
    label = file.label
    changes = Changes(
        tids=file.lanes.tid_of_moved(),
        offset_ns=offset_ns,
        pid_shift=place.pid_shift,
        id_shift=_ID_STRIDE * place.slot,
        sort_shift=_SORT_STRIDE * place.slot,
        label=label,
    )
    # A process whose name the file does not say has that of its rank; one that it names gets the rank before it.
    for pid in sorted(pid for pid in file.pids if isinstance(pid, int)):
        yield metadata("process_name", changes.pid(pid), 0, {"name": label})
    yield from lane_names(file.lanes, changes)
    nvml = file.source.nvml_samples()
    for number, of_rank in enumerate(file.ranks):
        writer = TrackWriter(place.own_pid - number, offset_ns, changes)
        yield from writer.name_process(f"{of_rank.label}: perfdoctor", _SORT_STRIDE * place.slot - 1)
        yield from rank_events(of_rank, nvml, writer)
    source = file.source.blocks()
    head, start = read_head(source)
    yield from copy_elements(chain((head[start:],), source), changes)
