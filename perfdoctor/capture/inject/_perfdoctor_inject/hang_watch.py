"""What a process says of itself when its job stands still: collectives, stacks of all threads, and its last step.

::

    each step            -> <pid>.beat     the parent sees when the last step ended, without asking
    hang/request         -> our thread     hang/nccl_trace_rank_N (the flight recorder), hang/rank_N.json (the stacks)
    STACK_SIGNAL         -> faulthandler   <pid>.stacks: also of a worker, or where a thread holds the GIL

The thread only looks whether there is a request. Workers that are forked have no thread, and the same handler.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from .hang_files import ANSWER_NAME, BEAT, DUMP_NAME, HANG_FOLDER, REQUEST_FILE, SAMPLE_S, STACK_SIGNAL, write_whole
from .messages import warn
from .rank_identity import RANK_VARIABLES, rank_and_world_size, read_number
from .user_code import error_location, name_file

POLL_S = 0.5
MAX_FRAMES, MAX_THREADS = 100, 200
OWN_THREADS = "perfdoctor-"
BUFFER_SIZE = "2000"
MARKER_VARIABLE = "PERFDOCTOR_CAPTURE_MARKS"
# In older ones a buffer has another name, or there is none unless it is asked for.
FIRST_TORCH_WITH_FR_NAMES = (2, 8)


class HangWatch:
    """The beat of a process, its thread that answers requests, and its handler of `STACK_SIGNAL`."""

    def __init__(self, capture: str, list_workers: Callable[[], Iterable[int]]) -> None:
        """Watch nothing yet; `list_workers` returns the pids of the workers of DataLoaders."""
        self._folder = os.path.join(capture, HANG_FOLDER)
        self._list_workers = list_workers
        self._beat: mmap.mmap | None = None
        self._stacks: Any = None
        self._slowest_s = 0.0
        self._is_enabled = False
        self._pid = 0

    def start(self, torch_version: str) -> None:
        """Set what torch's recorder needs, register the handler, and watch a process that a launcher calls a rank."""
        markers = os.environ.get(MARKER_VARIABLE, "")
        if not os.path.isdir(markers):
            return
        self._is_enabled = True
        self._set_variables(torch_version)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if STACK_SIGNAL is not None and signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL:
                self._stacks = open(os.path.join(markers, f"{os.getpid()}.stacks"), "ab")  # noqa: SIM115
                faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=True, chain=False)
        rank = read_number(RANK_VARIABLES)
        if rank is not None:
            self.open(rank)

    def _set_variables(self, torch_version: str) -> None:
        """Let torch keep its last collectives, and write them here at a timeout; what is set stays as it is."""
        sizes = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        if not any(name in os.environ for name in sizes):
            numbers = tuple(int(part) for part in torch_version.split(".")[:2] if part.isdigit())
            os.environ[sizes[numbers < FIRST_TORCH_WITH_FR_NAMES]] = BUFFER_SIZE
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
        names = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
        if (read_number(("WORLD_SIZE",)) or 1) > 1 and not any(name in os.environ for name in names):
            with contextlib.suppress(OSError):
                os.makedirs(self._folder, exist_ok=True)
                os.environ[names[0]] = os.path.join(self._folder, DUMP_NAME.format(""))

    def open(self, rank: int) -> None:
        """Begin the beat of a rank, and the thread that answers for it; does nothing where it has begun."""
        if not self._is_enabled or self._pid == os.getpid():
            return
        self._pid = os.getpid()
        try:
            path = os.path.join(os.environ[MARKER_VARIABLE], f"{self._pid}.beat")
            with open(path, "w+b") as file:
                file.truncate(BEAT.size)
                self._beat = mmap.mmap(file.fileno(), BEAT.size)
            BEAT.pack_into(self._beat, 0, rank, self._pid, 0, 0, 0.0, time.time())
        except (OSError, ValueError, KeyError) as error:
            warn(f"a hang of this process will not be seen: {error!r}")
            return
        threading.Thread(target=self._run, args=(self._find_request(),), name="perfdoctor-hang", daemon=True).start()

    def beat(self, steps: int, dur_ns: int) -> None:
        """A step has ended."""
        if self._beat is not None:
            self._slowest_s = max(self._slowest_s, dur_ns / 1e9)
            struct.pack_into("<Qdd", self._beat, 24, steps, self._slowest_s, time.time())

    def close(self) -> None:
        """The process ends by itself."""
        if self._beat is not None:
            struct.pack_into("<Q", self._beat, 16, 1)

    def forget(self) -> None:
        """This is the child of a fork: the beat is its parent's."""
        self._beat, self._slowest_s = None, 0.0

    def _find_request(self) -> int:
        try:
            return os.stat(os.path.join(self._folder, REQUEST_FILE)).st_mtime_ns
        except OSError:
            return 0

    def _run(self, seen: int) -> None:
        while self._beat is not None:
            time.sleep(POLL_S)
            request = self._find_request()
            if request in (0, seen):
                continue
            seen = request
            try:
                self._answer()
            except Exception as error:
                warn(f"the state of this process could not be written: {error!r}")

    def _answer(self) -> None:
        rank, world_size = rank_and_world_size()
        calls = count_calls(dump_flight_recorder(with_stacks=False))
        time.sleep(SAMPLE_S)
        dump = dump_flight_recorder(with_stacks=True)
        calls_now = count_calls(dump)
        steps = 0 if self._beat is None else BEAT.unpack_from(self._beat)[3]
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        answer = {
            "rank": rank,
            "pid": os.getpid(),
            "world_size": world_size,
            "steps": steps,
            "calls_made": None if calls is None or calls_now is None else calls_now - calls,
            "threads": describe_threads(),
            "groups": describe_groups(),
            "error": None if error is None else error_location(error),
            "error_type": None if error is None else type(error).__name__,
            "workers": sorted(self._list_workers()),
        }
        if dump is not None:
            write_whole(os.path.join(self._folder, DUMP_NAME.format(rank)), dump)
        # Last: the parent waits for it.
        write_whole(os.path.join(self._folder, ANSWER_NAME.format(rank)), json.dumps(answer).encode())


