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

from perfdoctor.analysis.communication.match_collectives import match_collectives
from perfdoctor.errors import UsageError
from perfdoctor.reporters.chrome_trace.copy_events import Changes, copy_elements
from perfdoctor.reporters.chrome_trace.rank_tracks import FileTracks
from perfdoctor.reporters.chrome_trace.side_lanes import lane_names
from perfdoctor.reporters.chrome_trace.splice import members_before_events, read_head
from perfdoctor.reporters.chrome_trace.track_writer import TrackWriter, metadata
from perfdoctor.reporters.chrome_trace.tracks import rank_events
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.trace.kineto.merged_pids import RANK_STRIDE
from perfdoctor.units import format_ranges

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


# Recordings of one job begin within it; clocks that disagree by more, or count from elsewhere, are not of one epoch.
_SAME_JOB_NS = 3_600_000_000_000


class AlignedClocks(NamedTuple):
    """What to add to the times of each file, which file's clock that is, and how the clocks were aligned."""

    offset_ns: tuple[int, ...]
    reference: int
    sentence: str


def align_clocks(files: Sequence[FileTracks]) -> AlignedClocks:
    """Align the clocks of files with a rank each.

    By the collectives that ranks took part in together, which end at one time: to 0.1 ms on one host. Where a rank
    shares none with the others, by the time since the epoch that its file says, as good as the hosts' clocks are; where
    that is not of one hour, its beginning is put to that of the others.
    """
    numbers = [file.ranks[0].rank if file.ranks else None for file in files]
    tables = {id(file.ranks[0].collectives): at for at, file in enumerate(files) if file.ranks}
    matched = match_collectives([file.ranks[0].collectives for file in files if file.ranks])
    offset = dict.fromkeys(range(len(files)), 0)
    by_collectives, by_epoch, by_beginning = [], [], []
    if matched is not None:
        by_collectives = [tables[id(table)] for table in matched.tables]
        offset.update(zip(by_collectives, matched.offset_ns.tolist(), strict=True))
    reference = by_collectives[0] if by_collectives else 0
    for at in sorted(set(offset) - {*by_collectives, reference}):
        since = files[at].base_ns - files[reference].base_ns
        if abs(files[at].start_ns + since - files[reference].start_ns) < _SAME_JOB_NS:
            offset[at] = since
            by_epoch.append(at)
        else:
            offset[at] = files[reference].start_ns - files[at].start_ns
            by_beginning.append(at)
    ways = (
        (by_collectives, f"by {0 if matched is None else len(matched)} collectives in common"),
        (by_epoch, "by the time of day in the file"),
        (by_beginning, "by their beginnings, as their clocks have nothing in common"),
    )
    others = [([at for at in members if at != reference], way) for members, way in ways]
    parts = [f"{_names(numbers, members)} aligned {way}" for members, way in others if members]
    sentence = "; ".join((f"times are those of {_names(numbers, [reference])}", *parts))
    return AlignedClocks(tuple(offset[at] for at in range(len(files))), reference, sentence)


def _names(numbers: Sequence[int | None], members: Sequence[int]) -> str:
    known = [number for number in (numbers[at] for at in members) if number is not None]
    if len(known) < len(members):
        return f"{len(members)} file{'s' if len(members) > 1 else ''}"
    return f"rank{'s' if len(known) > 1 else ''} {format_ranges(known)}"
