"""`perfdoctor guide`: the field guide, row by row, for one recording."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from perfdoctor.cli import parameters
from perfdoctor.cli.config import load_config
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.cli.report_output import check_folder
from perfdoctor.errors import UsageError
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.output import write_stdout


class Kind(StrEnum):
    """A kind of answers, as one types it."""

    APPLIES = "applies"
    DONE = "done"
    NOT = "not"
    UNKNOWN = "unknown"


_KINDS = {Kind.APPLIES: "applies", Kind.DONE: "done already", Kind.NOT: "does not apply", Kind.UNKNOWN: "cannot tell"}


@parameters.command(
    "perfdoctor guide capture/",
    "perfdoctor guide trace.json.gz --only applies --only unknown",
    "perfdoctor guide run/ --rank 3 -o guide.md",
    "perfdoctor guide trace.json.gz --json | jq .counts",
)
def guide(
    paths: parameters.Paths,
    *,
    as_json: parameters.AsJson = False,
    output: Annotated[list[str], parameters.output_files(".md, .json or .txt")],
    only: Annotated[
        list[Kind],
        parameters.repeated(
            "--only",
            metavar="KIND",
            help="Show only rows that apply (applies), are done (done), do not apply (not), or cannot be answered "
            "(unknown); may be given several times.",
        ),
    ],
    device: parameters.Device = None,
    rank: parameters.Rank = None,
    steps: parameters.Steps = None,
    no_color: parameters.NoColor = False,
    quiet: Annotated[bool, parameters.flag("-q", "--quiet", help="Print one line for each row.")] = False,
    verbose: Annotated[
        bool, parameters.flag("-v", "--verbose", help="Print who says so, what checks it, and what has changed since.")
    ] = False,
) -> None:
    """Answer each of the 51 rows of the field guide, the advice on PyTorch's performance that everybody repeats.

    A row applies (with its line and what it is worth), is done already (with what shows it), does not apply (with the
    reason), or cannot be answered (with what to record for it).

    Traces of several jobs get no common guide.
    """
    verbosity = parameters.parse_verbosity(quiet, verbose)
    kinds = tuple(_KINDS[name] for name in only)
    if as_json and kinds:
        raise UsageError("--only is of the text: --json has all rows, each with its answer")
    # Nothing here multiplies matrices; numpy's BLAS would start one thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfdoctor.analysis_options import AnalysisOptions
    from perfdoctor.api import analyze_traces
    from perfdoctor.field_guide.render_guide import guide_suffix_of, print_guide, render_guide, save_guide
    from perfdoctor.fleet.discover import find_traces

    for path in output:
        guide_suffix_of(path)
        check_folder(path)
    config = load_config((), (), (), Path.cwd())
    options = AnalysisOptions(settings=config.settings, device=device, rank=rank, steps=parameters.parse_steps(steps))
    with open_progress_bar(enabled=not quiet and (not as_json or sys.stdout.isatty())) as progress:
        report = analyze_traces(find_traces(paths), options, progress)
    answers = report.guide()
    if as_json:
        write_stdout(render_guide(answers, ".json"))
    else:
        print_guide(answers, color=False if no_color else None, verbosity=verbosity, kinds=kinds)
    for path in output:
        save_guide(answers, path, kinds)
        sys.stderr.write(f"wrote {clean_line(path)}\n")
