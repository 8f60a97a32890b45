"""`perfdoctor analyze`: traces in, a ranked report out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.cli.config import load_config
from perfdoctor.cli.gates import (
    announce_settings,
    check_gate,
    check_program,
    check_ranks_complete,
    open_gate,
    save_baseline,
)
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.cli.report_output import (
    ReportOutput,
    check_folder,
    check_outputs,
    has_page,
    print_analysis,
    save_outputs,
)
from perfdoctor.errors import UsageError

if TYPE_CHECKING:
    from perfdoctor.fleet.split_jobs import Job
    from perfdoctor.report.report import Report


@parameters.command(
    "perfdoctor analyze trace.json.gz",
    "perfdoctor analyze trace.json.gz -o report.html --open",
    "perfdoctor analyze capture/ -o report.md -o report.json",
    "perfdoctor analyze trace.json --select PD1,PD201 --set PD101.min_share=0.1",
    "perfdoctor analyze run/ --jobs 4 --strict          # the traces of all ranks",
    "perfdoctor analyze dumps/                          # why a job hangs",
    "perfdoctor analyze trace.json.gz --fail-on high   # a gate: exit code 0 or 1",
    "perfdoctor analyze - --json < trace.json.gz",
)
def analyze(
    paths: parameters.Paths,
    *,
    as_json: parameters.AsJson = False,
    output_format: parameters.OutputFormat = None,
    output: parameters.Output,
    opens: parameters.OpenPage = False,
    select: parameters.Select,
    ignore: parameters.Ignore,
    settings: parameters.Settings,
    device: parameters.Device = None,
    rank: parameters.Rank = None,
    steps: parameters.Steps = None,
    jobs: parameters.Jobs = None,
    dask: Annotated[
        str | None,
        typer.Option("--dask", metavar="ADDRESS", help="Analyse on a Dask cluster, such as tcp://scheduler:8786."),
    ] = None,
    strict: Annotated[
        bool, parameters.flag("--strict", help="Exit with 2 if a rank is missing, after the report on the others.")
    ] = False,
    max_text: Annotated[
        float, typer.Option(metavar="GB", min=0.001, help="Read no more text of a stream or a compressed trace.")
    ] = 32,
    max_index: Annotated[
        float, typer.Option(metavar="MB", min=0.001, help="Refuse a longer index page of a folder on the web.")
    ] = 16,
    fail_on: parameters.FailOn = None,
    baseline: parameters.Baseline = None,
    update_baseline: parameters.UpdateBaseline = False,
    no_color: parameters.NoColor = False,
    quiet: parameters.Quiet = False,
    verbose: parameters.Verbose = False,
) -> None:
    """Say why the step is slow: where each trace spends its time, and what to change.

    The traces of many ranks become one report: a folder, a pattern or a URL that names them is enough. A rank whose
    trace cannot be read, or whose worker dies, is missing from the report, and the other ranks are analysed.

    Traces of different jobs get a report each. With --json each is one line then, and report.md of -o becomes
    report-TRACE.md. A trace that belongs to no larger job, by its number in the trace or in the name, gets its own
    report.

    With --baseline FILE the findings in that file are accepted, and a new or dearer one exits with 1: --update-baseline
    writes the file, to be kept in git.

    Rules and thresholds can also be set in pyproject.toml, in the table tool.perfdoctor.
    """
    verbosity = parameters.parse_verbosity(quiet, verbose)
    if jobs is not None and dask is not None:
        raise UsageError("--jobs and --dask exclude each other: the cluster decides how many workers it has")
    check_outputs(output)
    if opens and not has_page(output):
        raise UsageError("--open opens a page, and none is written: give -o report.html")
    if update_baseline and baseline is not None:
        check_folder(baseline)
    shown = parameters.parse_output_format(as_json, output_format)
    config = load_config(select, ignore, settings, Path.cwd())
    # Nothing here multiplies matrices; numpy's BLAS would start one thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfdoctor.analysis_options import AnalysisOptions
    from perfdoctor.api import analyze_traces
    from perfdoctor.fleet.discover import find_inputs
    from perfdoctor.fleet.split_jobs import split_jobs
    from perfdoctor.run_watch.read_hang import NO_HANG_FILES

    gate = open_gate(fail_on, baseline, updates=update_baseline)
    report_output = ReportOutput(shown, tuple(output), rank, no_color, verbosity, gate, opens)
    silent = quiet or (shown != "text" and not sys.stdout.isatty())

    options = AnalysisOptions(
        config.select,
        config.ignore,
        config.settings,
        device=device,
        rank=rank,
        steps=parameters.parse_steps(steps),
        jobs=jobs,
        dask=dask,
        charts=has_page(output),
        tables=report_output.tables,
        max_text_bytes=round(max_text * 1e9),
        settings_file=config.file,
    )
    announce_settings(options, gate)

    def analyze_job(job: Job) -> Report:
        with open_progress_bar(enabled=not silent) as progress:
            return analyze_traces(job, options, progress, NO_HANG_FILES if job_count > 1 else inputs.hang)

    inputs = find_inputs(paths, round(max_index * 1e6))
    files = inputs.traces
    # One rank of one job, or a cluster that sees files which this machine may not see: nothing to split.
    in_order = all(map(os.path.isfile, paths))
    found = [files] if rank is not None or dask is not None else split_jobs(files, in_order=in_order)
    job_count = len(found)
    if job_count > 1:
        from perfdoctor.cli.job_reports import emit_job_reports

        if baseline is not None:
            raise UsageError(f"--baseline is of one job, and these are traces of {len(found)}: analyze one at a time")
        emit_job_reports(found, analyze_job, report_output, strict=strict)
        return
    report = analyze_job(files)
    check_program(report, gate)
    print_analysis(report, report_output)
    save_outputs(report, report_output)
    if strict:
        check_ranks_complete(report, rank)
    if gate is None:
        return
    if update_baseline and baseline is not None:
        save_baseline(report, baseline, gate)
    else:
        check_gate(report, gate)
