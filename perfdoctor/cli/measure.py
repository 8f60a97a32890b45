"""`perfdoctor measure`: run the dearest calls of a capture again, beside cheaper forms of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from perfdoctor.capture.capture_folder import list_ranks
from perfdoctor.cli import parameters
from perfdoctor.errors import InputError
from perfdoctor.forms import DEFAULT_BUDGET_S
from perfdoctor.reporters.output import write_stdout
from perfdoctor.units import format_time


@parameters.command(
    "perfdoctor measure perfdoctor-train-20261126-161500",
    "perfdoctor measure capture --measure 60",
    "perfdoctor measure capture --python env/bin/python    # another Python",
)
def measure(
    capture: Annotated[
        Path, typer.Argument(metavar="CAPTURE", show_default=False, help="The folder that perfdoctor run wrote.")
    ],
    *,
    seconds: parameters.MeasureFor = DEFAULT_BUDGET_S,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PYTHON", help="Measure in this Python; the default is this one.")
    ] = None,
    rank: parameters.Rank = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Measure cheaper forms of the dearest torch calls of a capture, here and now.

    perfdoctor run has recorded the calls of one step with their sizes, strides and types. A process of its own makes
    such inputs anew and runs each call beside other forms of it, in turns, with the backward pass where there is one.
    What computes something else is refused. The results go into the capture: perfdoctor analyze CAPTURE reports what
    wins.
    """
    from perfdoctor.forms.measure_forms import measure_capture

    ranks = list_ranks(capture)
    if not ranks or (rank is not None and rank not in ranks):
        raise InputError(f"{capture} is no capture" if not ranks else f"{capture} has no rank {rank}")
    chosen = ranks[0] if rank is None else rank
    if not (capture / f"rank{chosen}" / "calls.json").is_file():
        raise InputError(f"{capture} has no calls of rank {chosen}: record it again, with an evidence window")
    rows = measure_capture(capture, chosen, seconds, python)
    if as_json:
        write_stdout(json.dumps(rows, indent=1) + "\n")
        return
    write_stdout(format_forms(rows))


def format_forms(rows: list[dict[str, Any]]) -> str:
    """The measured forms as a table, and how many were refused for what reason."""
    from perfdoctor.cli.plain_table import format_table

    measured = [row for row in rows if "refused" not in row]
    if not rows:
        return "no call of this capture takes a hundredth of a step and has another form\n"
    table = [
        (
            f"{Path(row['lines'][0]['file']).name}:{row['lines'][0]['line']}" if row["lines"] else "",
            row["ops"][-1],
            format_time(row["now_ns"]),
            format_time(row["form_ns"]),
            f"{row['noise']:.0%}",
            _verdict(row),
            row["says"],
        )
        for row in measured
    ]
    text = format_table(("line", "call", "now", "form", "noise", "results", "form"), table) if table else ""
    refused = len(rows) - len(measured)
    return f"{text}{refused} of {len(rows)} did not fit the arguments, or computed something else\n"


def _verdict(row: dict[str, Any]) -> str:
    if row["results"] != "equal":
        return str(row["results"])
    return "equal" if not row["difference"] else f"within {row['difference']:.0e}"
