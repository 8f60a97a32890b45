"""A socket in the rank's folder, through which `perfdoctor record` asks the running program for a window.

A thread waits for somebody to connect, so that a step costs nothing. Only the user who runs the program can connect:
the socket is a file with the user's rights. A request and its answers are lines of JSON, 4 kB at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .recorder_settings import WINDOW_FOLDER, RecorderSettings

SOCKET_NAME = "control.sock"
MAX_LINE_BYTES = 4096
# Who connects and then says nothing makes others wait no longer than this.
READ_TIMEOUT_S = 5.0
MAX_STEPS = 10_000


@dataclass(frozen=True)
class WindowRequest:
    """A window that was asked for: the step from which on it may begin, and the settings of its recorder."""

    from_step: int
    settings: RecorderSettings


class ControlSocket:
    """The socket of one rank, from `open` to `close`."""

    def __init__(
        self, settings: RecorderSettings, make_recorder: Callable[[RecorderSettings, Callable[[Any], None]], Any]
    ) -> None:
        """Open nothing yet.

        Args:
            settings: Those of the run, which a window's are made of.
            make_recorder: Returns the recorder of a window, an `AttachedRecorder`; it calls the function once it has
                ended.
        """
        self._settings = settings
        self._make_recorder = make_recorder
        self._request: WindowRequest | None = None
        self._answer: dict[str, Any] | None = None
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._path = ""
        self._step = 0
        self._recorder: Any = None

    @property
    def is_recording(self) -> bool:
        """Whether a window that was asked for is being recorded, so that steps take longer."""
        return self._recorder is not None

    def open(self, folder: str) -> None:
        """Listen in the folder of the rank.

        Raises:
            OSError: The folder's file system has no sockets, or the system has none.
        """
        self._path = os.path.join(folder, SOCKET_NAME)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(folder) as short:
            self._socket.bind(short)
        os.chmod(self._path, 0o600)  # nobody can connect before `listen`
        self._socket.listen()
        threading.Thread(target=self._serve, name="perfdoctor-control", daemon=True).start()

    def end_step(self, step: int) -> None:
        """A step has ended, and nothing is recorded: begin the window that was asked for, if any."""
        self._step = step
        request = self._request
        if request is None or self.is_recording or step < request.from_step:
            return
        self._recorder = self._make_recorder(request.settings, self._on_window_end)
        self._recorder.attach()

    def close(self, reason: str) -> None:
        """Save an open window, answer who waits that the program ends, and remove the socket."""
        if self._recorder is not None:
            self._recorder.finish(reason)
        listening, self._socket = self._socket, None
        if listening is None:
            return
        if not self._answered.is_set():
            self._give_answer({"why_not": "the program has ended before the window was complete"})
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()

    def forget(self) -> None:
        """Close the socket in the child of a fork, where its thread is not."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _on_window_end(self, recorder: Any) -> None:
        self._recorder = self._request = None
        self._give_answer({"windows": recorder.windows, "exit": recorder.exit_reason, "notes": recorder.notes})

    def _give_answer(self, answer: dict[str, Any]) -> None:
        self._answer = answer
        self._answered.set()

    def _serve(self) -> None:
        listening = self._socket
        while listening is not None and self._socket is not None:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        """Answer whoever has connected; what is no request gets no answer."""
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(READ_TIMEOUT_S)
            for answer in self._answers(json.loads(read_line(connection))):
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The answers to a request, each to be sent as soon as it comes."""
        if request["command"] == "state":
            yield {"step": self._step, "is_recording": self.is_recording}
            return
        wanted = WindowRequest(int(request["from_step"]), self._settings_of(request))
        with self._lock:
            if self._request is not None:
                yield {"why_not": "another window is being recorded"}
                return
            self._answered.clear()
            self._request = wanted
        yield {"step": self._step}
        self._answered.wait()
        yield self._answer or {}

    def _settings_of(self, request: dict[str, Any]) -> RecorderSettings:
        """The settings of the window that was asked for.

        Raises:
            ValueError: The name of the folder or a number of steps is none.
        """
        name = request["folder"]
        base, timing, evidence = (int(request[key]) for key in ("base", "timing", "evidence"))
        if not WINDOW_FOLDER.fullmatch(name) or not all(0 <= size <= MAX_STEPS for size in (base, timing, evidence)):
            raise ValueError(name)
        return replace(
            self._settings,
            folder=os.path.join(self._settings.folder, name),
            skip=1,
            base=base,
            warmup=1,
            timing=timing,
            evidence=evidence,
            stop_after=False,
            watch=False,
        )


@contextlib.contextmanager
def short_path(folder: str) -> Iterator[str]:
    """A path of the socket in a folder that is short enough for the system, which allows 107 bytes."""
    path = os.path.join(folder, SOCKET_NAME)
    if len(os.fsencode(path)) < 100 or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def read_line(connection: socket.socket) -> bytes:
    """The next line that the other side sends, at most `MAX_LINE_BYTES`; empty where it has gone.

    Raises:
        OSError: It says nothing for the time that the connection allows.
    """
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
        received = connection.recv(MAX_LINE_BYTES)
        if not received:
            break
        line += received
    return line
