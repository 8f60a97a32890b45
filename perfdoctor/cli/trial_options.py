"""The options that `try` and `fix` share, and what these print: both run a program again and again."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from perfdoctor.cli.report_output import ReportOutput, print_analysis, shown_path
from perfdoctor.errors import UsageError

if TYPE_CHECKING:
    from signal import Signals

    from perfdoctor.report.report import Report
    from perfdoctor.trials.try_program import TrySettings

DEFAULT_BUDGET = "10m"
DEFAULT_PAIRS = 6
_MAX_PAIRS = 100
_MAX_WAIT_S = 60.0
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")

Pairs: TypeAlias = Annotated[
    int, typer.Option("--pairs", metavar="N", help="Compare at most N pairs of runs for each change.")
]
Budget: TypeAlias = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="Start no run after this time, such as 10m, 1h30m or 90s.")
]
Skip: TypeAlias = Annotated[
    int | None, typer.Option("--skip", min=0, metavar="N", help="Leave the first N steps of each run alone.")
]
Base: TypeAlias = Annotated[int | None, typer.Option("--base", min=1, metavar="N", help="Time N steps of each run.")]
Timeout: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--timeout", metavar="TIME", help="End a run after this time; the default is five times the plain one."
    ),
]
Wait: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="TIME",
        help="Wait this long in all for other programs to leave the cores, 0 for not at all; the default is a "
        "tenth of the budget, a minute at most.",
    ),
]
Resume: TypeAlias = Annotated[
    Path | None, typer.Option("--resume", metavar="FOLDER", help="Go on where the trials in FOLDER stopped.")
]


class Limits(NamedTuple):
    """What options say of how long it may take."""

    pairs: int
    budget_s: float
    timeout_s: float | None
    quiet_s: float


def parse_limits(pairs: int, budget: str, timeout: str | None, wait: str | None) -> Limits:
    """The limits that the options mean.

    Raises:
        UsageError: A time is malformed, or there are too many pairs.
    """
    if not 1 <= pairs <= _MAX_PAIRS:
        raise UsageError(f"--pairs {pairs} must be from 1 to {_MAX_PAIRS}.")
    budget_s = parse_duration(budget, "--budget")
    if wait is None:
        quiet_s = min(budget_s / 10, _MAX_WAIT_S)
    else:
        quiet_s = 0.0 if wait == "0" else parse_duration(wait, "--wait")
    return Limits(pairs, budget_s, None if timeout is None else parse_duration(timeout, "--timeout"), quiet_s)


def make_settings(limits: Limits, **others: Any) -> TrySettings:
    """The settings of trials, from their limits and the other fields of `TrySettings`."""
    from perfdoctor.trials.try_program import TrySettings

    return TrySettings(**limits._asdict(), **others)


def parse_duration(text: str, option: str) -> float:
    """Seconds in "10m", "1h30m", "90s" or "90".

    Raises:
        UsageError: It is no time above 0.
    """
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise UsageError(f"{option} {text} is not a time: give one such as {option} 10m, 1h30m or 90s.")
    return float(total)


def open_folder(
    command: Sequence[str], kind: str, out: Path | None, resume: Path | None
) -> tuple[Path, Mapping[str, Any] | None]:
    """The folder of trials, and the state that earlier ones have left in it; None where they begin.

    Args:
        command: The command line of the program.
        kind: The command of perfdoctor, for the name of a new folder.
        out: The folder that the user names.
        resume: The folder to go on in.

    Raises:
        UsageError: Both are given, or there is nothing to go on with.
        CaptureError: A new folder is not empty, or cannot be written.
    """
    from perfdoctor.trials.run_log import read_state
    from perfdoctor.trials.try_program import make_trial_folder

    if resume is None:
        return make_trial_folder(command, out, kind), None
    if out is not None:
        raise UsageError("--resume continues in its own folder: leave --out away.")
    return resume.absolute(), read_state(resume)


def end_trials(folder: Path, kind: str, ended_by: Signals | None, *, quiet: bool) -> int:
    """Say where everything is; returns the exit code."""
    if not quiet:
        hint = f"; to go on: perfdoctor {kind} --resume {shown_path(folder)} ..." if ended_by else ""
        sys.stderr.write(f"perfdoctor: everything is in {shown_path(folder)}{hint}\n")
    return 128 + ended_by if ended_by else 0


def check_surroundings(command: str) -> None:
    """Check that programs can be measured from here.

    Args:
        command: The command of perfdoctor, for its messages.

    Raises:
        UsageError: perfdoctor is switched off, or is one of several ranks itself.
    """
    from perfdoctor.capture.capture_folder import launcher_rank

    if os.environ.get("PERFDOCTOR_DISABLE", "0") not in ("", "0"):
        raise UsageError("PERFDOCTOR_DISABLE is set, so that nothing can be measured: unset it first.")
    if launcher_rank() is not None:
        raise UsageError(
            f"{command} starts the whole job again and again, and is a rank of one itself here: put it in front of the "
            f"launcher, as in perfdoctor {command} -- torchrun train.py."
        )


def print_trials(report: Report, *, as_json: bool, no_color: bool, verbosity: int) -> None:
    """Print the trials, with -v the whole report, or all of it as JSON."""
    if as_json or verbosity > 0:
        shown = "json" if as_json else "text"
        print_analysis(report, ReportOutput(shown, no_color=no_color, verbosity=verbosity))
        return
    from perfdoctor.reporters.output import write_stdout
    from perfdoctor.reporters.trial_reports import TrialTerminal
    from perfdoctor.reporters.write_report import terminal_for

    write_stdout(TrialTerminal(width=terminal_for(sys.stdout).width).render(report))
