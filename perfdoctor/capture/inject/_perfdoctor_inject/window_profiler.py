"""One recorded window: open, start, stop and save Kineto, and make way for a profiler of the user's.

`torch.autograd.profiler.profile` is used directly: `torch.profiler.profile` imports `torch._inductor`, which takes
more than a second in a program that does not compile.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import itertools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler

from .gradient_use import GradientUse
from .messages import warn
from .module_calls import ModuleCalls
from .rank_folder import RankFolder
from .rank_identity import rank_and_world_size
from .source_lines import LineStretch, SourceLines, ThreadIds, dynamo_has_compiled, find_line_stretches
from .window_plan import EVIDENCE_FACTOR, MAX_EVIDENCE_EVENTS


class PythonCalls:
    """Counts the calls of functions of one step, in the thread that makes it.

    With its stacks the profiler keeps each call, as 2 kB of memory and 300 of text. They are counted in a step whose
    time counts for nothing, the warm-up of the timing window, at 0.3 us a call.

    Attributes:
        per_step: Calls of functions, of Python's and of C's; None before a step was counted.
    """

    def __init__(self) -> None:
        self.per_step: int | None = None
        self._hook: Any = None
        self._events = itertools.count()
        self._thread: int | None = None

    def start(self) -> None:
        """Count from now on, unless that was done or the program has a profile function of its own."""
        if self.per_step is not None or sys.getprofile() is not None or dynamo_has_compiled():
            return
        events = self._events = itertools.count()
        self._hook, self._thread = lambda *_: next(events), threading.get_ident()
        sys.setprofile(self._hook)

    def stop(self) -> None:
        """Count no more; where the program has set a function of its own meanwhile, nothing was counted."""
        if self._hook is None or self._thread != threading.get_ident():
            return
        if sys.getprofile() is self._hook:
            sys.setprofile(None)
            self.per_step = next(self._events) // 2  # the call and the return
        self._hook = None


LOG_LEVEL = "FLAGS_caffe2_log_level"
ERRORS_ONLY = 2


class AllocatorWarnings:
    """Keeps torch's CPU allocator from writing to the program's stderr while its memory is profiled.

    With `profile_memory` it logs a warning for every block that is older than the profile, and every training program
    has such blocks. The C++ log level, a plain global of libc10, is raised to errors meanwhile, where it can be found.
    Warnings that Python handles are not affected.
    """

    def __init__(self) -> None:
        self._level = find_log_level()
        self._previous: int | None = None

    @property
    def can_be_muted(self) -> bool:
        """Whether memory can be profiled without any output on stderr."""
        return self._level is not None

    def mute(self) -> None:
        """Log errors only."""
        if self._level is not None and self._previous is None:
            self._previous = self._level.value
            self._level.value = max(self._previous, ERRORS_ONLY)

    def unmute(self) -> None:
        """Restore the log level."""
        if self._level is not None and self._previous is not None:
            self._level.value, self._previous = self._previous, None


def find_log_level() -> ctypes.c_int | None:
    """The variable of the log level, or None on a torch that logs in another way."""
    libraries = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "*c10.*"))
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(libraries[0]), LOG_LEVEL)
    except (IndexError, OSError, ValueError):
        return None


# Without stacks, for steps with so many ops that the calls of Python would fill the trace.
LEAN_EVIDENCE_OPTIONS = ("record_shapes", "with_flops")
EVIDENCE_OPTIONS = ("with_stack", "record_shapes", "with_flops", "with_modules")
MEMORY_OPTION = "profile_memory"
# A window that takes more CPU time to stop is so large that saving it will be noticed: say so before.
SLOW_STOP_NS = 500_000_000
# Measured with torch 2.13: 3 us and 290 bytes an event without stacks, 6 us and 400 bytes with them.
BYTES_PER_STOP_NS = 0.08


def initialized_accelerator() -> str | None:
    """The kind of accelerator that the program has initialised; the question does not initialise it."""
    for name in ("cuda", "xpu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            return name
    return None


def keep_cupti_for_graphs() -> None:
    """Take torch.profiler's precaution: with inductor's CUDA graphs, CUDA 12 crashes when CUPTI is torn down."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None and getattr(getattr(config, "triton", None), "cudagraphs", False):
        os.environ["DISABLE_CUPTI_LAZY_REINIT"] = "1"
        os.environ["TEARDOWN_CUPTI"] = "0"


