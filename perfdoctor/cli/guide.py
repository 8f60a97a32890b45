"""`perfdoctor guide`: the field guide, row by row, for one recording."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from perfdoctor.cli import parameters
from perfdoctor.cli.config import load_config
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.cli.report_output import check_folder
from perfdoctor.cli.shell_values import complete_files
from perfdoctor.errors import UsageError
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.output import write_stdout

# As one types them, by the kinds of answers.
_KINDS = {"applies": "applies", "done": "done already", "not": "does not apply", "unknown": "cannot tell"}


@click.command(
    short_help="Answer each advice of the field guide for a recording.",
    epilog=parameters.format_examples(
        "perfdoctor guide capture/",
        "perfdoctor guide trace.json.gz --only applies --only unknown",
        "perfdoctor guide run/ --rank 3 -o guide.md",
        "perfdoctor guide trace.json.gz --json | jq .counts",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=complete_files)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output, and nothing else there.")
@click.option(
    "-o",
    "--output",
    multiple=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="Also write .md, .json or .txt; may be given several times.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(tuple(_KINDS)),
    help="Show only rows that apply, are done, do not apply, or cannot be answered; may be given several times.",
)
@parameters.device
@parameters.rank
@parameters.steps
@parameters.no_color
@click.option("-q", "--quiet", is_flag=True, help="Print one line for each row.")
@click.option("-v", "--verbose", is_flag=True, help="Print who says so, what checks it, and what has changed since.")
def guide(
    paths: tuple[str, ...],
    as_json: bool,
    output: tuple[str, ...],
    only: tuple[str, ...],
    device: str | None,
    rank: int | None,
    steps: str | None,
    no_color: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Answer each of the 51 rows of the field guide, the advice on PyTorch's performance that everybody repeats.

    Each applies (and is worth so much, at this line), is done already (and what shows that), does not apply (and why),
    or cannot be answered (and what to record for it).

    PATH is a trace, a capture folder, a folder with the traces of all ranks, a glob, a URL, or - for standard input.
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
