"""All that `--memory` records beside the traces; without that option it does nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import signal_handling

from .allocator_history import AllocatorHistory
from .host_memory import HostMemory
from .loader_records import LoaderRecords
from .machine_facts import cuda_is_initialized
from .step_memory import FORWARD, OPTIMIZER, StepMemory
from .watched_calls import RAISED, Patches, Watching


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
