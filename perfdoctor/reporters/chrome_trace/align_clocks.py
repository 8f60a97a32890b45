"""The clocks of several files put on that of one of them, and how that was done, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfdoctor.analysis.communication.match_collectives import match_collectives
from perfdoctor.report.merge_findings import format_ranges
from perfdoctor.reporters.chrome_trace.rank_tracks import FileTracks

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
