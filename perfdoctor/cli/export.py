"""`perfdoctor export`: the trace itself, annotated, for Perfetto and chrome://tracing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.cli.config import load_config
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.cli.report_output import check_folder
from perfdoctor.errors import UsageError
from perfdoctor.reporters.clean_text import clean_line


@parameters.command(
    "perfdoctor export trace.json.gz -o annotated.json.gz",
    "perfdoctor export capture/ -o all-ranks.json.gz",
    "perfdoctor export capture/ -o rank3.json.gz --rank 3 --steps 2:4",
)
def export(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE",
            show_default=False,
            help="A trace, a capture folder, or a folder with the traces of several ranks, which become one trace "
            "on one clock; --rank chooses one of them.",
        ),
    ],
    *,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", show_default=False, help="The file to write, .json.gz or .json."
        ),
    ],
    select: parameters.Select,
    ignore: parameters.Ignore,
    settings: parameters.Settings,
    device: parameters.Device = None,
    rank: parameters.Rank = None,
    steps: parameters.Steps = None,
) -> None:
    """Write the trace with its steps, account, findings and counters as additional tracks.

    Where the trace has memory events, counters say what each device had allocated and reserved, and what for.
    Open the written file in ui.perfetto.dev or chrome://tracing.
    """
    if not output.lower().endswith((".json.gz", ".json")):
        raise UsageError(f"{output}: an annotated trace must be called .json.gz or .json")
    check_folder(output)
    config = load_config(select, ignore, settings, Path.cwd())
    from perfdoctor.analysis_options import AnalysisOptions
    from perfdoctor.api import analyze_traces
    from perfdoctor.fleet.discover import find_traces
    from perfdoctor.reporters.chrome_trace.annotate_trace import export_chrome_trace

    chosen = parameters.parse_steps(steps)
    options = AnalysisOptions(config.select, config.ignore, config.settings, device=device, rank=rank, steps=chosen)
    with open_progress_bar() as progress:
        report = analyze_traces(find_traces(traces), options, progress)
    clocks = export_chrome_trace(report, output, rank=rank, options=options)
    for trace in report.missing:
        sys.stderr.write(f"{clean_line(trace.path)} is left out: {clean_line('; '.join(trace.warnings))}\n")
    if clocks is not None:
        sys.stderr.write(f"{clean_line(clocks)}\n")
    sys.stderr.write(f"wrote {clean_line(output)}; open it in https://ui.perfetto.dev or chrome://tracing\n")
