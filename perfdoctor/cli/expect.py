"""`perfdoctor expect`: what a recorded step should take on another device, or usually takes on its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.cli.config import load_config
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.reporters.output import write_stdout


@parameters.command(
    "perfdoctor expect trace.json.gz --on H100",
    "perfdoctor expect trace.json.gz            # normal for its own GPU?",
    "perfdoctor expect capture/ --on B200 --cpu-scale 0.7",
    "perfdoctor expect trace.json.gz --on L4 --json | jq .step",
)
def expect(
    paths: parameters.Paths,
    *,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="DEVICE", help="The other device, such as H100; without it the trace's own."),
    ] = None,
    cpu_scale: Annotated[
        float, typer.Option("--cpu-scale", metavar="X", help="The CPU's work takes X times as long there; 0.5 is half.")
    ] = 1.0,
    as_json: parameters.AsJson = False,
    device: parameters.Device = None,
    rank: parameters.Rank = None,
    steps: parameters.Steps = None,
    no_color: parameters.NoColor = False,
) -> None:
    """Say what the step should take on another device, as a range with what it rests on.

    The trace is replayed with the rates that comparable kernels attain on that device, by family, type and size. The
    CPU stays as it is. Without --on the step is compared with what comparable kernels take on its own device.

    Of several ranks it is the one with the longest step, unless --rank names another.
    """
    # Nothing here multiplies matrices; numpy's BLAS would start one thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfdoctor.analysis_options import AnalysisOptions
    from perfdoctor.expect_traces import expect_traces
    from perfdoctor.fleet.discover import find_traces
    from perfdoctor.reporters.write_expectation import print_expectation, render_expectation

    config = load_config((), (), (), Path.cwd())
    options = AnalysisOptions(settings=config.settings, device=device, rank=rank, steps=parameters.parse_steps(steps))
    with open_progress_bar(enabled=not as_json or sys.stdout.isatty()) as progress:
        made = expect_traces(find_traces(paths), on, cpu_scale, options, progress)
    if as_json:
        write_stdout(render_expectation(made, as_json=True))
    else:
        print_expectation(made, color=False if no_color else None)
