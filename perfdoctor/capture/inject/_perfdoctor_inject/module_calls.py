"""Outermost calls of modules, for those that listen: `Module.__call__` is wrapped while anybody does.

There are no forward hooks, because dynamo traces global module hooks and they break its graphs. Dynamo does not compile
the wrapper, takes it for the call itself, and forgets it when it goes: graphs and guards are those of the plain
program. A wrapped call takes half a microsecond longer; a listener to modules of one class spares all others that.

Changes of a model are applied at the first forward that the program calls of it. Calls are watched for them until the
timed steps begin. What a change does to a model stays with that model alone, so that the timed steps pay for nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from .tracebacks import remove_own_frames

# Gets what the call has returned; None where it has raised.
End = Callable[[Any], None]
# Gets the module, the frame that calls it, and the arguments; what it returns is called when the call has ended.
Listener = Callable[[Any, FrameType, tuple[Any, ...], dict[str, Any]], End | None]
# Where dynamo keeps the call of modules as it was when dynamo was imported.
DYNAMO_COPIES = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")


class ModuleCalls:
    """Tells its listeners, in the order in which they stand, before each call of a module that lies in no other.

    Attributes:
        inner_listener: Gets the calls inside those, while anybody listens.
    """

    def __init__(self, is_listening: Callable[[], bool], owner: type[Any] = nn.Module) -> None:
        """Wrap nothing yet.

        `is_listening` is False outside of the training thread; `owner` is the class whose modules are heard.
        """
        self._is_listening = is_listening
        self._owner = owner
        self._listeners: list[Listener] = []
        self.inner_listener: Listener | None = None
        self._original: Any = None
        self._wrapper: Any = None

    def add(self, listener: Listener, *, before_others: bool = False) -> None:
        """Tell this listener, too."""
        self._listeners.insert(0 if before_others else len(self._listeners), listener)
        if self._wrapper is None:
            self._original = vars(self._owner).get("__call__")
            self._wrapper = self._wrap(self._original or _call_as_base(self._owner))
            self._replace_call(self._original, self._wrapper)

    def remove(self, listener: Listener) -> None:
        """Tell this listener no more; where somebody has wrapped the call again, our wrapper stays and calls on."""
        if listener not in self._listeners:
            return
        self._listeners.remove(listener)
        if not self._listeners and vars(self._owner).get("__call__") is self._wrapper:
            self._replace_call(self._wrapper, self._original)
            self._wrapper = None

    def _replace_call(self, old: Any, new: Any) -> None:
        """Replace the call of the class, and what dynamo takes for the call of modules that nobody has wrapped."""
        if new is None:
            del self._owner.__call__
            return
        self._owner.__call__ = new
        for name in DYNAMO_COPIES:
            module = sys.modules.get(name)
            if old is not None and getattr(module, "unpatched_nn_module_call", None) is old:
                module.unpatched_nn_module_call = new  # type: ignore[union-attr]

    def _call_listeners(self, listeners: tuple[Listener, ...], ends: list[End], *call: Any) -> None:
        for listener in listeners:
            end = listener(*call)
            if end is not None:
                ends.append(end)

    def _wrap(calls, original: Any) -> Any:  # noqa: N805 - the profiler takes `self` of the wrapper for the module
        is_inside = False

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal is_inside
            # First whether dynamo traces: it takes the answer for a constant, and sees nothing of the rest.
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            is_outermost, ends, result = False, list[End](), None
            try:
                if not is_inside and calls._listeners and calls._is_listening():
                    is_inside = is_outermost = True
                    calls._call_listeners(tuple(calls._listeners), ends, self, sys._getframe(1), args, kwargs)
                elif is_inside and calls.inner_listener is not None and calls._is_listening():
                    calls._call_listeners((calls.inner_listener,), ends, self, sys._getframe(1), args, kwargs)
                result = original(self, *args, **kwargs)
                return result
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                is_inside = is_inside and not is_outermost
                for end in reversed(ends):
                    end(result)

        wrapper: Any = call
        _let_dynamo_skip(wrapper.__code__)
        return wrapper


def _call_as_base(owner: type[Any]) -> Any:
    """The call that a class inherits, whatever it is at that time."""

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        return super(owner, module).__call__(*args, **kwargs)

    return call


def _let_dynamo_skip(code: CodeType) -> None:
    """Keep dynamo from compiling the frame of a wrapper; what it calls is compiled."""
    eval_frame = torch._C._dynamo.eval_frame
    with contextlib.suppress(AttributeError):  # torch before 2.7 has another name for it
        strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
        eval_frame.set_code_exec_strategy(code, strategy)
        return
    with contextlib.suppress(AttributeError):
        eval_frame.skip_code(code)  # type: ignore[attr-defined]


def has_parameters(module: Any) -> bool:
    """Whether a module is a model or a part of one; losses and activations have no parameters."""
    return next(module.parameters(), None) is not None


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
