"""`perfdoctor show`: the tables behind a report."""

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
from perfdoctor.errors import UsageError
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.output import write_stdout
from perfdoctor.tables.catalog import TABLES, check_table

_ROWS = 20


def complete_tables(incomplete: str) -> parameters.Completions:
    """The tables."""
    return parameters.match_start(((name, table.title) for name, table in TABLES.items()), incomplete)


@parameters.command(
    "perfdoctor show                                  # the tables there are",
    "perfdoctor show kernels trace.json.gz",
    "perfdoctor show kernels trace.json.gz --by shape --sort flops_per_s",
    "perfdoctor show ops run/ --rank 3 --top 0 --csv > ops.csv",
    "perfdoctor show gemms trace.json.gz -o gemms.csv -o gemms.md",
)
def show(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help="kernels, ops, gemms, ...; without it the tables are listed.",
            autocompletion=complete_tables,
        ),
    ] = None,
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="A trace, or a folder of them, a capture, a memory snapshot, a glob, a URL, or - for standard input.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="KEY", help="Group the rows by name, shape, category, op, module or line."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort", metavar="COLUMN", help="Sort by a column, as --csv and --json name it: count, mean_ns, ..."
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=0, metavar="N", help=f"Show N rows, 0 for all; the default is {_ROWS} for people."),
    ] = None,
    as_csv: Annotated[
        bool, parameters.flag("--csv", help="Print CSV on standard output: all columns, all rows.")
    ] = False,
    as_json: Annotated[
        bool, parameters.flag("--json", help="Print JSON on standard output: all columns, all rows.")
    ] = False,
    output: Annotated[list[str], parameters.output_files(".csv, .json, .md or .txt with all rows")],
    device: parameters.Device = None,
    rank: parameters.Rank = None,
    steps: parameters.Steps = None,
    no_color: parameters.NoColor = False,
    verbose: Annotated[
        bool, parameters.flag("-v", "--verbose", help="Print all columns, however wide that gets.")
    ] = False,
) -> None:
    """Show one table of a trace.

    Of several ranks the one with the longest step is shown, unless --rank names another. No rule is applied.

    Times are of a step, without the profiler where a capture timed such steps; window_ns in --csv and --json is what
    was recorded in all analysed steps.
    """
    if what is None:
        _print_catalogue()
        return
    paths = paths or []
    by = _check(what, by, paths)
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other: standard output holds one of them")
    # Nothing here multiplies matrices; numpy's BLAS would start one thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfdoctor.reporters import write_table

    for path in output:
        write_table.table_suffix_of(path)
        check_folder(path)
    config = load_config((), (), (), Path.cwd())
    from perfdoctor.analysis_options import AnalysisOptions
    from perfdoctor.api import make_table
    from perfdoctor.fleet.discover import find_traces

    options = AnalysisOptions(settings=config.settings, device=device, rank=rank, steps=parameters.parse_steps(steps))
    silent = (as_csv or as_json) and not sys.stdout.isatty()
    with open_progress_bar(enabled=not silent) as progress:
        table = make_table(find_traces(paths), what, by, options, progress)
    if sort is not None:
        table = table.sort(sort)
    whole = table.top(top) if top else table
    for path in output:
        write_table.save_table(whole, path)
        sys.stderr.write(f"wrote {clean_line(path)}\n")
    if as_csv or as_json:
        write_stdout(write_table.render_table_as(whole, ".csv" if as_csv else ".json"))
        return
    write_table.print_table(
        table, color=False if no_color else None, everything=verbose, rows=_ROWS if top is None else top
    )


def _check(what: str, by: str | None, paths: list[str]) -> str:
    """What the table is grouped by.

    Raises:
        UsageError: There is no such table, it cannot be grouped so, or no path is given.
    """
    if what not in TABLES:
        if os.path.exists(what):
            raise UsageError(f"{what} is a path; say which table first: perfdoctor show kernels {what}")
        _print_catalogue(err=True)
    by = check_table(what, by)
    if not paths:
        raise UsageError(f"no trace is given; perfdoctor show {what} PATH")
    return by


def _print_catalogue(err: bool = False) -> None:
    """List the tables, a line each."""
    width = max(map(len, TABLES))
    for name, spec in TABLES.items():
        typer.echo(f"{name:<{width}}  {spec.title}; by {', '.join(spec.by)}", err=err)
