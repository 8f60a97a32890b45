"""`perfdoctor compare`: what became of the step between two recordings, what explains it, and what the fixes gave."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.cli.config import load_config
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.cli.report_output import check_folder


@parameters.command(
    "perfdoctor compare before/ after/",
    "perfdoctor compare b1 a1 --before b2 --after a2     # two recordings a side",
    "perfdoctor compare main/ branch/ --fail-over 5%   # a gate: exit code 0 or 1",
    "perfdoctor compare before.json after.json -o change.md",
)
def compare(
    before: Annotated[
        str,
        typer.Argument(
            metavar="BEFORE",
            show_default=False,
            help="A trace, a capture folder, a folder of rank traces, a glob, a URL, or a file report.json.",
        ),
    ],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", show_default=False, help="The same of the program after the change.")
    ],
    *,
    more_before: Annotated[
        list[str], parameters.repeated("--before", metavar="PATH", help="One more recording before the change.")
    ],
    more_after: Annotated[
        list[str], parameters.repeated("--after", metavar="PATH", help="One more recording after the change.")
    ],
    fail_over: Annotated[
        str | None,
        typer.Option(
            "--fail-over",
            metavar="PERCENT",
            help="Exit with 1 if the step became slower by more than this (5%), beyond the noise, or if that cannot be "
            "judged.",
        ),
    ] = None,
    as_json: parameters.AsJson = False,
    output: Annotated[list[str], parameters.output_files(".json, .md or .txt")],
    select: parameters.Select,
    ignore: parameters.Ignore,
    settings: parameters.Settings,
    device: parameters.Device = None,
    steps: parameters.Steps = None,
    jobs: parameters.Jobs = None,
    no_color: parameters.NoColor = False,
    quiet: Annotated[
        bool, parameters.flag("-q", "--quiet", help="Print the verdict, and what became of the findings.")
    ] = False,
    verbose: Annotated[
        bool, parameters.flag("-v", "--verbose", help="Print all tables with more rows, and all findings.")
    ] = False,
) -> None:
    """Say what got faster or slower between two recordings of a program, and whether that is more than noise.

    Several recordings of the same program on a side show how much recordings differ, and narrow the noise: add them
    with --before and --after. A folder of captures is as many recordings.

    Recordings that differ in device, model, shapes, ranks, phase or recorder are shown side by side, but not judged. Of
    one program on two devices it says what the time follows, which ratio is usual, and what did not get its share;
    --fail-over exits with 1 there.
    """
    verbosity = parameters.parse_verbosity(quiet, verbose)
    from perfdoctor.comparison.gate import check_step, parse_limit
    from perfdoctor.reporters.output import write_stdout
    from perfdoctor.reporters.write_comparison import (
        comparison_suffix_of,
        print_comparison,
        render_comparison,
        save_comparison,
    )

    limit = None if fail_over is None else parse_limit(fail_over)
    for path in output:
        comparison_suffix_of(path)
        check_folder(path)
    config = load_config(select, ignore, settings, Path.cwd())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfdoctor.compare_traces import compare as compare_paths

    silent = quiet or (as_json and not sys.stdout.isatty())
    with open_progress_bar(enabled=not silent) as progress:
        comparison = compare_paths(
            [before, *more_before],
            [after, *more_after],
            select=config.select,
            ignore=config.ignore,
            device=device,
            steps=parameters.parse_steps(steps),
            settings=config.settings,
            jobs=jobs,
            progress=progress,
        )
    if as_json:
        write_stdout(render_comparison(comparison, ".json"))
    else:
        print_comparison(comparison, color=False if no_color else None, verbosity=verbosity)
    for path in output:
        save_comparison(comparison, path, verbosity=max(verbosity, 0))
        sys.stderr.write(f"wrote {path}\n")
    if limit is not None:
        check_step(comparison, limit)