class ThreadEndCallback:
    """An object for a `threading.local`: it lives as long as its thread, and calls a function when the thread ends."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._callback()


class WindowProfiler:
    """The profiler of one process: at most one Kineto session at a time, ours or the user's.

    Attributes:
        recording: Whether our session records events.
        used: Whether a session of ours was ever opened.
        lines: The source lines of the evidence window.
    """

    def __init__(
        self,
        on_thread_end: Callable[[], None],
        calls: ModuleCalls,
        gradients: GradientUse,
        *,
        always_profiles_memory: bool = False,
    ) -> None:
        """Open nothing yet; calls of modules and gradients are watched in the evidence window.

        `always_profiles_memory`: Even where a step has so many events that stacks are left out.

        `on_thread_end` is called in a thread other than the main thread that ends with an open session of ours. The
        session must be closed there, or the process crashes when it ends.
        """
        self._on_thread_end = on_thread_end
        self._always_profiles_memory = always_profiles_memory
        self._thread_local = threading.local()
        self.recording = False
        self.used = False
        self._session: Any = None
        self._trace = ""
        self._user_profilers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lines = SourceLines(calls, gradients)
        self._allocator_warnings = AllocatorWarnings()
        self._options: tuple[str, ...] = ()
        self._thread: int | None = None
        self._thread_ids = ThreadIds.of_this_thread()

    @property
    def belongs_to_other_thread(self) -> bool:
        """Whether another thread opened the session: closing it in this thread can crash the process."""
        return self._session is not None and self._thread != threading.get_ident()

    @property
    def prepared(self) -> bool:
        """Whether a session of ours is open."""
        return self._session is not None

    @property
    def user_profiler_is_active(self) -> bool:
        """Whether a profiler of the user's is prepared or running."""
        if self._user_profilers:
            return True
        # Asked in every step: to compare profiler types, enums of pybind, would take ten times as long.
        return not self.recording and torch._C._autograd._profiler_enabled()

    def prepare(self, trace: str, events_per_step: int = 0, *, with_stacks: bool = True) -> None:
        """Open a session for the timing or the evidence trace; nothing is recorded yet.

        With many events in a step of the timing window (0 for unknown) stacks, modules and memory are left out of the
        evidence, as without `with_stacks`; with very many the shapes, too, and the lines are all that is added.
        """
        device = initialized_accelerator()
        if device == "cuda":
            keep_cupti_for_graphs()
        self._options = ()
        if trace == "evidence":
            can_profile_memory = self._allocator_warnings.can_be_muted
            self._options = (*EVIDENCE_OPTIONS, MEMORY_OPTION) if can_profile_memory else EVIDENCE_OPTIONS
            if events_per_step > MAX_EVIDENCE_EVENTS:
                self._options = ()
            elif not with_stacks or EVIDENCE_FACTOR * events_per_step > MAX_EVIDENCE_EVENTS:
                self._options = LEAN_EVIDENCE_OPTIONS
            if self._always_profiles_memory and can_profile_memory and MEMORY_OPTION not in self._options:
                self._options = (*self._options, MEMORY_OPTION)
        options: dict[str, Any] = dict.fromkeys(self._options, True)
        session: Any = autograd_profiler.profile(use_kineto=True, use_device=device, **options)
        self._session, self._trace = session, trace
        self._thread, self._thread_ids = threading.get_ident(), ThreadIds.of_this_thread()
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main and not hasattr(self._thread_local, "end_callback"):
            self._thread_local.end_callback = ThreadEndCallback(self._on_thread_end)
        self.used = True
        session._prepare_trace()

    def start(self) -> None:
        """Record from now on."""
        if MEMORY_OPTION in self._options:
            self._allocator_warnings.mute()
        self._session._start_trace()
        self.recording = True
        self._write_metadata()
        if self._trace == "evidence":
            self.lines.start()

    def stop(self) -> Any:
        """Stop recording and close the session.

        Returns Kineto's results, or None when nothing was being recorded.
        """
        session, self._session = self._session, None
        self.lines.stop()
        if session is None or not self.recording:
            return None
        self.recording = False
        try:
            session.__exit__(None, None, None)
        finally:
            self._allocator_warnings.unmute()
        return session.kineto_results

    def stop_and_save(self, folder: RankFolder, partial_step: int | None = None) -> str | None:
        """Stop recording and write the trace; the name of the file, or None when nothing was recorded or written."""
        start_ns = time.thread_time_ns()
        results = self.stop()
        stopped_ns = time.thread_time_ns() - start_ns
        if results is None:
            return None
        if stopped_ns > SLOW_STOP_NS:
            # Saving takes about as long again, and the program waits.
            megabytes = stopped_ns * BYTES_PER_STOP_NS / 1e6
            warn(f"writing trace {self._trace}.json.gz (about {megabytes:.0f} MB before compression)")
        name = folder.write_trace(self._trace, results, partial_step, self._find_line_stretches(results))
        if self._trace == "evidence":
            folder.write_facts(self.lines.calls.to_dict(), "calls.json", indent=None)
        return name

    def _find_line_stretches(self, results: Any) -> list[LineStretch]:
        """The lines of a window with stacks; none after an error: a trace without them is better than no trace."""
        if "with_stack" not in self._options:
            return []
        try:
            return find_line_stretches(results, self._thread_ids, (__file__, WindowProfiler.start.__name__))
        except Exception as error:
            warn(f"lines of Python are missing: {error!r}")
            return []

    def abort(self) -> None:
        """Close an open session of this thread and save nothing."""
        if self.belongs_to_other_thread:
            return
        with contextlib.suppress(Exception):
            self.stop()

    def on_user_profiler_open(self, profile: Any) -> bool:
        """The program opens a profiler; True when a session of ours is open and must be closed first."""
        if profile is self._session:
            return False
        self._user_profilers.add(profile)
        return self.prepared

    def on_user_profiler_close(self, profile: Any) -> None:
        """The program has closed a profiler."""
        self._user_profilers.discard(profile)

    def _write_metadata(self) -> None:
        """Write rank, world size and options into the trace, in the form of torch.profiler."""
        rank, world_size = rank_and_world_size()
        info: dict[str, Any] = {"rank": rank, "world_size": world_size}
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            info["backend"] = distributed.get_backend()
        torch.autograd._add_metadata_json("distributedInfo", json.dumps(info))  # type: ignore[attr-defined]
        for name in self._options:
            torch.autograd._add_metadata_json(name, "1")  # type: ignore[attr-defined]
