"""Running the user's program: its environment, its signals and its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from perfdoctor.errors import CaptureError

# A program that was asked to end may be saving a checkpoint; cluster schedulers give 30 s, too.
GRACE_S = 30.0
INJECT = Path(__file__).parent / "inject"
FORWARDED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def environment(marks: Path, settings: str) -> dict[str, str]:
    """The program's environment, with our folder first on PYTHONPATH.

    Args:
        marks: Folder of the marks that tell how far each process came.
        settings: What `CaptureOptions.to_json` returned.
    """
    values = dict(os.environ)
    path = values.get("PYTHONPATH")
    values["PYTHONPATH"] = str(INJECT) + (os.pathsep + path if path else "")
    values["PERFDOCTOR_CAPTURE_MARKS"] = str(marks)
    values["PERFDOCTOR_CAPTURE_SETTINGS"] = settings
    # Kineto writes progress lines of its own to the program's stderr.
    values.setdefault("KINETO_LOG_LEVEL", "99")
    return values


def run_program(command: Sequence[str], values: Mapping[str, str] | None, grace_s: float = GRACE_S) -> int:
    """Run a command to its end with our stdin, stdout and stderr.

    Args:
        command: The command line.
        values: Its environment; None for ours.
        grace_s: Seconds between a forwarded SIGTERM or SIGHUP and SIGKILL.

    Returns:
        Its exit code; 128 + the signal's number when a signal ended it.

    Raises:
        CaptureError: It cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        child = subprocess.Popen(list(command), env=None if values is None else dict(values))
    except OSError as error:
        raise CaptureError(
            f"{command[0]} cannot be started ({error.strerror or error}): check the name and its permissions."
        ) from error
    with forwarding(child, grace_s):
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def forwarding(child: subprocess.Popen[bytes], grace_s: float) -> Iterator[None]:
    """Hand our signals on to the child while it runs, and put the old handlers back."""
    killer = threading.Timer(grace_s, child.kill)
    killer.daemon = True

    def forward(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and typed_at_terminal():
            return
        child.send_signal(number)
        if number != signal.SIGINT and not killer.is_alive():
            with contextlib.suppress(RuntimeError):
                killer.start()

    # Signal handlers belong to the main thread; a caller in another one keeps its own.
    mine = FORWARDED if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, forward) for number in mine}
    try:
        yield
    finally:
        killer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


def typed_at_terminal() -> bool:
    """Whether Ctrl-C reached the child already: a terminal sends it to the whole foreground group."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
