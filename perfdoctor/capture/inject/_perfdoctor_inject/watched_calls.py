"""One way to stand around a function of the program's: a watcher is entered before each call, and resumed after it.

A watcher is a generator of the caller's frame and the arguments. It yields once, where the call runs, and nothing, or
other arguments for the call; the yield gives it what was returned, `RAISED` where nothing was::

    def watch_backward(frame, args, kwargs):
        begin_range()
        result = yield
        end_range()

A watcher that is a plain function is called before the call only. What a watcher raises goes to the guard, and what
the function raises to the program, without a frame of ours.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import torch

from .tracebacks import remove_own_frames

Function = Callable[..., Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Watching = Generator[Any, Any, None]  # of Arguments, or of None
Watcher = Callable[[FrameType, tuple[Any, ...], dict[str, Any]], Watching | None]
# Whether the arguments of a call are such that anybody watches.
Concern = Callable[[tuple[Any, ...]], bool]
# Calls a function, and keeps its errors from the program.
Guard = Callable[..., Any]
RAISED: Any = object()


class Patches:
    """Functions that are replaced by wrappers, until `undo`."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._undo: list[Callable[[], None]] = []

    def add_undo(self, undo: Callable[[], None]) -> None:
        """Call this, too, when everything is undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Restore the functions that nobody has wrapped again; other wrappers stay, and only call the original."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def replace(self, owner: Any, name: str, wrap: Callable[[Function], Function], *, inherited: bool = False) -> None:
        """Replace a function of a class or module by its wrapper; what this torch does not have is left out."""
        declared = vars(owner).get(name, getattr(owner, name, None) if inherited else None)
        if declared is None:
            return
        is_bare = not isinstance(declared, staticmethod | classmethod)
        original = declared if is_bare else declared.__func__
        wrapper: Any = functools.wraps(original)(wrap(original))
        if not is_bare:
            wrapper = type(declared)(wrapper)
        setattr(owner, name, wrapper)

        def undo() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, declared)

        self._undo.append(undo)

    def watch(
        self,
        owner: Any,
        name: str,
        watcher: Watcher,
        is_listening: Callable[[], bool] = lambda: True,
        concerns: Concern | None = None,
    ) -> None:
        """Put a watcher around a function; `is_listening` says before each call whether it watches that."""
        self.replace(owner, name, lambda original: watch_calls(original, watcher, is_listening, self._guard, concerns))


def watch_calls(
    original: Function,
    watcher: Watcher,
    is_listening: Callable[[], bool] = lambda: True,
    guard: Guard = lambda function, *args: function(*args),
    concerns: Concern | None = None,
) -> Function:
    """The function with a watcher around its calls, of frequent ones those whose arguments concern it.

    Without a guard the watcher must raise nothing.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        # Whether dynamo traces comes next: it takes the answer for a constant, and sees nothing of the rest.
        if (concerns is not None and not concerns(args)) or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        watching = guard(watcher, sys._getframe(1), args, kwargs) if is_listening() else None
        result = RAISED
        try:
            if watching:
                args, kwargs = guard(next, watching, None) or (args, kwargs)
            result = original(*args, **kwargs)
            return result
        except BaseException as error:
            remove_own_frames(error)
            raise
        finally:
            if watching:
                guard(_resume, watching, result)

    return call


def _resume(watching: Watching, result: Any) -> None:
    with contextlib.suppress(StopIteration):  # it has ended, now or before the call
        watching.send(result)
