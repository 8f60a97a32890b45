"""Running a program whose end nobody sees: in a session of its own, with a time limit, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from perfdoctor.capture.child_process import explain_failed_start
from perfdoctor.errors import CaptureError

# Between SIGTERM and SIGKILL: launchers end their workers in that time, and nobody waits for checkpoints of a trial.
END_GRACE_S = 3.0
POLL_S = 0.02
# In which a new process shows its environment, also on a busy machine.
START_S = 0.3
KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has none


def run_with_limit(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float | None,
    stdout: IO[bytes],
    stderr: IO[bytes],
    own_variable: str,
    cwd: Path | None = None,
) -> tuple[int, bool]:
    """Run a command with nothing to read on stdin, and end all of its processes when its time is over.

    The same happens when this process is interrupted while it waits, or ended by SIGTERM or SIGHUP.

    Args:
        command: The command line.
        environment: The environment of the command.
        timeout_s: The limit in seconds; None for none.
        stdout: Where its output goes.
        stderr: Where its errors go.
        own_variable: An environment variable whose value no other program has: by it the processes are found that
            have left the command's process group (torchrun gives each worker a group of its own).
        cwd: The folder in which it runs; None for that of this process.

    Returns:
        The exit code, 128 + the signal's number when a signal ended the command, and whether its time was over.

    Raises:
        CaptureError: The command cannot be started.
    """
    mark = f"{own_variable}={environment[own_variable]}"
    try:
        child = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            cwd=cwd,
        )
    except OSError as error:
        raise CaptureError(explain_failed_start(command, error)) from error
    except BaseException:  # interrupted: it may run already, and nobody has its number
        with ignore_signals():
            kill_starting_processes(mark)
        raise
    timed_out = False
    try:
        with raise_on_signals():
            code = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        # Also after an ordinary end: a launcher that fails may leave workers behind.
        with ignore_signals():
            end_processes(child, mark)
    code = child.wait()
    return (code if code >= 0 else 128 - code), timed_out


def signals_here(*names: str) -> list[signal.Signals]:
    """The signals of these names that this thread may handle: none but in the main thread, and those that there are."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that nothing is left running when they end this process."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    unhandled = [number for number in signals_here("SIGTERM", "SIGHUP") if signal.getsignal(number) is signal.SIG_DFL]
    for number in unhandled:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in unhandled:
            signal.signal(number, signal.SIG_DFL)


def signal_of(ended: SystemExit) -> signal.Signals:
    """The signal that has raised this in `raise_on_signals`."""
    return signal.Signals(int(ended.code or 0) - 128)


@contextlib.contextmanager
def ignore_signals() -> Iterator[None]:
    """Let no second Ctrl-C or SIGTERM interrupt what takes a few seconds and must be done."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in signals_here("SIGINT", "SIGTERM", "SIGHUP")}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_processes(child: subprocess.Popen[bytes], mark: str) -> None:
    """End a command and every process that it has started: by SIGTERM, and what is left after a while by SIGKILL."""
    # The launcher alone first: it ends its workers, and says so, before they are ended behind its back.
    send_signal(child, [] if child.poll() is None else find_processes(mark), signal.SIGTERM)
    kill_s = time.monotonic() + END_GRACE_S
    # Until none is left, but not for ever: a process may start another one while both are searched for.
    while time.monotonic() < kill_s + END_GRACE_S and (child.poll() is None or find_processes(mark)):
        if time.monotonic() >= kill_s:
            send_signal(child, find_processes(mark), KILL)
        time.sleep(POLL_S)


def kill_starting_processes(mark: str) -> None:
    """Kill the processes with this mark that run or are about to: for an instant a new one shows no environment."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        signal_processes(find_processes(mark), KILL)
        time.sleep(POLL_S)


def send_signal(child: subprocess.Popen[bytes], others: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to the process group of a command while it runs, and to other processes."""
    with contextlib.suppress(OSError):
        if child.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(child.pid, number)
            else:
                child.send_signal(number)
    signal_processes(others, number)


def signal_processes(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to some processes; those that have ended, or belong to somebody else, are left out."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def find_processes(mark: str) -> list[int]:
    """The processes that run with this entry in their environment; none where the system does not list them."""
    found, wanted = [], mark.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
