"""Starts Python programs in 0.1 s where torch takes 2 s: a server that has imported torch forks for each.

The fork is what `python program.py` would be after its start: environment, working folder, files, arguments, sys.path
and `__main__` are the program's, sitecustomize runs, and torch is absent from sys.modules until the program imports it,
which loads it through the finders on sys.meta_path, the injected one first. It ends as an interpreter ends.

What it is not: environment variables that torch reads when it is loaded are those of the server, unhandled errors lose
the server's frames only in the program's main thread, /proc says the server's command line and environment, what was
loaded before the fork is not taken apart at the end, and light_dynamo.py stands in for torch._dynamo. Tests of it start
a real Python, as does one of each launcher.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib.util
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

# The server's socket, for programs whose programs are to be forks as well; none of them sees it.
ADDRESS = "TESTS_FORK_SERVER"
MAX_REQUEST_BYTES = 1 << 20
# No frame of the server is taken for the user's, as none of runpy is.
START = (
    "source = open({0!r}).read(); names = {{'__name__': 'fork_server', '__file__': {0!r}}}; "
    "exec(compile(source, '<frozen fork_server>', 'exec'), names)"
)


def clean_environment() -> dict[str, str]:
    """The environment of programs: without what a launcher or perfdoctor itself may have set."""
    dropped_prefixes = ("PERFDOCTOR", "RANK", "WORLD_SIZE", "SLURM", "OMPI")
    values = {name: value for name, value in os.environ.items() if not name.startswith(dropped_prefixes)}
    # One thread: many programs on few cores wait for each other's OpenMP threads otherwise.
    return {**values, "OMP_NUM_THREADS": "1"}


# What Popen gives `_execute_child` behind the command.
_GIVEN = list(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]  # type: ignore[attr-defined]


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen`, but files, modules and code for this Python are forks of the server."""

    address = ""
    _end: socket.socket | None = None

    def _execute_child(self, args: Any, *more: Any) -> None:
        given = dict(zip(_GIVEN, more, strict=True))
        folder, environment = given["cwd"] or os.getcwd(), dict(os.environ if given["env"] is None else given["env"])
        plain = not (given["shell"] or given["executable"] or given["preexec_fn"] or given["pass_fds"])
        if not plain or isinstance(args, str) or args[0] != sys.executable or not _is_forked(args, folder):
            super()._execute_child(args, *more)  # type: ignore[misc]
            return
        sys.audit("subprocess.Popen", args[0], args, given["cwd"], given["env"])
        if args[1] in ("-c", "-m"):  # a launcher or perfdoctor: what it starts are forks, too
            environment[ADDRESS] = self.address
        request = {"argv": list(args[1:]), "environment": environment, "folder": str(folder)}
        request["new_session"] = bool(given["start_new_session"])
        files = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._end.connect(self.address)
        numbers = [at if file == -1 else file for at, file in enumerate(files)]
        socket.send_fds(self._end, [json.dumps(request).encode()], numbers)
        self.pid = int(self._end.recv(64))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._end is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if not select.select([self._end], [], [], 0 if wait_flags else None)[0]:
            return 0, 0
        status = int(self._end.recv(64))
        self._end.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self._end is None:
            return super()._internal_poll(_deadstate=_deadstate)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def _is_forked(args: Sequence[str], folder: str) -> bool:
    return len(args) > 1 and (args[1] in ("-c", "-m", "-u") or Path(folder, args[1]).is_file())


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

    @property
    def popen(self) -> type[ForkedPopen]:
        """What to start programs with in place of `subprocess.Popen`."""
        return type("Popen", (ForkedPopen,), {"address": self.address})

    @contextlib.contextmanager
    def replace_popen(self) -> Iterator[None]:
        """Start everything so, and what it starts."""
        real = subprocess.Popen
        subprocess.Popen = self.popen  # type: ignore[misc]
        try:
            yield
        finally:
            subprocess.Popen = real  # type: ignore[misc]

    def stop(self) -> None:
        self._alive.close()
        self._process.wait(timeout=30)


def serve(listener: socket.socket, owner: socket.socket) -> None:
    """Fork a program for each request until the owner ends; returns in each fork after its program."""
    atexit.register(_end)  # the first to be registered is the last to run
    import torch  # noqa: F401

    exec(Path(__file__).with_name("light_dynamo.py").read_text(), {})
    gc.collect()
    gc.freeze()  # what a fork does not touch is not copied for it
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
            client.send(str(status).encode())


_ends_by_interrupt = False
_shared: dict[str, ModuleType] = {}


def _end() -> None:
    """Die of an unhandled KeyboardInterrupt, by the signal, which the parent sees; or leave what is shared alone."""
    if _ends_by_interrupt:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    for name, module in _shared.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    ctypes.CDLL(None).fflush(None)


def _share_modules() -> None:
    """Let the end of Python clear the program's modules alone: with those of torch, and its C++, it takes 0.6 s."""
    _shared.update({name: each for name, each in sys.modules.items() if name not in ("sys", "builtins", "__main__")})
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_shared))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # runs before what was registered earlier
        libc.on_exit(libc._exit, None)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Be the Python that the request asks for, until its program has ended."""
    global _ends_by_interrupt
    if request["new_session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    _share_modules()
    address = request["environment"].pop(ADDRESS, None)
    os.environ.clear()
    os.environ.update(request["environment"])
    argv = [each for each in request["argv"][:1] if each != "-u"] + request["argv"][1:]
    sys.orig_argv[:] = [sys.executable, *argv]
    sys.path[:0] = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.meta_path.insert(0, _ImportedTorch(sys.modules.pop("torch")))
    sys.modules.pop("sitecustomize", None)
    if importlib.util.find_spec("sitecustomize"):
        importlib.import_module("sitecustomize")
    main = sys.modules["__main__"].__dict__
    main.clear()
    main.update(__name__="__main__", __doc__=None, __package__=None, __spec__=None, __builtins__=builtins)
    if address:
        subprocess.Popen = type("Popen", (ForkedPopen,), {"address": address})  # type: ignore[misc]
    try:
        exec(_find_program(argv, main), main)
        return
    except SystemExit:
        raise
    except BaseException as error:
        _ends_by_interrupt = isinstance(error, KeyboardInterrupt)
        sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
    sys.exit(1)


def _find_program(argv: list[str], main: dict[str, Any]) -> CodeType:
    """The code that Python runs for its arguments, after it has set sys.argv, sys.path and the names of `__main__`."""
    if argv[0] == "-c":
        sys.argv[:], source, name = ["-c", *argv[2:]], argv[1], "<string>"
        sys.path.insert(0, "")
        return compile(source, name, "exec", dont_inherit=True)
    if argv[0] == "-m":
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(argv[1])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{argv[1]}.__main__")
        assert spec is not None
        assert spec.origin is not None
        sys.argv[:] = [spec.origin, *argv[2:]]
        main.update(__file__=spec.origin, __spec__=spec, __package__=spec.parent, __loader__=spec.loader)
        return spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    sys.argv[:], name = argv, os.path.abspath(argv[0])
    main.update(__file__=name, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", name))
    sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
    return compile(Path(name).read_bytes().decode(), name, "exec", dont_inherit=True)


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
