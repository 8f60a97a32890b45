"""Sees that ranks make no step any more, and asks all processes of the job that it can reach what they do.

A thread of the parent reads the beats of the ranks. Where one has stopped for long, or on SIGUSR1, a request goes out
(`hang/request`); a thread in each rank answers, and a rank that does not, and workers of loaders, get a signal on which
a handler writes their stacks without the interpreter. What the system says of each process stands in processes.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from perfdoctor.capture.capture_folder import MARKER_FOLDER_PREFIX
from perfdoctor.capture.inject._perfdoctor_inject.hang_files import (
    ANSWER_NAME,
    BEAT,
    HANG_FOLDER,
    REQUEST_FILE,
    SAMPLE_S,
    STACK_SIGNAL,
    write_whole,
)
from perfdoctor.capture.inject._perfdoctor_inject.messages import warn
from perfdoctor.capture.process_state import Look, catches, look_at

# A step that takes this much longer than the slowest one has left what is usual: evaluation, a checkpoint, or a hang.
STALL_FACTOR = 5
# Before the first step a program loads, downloads and compiles.
START_FACTOR = 5
POLL_S = 0.5
# A rank answers when its thread has looked twice, and torch has written its dump.
ANSWER_S = 10.0
STACKS_S = 0.3
# What has moved is no hang; the next look comes after that much more of the time without a step.
PATIENCE_FACTOR = 2.0
# A thread that waits with a timeout wakes now and then; one that works runs more often.
_MIN_RUNS, _MIN_TICKS = 4, 5
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class Beat(NamedTuple):
    """The life sign of a rank: its process, its steps, the slowest of them, and when the last one ended."""

    rank: int
    pid: int
    has_ended: bool
    steps: int
    slowest_s: float
    last_s: float

    def limit_s(self, after_s: float) -> float:
        """Seconds without a step after which the rank stands still."""
        return max(after_s, STALL_FACTOR * self.slowest_s) if self.steps else START_FACTOR * after_s


def find_stalled(beats: Sequence[Beat], after_s: float, now_s: float) -> list[int]:
    """The ranks that run and have made no step for too long."""
    return [each.rank for each in beats if not each.has_ended and now_s - each.last_s > each.limit_s(after_s)]


class HangMonitor:
    """The thread, from `watch` to its end.

    Attributes:
        folder: The capture.
        after_s: Seconds without a step, at least, after which a rank stands still.
    """

    def __init__(self, folder: Path, after_s: float, judge: Callable[[Path], bool]) -> None:
        """Watch nothing yet; `judge` says what the folder shows, and returns whether that is a hang."""
        self.folder, self.after_s = folder, after_s
        self._judge = judge
        self._asked = threading.Event()
        self._stopped = threading.Event()
        self._standing: dict[int, int] = {}
        self._stood_since_s = 0.0
        self._patience = 1.0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch while the program runs; SIGUSR1 asks for a look now."""
        thread = threading.Thread(target=self._run, name="perfdoctor-hangs", daemon=True)
        number = getattr(signal, "SIGUSR1", None)
        is_main = threading.current_thread() is threading.main_thread()
        previous = signal.signal(number, self._ask) if number is not None and is_main else None
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(ANSWER_S + 2)
            if number is not None and is_main:
                signal.signal(number, previous)
            (self.folder / HANG_FOLDER / REQUEST_FILE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                (self.folder / HANG_FOLDER).rmdir()  # unless something is in it

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked.set()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_S):
            try:
                self._look()
            except Exception as error:
                warn(f"hangs are not looked for any more, the program runs on: {error!r}")
                return

    def _look(self) -> None:
        beats, now_s = read_beats(self.folder), time.time()
        if self._standing:
            went_on = any(each.steps > self._standing.get(each.rank, each.steps) for each in beats)
            if went_on:
                note_going_on(self.folder, now_s - self._stood_since_s)
                self._standing, self._patience = {}, 1.0
        stalled = [] if self._standing else find_stalled(beats, self.after_s * self._patience, now_s)
        if not stalled and not self._asked.is_set():
            return
        is_asked = self._asked.is_set()
        self._asked.clear()
        collect_states(self.folder, beats, self._stopped)
        before = {each.rank: each.steps for each in beats}
        if any(each.steps > before.get(each.rank, each.steps) for each in read_beats(self.folder)):
            if not is_asked:
                shutil.rmtree(self.folder / HANG_FOLDER, ignore_errors=True)
                (self.folder / HANG_FOLDER).mkdir(exist_ok=True)  # torch may write its own dumps there
            return
        if self._judge(self.folder):
            self._standing = {each.rank: each.steps for each in beats}
            self._stood_since_s = min((each.last_s for each in beats if not each.has_ended), default=now_s)
        elif not is_asked:
            self._patience *= PATIENCE_FACTOR


def read_beats(folder: Path) -> list[Beat]:
    """The beats of all ranks of a capture; of a rank that was started again the last one."""
    beats: dict[int, Beat] = {}
    for path in folder.glob(f"{MARKER_FOLDER_PREFIX}*/*.beat"):
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            if len(data) == BEAT.size:
                rank, pid, ended, *rest = BEAT.unpack(data)
                beat = Beat(rank, pid, bool(ended), *rest)
                if beat.pid and (rank not in beats or beats[rank].last_s < beat.last_s):
                    beats[rank] = beat
    return [beats[rank] for rank in sorted(beats)]


