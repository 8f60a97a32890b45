"""One recorded window: open, start, stop and save Kineto, and keep clear of a profiler of the user's.

`torch.autograd.profiler.profile` is used directly: `torch.profiler.profile` asks for `torch._inductor`, whose import
takes more than a second where the program does not compile.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler

from .calls import Lane, LongCall, long_calls
from .lines import Lines
from .output import RankFolder, warn
from .quiet import QuietAllocator
from .ranks import identity

EVIDENCE = ("with_stack", "record_shapes", "with_flops", "with_modules")
MEMORY = "profile_memory"


def device_in_use() -> str | None:
    """The kind of accelerator that the program has initialised; asking must not initialise it."""
    for name in ("cuda", "xpu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            return name
    return None


def keep_cupti_for_graphs() -> None:
    """Repeat torch.profiler's own precaution: with CUDA graphs of inductor, tearing CUPTI down crashes CUDA 12."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None and getattr(getattr(config, "triton", None), "cudagraphs", False):
        os.environ["DISABLE_CUPTI_LAZY_REINIT"] = "1"
        os.environ["TEARDOWN_CUPTI"] = "0"


class ThreadEnd:
    """Lives as long as the thread that keeps it in a `threading.local`, and tells of its end in that very thread."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._tell()


class WindowProfiler:
    """At most one Kineto session at a time, ours or the user's."""

    def __init__(self, thread_ends: Callable[[], None]) -> None:
        """Nothing is open yet.

        Args:
            thread_ends: Called in a thread other than the main one that ends with a session of ours open: it must be
                closed there, or the process crashes on its way out.
        """
        self._thread_ends = thread_ends
        self._end_of_thread = threading.local()
        self.recording = False
        self.used = False
        self._profile: Any = None
        self._trace = ""
        self._foreign: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lines = Lines()
        self._quiet = QuietAllocator()
        self._options: tuple[str, ...] = ()
        self._thread: int | None = None
        self._lane = Lane.here()

    @property
    def out_of_reach(self) -> bool:
        """Whether another thread has opened the session: closing it from this one crashes the process at times."""
        return self._profile is not None and self._thread != threading.get_ident()

    @property
    def prepared(self) -> bool:
        """Whether a session of ours is open."""
        return self._profile is not None

    @property
    def user_profiles(self) -> bool:
        """Whether the user's own profiler is prepared or running."""
        if self._foreign:
            return True
        # Asked in every step: comparing profiler types, enums of pybind, would take ten times as long.
        return not self.recording and torch._C._autograd._profiler_enabled()

    def prepare(self, trace: str) -> None:
        """Open a session for the trace timing or evidence; nothing is recorded yet."""
        device = device_in_use()
        if device == "cuda":
            keep_cupti_for_graphs()
        self._options = ()
        if trace == "evidence":
            self._options = (*EVIDENCE, MEMORY) if self._quiet.available else EVIDENCE
        options: dict[str, Any] = dict.fromkeys(self._options, True)
        profile: Any = autograd_profiler.profile(use_kineto=True, use_device=device, **options)
        self._profile, self._trace, self._thread, self._lane = profile, trace, threading.get_ident(), Lane.here()
        if threading.current_thread() is not threading.main_thread() and not hasattr(self._end_of_thread, "told"):
            self._end_of_thread.told = ThreadEnd(self._thread_ends)
        self.used = True
        profile._prepare_trace()

    def start(self) -> None:
        """Record from here on."""
        if MEMORY in self._options:
            self._quiet.on()
        self._profile._start_trace()
        self.recording = True
        self._describe()
        if self._trace == "evidence":
            self.lines.on()

    def stop(self) -> Any:
        """Stop recording and close the session.

        Returns:
            Kineto's results, or None when nothing was being recorded.
        """
        profile, self._profile = self._profile, None
        self.lines.off()
        if profile is None or not self.recording:
            return None
        self.recording = False
        try:
            profile.__exit__(None, None, None)
        finally:
            self._quiet.off()
        return profile.kineto_results

    def stop_and_save(self, folder: RankFolder, partial_step: int | None = None) -> str | None:
        """Stop, and write the trace; the file's name, or None when there was nothing or no room."""
        results = self.stop()
        if results is None:
            return None
        return folder.write_trace(self._trace, results, partial_step, self._long_calls(results))

    def _long_calls(self, results: Any) -> list[LongCall]:
        """Rows for the lines of long calls; a trace without them is better than none."""
        if "with_stack" not in self._options:
            return []
        try:
            return long_calls(results, self._lane, (__file__, WindowProfiler.start.__name__))
        except Exception as error:
            warn(f"lines of long calls are missing: {error!r}")
            return []

    def abort(self) -> None:
        """Close whatever is open and keep nothing."""
        if self.out_of_reach:
            return
        with contextlib.suppress(Exception):
            self.stop()

    def user_opens(self, profile: Any) -> bool:
        """The program opens a profiler of its own; True when ours is open and must give way first."""
        if profile is self._profile:
            return False
        self._foreign.add(profile)
        return self.prepared

    def user_closes(self, profile: Any) -> None:
        """The program's profiler has ended."""
        self._foreign.discard(profile)

    def _describe(self) -> None:
        """Say in the trace which rank it is, in the form of torch.profiler."""
        rank, world_size = identity()
        info: dict[str, Any] = {"rank": rank, "world_size": world_size}
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            info["backend"] = distributed.get_backend()
        torch.autograd._add_metadata_json("distributedInfo", json.dumps(info))  # type: ignore[attr-defined]
        for name in self._options:
            torch.autograd._add_metadata_json(name, "1")  # type: ignore[attr-defined]
