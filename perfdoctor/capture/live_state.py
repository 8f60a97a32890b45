"""How a recorded program is doing while it runs, read from what its ranks write and from the system.

Nothing is asked of the program: the recorder writes a line for each step anyway. What the system says of processes and
GPUs is known on the machine on which they run only.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from perfdoctor.capture.capture_folder import list_ranks
from perfdoctor.capture.capture_notes import has_ended, read_facts
from perfdoctor.capture.inject._perfdoctor_inject.host_memory import find_tree, read_sizes
from perfdoctor.capture.inject._perfdoctor_inject.run_totals import UNPROFILED_WINDOWS
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.run_watch.change_points import Drift, find_drift

# Of so many steps of late the median is shown.
RECENT_STEPS = 20
# So many are kept for the line of step times.
SHOWN_STEPS = 48
# A drift is searched for in the last so many steps.
MAX_STEPS = 20_000
# A rank is the slowest one where it is busy for so much longer than the median rank.
SLOWEST_FACTOR = 1.05
# A step may take minutes: only after so many usual steps a rank is called silent.
SILENT_STEPS, SILENT_S = 20, 30.0


@frozen_dataclass
class RankState:
    """A rank at one moment; None for what is not known.

    Attributes:
        rank: Its number.
        pid: Its process.
        state: "running", "recording" (a window, so that steps take longer), "silent" (no step for long) or "ended".
        step: How many steps it has made.
        step_ns: The median of its steps of late, those of windows left out.
        recent_ns: Its last steps, oldest first.
        loader_wait_ns: The median wait for the DataLoader in the steps of late.
        busy_ns: The median of what the training thread computed and waited for data in a step of late: in the rest it
            waits for the GPU or for other ranks.
        silent_s: Seconds since its last step.
        drift: From which step on its steps take longer for good, and by how much.
        host_bytes: Memory of its process and of those that it has started, shared pages in parts.
        gpu_percent: Time in which kernels ran on its GPU.
        gpu_memory_bytes: Memory in use on its GPU.
    """

    rank: int
    pid: int | None
    state: str
    step: int
    step_ns: int | None
    recent_ns: tuple[int, ...]
    loader_wait_ns: int | None
    busy_ns: int | None
    silent_s: float | None
    drift: Drift | None
    host_bytes: int | None
    gpu_percent: int | None
    gpu_memory_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON has it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "drift": None if self.drift is None else self.drift._asdict()}


@frozen_dataclass
class JobState:
    """All ranks at one moment.

    Attributes:
        time_ns: When, since 1970.
        ranks: The ranks, ascending.
        slowest_rank: The rank that the others wait for; None where none stands out.
    """

    time_ns: int
    ranks: tuple[RankState, ...]
    slowest_rank: int | None

    @property
    def has_ended(self) -> bool:
        """Whether every rank has ended."""
        return bool(self.ranks) and all(rank.state == "ended" for rank in self.ranks)

    def to_dict(self) -> dict[str, Any]:
        """The state as one line of JSON has it."""
        return {
            "time_ns": self.time_ns,
            "slowest_rank": self.slowest_rank,
            "ranks": [rank.to_dict() for rank in self.ranks],
        }


class LiveCapture:
    """A capture that is being written: each look reads what was added since the last one."""

    def __init__(self, folder: Path, read_gpu: Callable[[Iterable[int]], tuple[int | None, int | None]]) -> None:
        """Read nothing yet; `read_gpu` returns use and memory of the GPU on which one of some processes runs."""
        self._folder = folder
        self._read_gpu = read_gpu
        self._steps: dict[int, StepTail] = {}

    def look(self) -> JobState:
        """The state now."""
        now_ns = time.time_ns()
        ranks = tuple(self._look_at(rank, now_ns) for rank in list_ranks(self._folder))
        return JobState(now_ns, ranks, find_slowest(ranks))

    def _look_at(self, rank: int, now_ns: int) -> RankState:
        folder = self._folder / f"rank{rank}"
        tail = self._steps.setdefault(rank, StepTail(folder / "steps.jsonl"))
        tail.read()
        facts = read_facts(self._folder, rank)
        pid = None if facts is None else facts.pid
        is_over = has_ended(facts)
        tree = [] if pid is None or is_over or not Path(f"/proc/{pid}").is_dir() else find_tree(pid)
        sizes = [each for each in map(read_sizes, tree) if each is not None]
        percent, gpu_bytes = self._read_gpu(tree) if tree else (None, None)
        silent_s = None if is_over or tail.changed_ns is None else max((now_ns - tail.changed_ns) / 1e9, 0.0)
        step_ns = tail.median_of("dur_ns")
        return RankState(
            rank=rank,
            pid=pid,
            state=name_state(tail, step_ns, silent_s, is_over=is_over),
            step=tail.count,
            step_ns=step_ns,
            recent_ns=tuple(tail.shown_ns),
            loader_wait_ns=tail.median_of("loader_wait_ns"),
            busy_ns=tail.median_of("busy_ns"),
            silent_s=silent_s,
            drift=find_drift(np.array(tail.unprofiled_ns, np.int64)),
            host_bytes=sum(each.get("Pss", each["Rss"]) for each in sizes) if sizes else None,
            gpu_percent=percent,
            gpu_memory_bytes=gpu_bytes,
        )


class StepTail:
    """The steps of a rank, read as they are written.

    Attributes:
        count: How many there are.
        changed_ns: When the last one was written, since 1970; None before the first.
        window: The window of the last one.
        shown_ns: The last steps.
        unprofiled_ns: The last steps that no profiler ran in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._recent: deque[dict[str, int]] = deque(maxlen=RECENT_STEPS)
        self.count = 0
        self.changed_ns: int | None = None
        self.window: str | None = None
        self.shown_ns: deque[int] = deque(maxlen=SHOWN_STEPS)
        self.unprofiled_ns: deque[int] = deque(maxlen=MAX_STEPS)

    def read(self) -> None:
        """Read the lines that were written since the last time."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
            whole = text.rpartition(b"\n")[0]
            if whole:
                self._offset += len(whole) + 1
                self.changed_ns = self._path.stat().st_mtime_ns
            for line in whole.splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._add(json.loads(line))

    def _add(self, row: dict[str, Any]) -> None:
        dur_ns, wait_ns = int(row["dur_ns"]), int(row["loader_wait_ns"])
        self.window = str(row["window"])
        self.count = int(row["step"]) + 1
        self.shown_ns.append(dur_ns)
        if self.window not in UNPROFILED_WINDOWS:
            return
        self.unprofiled_ns.append(dur_ns)
        recent = {"dur_ns": dur_ns, "loader_wait_ns": wait_ns}
        if row.get("cpu_ns") is not None:
            recent["busy_ns"] = min(int(row["cpu_ns"]) + wait_ns, dur_ns)
        self._recent.append(recent)

    def median_of(self, name: str) -> int | None:
        """The median of a figure in the steps of late; None where none is known."""
        values = [row[name] for row in self._recent if name in row]
        return int(median(values)) if values else None


def name_state(tail: StepTail, step_ns: int | None, silent_s: float | None, *, is_over: bool) -> str:
    """The state of a rank in one word."""
    if is_over:
        return "ended"
    if silent_s is not None and silent_s > max(SILENT_STEPS * (step_ns or 0) / 1e9, SILENT_S):
        return "silent"
    return "running" if tail.window in (None, "skip", *UNPROFILED_WINDOWS) else "recording"


def find_slowest(ranks: Sequence[RankState]) -> int | None:
    """The rank that is busy for longest in a step, where it stands out: all others wait for it in a collective."""
    busy = {rank.rank: rank.busy_ns for rank in ranks if rank.busy_ns is not None and rank.state != "ended"}
    if len(busy) < 2:
        return None
    slowest = max(busy, key=lambda rank: busy[rank])
    return slowest if busy[slowest] > SLOWEST_FACTOR * median(busy.values()) else None


class GpuUse:
    """What NVML says of the GPU of a process; without its library or driver everything is unknown."""

    def __init__(self) -> None:
        self._nvml: Any = None
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml

    def read(self, pids: Iterable[int]) -> tuple[int | None, int | None]:
        """Percentage of the time in which kernels ran, and bytes in use, on the GPU of one of these processes."""
        if self._nvml is None:
            return None, None
        nvml, wanted = self._nvml, set(pids)
        with contextlib.suppress(nvml.NVMLError):
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if wanted & {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}:
                    used = nvml.nvmlDeviceGetMemoryInfo(handle).used
                    return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), int(used)
        return None, None