def note_going_on(folder: Path, seconds: float) -> None:
    """Write into processes.json that the job makes steps again after standing still for that long."""
    path = folder / HANG_FOLDER / "processes.json"
    with contextlib.suppress(OSError, ValueError):
        states = json.loads(path.read_text())
        write_whole(str(path), json.dumps({**states, "went_on_s": round(seconds, 1)}).encode())


def collect_states(folder: Path, beats: Sequence[Beat], stopped: threading.Event) -> None:
    """Write what all ranks do into the folder `hang` of a capture, in place of what an earlier look has left."""
    place = folder / HANG_FOLDER
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(exist_ok=True)
    (place / REQUEST_FILE).write_text(str(time.time_ns()))
    now_s = time.time()
    first = {each.rank: look_at(each.pid) for each in beats}
    until_s = time.monotonic() + ANSWER_S
    alive = [each.rank for each in beats if first[each.rank].state == "running" and not each.has_ended]
    while time.monotonic() < until_s and not stopped.is_set():
        if all((place / ANSWER_NAME.format(rank)).exists() for rank in alive) and time.time() - now_s > SAMPLE_S:
            break
        time.sleep(0.1)
    answers = {each.rank: _read_answer(place / ANSWER_NAME.format(each.rank)) for each in beats}
    ranks = {
        str(each.rank): _describe_rank(folder, each, first[each.rank], answers[each.rank], now_s) for each in beats
    }
    workers = {
        str(rank): [_describe_worker(folder, rank_pid, pid) for pid in answer.get("workers", ())]
        for rank, answer in answers.items()
        for rank_pid in [answer.get("pid", 0)]
    }
    sizes = [answer["world_size"] for answer in answers.values() if isinstance(answer.get("world_size"), int)]
    states = {"world_size": max(sizes, default=None), "ranks": ranks, "workers": workers, "went_on_s": None}
    write_whole(str(place / "processes.json"), json.dumps(states).encode())


def _read_answer(path: Path) -> dict[str, Any]:
    try:
        answer = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _describe_rank(folder: Path, beat: Beat, first: Look, answer: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    look = look_at(beat.pid)
    thread = None if answer or look.state != "running" else read_stack(folder, beat.pid, beat.pid)
    return {
        **_describe_process(beat.pid, look, first),
        "ended_by_itself": beat.has_ended,
        "answered": bool(answer),
        "steps": beat.steps,
        "idle_s": round(now_s - beat.last_s, 1),
        "thread": thread,
    }


def _describe_worker(folder: Path, rank_pid: int, pid: int) -> dict[str, Any]:
    first = look_at(pid)
    thread = read_stack(folder, pid, rank_pid) if first.state == "running" else None
    time.sleep(STACKS_S)
    return {**_describe_process(pid, look_at(pid), first), "thread": thread}


def _describe_process(pid: int, look: Look, first: Look) -> dict[str, Any]:
    moving = None
    if look.ran is not None and first.ran is not None:
        moving = look.ran[0] - first.ran[0] >= _MIN_RUNS or look.ran[1] - first.ran[1] >= _MIN_TICKS
    values = {"state": look.state, "exit_code": look.exit_code, "signal": look.signal, "call": look.call}
    return {"pid": pid, **values, "file": look.file, "is_moving": moving}


def read_stack(folder: Path, pid: int, file_of_pid: int) -> dict[str, Any] | None:
    """The stack of the main thread of a process, written by its handler of `STACK_SIGNAL`; None without a handler.

    A forked worker writes into the file of the process that it was forked from.
    """
    if STACK_SIGNAL is None or not catches(pid, STACK_SIGNAL):
        return None
    paths = [*folder.glob(f"{MARKER_FOLDER_PREFIX}*/{pid}.stacks")]
    paths += folder.glob(f"{MARKER_FOLDER_PREFIX}*/{file_of_pid}.stacks")
    if not paths:
        return None
    before = paths[0].stat().st_size
    with contextlib.suppress(OSError):
        os.kill(pid, STACK_SIGNAL)
    until_s, size = time.monotonic() + 10 * STACKS_S, before
    while time.monotonic() < until_s:
        time.sleep(STACKS_S)
        if size == (size := paths[0].stat().st_size) != before:
            break
    with paths[0].open("rb") as file:
        file.seek(before)
        return parse_stack(file.read().decode(errors="replace"))


def parse_stack(text: str) -> dict[str, Any] | None:
    """The main thread, which stands last, of what faulthandler has written; None where it has written nothing."""
    frames: list[dict[str, Any]] = []
    is_there = False
    for line in text.splitlines():
        if _THREAD.match(line):
            frames, is_there = [], True
        elif match := _FRAME.match(line):
            frames.append({"file": match[1], "line": int(match[2]), "function": match[3]})
    return {"name": "MainThread", "is_main": True, "frames": frames} if is_there else None
