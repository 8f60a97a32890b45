"""Wrappers of the calls that `HostCalls` times; each becomes a range of the trace, too, so that its time is known."""

from __future__ import annotations

import copy
import functools
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils.data import get_worker_info

from .host_calls import COLLECT
from .recorder import RecordedRange, Recorder
from .tracebacks import remove_own_frames

Function = Callable[..., Any]
SAVE, DEEPCOPY = "torch.save", "copy.deepcopy"
WATCHED_CALLS = (
    (gc, "collect", COLLECT),
    (os, "fsync", "os.fsync"),
    (os, "fdatasync", "os.fdatasync"),
    (torch, "save", SAVE),
    (copy, "deepcopy", DEEPCOPY),
)
RANGE_PREFIX = "perfdoctor::"


class Hooks(Protocol):
    """What these wrappers need of `torch_hooks.Hooks`."""

    recorder: Recorder

    def call_recorder(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the recorder, whose errors end the recording and never the program."""
        ...


def wrap_host_call(hooks: Hooks, call: str) -> Callable[[Function], Function]:
    """A `wrap` for `Hooks._patch` whose wrapper times the calls of the training thread.

    Of `copy.deepcopy` only copies of modules and of dictionaries (the state of one) are timed: a program may copy small
    things by the million.
    """
    recorder, calls = hooks.recorder, hooks.recorder.meter.host_calls

    def wrap(original: Function) -> Function:
        def watched_call(*args: Any, **kwargs: Any) -> Any:
            if call == DEEPCOPY and not (args and isinstance(args[0], (dict, torch.nn.Module))):
                return original(*args, **kwargs)
            if not recorder.is_listening() or get_worker_info() is not None or not calls.begin_call():
                return original(*args, **kwargs)
            if call == SAVE:
                recorder.meter.see("save")
            close = hooks.call_recorder(open_call_range, recorder, call)
            start_ns = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                dur_ns = time.perf_counter_ns() - start_ns
                if close:
                    hooks.call_recorder(close)
                saved = (args[1] if len(args) > 1 else kwargs.get("f")) if call == SAVE else None
                copied = args[0] if call == DEEPCOPY else None
                hooks.call_recorder(calls.end_call, call, sys._getframe(1), dur_ns, saved, copied)

        return watched_call

    return wrap


def open_call_range(recorder: Recorder, call: str) -> Callable[[], None] | None:
    """Open a range of the trace around a call, while one is recorded; returns what closes it."""
    if not recorder.profiler.recording:
        return None
    window = recorder.profiler
    opened = RecordedRange(RANGE_PREFIX + call)

    def close() -> None:
        if window.recording:  # the window may have ended inside the call
            opened.close()

    return close


def watch_collections(hooks: Hooks) -> Callable[[], None]:
    """Time Python's garbage collector from now on; returns what ends that."""
    calls = hooks.recorder.meter.host_calls

    def open_range(call: str) -> Callable[[], None] | None:
        close = hooks.call_recorder(open_call_range, hooks.recorder, call)
        return functools.partial(hooks.call_recorder, close) if close else None

    calls.open_range = open_range
    calls.watch_collections()
    return calls.stop_watching
