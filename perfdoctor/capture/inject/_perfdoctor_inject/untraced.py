"""Looks that the profiler does not see: without this, most of an evidence window's Python would be the recorder's own.

The profiler calls back at each call of a function, with stacks; the looks at one torch call make some sixty. Python has
an interface for that since 3.11, `PyThreadState_EnterTracing`, which counts: each pause needs its end. Before, the
looks are recorded, and readers leave them out.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import NamedTuple


class Pause(NamedTuple):
    """Functions for one thread: what is called between them is in no recording of that thread."""

    begin: Callable[[], None]
    end: Callable[[], None]


def pause_for_this_thread() -> Pause:
    """The functions for the calling thread, which no other may call; where Python has none they do nothing."""
    try:
        api = ctypes.pythonapi
        get, begin, end = api.PyThreadState_Get, api.PyThreadState_EnterTracing, api.PyThreadState_LeaveTracing
    except AttributeError:
        return NO_PAUSE
    get.restype = ctypes.c_void_p
    begin.argtypes = end.argtypes = [ctypes.c_void_p]
    begin.restype = end.restype = None
    state = ctypes.c_void_p(get())
    return Pause(functools.partial(begin, state), functools.partial(end, state))


def _do_nothing() -> None:
    pass


NO_PAUSE = Pause(_do_nothing, _do_nothing)
