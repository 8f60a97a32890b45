"""Makes this Python look like one of macOS (`darwin`) or Windows (`win32`), as far as that can be done on Linux.

Loaded by every Python that has this folder on PYTHONPATH, worker processes included. What stays Linux: `os.name`, by
which pathlib chooses its paths and which the standard library needs, and everything that was imported before the names
went away, so that it goes on working: the standard library, the packages that perfdoctor is built on, its C library.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

PLATFORM_VARIABLE = "PERFDOCTOR_SIMULATED_PLATFORM"
KEPT = (
    *("asyncio", "ctypes.util", "multiprocessing.util", "platform", "shutil", "socket", "subprocess", "tempfile"),
    *("urllib.request", "uuid", "webbrowser", "typer", "pydantic", "fsspec.core", "isal", "jinja2", "numpy", "orjson"),
    *("platformdirs", "rich.console", "rich.progress"),
    "perfdoctor.trace.scanner.core_sources",  # the file name of the C library, which is Linux's
)
MISSING_OS = {
    "darwin": ("sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fadvise"),
    "win32": (
        *("sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fadvise", "fork", "forkpty", "getloadavg"),
        *("register_at_fork", "getuid", "geteuid", "getgid", "getegid", "getpgid", "getpgrp", "setsid", "killpg"),
        *("tcgetpgrp", "uname", "sysconf", "mkfifo", "chown", "nice", "statvfs", "confstr"),
    ),
}
MISSING_SIGNALS = {
    "darwin": ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "sigtimedwait", "sigwaitinfo"),
    "win32": (
        *("SIGRTMIN", "SIGRTMAX", "SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPIPE"),
        *("SIGQUIT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "pthread_kill", "pthread_sigmask", "setitimer", "siginterrupt"),
    ),
}
MISSING_MODULES = {"darwin": (), "win32": ("fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty")}


def simulate(name: str) -> None:
    """Take away what the platform does not have, and let it refuse what it refuses."""
    for module in KEPT:
        with suppress(ImportError):
            importlib.import_module(module)
    sysconfig.get_config_vars()
    subprocess.Popen.kill = subprocess.Popen.terminate  # type: ignore[method-assign]  # as on Windows
    open_files = list_open_files
    for each in MISSING_OS[name]:
        vars(os).pop(each, None)
    for each in MISSING_SIGNALS[name]:
        vars(signal).pop(each, None)
    for each in MISSING_MODULES[name]:
        sys.modules[each] = None  # type: ignore[assignment]
    if name == "win32":
        for each in ("rename", "replace", "remove", "unlink", "rmdir"):
            setattr(os, each, refuse_open_files(getattr(os, each), open_files))
    sys.addaudithook(hide_proc)
    for each in ("stat", "lstat"):
        setattr(os, each, hide_proc_from(getattr(os, each)))
    # A text file without an encoding is read in the code page of the machine.
    warnings.filterwarnings("error", category=EncodingWarning, module="perfdoctor")
    sys.platform = name


_reads_proc = False


def hide_proc(event: str, arguments: tuple[Any, ...]) -> None:
    """Let every file under /proc and /sys be missing."""
    if event in ("open", "os.listdir", "os.scandir") and not _reads_proc and arguments and arguments[0] is not None:
        refuse_proc(arguments[0])


def hide_proc_from(look: Callable[..., Any]) -> Callable[..., Any]:
    """`os.stat` or `os.lstat`, which call no audit hook."""

    def see(path: Any, **options: Any) -> Any:
        refuse_proc(path)
        return look(path, **options)

    return see


def refuse_proc(path: Any) -> None:
    """Raise what a missing file raises.

    Raises:
        FileNotFoundError: The path is under /proc or /sys.
    """
    if not isinstance(path, int) and os.fsdecode(path).startswith(("/proc", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))


def list_open_files() -> set[str]:
    """The paths of all files that this process has open."""
    global _reads_proc
    _reads_proc, found = True, set()
    try:
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/self/fd/{number}"))
    finally:
        _reads_proc = False
    return found


def refuse_open_files(change: Callable[..., None], open_files: Callable[[], set[str]]) -> Callable[..., None]:
    """`change`, but a file that is open in this process can neither be replaced nor removed."""

    def refuse(*paths: Any, **options: Any) -> None:
        named = {os.path.realpath(os.fsdecode(path)) for path in paths if not isinstance(path, int)}
        if options.get("dir_fd") is None and named & open_files():
            raise PermissionError(13, "The process cannot access the file because it is being used", *sorted(named))
        change(*paths, **options)

    return refuse


if __name__ == "sitecustomize" and PLATFORM_VARIABLE in os.environ:
    simulate(os.environ[PLATFORM_VARIABLE])
