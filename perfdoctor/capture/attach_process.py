"""Putting the recorder into a program that was started without perfdoctor.

Python 3.14 runs a script in another process by itself (`sys.remote_exec`, PEP 768). In an older Python a debugger can
ask for the same: gdb calls `Py_AddPendingCall`, which lets the main thread run a line of Python between two of its own.
That stops the process for some tenths of a second, and is done only where the user asks for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from perfdoctor.capture.capture_folder import list_ranks
from perfdoctor.capture.capture_notes import has_ended, read_facts
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.child_process import INJECT_FOLDER
from perfdoctor.capture.inject._perfdoctor_inject.messages import ANSWER_FILE
from perfdoctor.capture.process_state import look_at
from perfdoctor.errors import CaptureError

# The first Python that runs scripts for others.
REMOTE_EXEC_VERSION = (3, 14)
# A main thread in one long call of C comes to no place where Python can run something else.
ANSWER_TIMEOUT_S = 30.0
GDB_TIMEOUT_S = 30.0
POLL_S = 0.1
STACKS = "py-spy dump --pid {pid} shows its stacks, as the same user with kernel.yama.ptrace_scope 0, or as root"
RESTART = "start it by perfdoctor run --watch to record it whenever you like"

SCRIPT = """\
import importlib.util
spec = importlib.util.spec_from_file_location("_perfdoctor_attach", {sitecustomize!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
program = module.import_recorder("attached_recorder")
program.{call}
"""
# Only system calls and one function of Python that is made for it are called: the process may be stopped anywhere.
# The symbols of the two libraries alone: gdb needs 10 s for all of torch's, in which the process stands still.
GDB_SCRIPT = """\
set pagination off
set confirm off
set auto-solib-add off
attach {pid}
sharedlibrary libpython
sharedlibrary libc.so
set $page = (char *) ((void *(*)(void *, unsigned long, int, int, int, long)) mmap)(0, 4096, 3, 0x22, -1, 0)
set {{char [{size}]}} $page = "{code}"
print ((int (*)(void *, void *)) Py_AddPendingCall)((void *) PyRun_SimpleString, (void *) $page)
detach
quit
"""


def attach(
    pid: int, options: CaptureOptions, folder: Path, *, timeout_s: float, uses_gdb: bool = False
) -> tuple[int, ...]:
    """Record one set of windows in a running program, and take everything out of it again.

    Args:
        pid: The number of the process.
        options: The windows, of which the first begins at the next step border.
        folder: The capture folder, which exists.
        timeout_s: Seconds to wait for the windows; then the recorder is taken out of the program.
        uses_gdb: Whether gdb may be used where Python itself lets nothing in.

    Returns:
        The ranks recorded: one, or none where the program has made too few steps.

    Raises:
        CaptureError: Nothing can be put into the process, and why.
    """
    send = choose_way(pid, uses_gdb=uses_gdb)
    send(pid, SCRIPT.format(sitecustomize=sitecustomize(), call=f"attach({options.to_json(folder)!r})"))
    wait_for_answer(pid, folder)
    try:
        wait_for_windows(pid, folder, timeout_s)
    finally:
        if not is_complete(folder) and is_running(pid):
            send(pid, SCRIPT.format(sitecustomize=sitecustomize(), call="detach()"))
            wait_until(lambda: is_complete(folder) or not is_running(pid), ANSWER_TIMEOUT_S)
    return list_ranks(folder)


def sitecustomize() -> str:
    """The file that loads the recorder's package."""
    return str(INJECT_FOLDER / "sitecustomize.py")


def choose_way(pid: int, *, uses_gdb: bool) -> Callable[[int, str], None]:
    """The function that runs a text of Python in the process.

    Raises:
        CaptureError: There is no such process, or no way into it.
    """
    version = check_process(pid)
    name = f"Process {pid} runs Python {version[0]}.{version[1]}"
    if version >= REMOTE_EXEC_VERSION:
        if sys.version_info[:2] != version:
            raise CaptureError(
                f"{name}, which lets in only the same Python: install perfdoctor in its environment, and run "
                "perfdoctor attach from there."
            )
        return run_by_remote_exec
    if not uses_gdb:
        raise CaptureError(
            f"{name}, and Pythons before 3.14 let nothing in: --gdb puts the recorder in by a debugger, which stops "
            f"the process for a moment; {STACKS.format(pid=pid)}; {RESTART}."
        )
    if shutil.which("gdb") is None:
        raise CaptureError("gdb is not installed: install it (apt-get install gdb), or run the program again.")
    return run_by_gdb


def check_process(pid: int) -> tuple[int, int]:
    """The version of the Python that trains in a process of this user.

    Raises:
        CaptureError: It is no such process, and what to do.
    """
    process = Path("/proc") / str(pid)
    if sys.platform != "linux":
        raise CaptureError(f"perfdoctor attach works on Linux only: {RESTART}.")
    if not is_running(pid):
        raise CaptureError(f"There is no process {pid}.")
    try:
        if os.geteuid() not in (0, process.stat().st_uid):
            raise CaptureError(f"Process {pid} is another user's: run perfdoctor attach as that user, or as root.")
        maps = (process / "maps").read_text(errors="replace")
        in_container = os.readlink(process / "ns" / "mnt") != os.readlink("/proc/self/ns/mnt")
    except OSError as error:
        raise CaptureError(f"Process {pid} cannot be looked at ({error.strerror}): try it as root.") from error
    if in_container:
        raise CaptureError(f"Process {pid} runs in a container: run perfdoctor attach in there (docker exec).")
    version = find_python_version(process, maps)
    if version is None:
        raise CaptureError(f"Process {pid} is no Python: give the number of the process that trains.")
    if "libtorch" not in maps:
        raise CaptureError(f"Process {pid} has not loaded torch: give the number of the process that trains.")
    return version


def find_python_version(process: Path, maps: str) -> tuple[int, int] | None:
    """The version of the Python that runs in a process, by the names of its files; None where it is no Python."""
    for text in (maps, os.path.realpath(process / "exe")):
        found = re.search(r"python(\d)\.(\d+)", text)
        if found:
            return int(found[1]), int(found[2])
    return None


def run_by_remote_exec(pid: int, code: str) -> None:
    """Run a text in a process of Python 3.14, which reads it from a file.

    Raises:
        CaptureError: The system or the process does not allow it.
    """
    path = write_script(code)
    try:
        sys.remote_exec(pid, path)  # type: ignore[attr-defined]
    except (OSError, RuntimeError) as error:
        os.unlink(path)
        raise CaptureError(
            f"Process {pid} lets nothing in ({error}): that needs the same user and kernel.yama.ptrace_scope 0, or "
            "root, and no PYTHON_DISABLE_REMOTE_DEBUG."
        ) from error


def run_by_gdb(pid: int, code: str) -> None:
    """Run a text in a process of an older Python.

    Raises:
        CaptureError: The debugger may not, or cannot.
    """
    path = write_script(code)
    why = debug(pid, f"exec(open({path!r}).read(), {{}})")
    if why is not None:
        os.unlink(path)
        raise CaptureError(why)


def debug(pid: int, line: str) -> str | None:
    """Let gdb ask a process to run a line of Python; the sentence on why that failed, None where it has not."""
    with tempfile.NamedTemporaryFile("w", suffix=".gdb") as file:
        file.write(GDB_SCRIPT.format(pid=pid, size=len(line) + 1, code=line))
        file.flush()
        command = ["gdb", "--batch", "-nx", "--command", file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=GDB_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"gdb did not come into process {pid} in {GDB_TIMEOUT_S:g} s."
    if "$1 = 0" in done.stdout:
        return None
    if "not permitted" in done.stderr:
        return (
            f"gdb may not look into process {pid}: that needs the same user and kernel.yama.ptrace_scope 0, or root "
            "(in a container: CAP_SYS_PTRACE)."
        )
    if "extended state" in done.stderr:  # gdb 13, of a program that may use AMX
        return (
            f"gdb cannot write the registers of process {pid} on this CPU: try a later gdb, or start the program under "
            "perfdoctor run."
        )
    last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    return f"gdb could not run anything in process {pid} ({last})."


def write_script(code: str) -> str:
    """A file with the text, which removes itself once it was read by the other process."""
    with tempfile.NamedTemporaryFile("w", prefix="perfdoctor-", suffix=".py", delete=False) as file:
        file.write(f"import os\nos.unlink({file.name!r})\n{code}")
    return file.name


def wait_for_answer(pid: int, folder: Path) -> None:
    """Wait until the recorder is in the program.

    Raises:
        CaptureError: It is not, and why.
    """
    path = folder / ANSWER_FILE
    wait_until(lambda: path.exists() or not is_running(pid), ANSWER_TIMEOUT_S)
    if not path.exists():
        state = "came to no place where Python runs something else" if is_running(pid) else "has ended"
        raise CaptureError(f"Process {pid} {state} in {ANSWER_TIMEOUT_S:g} s: {STACKS.format(pid=pid)}.")
    why = json.loads(path.read_text())["why_not"]
    path.unlink()
    if why is not None:
        raise CaptureError(f"Process {pid} lets no recorder in: {why}.")


def wait_for_windows(pid: int, folder: Path, timeout_s: float) -> None:
    """Wait until all windows are recorded, the program ends, or the time is over."""
    wait_until(lambda: is_complete(folder) or not is_running(pid), timeout_s)


def is_complete(folder: Path) -> bool:
    """Whether the recorder has left the program, by what it has written."""
    return any(has_ended(read_facts(folder, rank)) for rank in list_ranks(folder))


def is_running(pid: int) -> bool:
    """Whether the process runs: neither gone nor a zombie."""
    return look_at(pid).state in ("running", "stopped")


def wait_until(done: Callable[[], bool], timeout_s: float) -> None:
    """Wait until something is so, or the time is over."""
    until_s = time.monotonic() + timeout_s
    while not done() and time.monotonic() < until_s:
        time.sleep(POLL_S)
