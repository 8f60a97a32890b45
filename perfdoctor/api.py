"""The functions that the package exports: read, analyze, and the Report that can print and save itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import orjson

from perfdoctor.diagnosis import engine, registry
from perfdoctor.diagnosis import report as _report
from perfdoctor.diagnosis.run import RankRun, Run
from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.discover import Place, TraceFile, find_traces
from perfdoctor.trace import read
from perfdoctor.trace.merged import split_ranks

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far the reading of the files is: `done_bytes` of `total_bytes` (None where unknown) of file `number`."""

    name: str
    number: int
    files: int
    done_bytes: int
    total_bytes: int | None


Progress: TypeAlias = Callable[[FileProgress], None]


class Report(_report.Report):
    """The result of an analysis; see `perfdoctor.diagnosis.report.Report` for its fields."""

    __slots__ = ()

    def print(self, *, color: bool | None = None) -> None:
        """Print the report to standard output, with colour when that is a terminal (or as `color` says)."""
        from perfdoctor.reporters import print_report

        print_report(self, color=color)

    def save(self, path: PathLike) -> None:
        """Write the report; the suffix decides the form: .json, .md, .txt, or .json.gz for the annotated trace.

        Raises:
            UsageError: another suffix.
            InputError: the file cannot be written.
        """
        from perfdoctor.reporters import save

        save(self, path)

    def export_chrome_trace(self, path: PathLike) -> None:
        """Write the analysed trace with steps, account and findings as tracks of their own.

        For Perfetto and chrome://tracing.

        Raises:
            InputError: the trace cannot be read again, or the file cannot be written.
        """
        from perfdoctor.reporters.chrome import export_chrome_trace

        export_chrome_trace(self, path)


def analyze(
    paths: PathLike | Sequence[PathLike],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    device: str | None = None,
    rank: int | None = None,
    steps: slice | None = None,
    settings: engine.Settings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Analyse traces: a file, a capture folder, a folder of rank traces, a glob, a URL, or a list of them.

    A file that holds several ranks is analysed as several.

    Args:
        paths: where the traces are.
        select: rule ids or their beginnings ("PD1"); all rules when empty.
        ignore: rule ids or their beginnings to leave out.
        device: the device's name, where the trace does not say it or is wrong.
        rank: look at this rank only.
        steps: which steps to look at, as slice(2, 5); all when None.
        settings: thresholds by rule id, as {"PD101": {"min_share": 0.1}}.
        progress: called now and then while the files are read.

    Raises:
        TraceError: a file is missing or is no trace.
        InputError: nothing is left to analyse.
        UsageError: a rule, setting or device name does not exist.
    """
    known = registry.registered()
    engine.check_settings(settings or {}, known)
    chosen = registry.choose(known, select, ignore)
    files = find_traces([paths] if isinstance(paths, (str, os.PathLike)) else list(paths))
    if rank is not None:
        files = tuple(f for f in files if f.rank == rank) if len(files) > 1 else files
        if not files:
            raise InputError(f"none of the traces is of rank {rank}")
    ranks = _ranks(files, device, steps or slice(None), progress)
    if rank is not None:
        ranks = tuple(r for r in ranks if r.source.rank in ((rank,) if len(ranks) > 1 else (rank, None)))
        if not ranks:
            raise InputError(f"none of the traces is of rank {rank}")
    report = engine.diagnose(Run(ranks), chosen, settings)
    return Report(**{f.name: getattr(report, f.name) for f in fields(report)})


def _ranks(
    files: Sequence[TraceFile], device: str | None, steps: slice, progress: Progress | None
) -> tuple[RankRun, ...]:
    """One RankRun a rank; where several do not say their number, or two say the same, their order does."""
    ranks: list[RankRun] = []
    for number, file in enumerate(files, 1):
        ranks += _rank_runs(file, device, steps, _of_file(progress, file, number, len(files)))
    numbers = [r.source.rank for r in ranks]
    if len(ranks) > 1 and (None in numbers or len(set(numbers)) < len(numbers)):
        note = "the files do not tell their ranks apart: they are numbered in the order given"
        ranks = [
            replace(r, source=replace(r.source, rank=i, warnings=(*r.source.warnings, note)))
            for i, r in enumerate(ranks)
        ]
    if device is not None and ranks[0].device is None:
        raise UsageError(f"the device '{device}' is not in the table of devices")
    if steps != slice(None) and not any(r.steps.count for r in ranks):
        raise UsageError("no steps are left to analyse: the trace has none, or --steps names none of them")
    return tuple(ranks)


def _rank_runs(
    file: TraceFile, device: str | None, steps: slice, progress: Callable[[int, int | None], None] | None
) -> list[RankRun]:
    """The ranks that a file holds, nearly always one."""
    traces = split_ranks(read(file.path, progress))
    facts = _facts(file.facts)
    if len(traces) > 1:  # merged by another tool, so no capture of ours
        return [RankRun(trace, device, steps, facts) for trace in traces]
    trace = traces[0]
    if trace.rank is None and file.rank is not None:
        trace = replace(trace, rank=file.rank)
    detail = read(file.evidence, progress) if file.evidence is not None else None
    return [RankRun(trace, device, steps, facts, detail)]


def _of_file(
    progress: Progress | None, file: TraceFile, number: int, files: int
) -> Callable[[int, int | None], None] | None:
    """What the reader of one file calls."""
    if progress is None:
        return None
    tell, name = progress, file.path.name

    def told(done_bytes: int, total_bytes: int | None) -> None:
        tell(FileProgress(name, number, files, done_bytes, total_bytes))

    return told


def _facts(path: Place | None) -> Mapping[str, Any] | None:
    if path is None:
        return None
    try:
        facts = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as captured facts ({error}); remove it or capture again") from None
    return facts if isinstance(facts, dict) else None
