"""`perfdoctor export`: the trace itself, annotated, for Perfetto and chrome://tracing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoctor.cli import parameters as par
from perfdoctor.cli.config import load_config
from perfdoctor.cli.progress_bar import reading_bar
from perfdoctor.errors import InputError, UsageError
from perfdoctor.reporters.wording import clean


def export(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace, a capture folder, or a folder of ranks.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="The file to write, .json.gz or .json.")
    ],
    select: par.Select = [],  # noqa: B006 (Typer takes the default of a repeated option as it stands)
    ignore: par.Ignore = [],  # noqa: B006
    settings: par.Settings = [],  # noqa: B006
    device: par.Device = None,
    rank: par.Rank = None,
    steps: par.Steps = None,
) -> None:
    """Write the trace with its steps, account and findings as tracks of their own.

    Open it in ui.perfetto.dev or chrome://tracing.
    """
    if not output.lower().endswith((".json.gz", ".json")):
        raise UsageError(f"{output}: an annotated trace must be called .json.gz or .json")
    if not Path(output).absolute().parent.is_dir():
        raise InputError(f"{output} cannot be written: its folder does not exist; make it first")
    config = load_config(select, ignore, settings, Path.cwd())
    from perfdoctor.api import analyze as analyze_traces
    from perfdoctor.reporters.chrome import export_chrome_trace

    with reading_bar() as progress:
        report = analyze_traces(
            trace,
            select=config.select,
            ignore=config.ignore,
            device=device,
            rank=rank,
            steps=par.step_slice(steps),
            settings=config.settings,
            progress=progress,
        )
    export_chrome_trace(report, output, rank=rank)
    sys.stderr.write(f"wrote {clean(output)}; open it in https://ui.perfetto.dev or chrome://tracing\n")
