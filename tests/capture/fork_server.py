"""Starts Python programs in 0.1 s where torch takes 2 s: a server that has imported torch forks for each.

The fork is what `python program.py` would be after its start: environment, working folder, files, arguments, sys.path
and `__main__` are the program's, sitecustomize runs, and torch is absent from sys.modules until the program imports it,
which loads it through the finders on sys.meta_path, the injected one first. It ends as an interpreter ends.

What it is not: environment variables that torch reads when it is loaded are those of the server, unhandled errors lose
the server's frames only in the program's main thread, and /proc says the server's command line. Tests of that, and of
launchers, start a real Python.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

# The server's socket, for programs that start programs; the programs themselves do not see it.
ADDRESS = "TESTS_FORK_SERVER"
MAX_REQUEST_BYTES = 1 << 20
# No frame of the server is taken for the user's, as none of runpy is.
START = (
    "source = open({0!r}).read(); exec(compile(source, '<frozen fork_server>', 'exec'), {{'__name__': 'fork_server'}})"
)


def clean_environment() -> dict[str, str]:
    """The environment of programs: without what a launcher or perfdoctor itself may have set."""
    dropped_prefixes = ("PERFDOCTOR", "RANK", "WORLD_SIZE", "SLURM", "OMPI")
    values = {name: value for name, value in os.environ.items() if not name.startswith(dropped_prefixes)}
    # One thread: many programs on few cores wait for each other's OpenMP threads otherwise.
    return {**values, "OMP_NUM_THREADS": "1"}


class ForkedProgram:
    """A program that the server has started, with the part of the interface of `subprocess.Popen` that is needed."""

    def __init__(
        self,
        address: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int = 0,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args, self.returncode = list(argv), None
        request = {
            "argv": self.args[1:],
            "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or os.getcwd()),
            "new_session": start_new_session,
        }
        with open(os.devnull, "rb") as nothing:
            files = [
                nothing if stdin == subprocess.DEVNULL else stdin,
                1 if stdout is None else stdout,
                2 if stderr is None else stderr,
            ]
            self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._server.connect(address)
            numbers = [file if isinstance(file, int) else file.fileno() for file in files]
            socket.send_fds(self._server, [json.dumps(request).encode()], numbers)
        self.pid = int(self._server.recv(64))

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; minus the signal's number where one ended it."""
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._server.recv(64))
            self._server.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A Python with torch imported, one thread, and the environment of the programs that it starts."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.address = str(folder / "forks")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.address)
        listener.listen()
        self._alive, inherited = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{START.format(__file__)}", str(listener.fileno()), str(inherited.fileno())],
            env={**environment, "KINETO_LOG_LEVEL": "99"},
            pass_fds=[listener.fileno(), inherited.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        listener.close()
        inherited.close()

    def start(self, argv: Sequence[str], **options: Any) -> ForkedProgram:
        return ForkedProgram(self.address, argv, **options)

    def as_subprocess(self) -> SimpleNamespace:
        """The module `subprocess` for code of ours that starts programs: scripts of this Python are forks."""
        return SimpleNamespace(**{**vars(subprocess), "Popen": _make_popen(self.address)})

    def stop(self) -> None:
        self._alive.close()
        self._process.wait(timeout=30)


def serve(listener: socket.socket, owner: socket.socket) -> None:
    """Fork a program for each request until the owner ends; returns in each fork after its program."""
    atexit.register(_die_of_interrupt)  # the first to be registered is the last to run
    import torch  # noqa: F401

    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"forks of a process with {len(threads)} threads may hang"
    has_ended, wake = socket.socketpair()
    for each in (has_ended, wake):
        each.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not what nohup has set
    clients: dict[int, socket.socket] = {}
    while True:
        ready = select.select([listener, owner, has_ended], [], [])[0]
        if owner in ready:
            return
        if has_ended in ready:
            has_ended.recv(4096)
            _report_ends(clients)
        if listener in ready:
            client = listener.accept()[0]
            message, files, _, _ = socket.recv_fds(client, MAX_REQUEST_BYTES, 3)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (listener, owner, has_ended, wake, client, *clients.values()):
                    each.close()
                _become(json.loads(message), files)
                return
            for file in files:
                os.close(file)
            clients[pid] = client
            client.send(str(pid).encode())


def _report_ends(clients: dict[int, socket.socket]) -> None:
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with clients.pop(pid) as client, contextlib.suppress(BrokenPipeError):  # nobody may wait for it
            client.send(str(os.waitstatus_to_exitcode(status)).encode())


_ends_by_interrupt = False


def _die_of_interrupt() -> None:
    """End as Python does after an unhandled KeyboardInterrupt: by the signal, which the parent sees."""
    if _ends_by_interrupt:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Be the Python that the request asks for, until its program has ended."""
    global _ends_by_interrupt
    if request["new_session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    address = request["environment"].pop(ADDRESS, None)
    os.environ.clear()
    os.environ.update(request["environment"])
    argv = request["argv"]
    sys.orig_argv[:] = [sys.executable, *argv]
    sys.path[:0] = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.meta_path.insert(0, _ImportedTorch(sys.modules.pop("torch")))
    sys.modules.pop("sitecustomize", None)
    if importlib.util.find_spec("sitecustomize"):
        importlib.import_module("sitecustomize")
    main = sys.modules["__main__"].__dict__
    main.clear()
    main.update(__name__="__main__", __doc__=None, __package__=None, __spec__=None, __builtins__=builtins)
    if argv[0] == "-c":
        sys.argv[:], source, name = ["-c", *argv[2:]], argv[1], "<string>"
        sys.path.insert(0, "")
        # Programs that start programs have the server's forks for them, too.
        if address:
            subprocess.Popen = _make_popen(address)  # type: ignore[assignment,misc]
    else:
        sys.argv[:], name = argv, os.path.abspath(argv[0])
        main.update(__file__=name, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", name))
        sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
        source = Path(name).read_bytes().decode()
    try:
        exec(compile(source, name, "exec", dont_inherit=True), main)
        return
    except SystemExit:
        raise
    except BaseException as error:
        _ends_by_interrupt = isinstance(error, KeyboardInterrupt)
        sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
    sys.exit(1)


def _make_popen(address: str) -> Any:
    real = subprocess.Popen

    def popen(argv: Sequence[str], **options: Any) -> Any:
        if argv[0] == sys.executable and len(argv) > 1 and Path(options.get("cwd") or "", argv[1]).is_file():
            return ForkedProgram(address, argv, **options)
        return real(argv, **options)

    return popen


class _ImportedTorch:
    """A finder that lets a program import the torch that is loaded already."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch, self._spec = torch, torch.__spec__

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != "torch" or path is not None:
            return None
        spec = importlib.util.spec_from_file_location(
            name, self._torch.__file__, submodule_search_locations=list(self._torch.__path__)
        )
        assert spec is not None
        spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._torch

    def exec_module(self, torch: ModuleType) -> None:
        torch.__spec__ = self._spec


if __name__ == "fork_server" and sys.argv[0] == "-c" and len(sys.argv) == 3:
    serve(*(socket.socket(fileno=int(each)) for each in sys.argv[1:3]))
