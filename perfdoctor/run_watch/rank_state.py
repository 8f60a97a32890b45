"""What a capture has written on its ranks when they stalled: hang/rank_N.json and hang/processes.json, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.facts.part import NOTHING, CapturedLine, CapturedPart, Written

LOADER_FILE, DISTRIBUTED_FOLDER = "torch/utils/data/dataloader.py", "torch/distributed/"
# In the stack of a worker that reads samples; one that waits for its next indices is not in it.
FETCH_FILE = "torch/utils/data/_utils/fetch.py"
_TORCH = "/torch/"


class ThreadState(CapturedPart):
    """A thread and its stack, innermost line first."""

    name: Written[str] = None
    is_main: Written[bool] = None
    frames: tuple[CapturedLine, ...] = ()

    @property
    def location(self) -> SourceLocation | None:
        """The innermost line of the user's code; where there is none, the innermost outside of torch."""
        return find_user_line(
            [SourceLocation(each.file, each.line, each.function) for each in self.frames if each.file is not None]
        )

    def frames_above_user(self) -> list[str]:
        """The files of the lines between the user's code and the call that does not return, innermost first."""
        user, found = self.location, list[str]()
        for each in self.frames:
            if each.file is None or (user is not None and (each.file, each.line) == (user.file, user.line)):
                break
            found.append(each.file.replace("\\", "/"))
        return found

    def is_in(self, part_of_path: str) -> bool:
        """Whether a line of the stack is in such a file."""
        return any(part_of_path in (each.file or "").replace("\\", "/") for each in self.frames)


class Group(CapturedPart):
    """A process group as the program made it."""

    description: Written[str] = None
    ranks: tuple[int, ...] = ()


class RankAnswer(CapturedPart):
    """What a thread in the process of a rank says of it: a thread that runs Python.

    Attributes:
        calls_made: Collectives that it has called while it was looked at.
        groups: The process groups by name.
        error: Where the error was raised that has ended its main thread.
        error_type: The class of that error.
    """

    world_size: Written[int] = None
    steps: Written[int] = None
    calls_made: Written[int] = None
    threads: tuple[ThreadState, ...] = ()
    groups: Mapping[str, Group] = NOTHING
    error: CapturedLine = CapturedLine()
    error_type: str | None = None


class ProcessState(CapturedPart):
    """A process as the system sees it.

    Attributes:
        state: stopped: by SIGSTOP or a debugger; ended: it has ended, and its parent has not looked.
        exit_code: Where it has ended and the system still tells.
        signal: The signal that has ended it.
        ended_by_itself: Whether the recorder has seen its ordinary end.
        answered: Whether a thread in it could run Python.
        call: The system call that its main thread waits in, where the system tells: sleep, lock, read, wait_child, ...
        file: The file of that call.
        is_moving: Whether its main thread has run while it was looked at.
        idle_s: Seconds since its last step.
        thread: Its main thread, as a handler without the interpreter has written it.
    """

    pid: Written[int] = None
    state: Written[Literal["running", "stopped", "ended", "gone"]] = None
    exit_code: int | None = None
    signal: int | None = None
    ended_by_itself: Written[bool] = None
    answered: Written[bool] = None
    call: str | None = None
    file: str | None = None
    is_moving: bool | None = None
    steps: int | None = None
    idle_s: float | None = None
    thread: ThreadState = ThreadState()


class ProcessStates(CapturedPart):
    """hang/processes.json: all ranks that perfdoctor knows, by number, and the workers of their loaders.

    Attributes:
        went_on_s: Where the job went on by itself, after how many seconds without a step.
    """

    world_size: Written[int] = None
    ranks: Mapping[str, ProcessState] = NOTHING
    workers: Mapping[str, tuple[ProcessState, ...]] = NOTHING
    went_on_s: float | None = None


def find_user_line(lines: list[SourceLocation]) -> SourceLocation | None:
    """The first line that belongs to no library; else the first outside of torch; None where there is none."""
    own = [line for line in lines if not line.is_in_library and not line.file.startswith("<")]
    outside = [line for line in lines if _TORCH not in line.file.replace("\\", "/") and not line.file.startswith("<")]
    return next(iter(own or outside), None)
