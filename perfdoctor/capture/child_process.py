"""Running the user's program: its environment, its signals and its exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from perfdoctor.errors import CaptureError

# A program that receives SIGTERM may be saving a checkpoint; cluster schedulers wait 30 s, too.
GRACE_S = 30.0
MARKER_VARIABLE = "PERFDOCTOR_CAPTURE_MARKS"
INJECT_FOLDER = Path(__file__).parent / "inject"
FORWARDED_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def build_environment(markers: Path, settings: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The program's environment: ours, with the folder of the injected code first on PYTHONPATH.

    `markers` is the folder in which each process shows how far it came, and `more` sets variables beside ours, or in
    their place.
    """
    values = {**os.environ, **(more or {})}
    path = values.get("PYTHONPATH")
    values["PYTHONPATH"] = str(INJECT_FOLDER) + (os.pathsep + path if path else "")
    values[MARKER_VARIABLE] = str(markers)
    values["PERFDOCTOR_CAPTURE_SETTINGS"] = settings
    # Without this, Kineto writes its progress lines to the program's stderr.
    values.setdefault("KINETO_LOG_LEVEL", "99")
    return values


def run_program(command: Sequence[str], environment: Mapping[str, str] | None, grace_s: float = GRACE_S) -> int:
    """Run a command to its end with our stdin, stdout and stderr.

    Args:
        command: The command line.
        environment: The environment of the command; None for ours.
        grace_s: Seconds between a forwarded SIGTERM or SIGHUP and SIGKILL.

    Returns:
        The exit code of the command; 128 + the signal's number when a signal ended it.

    Raises:
        CaptureError: The command cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        child = subprocess.Popen(list(command), env=None if environment is None else dict(environment))
    except OSError as error:
        raise CaptureError(explain_failed_start(command, error)) from error
    with forward_signals(child, grace_s):
        code = child.wait()
    return code if code >= 0 else 128 - code


def explain_failed_start(command: Sequence[str], error: OSError) -> str:
    """Why a command cannot be started, and what to type instead."""
    first, reason = command[0], error.strerror or str(error)
    if os.path.isfile(first):
        runner = "" if first.endswith(".py") else "-- bash "
        instead = f"perfdoctor run {runner}{shlex.join(command)}"
        return (
            f"{first} cannot be started ({reason}): it is not executable; {instead}, or chmod +x {shlex.quote(first)}"
        )
    return f"{first} cannot be started ({reason}): check the name and its permissions."


@contextlib.contextmanager
def forward_signals(child: subprocess.Popen[bytes], grace_s: float) -> Iterator[None]:
    """Send our signals on to the child while it runs, and restore the previous handlers afterwards."""
    killer = threading.Timer(grace_s, child.kill)
    killer.daemon = True

    def forward(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and terminal_signals_the_child():
            return
        child.send_signal(number)
        if number != signal.SIGINT and not killer.is_alive():
            with contextlib.suppress(RuntimeError):
                killer.start()

    # Only the main thread may set signal handlers; in any other thread the caller's handlers stay.
    forwarded = FORWARDED_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, forward) for number in forwarded}
    try:
        yield
    finally:
        killer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


def terminal_signals_the_child() -> bool:
    """Whether the child has received Ctrl-C as well: a terminal sends SIGINT to the whole foreground group.

    On Windows a console sends it to all of its processes, and nothing else can send it.
    """
    if not hasattr(os, "tcgetpgrp"):
        return True
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no terminal, or no stdin at all
        return False
