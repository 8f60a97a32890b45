"""Tells jobs apart: which of many traces are ranks of one job, and which have nothing to do with each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from perfdoctor.errors import TraceError
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.io.stream import TextStream
from perfdoctor.trace.io.untrusted_files import read_beside_trace

Job = tuple[TraceFile, ...]

# The profiler writes what it knows of device and job before the events; a list of process groups can be long.
_HEAD_BYTES = 1 << 18
_JOB = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*')
_RANK = re.compile(rb'"rank"\s*:\s*([0-9]+)')
_WORLD_SIZE = re.compile(rb'"world_size"\s*:\s*([0-9]+)')
_DEVICE = re.compile(rb'"deviceProperties"\s*:\s*\[\s*\{[^{}]*?"name"\s*:\s*"([^"]*)"')
_RANK_IN_NAME = re.compile(r"((?<![a-z])(?:rank|worker)[ _.-]?)[0-9]{1,6}", re.IGNORECASE)
_TRAILING_NUMBER = re.compile(r"_[0-9]{1,5}(?=\.(?:pt\.)?(?:trace\.)?(?:json|sqlite))", re.IGNORECASE)


@frozen_dataclass
class _Member:
    """A trace with what its first bytes say about the job; None for what they do not say."""

    file: TraceFile
    rank: int | None
    world_size: int | None
    device: str | None
    is_readable: bool

    @property
    def is_rank(self) -> bool:
        """Whether it is one of several ranks: by its job's size, or by its name where no size is known."""
        return self.rank is not None and self.world_size != 1


def split_jobs(files: Sequence[TraceFile], *, in_order: bool = False) -> list[Job]:
    """The traces of each job, in the order of `files`; a trace that belongs to no larger job is its own job.

    Ranks of one job have the same number of ranks and the same device, and different numbers. Where a job without
    a known size is concerned, its ranks lie in one folder. Ranks of the same number are of different jobs, or of
    different windows of one: these differ by the rest of their names, else by their order.

    Args:
        files: The traces. Where one is a URL, all are taken for one job: looking into each costs a request.
        in_order: Whether the user named the files one after the other. Then traces that do not tell their ranks are
            ranks in that order, where nothing contradicts it.
    """
    whole = [tuple(files)]
    if len(files) < 2 or not all(isinstance(file.path, Path) for file in files) or _share_a_name(files):
        return whole
    members = [_read_member(file) for file in files]
    devices = {member.device for member in members if member.is_readable}
    if in_order and len(devices) < 2 and not any(member.is_rank for member in members):
        return whole
    ranks = [member for member in members if member.is_rank]
    jobs = [job for group in _group_by_size(ranks) for job in _split_repeated_ranks(group)]
    rest = [member for member in members if not member.is_rank]
    if len(jobs) == 1:  # a rank that cannot be read is one that its job lacks
        jobs[0] += [member for member in rest if not member.is_readable]
        rest = [member for member in rest if member.is_readable]
    jobs += [[member] for member in rest]
    position = {file.path: number for number, file in enumerate(files)}
    found = [tuple(sorted((m.file for m in job), key=lambda file: position[file.path])) for job in jobs]
    return sorted(found, key=lambda job: str(job[0].path))


def _share_a_name(files: Sequence[TraceFile]) -> bool:
    """Whether the names differ only in the rank, and each rank comes once: no file has to be opened then."""
    ranks = {file.rank for file in files}
    return None not in ranks and len(ranks) == len(files) and len(set(map(_name_without_rank, files))) == 1


def _name_without_rank(file: TraceFile) -> str:
    text = _RANK_IN_NAME.sub(r"\1#", str(file.path))
    return text if "#" in text else _TRAILING_NUMBER.sub("_#", text)


def _folder_of(file: TraceFile) -> Path:
    """The folder of the job: of a rank in a folder of its own, the one above."""
    folder = Path(str(file.path)).parent
    return folder.parent if _RANK_IN_NAME.fullmatch(folder.name) else folder


def _read_member(file: TraceFile) -> _Member:
    facts_size = _read_size_in_facts(file)
    try:
        head = _read_head(file.path)
    except (TraceError, OSError):
        return _Member(file, file.rank, facts_size, None, is_readable=False)
    job, device = _JOB.search(head), _DEVICE.search(head)
    rank = _RANK.search(job[0]) if job else None
    world_size = _WORLD_SIZE.search(job[0]) if job else None
    return _Member(
        file,
        int(rank[1]) if rank else file.rank,
        int(world_size[1]) if world_size else facts_size,
        device[1].decode(errors="replace") if device else None,
        is_readable=True,
    )


def _read_head(path: object) -> bytes:
    """The text of a trace up to its events, decompressed; at most `_HEAD_BYTES`."""
    buffer = bytearray(_HEAD_BYTES)
    view, filled = memoryview(buffer), 0
    with TextStream(str(path)) as stream:
        if stream.head.startswith(b"SQLite"):
            return b""
        read = stream.source()
        while filled < _HEAD_BYTES:
            count = read(view[filled:])
            filled += count
            if not count or b'"traceEvents"' in buffer[:filled]:
                break
    if bytes(buffer[:filled]).lstrip()[:1] not in (b"{", b"["):
        raise TraceError(f"{path} does not begin as JSON does")
    return bytes(buffer[:filled])


def _read_size_in_facts(file: TraceFile) -> int | None:
    """The number of ranks by the facts of a capture."""
    if file.facts_path is None:
        return None
    try:
        return CapturedFacts.parse(orjson.loads(read_beside_trace(file.facts_path, file.path))).world_size
    except (OSError, ValueError):
        return None


def _group_by_size(ranks: Iterable[_Member]) -> list[list[_Member]]:
    """The ranks that may be of one job; those without a known size join the ones of their folder that lack them."""
    of_size: dict[tuple[int, str | None], list[_Member]] = {}
    unknown: list[_Member] = []
    for member in ranks:
        if member.world_size is None:
            unknown.append(member)
        else:
            of_size.setdefault((member.world_size, member.device), []).append(member)
    groups = list(of_size.values())
    of_folder: dict[tuple[Path, str | None], list[_Member]] = {}
    for member in unknown:
        fitting = [group for group in groups if _fits(member, group)]
        folder = _folder_of(member.file), member.device
        (fitting[0] if len(fitting) == 1 else of_folder.setdefault(folder, [])).append(member)
    return [*groups, *of_folder.values()]


def _fits(member: _Member, group: Sequence[_Member]) -> bool:
    """Whether a rank of a job of unknown size can be the one that a group lacks."""
    return (
        _folder_of(member.file) in {_folder_of(other.file) for other in group}
        and member.rank not in {other.rank for other in group}
        and (not member.is_readable or member.device == group[0].device)
    )


def _split_repeated_ranks(group: list[_Member]) -> list[list[_Member]]:
    """The group, or where a rank comes more than once its parts, in each of which every rank comes once."""
    if _ranks_differ(group):
        return [group]
    of_name: dict[str, list[_Member]] = {}
    for member in group:
        of_name.setdefault(_name_without_rank(member.file), []).append(member)
    if len(of_name) < len(group) and all(map(_ranks_differ, of_name.values())):
        return list(of_name.values())
    parts: list[list[_Member]] = []
    seen: dict[int | None, int] = {}
    for member in group:
        number = seen[member.rank] = seen.get(member.rank, 0) + 1
        if number > len(parts):
            parts.append([])
        parts[number - 1].append(member)
    return parts


def _ranks_differ(members: Sequence[_Member]) -> bool:
    return len({member.rank for member in members}) == len(members)
