"""All that `--memory` records beside the traces; without that option it does nothing.

Snapshots of CUDA's allocator among it: of the evidence window with Python's frames, and of a request that does not fit.
What `torch.cuda.memory._record_memory_history` records costs memory and time for each allocation, so it runs in the
evidence window alone, and keeps the last events that fit into a part of --max-evidence. Where the program records its
own history, it keeps that, and nothing is recorded here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import signal_handling

from .host_memory import HostMemory
from .loader_records import LoaderRecords
from .machine_facts import cuda_is_initialized
from .process_memory import FORWARD, OPTIMIZER, StepMemory, read_rss_bytes
from .rank_folder import remove
from .user_code import Location, error_location, user_location
from .watched_calls import RAISED, Patches, Watching

WINDOW_FILE, OOM_FILE = "memory.pickle", "oom.pickle"
# Of an event in a snapshot with Python's frames, pickled; most frames are those of other events, too.
ENTRY_BYTES = 2000
MAX_ENTRIES = 100_000
# A program that catches its errors and goes on with a smaller batch must not write a snapshot for each.
MAX_OOM_SNAPSHOTS = 3
# The words with which torch's CPU allocator says that the system gives it no memory: it has no type of its own.
NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
_ASKED_OF_HOST = re.compile(NO_HOST_MEMORY + r": you tried to allocate (\d{1,15}) bytes")


class AllocatorHistory:
    """The history of the allocator while a window records, and the observer of requests that fail.

    Attributes:
        file: The snapshot of the last window; None where there is none.
        out_of_memory: What is known of the last request that failed, as it stands in facts.json.
    """

    def __init__(self, max_bytes: int, note: Callable[[str], None]) -> None:
        """Record nothing yet; `note` takes sentences for the user, without a full stop."""
        self.file: str | None = None
        self.out_of_memory: dict[str, Any] | None = None
        self._max_entries = max(min(max_bytes // ENTRY_BYTES, MAX_ENTRIES), 1)
        self._note = note
        self._find_folder: Callable[[], str | None] = lambda: None
        self._is_recording = self._is_switching = self._is_observed = False
        self._failures = 0

    def observe_failures(self, find_folder: Callable[[], str | None]) -> None:
        """Let the allocator report requests that fail, once the program has initialised CUDA; called again and again.

        `find_folder` returns the rank's folder.
        """
        if self._is_observed or not cuda_is_initialized():
            return
        self._is_observed, self._find_folder = True, find_folder
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self._on_failure)

    def start(self) -> None:
        """Record from now on, unless the program does."""
        if not cuda_is_initialized() or self._is_recording:
            return
        is_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if is_enabled is not None and is_enabled():
            self._note("the program records the allocator's history by itself, so it is not recorded here")
            return
        try:
            self._switch("all", context="all", stacks="python", max_entries=self._max_entries)
            self._is_recording = True
        except Exception as error:
            self._note(f"the allocator's history was not recorded: {error!r}")

    def stop(self, folder: str | None) -> None:
        """Stop recording, and write the snapshot into a folder; None writes none."""
        if not self._is_recording:
            return
        try:
            if folder is not None:
                dump_snapshot(os.path.join(folder, WINDOW_FILE))
                self.file = WINDOW_FILE
        except Exception as error:
            self._note(f"the allocator's history was not written: {error!r}")
        finally:
            self._is_recording = False
            self._switch(None)

    def _switch(self, enabled: str | None, **options: Any) -> None:
        memory: Any = torch.cuda.memory
        self._is_switching = True
        try:
            memory._record_memory_history(enabled, **options)
        finally:
            self._is_switching = False

    def on_program_records(self, *_: Any) -> None:
        """The program is about to switch a history of its own: ours is left to it."""
        if self._is_recording and not self._is_switching:
            self._is_recording = False
            self._note("the program began to record the allocator's history, so that of the window is missing")

    def _on_failure(self, device: int, requested: int, limit: int, free: int) -> None:
        """Torch calls this before it raises; what is raised here would take the place of its error."""
        try:
            folder = self._find_folder()
            self._describe("torch.OutOfMemoryError", user_location(sys._getframe(1)))
            assert self.out_of_memory is not None
            self.out_of_memory |= {"device": device, "requested_bytes": requested, "free_bytes": free}
            self.out_of_memory["device_bytes"] = limit
            if folder is not None and self._failures <= MAX_OOM_SNAPSHOTS:
                dump_snapshot(os.path.join(folder, OOM_FILE))
                self.out_of_memory["file"] = OOM_FILE
        except Exception as error:
            self._note(f"the snapshot of a request that failed is missing: {error!r}")

    def note_error(self, error: BaseException | None) -> bool:
        """Look at the error that ends the program; whether memory ran out.

        A GPU's is known by its observer, unless its torch has none.
        """
        is_gpu = isinstance(error, torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else ())
        is_host = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_HOST_MEMORY in str(error))
        if error is None or not (is_host or (is_gpu and self.out_of_memory is None)):
            return is_gpu
        self._describe("torch.OutOfMemoryError" if is_gpu else type(error).__name__, error_location(error))
        asked = _ASKED_OF_HOST.search(str(error))
        if self.out_of_memory is not None and asked is not None:
            self.out_of_memory["requested_bytes"] = int(asked[1])
        return True

    def _describe(self, name: str, location: Location | None) -> None:
        self._failures += 1
        self.out_of_memory = {
            "error": name,
            "times": self._failures,
            "device": None,
            "requested_bytes": None,
            "free_bytes": None,
            "device_bytes": None,
            "rss_bytes": read_rss_bytes(),
            "location": location,
            "file": None,
        }


def dump_snapshot(path: str) -> None:
    """Write a snapshot of the allocator; a reader sees the old file or the whole new one."""
    temporary = f"{path}.part"
    try:
        torch.cuda.memory._dump_snapshot(temporary)  # type: ignore[no-untyped-call]
        os.replace(temporary, path)
    finally:
        remove(temporary)


class MemoryWatch:
    """Peaks of steps, snapshots of the allocator, and memory of the host.

    Attributes:
        enabled: Whether the user asks for it.
        steps: The peaks of phases and steps.
        history: The snapshots.
        host: The memory of the host.
    """

    def __init__(self, *, enabled: bool, max_bytes: int, loaders: LoaderRecords, note: Callable[[str], None]) -> None:
        """Watch nothing yet; `note` takes sentences for the user, without a full stop."""
        self.enabled = enabled
        self.steps = StepMemory()
        self.history = AllocatorHistory(max_bytes, note)
        self._loaders = loaders
        self.host = HostMemory(lambda: [pid for record in list(loaders.records) for pid in list(record.workers)])
        loaders.measures_objects = enabled

    def install(self, patches: Patches) -> None:
        """Watch what the program calls for peaks and for the allocator's history."""
        if not self.enabled:
            return
        accelerator: Any = getattr(torch, "accelerator", None)
        cuda, peaks = torch.cuda, self.steps.cuda
        for owner, read in (
            *((each, "memory_stats_as_nested_dict") for each in (cuda, cuda.memory)),
            *((each, "memory_stats") for each in (accelerator, getattr(accelerator, "memory", None)) if each),
        ):
            patches.watch(owner, read, peaks.watch_reader)
            patches.watch(owner, "reset_peak_memory_stats", peaks.watch_reset)
        patches.watch(cuda.memory, "_record_memory_history", self.history.on_program_records)
        patches.watch(signal_handling, "_error_if_any_worker_fails", self._watch_worker_check)

    def observe_failures(self, find_folder: Callable[[], str | None]) -> None:
        """Watch the allocator, as soon as there is one; called again and again."""
        if self.enabled:
            self.history.observe_failures(find_folder)

    def start(self) -> None:
        """The process is recorded: watch the host."""
        if self.enabled:
            self.host.start()

    def enter(self, phase: str) -> None:
        """A phase of the step begins."""
        if self.enabled:
            self.steps.enter(phase)

    def leave(self, *, in_optimizer: bool) -> None:
        """A backward pass or an optimizer's step has ended, within an optimizer's step or not."""
        self.enter(OPTIMIZER if in_optimizer else FORWARD)

    def begin_step(self) -> None:
        """A step begins."""
        if self.enabled:
            self.steps.begin_step()

    def end_step(self, window: str) -> dict[str, dict[str, int] | None]:
        """The part of a step's row: its peaks, null where nobody looked; empty if not asked for."""
        return {"memory_bytes": self.steps.end_step(window)} if self.enabled else {}

    def begin_window(self, trace: str) -> None:
        """A window begins to record."""
        if self.enabled and trace == "evidence":
            self.history.start()

    def note_killed_workers(self) -> None:
        """A worker of a loader may have been killed."""
        if self.enabled:
            self.host.note_killed(list(self._loaders.processes))

    def _watch_worker_check(self, *_: Any) -> Watching:
        """Around what torch calls when a child ends: its error comes at whichever line of the program runs."""
        if (yield) is RAISED:
            self.note_killed_workers()

    def stop(self) -> None:
        """Watch nothing more."""
        if self.enabled:
            self.host.stop()
            self.history.stop(None)
            self.steps.ram.close()

    def note_error(self, error: BaseException | None) -> bool:
        """The program ends by this error: whether it does for lack of memory."""
        return self.enabled and self.history.note_error(error)

    def note_end(self) -> bool:
        """The process ends: whether by an error for lack of memory, which Python has shown to the user by now."""
        return self.note_error(getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))

    def to_dict(self) -> dict[str, Any]:
        """What stands in facts.json; empty where nothing was asked for."""
        if not self.enabled:
            return {}
        return {
            "peaks": self.steps.to_dict(),
            "host": self.host.to_dict(),
            "snapshot": self.history.file,
            "out_of_memory": self.history.out_of_memory,
            "pinned_bytes": read_pinned_bytes(),
        }


def read_pinned_bytes() -> int | None:
    """The most pinned memory that torch had for this program; None where it does not tell."""
    read = getattr(torch.cuda, "host_memory_stats", None)
    if read is None or not cuda_is_initialized():
        return None
    peak = read().get("allocated_bytes.peak")
    return None if peak is None else int(peak)
