"""Which files to read: a file, a glob, a folder of rank traces, or the folder of a capture; here or behind a URL."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from perfdoctor.errors import InputError
from perfdoctor.trace.io.remote import STDIN, is_remote, is_web
from perfdoctor.trace.io.remote_path import RemotePath

Place: TypeAlias = Path | RemotePath

_SUFFIXES = (".json", ".json.gz", ".json.zst")
_EXPORT = ".sqlite"
_CAPTURED = ("timing.json.gz", "timing.json")
_EVIDENCE = ("evidence.json.gz", "evidence.json")
_FACTS = "facts.json"
# What stands beside traces in a folder and is none: reports, facts, and the like. A file named outright is always read.
_NO_TRACE = re.compile(
    r"(?:.*report|.*facts|.*schema|.*config|.*settings|package|manifest|steps|metadata)\.json", re.IGNORECASE
)
_RANK = re.compile(r"(?<![a-z])(?:rank|worker)[ _.-]?([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_NUMBERED = re.compile(r"(.*)_([0-9]{1,5})\.(?:pt\.)?(?:trace\.)?(?:json(?:\.gz|\.zst)?|sqlite)", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"rank[_-]?[0-9]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace to read, and what lies beside it.

    Attributes:
        path: The trace; of a capture the one recorded for timing.
        rank: The rank that its name or folder says; None where neither does.
        facts: The captured facts of that rank, such as clocks and power.
        evidence: The second trace of a capture, with shapes and stacks, whose times are not to be trusted.
    """

    path: Place
    rank: int | None = None
    facts: Place | None = None
    evidence: Place | None = None


def find_traces(paths: Sequence[str | os.PathLike[str]]) -> tuple[TraceFile, ...]:
    """The traces that some paths mean, each once, sorted by rank and then by name, rank10 after rank9.

    A path is a file, whatever its name; a folder with traces in it or in its ``rank*`` folders; the folder of a
    capture, or one with the captures of several hosts; or a pattern such as ``out/*.json.gz`` for any of these. Each
    can be a URL that fsspec knows (``s3://bucket/run/*.json.gz``, or ``s3://bucket/run/rank`` for all that begins so)
    or one of the web, whose folders end in a slash and are as their index pages list them. And ``-`` is standard input.
    A file that does not exist is passed on: reading it says what is wrong.

    Raises:
        InputError: a folder holds no traces, or a pattern matches nothing.
    """
    found: dict[Place, TraceFile] = {}
    for given in paths:
        for path in _matches(os.fspath(given)):
            for file in _in_folder(path) if _is_folder(path) else [_one(path)]:
                found.setdefault(file.path, file)
    return tuple(sorted(_numbered(list(found.values())), key=_order))


def _matches(text: str) -> list[Place]:
    """The paths that a text means: itself, or what it matches when nothing has that name."""
    hits: list[Place]
    if is_remote(text):
        place = RemotePath(text)
        if not place.has_magic():
            return _beginning_with(place)
        hits = list(place.glob())
    else:
        if not glob.has_magic(text) or os.path.lexists(text):
            return [Path(text)]
        hits = [Path(hit) for hit in glob.glob(text)]
    if not hits:
        raise InputError(f"{text}: no file matches this pattern; check the folder and the spelling")
    wanted = [hit for hit in hits if _is_folder(hit) or not _NO_TRACE.fullmatch(hit.name)]
    return wanted or hits


def _is_folder(path: Place) -> bool:
    """Whether a path is a folder. A name that is too long, or in a folder that is closed to us, reading it tells."""
    return os.path.isdir(path) if isinstance(path, Path) else path.is_dir()


def _beginning_with(place: RemotePath) -> list[Place]:
    """A URL itself, or in a store of objects, when nothing has that name, what begins with it."""
    store = not is_web(place.url) and place.url != STDIN
    if store and not place.name.lower().endswith((*_SUFFIXES, _EXPORT)) and not place.is_dir() and not place.is_file():
        return [*RemotePath(f"{place.url}*").glob()] or [place]
    return [place]


def _in_folder(folder: Place) -> list[TraceFile]:
    """The traces of a folder, or of its rank folders.

    Raises:
        InputError: there are none, or the folder cannot be listed.
    """
    try:
        here = _captured(folder) or [_one(path) for path in _listed(folder)]
        for inner in _rank_folders(folder):
            here += _captured(inner) or [_one(path) for path in _listed(inner)]
        here = here or _captures_in(folder)
    except PermissionError:
        raise InputError(f"{folder}: no permission to list this folder; change its mode or copy it") from None
    if not here:
        raise InputError(
            f"{folder}: no traces in this folder; give one with .json or .json.gz files of torch.profiler, "
            "or .sqlite exports of Nsight Systems"
        )
    return here


def _rank_folders(folder: Place) -> list[Place]:
    return [inner for inner in _children(folder) if _RANK_FOLDER.fullmatch(inner.name) and inner.is_dir()]


def _captures_in(folder: Place) -> list[TraceFile]:
    """The ranks of the captures in a folder: each host writes one of its own, and they were copied together."""
    hosts = [inner for inner in _children(folder) if not inner.name.startswith(".") and inner.is_dir()]
    return [file for host in hosts for inner in _rank_folders(host) for file in _captured(inner)]


def _captured(folder: Place) -> list[TraceFile]:
    """The trace of one captured rank; none when the folder is not one."""
    timing, evidence = _first(folder, _CAPTURED), _first(folder, _EVIDENCE)
    trace = timing or evidence
    if trace is None:
        return []
    facts = folder / _FACTS
    return [
        TraceFile(
            path=trace,
            rank=_rank(folder / "timing.json"),
            facts=facts if facts.is_file() else None,
            evidence=evidence if timing is not None else None,
        )
    ]


def _first(folder: Place, names: Sequence[str]) -> Place | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _children(folder: Place) -> list[Place]:
    return sorted(folder.iterdir(), key=str)


def _listed(folder: Place) -> list[Place]:
    """The files of a folder that may be traces: exports of Nsight Systems only where there are no others.

    Other tools keep databases beside their traces, and `nsys` exports beside its reports.
    """
    files = [path for path in _children(folder) if not path.name.startswith(".") and not _NO_TRACE.fullmatch(path.name)]
    for suffixes in (_SUFFIXES, _EXPORT):
        listed = [path for path in files if path.name.lower().endswith(suffixes) and path.is_file()]
        if listed:
            return listed
    return []


def _one(path: Place) -> TraceFile:
    return TraceFile(path, _rank(path))


def _rank(path: Place) -> int | None:
    """The rank that a file's name says, else that of the folder it lies in."""
    for text in (path.name, path.parent.name):
        numbers = _RANK.findall(text)
        if numbers:
            return int(numbers[-1])
    return None


def _numbered(files: list[TraceFile]) -> list[TraceFile]:
    """Files that differ only in a last number (out_0.json, out_1.json) take it as rank.

    Alone it says nothing: resnet_18.json is no rank 18.
    """
    names = [_NUMBERED.fullmatch(str(file.path)) for file in files]
    stems = {name.group(1) for name in names if name is not None}
    if len(files) < 2 or None in names or len(stems) > 1 or any(file.rank is not None for file in files):
        return files
    return [replace(file, rank=int(name.group(2))) for file, name in zip(files, names, strict=True) if name]


def _order(file: TraceFile) -> tuple[float, list[tuple[int, str | int]], str]:
    """By rank, those without one last, and then by name with numbers as numbers."""
    parts = [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"([0-9]{1,18})", str(file.path))]
    return float("inf") if file.rank is None else file.rank, parts, str(file.path)
