"""What the program holds of memory: in each phase of a step, at the ends of windows, and from step to step.

Without a profiler the most in each phase of a step: forward, backward, optimizer. On a GPU by the allocator's peak,
which is reset at the borders of phases; what the program reads of it is as if nobody had reset it, and once the program
resets it by itself, nobody else does. On the CPU by the memory of the process in RAM at these borders: the end of a
forward pass, where its values are kept, is one.

At the ends of windows nothing is reset: the peak statistics of the allocator are the program's own, so that each peak
is that of the run so far. `memory_stats` reads counters of the allocator and waits for no kernel.

From step to step what malloc has handed out, or else the program's own pages in RAM. Memory in RAM is no measure of
what a program keeps: malloc gives back to the system what and when it likes, so that RAM rises and falls by a hundred
MB in a program that keeps 6 MB a step. `mallinfo2` (glibc 2.33) counts exactly, but goes over all free blocks: 0.4 us
in a fresh process, 20 us after some training, 30 ms after hundreds of thousands of small blocks.

So a look is paced by its own cost: the next one comes after 200 times its CPU time, half a per cent of a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from .host_memory import PAGE_BYTES, read_available_bytes
from .machine_facts import cuda_is_initialized
from .proc_files import read_host_bytes, read_text
from .watched_calls import RAISED, Watching

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

WAIT_PER_LOOK = 200
Answer = TypeVar("Answer")


class LookPace:
    """Spaces looks by what they cost; the first is due at once."""

    def __init__(self) -> None:
        self._next_ns = 0
        self._spent_ns = 0

    def is_due(self) -> bool:
        """Whether to look now."""
        return time.perf_counter_ns() >= self._next_ns

    def run(self, look: Callable[[], Answer]) -> Answer:
        """What a look, or a part of it, returns."""
        start_ns = time.thread_time_ns()
        try:
            return look()
        finally:
            self._spent_ns += time.thread_time_ns() - start_ns

    def end_look(self) -> None:
        """All parts of a look are done: wait for the next one."""
        self._next_ns = time.perf_counter_ns() + WAIT_PER_LOOK * self._spent_ns
        self._spent_ns = 0


class PacedLook(Generic[Answer]):
    """Asks something at the end of steps, at its pace."""

    def __init__(self, look: Callable[[], Answer | None]) -> None:
        self._look = look
        self._pace = LookPace()

    def read(self) -> Answer | None:
        """The answer; None between two looks."""
        if not self._pace.is_due():
            return None
        found = self._pace.run(self._look)
        self._pace.end_look()
        return found


FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
PHASES = (FORWARD, BACKWARD, OPTIMIZER)
STEP = "step"
_PEAK = ".peak"


class CudaPeaks:
    """The allocator's peaks, and what they were before they were reset here.

    Attributes:
        program_resets: Whether the program resets them by itself.
    """

    def __init__(self) -> None:
        self.program_resets = False
        self._hidden: dict[int, dict[str, int]] = {}

    def take(self) -> int:
        """The most that was allocated on the current GPU since the last call, or since the program's last reset."""
        device = torch.cuda.current_device()
        statistics = torch._C._cuda_memoryStats(device)
        if not self.program_resets:
            self._hidden[device] = dict(self._hide(statistics, self._hidden.get(device, {})))
            torch._C._cuda_resetPeakMemoryStats(device)
        return int(statistics["allocated_bytes"]["all"]["peak"])

    def _hide(self, statistics: Any, before: dict[str, int], name: str = "") -> list[tuple[str, int]]:
        """The peaks in nested statistics by their flat names, and those of before where they are higher."""
        found = []
        for key, value in statistics.items():
            path = f"{name}.{key}" if name else key
            if isinstance(value, dict):
                found += self._hide(value, before, path)
            elif path.endswith(_PEAK):
                found.append((path, max(value, before.get(path, 0))))
        return found

    def restore(self, statistics: Any, device: Any) -> Any:
        """Statistics that the program reads, nested or flat, with the peaks that they would have without a reset."""
        for path, peak in self._hidden.get(to_index(device), {}).items():
            part, keys = statistics, path.split(".")
            if path not in statistics:
                for key in keys[:-1]:
                    part = part.get(key, {})
            key = path if part is statistics else keys[-1]
            if key in part:
                part[key] = max(part[key], peak)
        return statistics

    def watch_reader(self, _frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watching:
        """Around a function of torch that returns statistics of a device."""
        statistics = yield
        if statistics is not RAISED:
            self.restore(statistics, args[0] if args else kwargs.get("device"))

    def watch_reset(self, _frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watching:
        """Around a function of torch by which the program resets the peaks of a device."""
        if (yield) is not RAISED:
            self.program_resets = True
            if self._hidden:
                self._hidden.pop(to_index(args[0] if args else kwargs.get("device")), None)


def to_index(device: Any) -> int:
    """The number of a GPU as torch's functions take it: a number, a device, its name, or None for the current one."""
    if isinstance(device, str):
        device = torch.device(device)
    index = getattr(device, "index", device)
    return torch.cuda.current_device() if index is None or callable(index) else int(index)


class RamReader:
    """Reads the memory of this process in RAM from a file that stays open: 2 us, where opening it takes 18."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._pid = 0

    def read(self) -> int | None:
        """Bytes in RAM; None where the system does not tell."""
        pages = self._read_pages()
        return None if pages is None else pages[1] * PAGE_BYTES

    def read_anonymous(self) -> int | None:
        """Of these what the process has made by itself: no pages of files, such as mapped data, and no shared ones."""
        pages = self._read_pages()
        return None if pages is None else max(pages[1] - pages[2], 0) * PAGE_BYTES

    def _read_pages(self) -> list[int] | None:
        """Pages in all, in RAM, and of these the pages of files and shared memory."""
        try:
            if self._file is None or self._pid != os.getpid():  # the file of a fork is that of its parent
                self.close()
                self._file, self._pid = os.open("/proc/self/statm", os.O_RDONLY), os.getpid()
            first, second, third = os.pread(self._file, 64, 0).split()[:3]
            return [int(first), int(second), int(third)]
        except (OSError, ValueError, AttributeError):
            return None

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


def read_allocated_bytes() -> int | None:
    """What the allocator has handed out on the current GPU; None before the program has initialised CUDA.

    Of the allocator's raw statistics: `torch.cuda.memory_allocated` sorts all of them first.
    """
    if not cuda_is_initialized():
        return None
    return int(torch._C._cuda_memoryStats(torch.cuda.current_device())["allocated_bytes"]["all"]["current"])


class StepMemory:
    """The peaks of the running step, and the highest ones of each window.

    Looking costs 20 to 100 us a step, so that steps are left out where that is more than `LookPace` grants.
    """

    def __init__(self) -> None:
        self.cuda = CudaPeaks()
        self.ram = RamReader()
        self._pace = LookPace()
        self._looks = False
        self._kind: str | None = None
        self._phase = FORWARD
        self._peaks: dict[str, int] = {}
        self._process_peak: int | None = None
        self._windows: dict[str, dict[str, int]] = {}

    def begin_step(self) -> None:
        """A step begins, with its forward pass; what was allocated before belongs to no step."""
        self._looks = self._pace.is_due()
        if self._looks:
            self._pace.run(self._begin_look)

    def enter(self, phase: str) -> None:
        """Another phase begins, and the one before it ends."""
        if self._looks:
            self._pace.run(partial(self._enter, phase))

    def end_step(self, window: str) -> dict[str, int] | None:
        """The peaks of the step that ends, by phase and of all; None where nobody looked, and before the first one.

        On the CPU that of the step is the process's own, where it has risen in the step.
        """
        if not self._looks:
            return None
        self._pace.run(partial(self._end_look, window))
        self._pace.end_look()
        self._looks = False
        return self._peaks

    def _begin_look(self) -> None:
        self._kind = "cuda" if cuda_is_initialized() else "rss"
        self._peaks, self._phase = {}, FORWARD
        self._process_peak = read_rss_peak_bytes()
        if self._kind == "cuda":
            self.cuda.take()
        else:
            self._note(FORWARD, self.ram.read())

    def _enter(self, phase: str) -> None:
        size = self.cuda.take() if self._kind == "cuda" else self.ram.read()
        self._note(self._phase, size)
        self._phase = phase
        if self._kind != "cuda":
            self._note(phase, size)

    def _end_look(self, window: str) -> None:
        self._enter(FORWARD)
        if self._peaks:
            self._peaks[STEP] = max(self._peaks.values())
        process_peak = read_rss_peak_bytes()
        if self._kind == "rss" and process_peak and self._process_peak and process_peak > self._process_peak:
            self._note(STEP, process_peak)
        known = self._windows.setdefault(window, {"steps": 0})
        known["steps"] += 1
        for name, size in self._peaks.items():
            known[name] = max(known.get(name, 0), size)

    def _note(self, phase: str, size: int | None) -> None:
        if size is not None:
            self._peaks[phase] = max(size, self._peaks.get(phase, 0))

    def to_dict(self) -> dict[str, Any]:
        """What stands in facts.json: the highest peaks of each window."""
        names = (*PHASES, STEP)
        return {
            "kind": self._kind,
            "program_resets": self.cuda.program_resets,
            "windows": {
                window: {"steps": peaks["steps"], **{f"{name}_bytes": peaks.get(name) for name in names}}
                for window, peaks in self._windows.items()
            },
        }


CUDA_STATISTICS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "allocated_peak_bytes": "allocated_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
    "reserved_peak_bytes": "reserved_bytes.all.peak",
}
# ru_maxrss is in KiB, but on macOS in bytes.
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryRecords:
    """Memory at the ends of windows, by window: the last one of each name counts."""

    def __init__(self) -> None:
        self.windows: dict[str, dict[str, int | None]] = {}

    def end_window(self, window: str | None, step: int) -> None:
        """A window has ended before this step: between two steps activations are free, what is left stays."""
        if window is not None:
            self.windows[window] = {"step": step, **read_process_memory()}

    def to_dict(self, last_step_peak_bytes: int | None) -> dict[str, Any]:
        """The memory as it stands in facts.json, with the peak in RAM at the end of the last step."""
        peak_bytes, before_bytes = read_rss_peak_bytes(), last_step_peak_bytes
        return {
            "rise_after_steps_bytes": None if peak_bytes is None or before_bytes is None else peak_bytes - before_bytes,
            "device_bytes": read_device_bytes(),
            "host_bytes": read_host_bytes("MemTotal"),
            "available_bytes": read_available_bytes(),
            "windows": self.windows,
        }


def read_process_memory() -> dict[str, int | None]:
    """What the process holds now, and its peaks so far; None where the system or torch does not tell."""
    statistics = torch.cuda.memory_stats() if cuda_is_initialized() else {}
    cuda = {name: statistics.get(source) for name, source in CUDA_STATISTICS.items()}
    return {**cuda, "rss_bytes": read_rss_bytes(), "rss_peak_bytes": read_rss_peak_bytes()}


def read_rss_bytes() -> int | None:
    """Memory of the process in RAM."""
    pages = (read_text("/proc/self/statm") or "").split()[1:2]
    return int(pages[0]) * PAGE_BYTES if pages else None


def read_rss_peak_bytes() -> int | None:
    """The most memory in RAM that the process has had."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def read_device_bytes() -> int | None:
    """Memory of the current GPU; None without one, because the question would initialise CUDA."""
    if not cuda_is_initialized():
        return None
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def count_samples(batch: Any, depth: int = 4) -> int | None:
    """The samples of a batch: the first dimension of its first tensor that has one; None where there is none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    if not depth:
        return None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for each in parts:
        samples = count_samples(each, depth - 1)
        if samples is not None:
            return samples
    return None


# Libraries that take the place of glibc's malloc, of which mallinfo2 knows nothing.
OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


class MallocInfo(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class HeldMemory(PacedLook[int]):
    """Reads what the program holds: bytes; None between two looks, and where the system does not tell."""

    def __init__(self) -> None:
        self._ram = RamReader()
        self._count = find_malloc_info()
        super().__init__(self._ram.read_anonymous if self._count is None else self._read_count)

    def close(self) -> None:
        """Close the file."""
        self._ram.close()

    def _read_count(self) -> int:
        found = self._count()
        return int(found.uordblks + found.hblkhd)


def find_malloc_info() -> Any:
    """The function mallinfo2 of the C library; None where it has none, or another library allocates."""
    if any(name in os.environ.get("LD_PRELOAD", "") for name in OTHER_ALLOCATORS):
        return None
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # an older glibc, another C library, Windows
        return None
    function.restype = MallocInfo
    return function
