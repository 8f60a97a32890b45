"""The reports of `analyze` on traces of several jobs: one after the other, each with its heading and files."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoctor.cli.gates import check_gate, check_ranks_complete
from perfdoctor.cli.report_output import ReportOutput, print_analysis, save_outputs
from perfdoctor.errors import GateError, InputError, PerfdoctorError, UsageError
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.output import write_stdout
from perfdoctor.reporters.verdict import describe_server_host
from perfdoctor.reporters.write_report import OUTPUT_FORMATS, render_report, suffix_of

if TYPE_CHECKING:
    from perfdoctor.fleet.split_jobs import Job
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.finding_gate import Gate

_TRACE_SUFFIX = re.compile(r"(\.pt)?(\.trace)?\.(json(\.gz|\.zst)?|sqlite)$", re.IGNORECASE)
# Formats of which a line holds a report, and those of which a text holds one report only.
_LINES, _ONE_DOCUMENT = ("json", "sarif"), ("junit",)
# A capture's file says less than its folder: out/rank0/timing.json.gz.
_RANK_FOLDER = re.compile(r"rank[_-]?[0-9]+", re.IGNORECASE)


def emit_job_reports(
    jobs: Sequence[Job], analyze: Callable[[Job], Report], output: ReportOutput, *, strict: bool
) -> None:
    """Analyse the jobs one by one, and write the report of each as soon as it is there.

    A process of a server in which no model runs has a line at the end, where its engine was recorded as well.

    A job that cannot be analysed costs a line on stderr, and its report.

    Args:
        jobs: The traces of each job.
        analyze: Returns the report on a job.
        output: How to write each report: JSON and SARIF in one line, and each file of -o as one file for each job.
        strict: Whether a job that cannot be analysed, or lacks ranks, is an error.

    Raises:
        InputError: No job could be analysed; or `strict`, and not all were.
        GateError: The gate failed, or could not be judged.
        UsageError: The format holds one report only.
    """
    if output.format in _ONE_DOCUMENT:
        raise UsageError(
            f"--output-format {output.format} is one document, and these are traces of {len(jobs)} jobs: name files "
            "with -o, each of which becomes one for each job"
        )
    names = name_jobs(jobs)
    traces = sum(map(len, jobs))
    sys.stderr.write(
        f"perfdoctor: {traces} traces of {len(jobs)} jobs that have no rank in common: a report for each\n"
    )
    failed: list[PerfdoctorError] = []
    gates: list[PerfdoctorError] = []
    hosts: list[tuple[Report, str]] = []
    has_engine = False
    for job, name in zip(jobs, names, strict=True):
        try:
            report = analyze(job)
        except (InputError, UsageError) as error:
            failed.append(error)
            if len(failed) < len(jobs):  # else the last error becomes the line at the end
                sys.stderr.write(f"perfdoctor: no report on {clean_line(name)}: {clean_line(str(error))}\n")
            continue
        has_engine |= bool(report.passes)
        if report.context.is_server_host and output.format == "text":
            hosts.append((report, name))  # of an engine, once all were read
        else:
            _print_report(report, name, output)
        save_outputs(report, replace(output, files=tuple(name_output(path, name) for path in output.files)))
        gates += _failed_gates(report, name, strict=strict, gate=output.gate)
    for report, name in hosts:
        _print_report(report, name, output, has_engine=has_engine)
    _raise_first(jobs, failed, gates, output, strict=strict)


def _raise_first(
    jobs: Sequence[Job],
    failed: Sequence[PerfdoctorError],
    gates: Sequence[PerfdoctorError],
    output: ReportOutput,
    *,
    strict: bool,
) -> None:
    """Raise what the exit code is about, if anything failed; see `emit_job_reports`."""
    if len(failed) == len(jobs):
        raise failed[-1]
    if failed and strict:
        raise InputError(f"--strict: {len(failed)} of {len(jobs)} jobs have no report")
    if failed and output.gate is not None and not gates:
        level = f"--fail-on {output.gate.level}"
        raise GateError(f"{level} could not be judged: {len(failed)} of {len(jobs)} jobs have no report")
    if gates:
        raise next((gate for gate in gates if isinstance(gate, InputError)), gates[0])


def _failed_gates(report: Report, name: str, *, strict: bool, gate: Gate | None) -> list[PerfdoctorError]:
    """The gates that a report fails."""
    failed: list[PerfdoctorError] = []
    try:
        if strict:
            check_ranks_complete(report, None)
        if gate is not None:
            check_gate(report, gate)
    except PerfdoctorError as error:
        failed.append(type(error)(f"{clean_line(name)}: {error}"))
    return failed


def _print_report(report: Report, name: str, output: ReportOutput, *, has_engine: bool = False) -> None:
    """The report on standard output: under a heading, or as a line of JSON.

    With `has_engine` it is on the host side of a server whose engine has a report: then a sentence says it all.
    """
    if output.format in _LINES:
        text = render_report(report, OUTPUT_FORMATS[output.format])
        write_stdout(json.dumps(json.loads(text), separators=(",", ":")) + "\n")
        return
    if output.format == "text":
        heading = clean_line(name)
        write_stdout(f"\n{heading}\n{'=' * len(heading)}\n")
    if has_engine:
        write_stdout(f"{describe_server_host(report, has_engine=True)}\n")
    else:
        print_analysis(report, output)


def name_jobs(jobs: Sequence[Job]) -> list[str]:
    """A name for each job, each another one: its trace's, or the folder of its traces, without what all have in common.

    Args:
        jobs: The traces of each job, files of this machine.
    """
    paths = [_path_of(job) for job in jobs]
    common = os.path.commonpath([str(path.parent) for path in paths])
    names: list[str] = []
    for path in paths:
        name = os.path.relpath(path, common)
        number = 1 + sum(re.sub(r" \(\d+\)$", "", other) == name for other in names)
        names.append(name if number == 1 else f"{name} ({number})")
    return names


def _path_of(job: Job) -> Path:
    """The trace of a job, or the folder of its traces, or the beginning that their names share; absolute."""
    first, *others = (Path(str(file.path)).absolute() for file in job)
    if _RANK_FOLDER.fullmatch(first.parent.name):
        return first.parent.parent
    if not others:
        return first
    shared = 0
    while all(first.name[: shared + 1] == other.name[: shared + 1] for other in others):
        shared += 1
    beginning = first.name[:shared].rstrip("0123456789_.- ")
    return first.parent / beginning if beginning and beginning.lower() not in ("rank", "worker") else first.parent


def name_output(path: str, name: str) -> str:
    """The file of -o for one of several jobs: report.md becomes report-NAME.md."""
    suffix = suffix_of(path)
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", _TRACE_SUFFIX.sub("", name)).strip("-.") or "job"
    stem = Path(path).name[: -len(suffix)]
    return str(Path(path).with_name(f"{stem}-{slug}{suffix}"))
