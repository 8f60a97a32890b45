"""Asking a program under `perfdoctor run --watch` for a window now: the other end of the recorder's control sockets."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfdoctor.capture.capture_folder import list_ranks
from perfdoctor.capture.inject._perfdoctor_inject.control_socket import SOCKET_NAME, read_line, short_path
from perfdoctor.errors import CaptureError
from perfdoctor.frozen_dataclass import frozen_dataclass

# A program in one long call of C answers late; one that is stopped never does.
ANSWER_TIMEOUT_S = 20.0
# From the highest step of all ranks on, so that those that hear of it later begin at the same one.
STEPS_AHEAD = 3
WINDOW_PREFIX = "window-"


@frozen_dataclass
class RecordedWindow:
    """What came of a request.

    Attributes:
        folder: The folder of the window, a capture of its own.
        ranks: The ranks that have recorded.
        why_not: Of each rank that has not, why.
    """

    folder: Path
    ranks: tuple[int, ...]
    why_not: Mapping[int, str]


def record_window(
    capture: Path,
    ranks: Sequence[int] | None = None,
    *,
    base: int,
    timing: int,
    evidence: int,
    timeout_s: float | None = None,
) -> RecordedWindow:
    """Let a running program record a window now, and wait until it is complete.

    Args:
        capture: The capture folder of a `perfdoctor run --watch` that is still running.
        ranks: The ranks to ask; None for all.
        base: Steps to time without a profiler before the window.
        timing: Steps to record for their times.
        evidence: Steps to record with shapes and source lines.
        timeout_s: Seconds to wait for the window; None for as long as the program runs.

    Raises:
        CaptureError: No rank can be asked, and why.
    """
    sockets = find_sockets(capture, ranks)
    first_step = max(ask_state(folder)["step"] for folder in sockets.values()) + STEPS_AHEAD
    window = make_window_folder(capture)
    request = {
        "command": "record",
        "folder": window.name,
        "from_step": first_step,
        "base": base,
        "timing": timing,
        "evidence": evidence,
    }
    answers: dict[int, dict[str, Any]] = {}

    def ask(rank: int, folder: Path) -> None:
        try:
            answers[rank] = list(exchange(folder, request, answers=2, timeout_s=timeout_s))[-1]
        except CaptureError as error:
            answers[rank] = {"why_not": str(error)}

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in sockets.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorded = tuple(rank for rank, answer in sorted(answers.items()) if "timing" in answer.get("windows", {}))
    why_not = {rank: explain(answer) for rank, answer in answers.items() if rank not in recorded}
    if not recorded:
        with contextlib.suppress(OSError):
            window.rmdir()
    return RecordedWindow(window, recorded, why_not)


def explain(answer: Mapping[str, Any]) -> str:
    """Why a rank has recorded nothing."""
    return answer.get("why_not") or "; ".join(answer.get("notes", ())) or "the program ended, or made no more steps"


def find_sockets(capture: Path, ranks: Sequence[int] | None) -> dict[int, Path]:
    """The folders of ranks that have a control socket, by rank.

    Raises:
        CaptureError: There are none, or a rank that was asked for has none.
    """
    found = {rank: capture / f"rank{rank}" for rank in list_ranks(capture)}
    sockets = {rank: folder for rank, folder in found.items() if (folder / SOCKET_NAME).is_socket()}
    if not found:
        raise CaptureError(f"{capture} is no capture folder: give the one that perfdoctor run --watch has made.")
    missing = [rank for rank in (found if ranks is None else ranks) if rank not in sockets]
    if missing:
        which = f"rank {missing[0]} of {capture}"
        raise CaptureError(
            f"{which} can be asked for no window: its program has ended, or runs without perfdoctor run --watch."
        )
    return {rank: sockets[rank] for rank in (sockets if ranks is None else ranks)}


def make_window_folder(capture: Path) -> Path:
    """A new folder `window-<number>` in the capture.

    Raises:
        CaptureError: The capture cannot be written.
    """
    names = [path.name.removeprefix(WINDOW_PREFIX) for path in capture.glob(f"{WINDOW_PREFIX}*")]
    taken = [int(name) for name in names if name.isdigit()]
    window = capture / f"{WINDOW_PREFIX}{max(taken, default=0) + 1}"
    try:
        window.mkdir()
    except OSError as error:
        raise CaptureError(f"{window} cannot be made ({error.strerror}).") from error
    return window


def ask_state(folder: Path) -> dict[str, Any]:
    """How far a rank is: its step, and whether it records.

    Raises:
        CaptureError: It does not answer.
    """
    (state,) = exchange(folder, {"command": "state"}, answers=1)
    return state


def exchange(
    folder: Path, request: Mapping[str, Any], *, answers: int, timeout_s: float | None = None
) -> Iterator[dict[str, Any]]:
    """Send a request to a rank, and yield its answers.

    Args:
        folder: The folder of the rank.
        request: The request.
        answers: How many answers to wait for; the first must come at once.
        timeout_s: How long to wait for each other one; None for ever.

    Raises:
        CaptureError: The rank does not answer, or has ended.
    """
    rank = re.sub(r"\D", "", folder.name)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, short_path(str(folder)) as path:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            for number in range(answers):
                line = read_line(connection)
                if not line:
                    raise CaptureError(f"rank {rank} has ended before it answered.")
                answer = json.loads(line)
                yield answer
                if "why_not" in answer:
                    return
                if not number:
                    connection.settimeout(timeout_s)
    except TimeoutError as error:
        raise CaptureError(f"rank {rank} does not answer: its process is stopped, or in one long call.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CaptureError(
            f"rank {rank} cannot be asked ({reason}): its program has ended, or is not yours."
        ) from error
