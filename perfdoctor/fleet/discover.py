"""Which files to read: a file, a glob, a folder of rank traces, or the folder of a capture."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfdoctor.errors import InputError

_SUFFIXES = (".json", ".json.gz")
_CAPTURED = ("timing.json.gz", "timing.json")
_EVIDENCE = ("evidence.json.gz", "evidence.json")
_FACTS = "facts.json"
# What stands beside traces in a folder and is none: reports, facts, and the like. A file named outright is always read.
_NO_TRACE = re.compile(
    r"(?:.*report|.*facts|.*schema|.*config|.*settings|package|manifest|steps|metadata)\.json", re.IGNORECASE
)
_RANK = re.compile(r"(?<![a-z])(?:rank|worker)[ _.-]?([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_NUMBERED = re.compile(r"(.*)_([0-9]{1,5})\.(?:pt\.)?(?:trace\.)?json(?:\.gz)?", re.IGNORECASE)
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

    path: Path
    rank: int | None = None
    facts: Path | None = None
    evidence: Path | None = None


def find_traces(paths: Sequence[str | os.PathLike[str]]) -> tuple[TraceFile, ...]:
    """The traces that some paths mean, each once, sorted by rank and then by name, rank10 after rank9.

    A path is a file, whatever its name; a folder with traces in it or in its ``rank*`` folders; the folder of a
    capture; or a pattern such as ``out/*.json.gz`` for any of these. A file that does not exist is passed on: reading
    it says what is wrong.

    Raises:
        InputError: a folder holds no traces, or a pattern matches nothing.
    """
    found: dict[Path, TraceFile] = {}
    for given in paths:
        for path in _matches(os.fspath(given)):
            for file in _in_folder(path) if path.is_dir() else [_one(path)]:
                found.setdefault(file.path, file)
    return tuple(sorted(_numbered(list(found.values())), key=_order))


def _matches(text: str) -> list[Path]:
    """The paths that a text means: itself, or what it matches when nothing has that name."""
    path = Path(text)
    if not glob.has_magic(text) or os.path.lexists(text):
        return [path]
    hits = [Path(hit) for hit in glob.glob(text)]
    if not hits:
        raise InputError(f"{text}: no file matches this pattern; check the folder and the spelling")
    wanted = [hit for hit in hits if hit.is_dir() or not _NO_TRACE.fullmatch(hit.name)]
    return wanted or hits


def _in_folder(folder: Path) -> list[TraceFile]:
    """The traces of a folder, or of its rank folders.

    Raises:
        InputError: there are none, or the folder cannot be listed.
    """
    try:
        here = _captured(folder) or [_one(path) for path in _listed(folder)]
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and _RANK_FOLDER.fullmatch(inner.name):
                here += _captured(inner) or [_one(path) for path in _listed(inner)]
    except PermissionError:
        raise InputError(f"{folder}: no permission to list this folder; change its mode or copy it") from None
    if not here:
        raise InputError(
            f"{folder}: no traces in this folder; give one with .json or .json.gz files of torch.profiler."
        )
    return here


def _captured(folder: Path) -> list[TraceFile]:
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


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _listed(folder: Path) -> Iterator[Path]:
    """The files of a folder that may be traces."""
    for path in sorted(folder.iterdir()):
        name = path.name.lower()
        hidden = name.startswith(".")
        if not hidden and name.endswith(_SUFFIXES) and not _NO_TRACE.fullmatch(name) and path.is_file():
            yield path


def _one(path: Path) -> TraceFile:
    return TraceFile(path, _rank(path))


def _rank(path: Path) -> int | None:
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
    parts = [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"([0-9]+)", str(file.path))]
    return float("inf") if file.rank is None else file.rank, parts, str(file.path)
