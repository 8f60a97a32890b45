"""The first forward of each model that the program calls: where changes of the model are applied.

Calls of modules are watched until the timed steps begin. What a change does to a model stays with that model alone, so
that the timed steps pay for nothing else.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from .module_calls import ModuleCalls, has_parameters

Callback = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


def is_in_backward() -> bool:
    """Whether the calling thread runs a backward pass, in which checkpointed parts of a model run again."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


class FirstForwards:
    """Calls back before the first forward of each outermost module that has parameters."""

    def __init__(self, calls: ModuleCalls) -> None:
        """Watch nothing yet."""
        self._calls = calls
        self._callbacks: list[Callback] = []
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pid = os.getpid()

    def add(self, callback: Callback, *, before_others: bool) -> None:
        """Call this function, too, with the module and the arguments of its call; the first one begins to watch."""
        if not self._callbacks:
            self._calls.add(self._on_call)
        self._callbacks.insert(0 if before_others else len(self._callbacks), callback)

    def stop(self) -> None:
        """Stop watching."""
        self._callbacks.clear()
        self._calls.remove(self._on_call)

    def _on_call(self, module: Any, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        """Call back where the program itself calls: not a worker of a loader, no checkpoint that is computed again."""
        if os.getpid() != self._pid or is_in_backward() or module in self._seen or not has_parameters(module):
            return
        self._seen.add(module)
        for callback in tuple(self._callbacks):
            callback(module, args, kwargs)


def wrap_calls(module: Any, wrap: Callable[[Any], Any]) -> None:
    """Wrap the calls of one module, hooks and compiled code included; its copies are as they were.

    Its class, and other modules of the class, stay as they are. `wrap` gets what calls the module, and returns what is
    called in its place.
    """
    call = getattr(module, "_compiled_call_impl", None) or module._call_impl
    # What `Module.compile` sets: torch calls it in place of the module, and leaves it out of copies and files.
    module._compiled_call_impl = functools.wraps(call)(wrap(call))
