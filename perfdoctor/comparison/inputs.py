"""What the paths of a comparison mean: traces to analyse, and reports to read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import orjson

from perfdoctor.comparison.recording import (
    SCHEMA_PREFIX,
    Recording,
    check_report,
    has_unprofiled_steps,
    recording_of_json,
    recording_of_report,
    tabulate_ops,
)
from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.discover import find_traces
from perfdoctor.fleet.split_jobs import Job, split_jobs
from perfdoctor.fleet.worker_count import estimate_text_bytes
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.report import Report

_REPORT_NAME = "report.json"
# The schema stands at the beginning of a report; a trace has other keys there.
_HEAD_BYTES = 4096

_RANK_FOLDER = re.compile(r"rank[_-]?[0-9]+", re.IGNORECASE)

_PathLike: TypeAlias = str | os.PathLike[str]


class _ReadReport(NamedTuple):
    """A report.json: its path and what it holds."""

    path: str
    content: Mapping[str, Any]


class _Traces(NamedTuple):
    """The traces of a job, and the path that means them."""

    path: str
    files: Job


_Input: TypeAlias = _Traces | _ReadReport


@frozen_dataclass
class Inputs:
    """The recordings of both sides: traces, or reports that somebody saved."""

    before: tuple[_Input, ...]
    after: tuple[_Input, ...]

    @property
    def jobs(self) -> list[Job]:
        """The traces of each recording that has to be analysed, those before first."""
        return [each.files for each in (*self.before, *self.after) if isinstance(each, _Traces)]

    @property
    def text_bytes(self) -> int:
        """How much text all traces hold, roughly."""
        return sum(estimate_text_bytes(file) for job in self.jobs for file in job)

    def to_recordings(self, reports: Sequence[Report]) -> tuple[list[Recording], list[Recording]]:
        """The recordings of both sides, from the reports on `jobs`.

        Times are those without the profiler where all recordings know them. Where one is only a report, all have the
        rows that a report has.

        """
        given = iter(reports)
        sources = [
            (each.path, each.content if isinstance(each, _ReadReport) else next(given))
            for each in (*self.before, *self.after)
        ]
        unprofiled = all(has_unprofiled_steps(source) for _, source in sources)
        has_read = any(not isinstance(source, Report) for _, source in sources)
        recordings = [
            _recording_of(source, path, unprofiled=unprofiled, only_summary=has_read) for path, source in sources
        ]
        return recordings[: len(self.before)], recordings[len(self.before) :]


def _recording_of(source: Report | Mapping[str, Any], path: str, *, unprofiled: bool, only_summary: bool) -> Recording:
    if not isinstance(source, Report):
        return recording_of_json(source, path, unprofiled=unprofiled)
    recording = recording_of_report(source, path, unprofiled=unprofiled)
    if not only_summary:
        return recording
    places = {name: rows for name, rows in recording.tables.items() if name == "places"}
    return replace(recording, tables={"ops": tabulate_ops(source.tables.get("ops", ()), recording.mean_ns), **places})


def find_inputs(before: Sequence[_PathLike], after: Sequence[_PathLike]) -> Inputs:
    """What the paths of both sides mean.

    A path with several jobs in it, such as a folder of captures of one program, is as many recordings.

    Raises:
        InputError: A folder holds neither traces nor a report, or a report cannot be read or is of another schema.
        UsageError: A side has no path, or a file is given twice.
    """
    if not before or not after:
        raise UsageError("a comparison needs a recording before and one after: perfdoctor compare BEFORE AFTER")
    inputs = Inputs(
        tuple(each for path in before for each in _find_input(path)),
        tuple(each for path in after for each in _find_input(path)),
    )
    _check_distinct(inputs)
    return inputs


def _check_distinct(inputs: Inputs) -> None:
    seen: set[str] = set()
    for each in (*inputs.before, *inputs.after):
        paths = [each.path] if isinstance(each, _ReadReport) else [str(file.path) for file in each.files]
        real = {os.path.realpath(path) if "://" not in path else path for path in paths}
        if seen & real:
            raise UsageError(
                f"{min(paths)} is given twice, so there is nothing to compare: give two recordings, one before the "
                "change and one after it"
            )
        seen |= real


def _find_input(path: _PathLike) -> list[_Input]:
    text = os.fspath(path)
    if _is_report(Path(text)):
        return [_read_report(Path(text))]
    in_folder = Path(text) / _REPORT_NAME
    try:
        jobs = split_jobs(find_traces([text]))
    except InputError:
        if not _is_report(in_folder):
            raise
        return [_read_report(in_folder)]
    return [_Traces(text if len(jobs) == 1 else _folder_of(job), job) for job in jobs]


def _folder_of(job: Job) -> str:
    """The capture of a job, or its first trace."""
    first = Path(str(job[0].path))
    return str(first.parent.parent if _RANK_FOLDER.fullmatch(first.parent.name) else first)


def _is_report(path: Path) -> bool:
    """Whether a file of this machine is a report of perfdoctor, of any schema."""
    try:
        if path.suffix.lower() != ".json" or not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return b'"schema"' in head and SCHEMA_PREFIX.encode() in head


def _read_report(path: Path) -> _ReadReport:
    """The content of a report.json.

    Raises:
        InputError: It cannot be read, is no JSON, or of another schema.
    """
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}); check the path") from None
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path} is not a complete report ({error}): analyze the trace again") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a report of perfdoctor: give a trace, a capture folder or a report.json")
    check_report(content, str(path))
    return _ReadReport(str(path), content)