def dump_flight_recorder(*, with_stacks: bool) -> bytes | None:
    """The flight recorder of NCCL where it has calls, else that of other backends; None where torch has none."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    found = None
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        try:
            data = bytes(dump(includeCollectives=True, includeStackTraces=with_stacks, onlyActive=False))
        except Exception:  # other arguments, or no recorder behind it
            continue
        if count_calls(data):
            return data
        found = found or data
    return found


def count_calls(dump: bytes | None) -> int | None:
    """How many calls a rank has made by a dump of this process; None where there is none."""
    if dump is None:
        return None
    entries = pickle.loads(dump).get("entries", [])
    return max((entry["record_id"] for entry in entries), default=-1) + 1


def describe_threads() -> list[dict[str, Any]]:
    """The threads of this process but for ours, with their stacks, the innermost line first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    return [
        {"name": names.get(number, ""), "is_main": number == main, "frames": describe_frames(frame)}
        for number, frame in list(sys._current_frames().items())[:MAX_THREADS]
        if not names.get(number, "").startswith(OWN_THREADS)
    ]


def describe_frames(frame: FrameType | None) -> list[dict[str, Any]]:
    """The lines of a stack."""
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < MAX_FRAMES:
        code = frame.f_code
        found.append({"file": name_file(code.co_filename), "line": frame.f_lineno, "function": code.co_name})
        frame = frame.f_back
    return found


def describe_groups() -> dict[str, dict[str, Any]]:
    """The process groups by name: gloo's flight recorder does not say their ranks."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        world: Any = c10d._world  # type: ignore[union-attr]
        return {
            str(world.pg_names[group]): {"description": getattr(group, "group_desc", ""), "ranks": sorted(ranks)}
            for group, ranks in list(world.pg_group_ranks.items())
        }
    except (AttributeError, KeyError, TypeError):
        return {}
