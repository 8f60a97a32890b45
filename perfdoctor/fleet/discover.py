"""Finds the traces that a path means: a file, a pattern, a folder of rank traces or of a capture, local or a URL."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from perfdoctor.errors import InputError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.run_watch.read_hang import HangFiles, find_hang_files
from perfdoctor.trace.io.remote import STDIN, is_remote, is_web
from perfdoctor.trace.io.remote_path import DEFAULT_MAX_INDEX_BYTES, RemotePath

TracePath: TypeAlias = Path | RemotePath

_TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst")
_NSIGHT_SUFFIX = ".sqlite"
_TIMING_NAMES = ("timing.json.gz", "timing.json")
_EVIDENCE_NAMES = ("evidence.json.gz", "evidence.json")
# The first windows of a run whose steps have changed since have these names behind this one.
_EARLY = "early_"
_FACTS_NAME = "facts.json"
# Reports, facts and the like stand beside traces in a folder. They are passed over there; a file that the user names
# is always read.
_NOT_A_TRACE = re.compile(
    r"(?:.*report|.*facts|.*schema|.*config|.*settings|package|manifest|steps|metadata)\.json", re.IGNORECASE
)
_RANK = re.compile(r"(?<![a-z])(?:rank|worker)[ _.-]?([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_TRAILING_NUMBER = re.compile(r"(.*)_([0-9]{1,5})\.(?:pt\.)?(?:trace\.)?(?:json(?:\.gz|\.zst)?|sqlite)", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"rank[_-]?[0-9]+", re.IGNORECASE)


@frozen_dataclass
class TraceFile:
    """A trace to read, and the files of the same rank beside it.

    Attributes:
        path: The trace; of a capture the one of the timing window.
        rank: The rank in the name of the file or its folder; None where there is none.
        facts_path: The facts that a capture wrote about this rank, such as clocks and power.
        evidence_path: The trace of a capture's evidence window. It has shapes and stacks, and its times are not used.
        early: The same of the first windows of a run whose steps have changed since; None without.
    """

    path: TracePath
    rank: int | None = None
    facts_path: TracePath | None = None
    evidence_path: TracePath | None = None
    early: TraceFile | None = None

    def map_paths(self, change: Callable[[TracePath], TracePath]) -> TraceFile:
        """The same with other paths."""

        def change_known(path: TracePath | None) -> TracePath | None:
            return None if path is None else change(path)

        return TraceFile(
            change(self.path),
            self.rank,
            change_known(self.facts_path),
            change_known(self.evidence_path),
            None if self.early is None else self.early.map_paths(change),
        )


@frozen_dataclass
class Inputs:
    """What some paths hold: traces, and dumps of the flight recorder with what a capture wrote beside them."""

    traces: tuple[TraceFile, ...]
    hang: HangFiles


def find_inputs(paths: Sequence[str | os.PathLike[str]], max_index_bytes: int = DEFAULT_MAX_INDEX_BYTES) -> Inputs:
    """The traces that some paths mean, as `find_traces` finds them, and the dumps in local ones.

    Raises:
        InputError: As in `find_traces`; where there are dumps there may be no traces.
    """
    local = [
        match
        for path in (os.fspath(each) for each in paths)
        if not is_remote(path)
        for match in glob.glob(path) or [path]
    ]
    hang = find_hang_files(local)
    if not hang:
        return Inputs(find_traces(paths, max_index_bytes), hang)
    dumps = set(hang.dumps.values())
    traces: list[TraceFile] = []
    for path in paths:
        try:
            traces += find_traces([path], max_index_bytes) if Path(path) not in dumps else ()
        except InputError:
            if not find_hang_files([path]):
                raise
    by_path = {file.path: file for file in traces if file.path not in dumps}
    return Inputs(tuple(sorted(by_path.values(), key=_sort_key)), hang)


def find_traces(
    paths: Sequence[str | os.PathLike[str]], max_index_bytes: int = DEFAULT_MAX_INDEX_BYTES
) -> tuple[TraceFile, ...]:
    """The traces that some paths mean, each once, sorted by rank and then by name, rank10 after rank9.

    A path is a file, whatever its name; a folder with traces in it or in its ``rank*`` folders; the folder of a
    capture, or one with the captures of several hosts; or a pattern such as ``out/*.json.gz`` for any of these. Each
    can be a URL that fsspec opens (``s3://bucket/run/*.json.gz``, or ``s3://bucket/run/rank`` for everything with that
    prefix) or an HTTP URL. An HTTP folder ends in a slash and holds the files that its index page lists. ``-`` is
    standard input. A file that does not exist is passed on: the reader says what is wrong with it.

    Raises:
        InputError: a folder holds no traces, a pattern matches nothing, or an index page has `max_index_bytes` or more.
    """
    files: dict[TracePath, TraceFile] = {}
    for path in (match for text in paths for match in _match_paths(os.fspath(text), max_index_bytes)):
        for file in _find_in_folder(path) if _is_folder(path) else [_trace_file_of(path)]:
            files.setdefault(file.path, file)
    return tuple(sorted(_use_trailing_numbers(list(files.values())), key=_sort_key))


def _match_paths(text: str, max_index_bytes: int) -> list[TracePath]:
    """The path that a text names; when nothing has that name, the paths that match it as a pattern or prefix."""
    matches: list[TracePath]
    if is_remote(text):
        url = RemotePath(text, max_index_bytes=max_index_bytes)
        if not url.has_magic():
            return _match_prefix(url)
        matches = list(url.glob())
    else:
        if not glob.has_magic(text) or os.path.lexists(text):
            return [Path(text)]
        matches = [Path(match) for match in glob.glob(text)]
    if not matches:
        raise InputError(f"{text}: no file matches this pattern; check the folder and the spelling")
    return [path for path in matches if _is_folder(path) or not _NOT_A_TRACE.fullmatch(path.name)] or matches


def _is_folder(path: TracePath) -> bool:
    """Whether a path is a folder.

    False for a name that is too long or in a folder that cannot be entered: the reader says what is wrong with it.
    """
    return os.path.isdir(path) if isinstance(path, Path) else path.is_dir()


def _match_prefix(url: RemotePath) -> list[TracePath]:
    """The URL itself; in an object store, when nothing has that name, everything with that prefix."""
    is_store = not is_web(url.url) and url.url != STDIN
    is_trace = url.name.lower().endswith((*_TRACE_SUFFIXES, _NSIGHT_SUFFIX))
    if is_store and not is_trace and not url.is_dir() and not url.is_file():
        return [*RemotePath(f"{url.url}*").glob()] or [url]
    return [url]


def _find_in_folder(folder: TracePath) -> list[TraceFile]:
    """The traces of a folder and of its rank folders; when there are none, those of the captures in it.

    Raises:
        InputError: there are none, or the folder cannot be listed.
    """
    try:
        files = [file for each in (folder, *_rank_folders(folder)) for file in _find_in_rank_folder(each)]
        files = files or _find_in_captures(folder)
    except PermissionError:
        raise InputError(f"{folder}: no permission to list this folder; change its mode or copy it") from None
    if not files:
        raise InputError(
            f"{folder}: no traces in this folder; give one with .json or .json.gz files of torch.profiler, "
            "or .sqlite exports of Nsight Systems"
        )
    return files


def _find_in_rank_folder(folder: TracePath) -> list[TraceFile]:
    """The trace of a captured rank, else all traces of the folder."""
    return _find_captured_rank(folder) or [_trace_file_of(path) for path in _trace_paths(folder)]


def _rank_folders(folder: TracePath) -> list[TracePath]:
    return [path for path in _sorted_children(folder) if _RANK_FOLDER.fullmatch(path.name) and path.is_dir()]


def _find_in_captures(folder: TracePath) -> list[TraceFile]:
    """The ranks of all captures in a folder: each host wrote one, and somebody copied them here."""
    captures = [path for path in _sorted_children(folder) if not path.name.startswith(".") and path.is_dir()]
    return [file for capture in captures for rank in _rank_folders(capture) for file in _find_captured_rank(rank)]


def _find_captured_rank(folder: TracePath) -> list[TraceFile]:
    """The trace of one captured rank, with its first windows where they were kept; empty where it holds none."""
    file = _find_windows(folder)
    if file is None:
        return []
    return [replace(file, early=_find_windows(folder, _EARLY))]


def _find_windows(folder: TracePath, prefix: str = "") -> TraceFile | None:
    """The windows of a captured rank whose files have a prefix; None where there are none."""
    timing, evidence = (
        _first_file(folder, [prefix + name for name in names]) for names in (_TIMING_NAMES, _EVIDENCE_NAMES)
    )
    trace = timing or evidence
    if trace is None:
        return None
    return TraceFile(
        path=trace,
        rank=_rank_of(folder / "timing.json"),
        facts_path=_first_file(folder, [prefix + _FACTS_NAME]),
        evidence_path=evidence if timing is not None else None,
    )


def _first_file(folder: TracePath, names: Sequence[str]) -> TracePath | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _sorted_children(folder: TracePath) -> list[TracePath]:
    return sorted(folder.iterdir(), key=str)


def _trace_paths(folder: TracePath) -> list[TracePath]:
    """The files of a folder that may be traces; exports of Nsight Systems only where there are no others.

    Other tools store databases beside their traces, and `nsys` writes an export beside its report.
    """
    paths = [
        path
        for path in _sorted_children(folder)
        if not path.name.startswith(".") and not _NOT_A_TRACE.fullmatch(path.name)
    ]
    for suffixes in (_TRACE_SUFFIXES, _NSIGHT_SUFFIX):
        traces = [path for path in paths if path.name.lower().endswith(suffixes) and path.is_file()]
        if traces:
            return traces
    return []


def _trace_file_of(path: TracePath) -> TraceFile:
    return TraceFile(path, _rank_of(path))


def _rank_of(path: TracePath) -> int | None:
    """The rank in a file's name, else in the name of its folder; None where there is none."""
    for name in (path.name, path.parent.name):
        numbers = _RANK.findall(name)
        if numbers:
            return int(numbers[-1])
    return None


def _use_trailing_numbers(files: list[TraceFile]) -> list[TraceFile]:
    """Files whose names differ only in a trailing number (out_0.json, out_1.json), with that number as rank.

    In a single name the number means nothing: resnet_18.json is not rank 18.
    """
    matches = [_TRAILING_NUMBER.fullmatch(str(file.path)) for file in files]
    stems = {match.group(1) for match in matches if match is not None}
    if len(files) < 2 or None in matches or len(stems) > 1 or any(file.rank is not None for file in files):
        return files
    return [replace(file, rank=int(match.group(2))) for file, match in zip(files, matches, strict=True) if match]


def _sort_key(file: TraceFile) -> tuple[float, list[tuple[int, str | int]], str]:
    """Sorts by rank, files without one last, and then by name with digits as numbers."""
    parts = [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"([0-9]{1,18})", str(file.path))]
    return float("inf") if file.rank is None else file.rank, parts, str(file.path)
