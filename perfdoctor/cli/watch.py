"""`perfdoctor watch`: how the ranks of a recorded program are doing while it runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from perfdoctor.capture.capture_folder import list_ranks
from perfdoctor.cli import parameters
from perfdoctor.cli.report_output import check_folder
from perfdoctor.errors import InputError

if TYPE_CHECKING:
    from perfdoctor.capture.live_state import JobState


@parameters.command(
    "perfdoctor watch perfdoctor-train-20261126-161500",
    "perfdoctor watch capture --every 10 -o state.jsonl",
    "perfdoctor watch capture --json | jq '.ranks[0].step_ns'",
)
def watch(
    capture: Annotated[
        Path,
        typer.Argument(metavar="CAPTURE", show_default=False, help="The capture of a perfdoctor run that still runs."),
    ],
    *,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="Look again after so many seconds.")
    ] = 2,
    once: Annotated[bool, parameters.flag("--once", help="Look once, and end.")] = False,
    as_json: Annotated[bool, parameters.flag("--json", help="Print a line of JSON for each look.")] = False,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Also append a line of JSON for each look.")
    ] = None,
    no_color: parameters.NoColor = False,
) -> None:
    """Show how a recorded program is doing while it runs: the steps of each rank, what they wait for, and memory.

    It reads what the recorder writes for each step, and asks the system and NVML, so that the program is left alone.
    It says which rank the others wait for, which one makes no steps any more, and since when steps take longer. It ends
    with the program; Ctrl-C leaves the program alone.
    """
    if not list_ranks(capture):
        raise InputError(
            f"{capture} holds no rank of a recording: give the folder that perfdoctor run has made, once the program "
            "has made a step"
        )
    if output is not None:
        check_folder(output)
    from perfdoctor.capture.live_state import GpuUse, LiveCapture

    live = LiveCapture(capture, GpuUse().read)
    file = None if output is None else Path(output).open("a", encoding="utf-8")  # noqa: SIM115 - for all looks
    try:
        _show(capture.name, live.look, file, every_s=every, once=once, as_json=as_json, no_color=no_color)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    finally:
        if file is not None:
            file.close()


def _show(
    name: str,
    look: Callable[[], JobState],
    file: TextIO | None,
    *,
    every_s: float,
    once: bool,
    as_json: bool,
    no_color: bool,
) -> None:
    """Look again and again, until the program has ended, and show what was seen."""
    from rich.console import Console
    from rich.live import Live

    from perfdoctor.cli.live_table import draw_job

    console = Console(no_color=no_color or None, highlight=False)
    is_live = console.is_terminal and not once and not as_json
    live = Live(console=console, auto_refresh=False, vertical_overflow="visible") if is_live else None
    with live or nullcontext():
        while True:
            job = look()
            line = json.dumps(job.to_dict(), separators=(",", ":"))
            if file is not None:
                file.write(f"{line}\n")
                file.flush()
            if as_json:
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
            elif live is not None:
                live.update(draw_job(name, job), refresh=True)
            else:
                console.print(draw_job(name, job))
            if once or job.has_ended:
                return
            time.sleep(every_s)
