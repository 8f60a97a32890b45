"""Finds dumps of the flight recorder and what a capture wrote beside them, reads them, and judges what they show."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import orjson

from perfdoctor.errors import TraceError
from perfdoctor.facts.captured import RUNNING, CapturedFacts
from perfdoctor.facts.part import CapturedPart
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.run_watch.hang import HangReading
from perfdoctor.run_watch.rank_state import ProcessStates, RankAnswer
from perfdoctor.trace.io.untrusted_files import read_beside_trace

if TYPE_CHECKING:
    from perfdoctor.trace.flight_recorder import Dump

HANG_FOLDER, PROCESSES_FILE = "hang", "processes.json"
# As torch names them, with the rank in the end; the names of others are dumps if they begin as one.
_TORCH_NAME = re.compile(r"(?:nccl|comm_lib)_trace_rank_(\d{1,7})")
_NUMBERED = re.compile(r".*?(\d{1,7})(?:\.(?:json|pickle|pkl))?")
_ANSWER_NAME = re.compile(r"rank_(\d{1,7})\.json")
_HEAD_BYTES = 4096
_KEYS = (b"pg_config", b"pg_status", b"nccl_version", b"comm_lib_version", b"collective_seq_id")
# What torch writes before the entries; a snapshot of memory is a pickle, too.
_NOT_A_DUMP = (b"segments", b"device_traces")
# A call that is younger when its dump is written may be on its way in a healthy job.
_MIN_AGE_NS = 5_000_000_000

_Part = TypeVar("_Part", bound=CapturedPart)


@frozen_dataclass
class HangFiles:
    """The files of one job: dumps by rank, and the folder of a capture with more about each rank."""

    dumps: Mapping[int, Path]
    folder: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.dumps) or self.folder is not None


NO_HANG_FILES = HangFiles({})


def find_hang_files(paths: Sequence[str | os.PathLike[str]]) -> HangFiles:
    """The dumps that some local paths mean: files, folders of them, and captures with a folder `hang`."""
    dumps: dict[int, Path] = {}
    folder: Path | None = None
    for path in map(Path, paths):
        if not os.path.exists(path):
            continue
        captured = path if (path / PROCESSES_FILE).is_file() else path / HANG_FOLDER
        if (captured / PROCESSES_FILE).is_file():
            folder = captured
        for place in (path, path / HANG_FOLDER):
            for file in _list_files(place):
                rank = _rank_of_dump(file)
                if rank is not None:
                    dumps.setdefault(rank, file)
    return HangFiles(dict(sorted(dumps.items())), folder)


def _list_files(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        return sorted(path.iterdir()) if path.is_dir() else []
    except OSError:  # whoever reads the folder for traces says what is wrong with it
        return []


def _rank_of_dump(path: Path) -> int | None:
    """The rank of a dump by its name; None for a file of another kind."""
    by_torch, numbered = _TORCH_NAME.fullmatch(path.name), _NUMBERED.fullmatch(path.name)
    if not path.is_file() or numbered is None:
        return None
    if by_torch is not None:
        return int(by_torch[1])
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    is_dump = head[:1] in (b"\x80", b"{") and any(key in head for key in _KEYS)
    return int(numbered[1]) if is_dump and not any(key in head for key in _NOT_A_DUMP) else None


def read_hang(files: HangFiles) -> HangReading:
    """The hang that some files show.

    Raises:
        TraceError: There are dumps, and none can be read: the reason of the first.
    """
    # Each analysis looks for such files, and few have any.
    from perfdoctor.run_watch.judge_hang import HangInputs, judge_hang
    from perfdoctor.trace.flight_recorder import read_dump

    dumps: dict[int, Dump] = {}
    unread: list[TraceError] = []
    for rank, path in files.dumps.items():
        try:
            dumps[rank] = read_dump(path, rank)
        except TraceError as error:
            unread.append(error)
    answers: dict[int, RankAnswer] = {}
    processes = ProcessStates()
    if files.folder is not None:
        processes = _read_part(files.folder / PROCESSES_FILE, ProcessStates)
        for path in _list_files(files.folder):
            match = _ANSWER_NAME.fullmatch(path.name)
            if match is not None:
                answers[int(match[1])] = _read_part(path, RankAnswer)
    elif unread and not dumps:
        raise unread[0]
    # A capture says by itself which rank moves.
    moving = frozenset() if files.folder is not None else frozenset(_find_moving(dumps.values()))
    hang = judge_hang(HangInputs(dumps, answers, processes, moving))
    went_on, has_ended = processes.went_on_s is not None, files.folder is not None and _has_ended(files.folder.parent)
    return HangReading(tuple(dumps), tuple(map(str, unread)), hang, went_on, has_ended)


def _has_ended(capture: Path) -> bool:
    """Whether the recorders of all ranks of a capture have written how they ended."""
    ranks = [_read_part(path, CapturedFacts) for path in capture.glob("rank*/facts.json")]
    return bool(ranks) and all(each.exit not in RUNNING for each in ranks)


def _find_moving(dumps: Iterable[Dump]) -> Iterable[int]:
    """The ranks whose oldest open call was young when the file of the dump was written.

    A copy without its time is newer: then the call counts as waiting.
    """
    for dump in dumps:
        call = dump.oldest_unfinished
        if call is None or not call.created_ns:
            continue
        try:
            age_ns = os.stat(dump.path).st_mtime_ns - call.created_ns
        except OSError:
            continue
        if 0 <= age_ns < _MIN_AGE_NS:
            yield dump.rank


def _read_part(path: Path, kind: type[_Part]) -> _Part:
    """A file of the capture as a value; nothing is known of one that cannot be read."""
    try:
        return kind.parse(orjson.loads(read_beside_trace(path)))
    except (OSError, TraceError, orjson.JSONDecodeError):
        return kind()
