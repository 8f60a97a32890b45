"""The first forward of each model that the program calls: where changes of the model are applied.

`Module.__call__` is wrapped until the timed steps begin, and never while dynamo traces. What a change does to a model
stays with that model alone, so that the timed steps pay for nothing else.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .tracebacks import remove_own_frames

Callback = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


def is_in_backward() -> bool:
    """Whether the calling thread runs a backward pass, in which checkpointed parts of a model run again."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


class FirstForwards:
    """Calls back before the first forward of each outermost module that has parameters."""

    def __init__(self, is_listening: Callable[[], bool]) -> None:
        """Watch nothing yet.

        `is_listening` is False while dynamo traces, and outside of the training thread.
        """
        self._is_listening = is_listening
        self._callbacks: list[Callback] = []
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pid = os.getpid()
        self._is_inside = False
        self._call: Any = None
        self._wrapper: Any = None

    def add(self, callback: Callback, *, before_others: bool) -> None:
        """Call this function, too, with the module and the arguments of its call; the first one begins to watch."""
        self._callbacks.insert(0 if before_others else len(self._callbacks), callback)
        if self._wrapper is None:
            self._call = nn.Module.__call__
            self._wrapper = self._wrap(self._call)
            nn.Module.__call__ = self._wrapper  # type: ignore[method-assign]

    def stop(self) -> None:
        """Stop watching, unless the call has been wrapped again."""
        self._callbacks.clear()
        if self._wrapper is not None and nn.Module.__call__ is self._wrapper:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._is_inside or not self._callbacks or not self._is_outermost():
                return original(module, *args, **kwargs)
            self._is_inside = True
            try:
                if module not in self._seen and next(module.parameters(), None) is not None:
                    self._seen.add(module)
                    for callback in tuple(self._callbacks):
                        callback(module, args, kwargs)
                return original(module, *args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                self._is_inside = False

        return call

    def _is_outermost(self) -> bool:
        """Whether the program itself calls: not a worker of a loader, and no checkpoint that is computed again."""
        return os.getpid() == self._pid and self._is_listening() and not is_in_backward()


def wrap_calls(module: Any, wrap: Callable[[Any], Any]) -> None:
    """Wrap the calls of one module, hooks and compiled code included; its copies are as they were.

    Its class, and other modules of the class, stay as they are. `wrap` gets what calls the module, and returns what is
    called in its place.
    """
    call = getattr(module, "_compiled_call_impl", None) or module._call_impl
    # What `Module.compile` sets: torch calls it in place of the module, and leaves it out of copies and files.
    module._compiled_call_impl = functools.wraps(call)(wrap(call))
