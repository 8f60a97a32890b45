"""Exact source lines: a range named `@file:line function` around every torch call of the evidence window.

The profiler's own stacks give the line of a function's `def`; this gives the line that runs, for operators written as
`x * 2` or `if loss > 0`, too. It costs about 16 % on small steps, and it is off once dynamo has compiled anything: a
mode on the stack would fail the guards of compiled code and make it compile again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import overrides

from .tracebacks import HERE, leave_no_frame

# The stack of modes has no public interface that takes a mode off from under another.
_modes: Any = overrides

TORCH = os.path.dirname(torch.__file__) + os.sep


class LineMode(overrides.TorchFunctionMode):
    """Opens the range and calls the function unchanged."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = user_line(sys._getframe(1))
        try:
            if name is None:
                return func(*args, **(kwargs or {}))
            with torch._C._profiler._RecordFunctionFast(name):
                return func(*args, **(kwargs or {}))
        except BaseException as error:
            leave_no_frame(error)
            raise


def user_line(frame: FrameType | None) -> str | None:
    """`@file:line function` of the innermost frame that is not torch's or ours, None when there is none."""
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, HERE)):
        frame = frame.f_back
    return None if frame is None else f"@{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"


def dynamo_has_compiled() -> bool:
    """Whether any graph was compiled, without importing dynamo (1.4 s)."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["stats"].get("unique_graphs"))


class Lines:
    """Puts the mode on torch's stack and takes it off again, whatever modes the user has entered or left meanwhile."""

    def __init__(self) -> None:
        self._mode: LineMode | None = None
        self._restore: Callable[[], None] | None = None

    def on(self) -> None:
        """Begin, unless compiled code would notice."""
        if dynamo_has_compiled():
            return
        self._mode = LineMode()
        self._guard_user_modes(self._mode)
        _modes._push_mode(self._mode)

    def off(self) -> None:
        """End; a no-op when off already."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        if self._restore is not None:
            self._restore()
            self._restore = None
        above = []
        while _modes._len_torch_function_stack():
            top = _modes._pop_mode()
            if top is mode:
                break
            above.append(top)
        for other in reversed(above):
            _modes._push_mode(other)

    def hold(self, frame: FrameType | None) -> Callable[[], None] | None:
        """One line for all that torch does until the returned function is called.

        For an optimizer of torch's own: its step is one line of the user's and most of the ops of a small model, each
        of which would go through the mode to learn the same line.

        Returns:
            What ends it; None, and nothing held, when the mode is off or not the innermost.
        """
        mode = self._mode
        if mode is None or _modes._get_current_function_mode() is not mode:
            return None
        name = user_line(frame)
        if name is None:
            return None
        _modes._pop_mode()
        line = torch._C._profiler._RecordFunctionFast(name)
        line.__enter__()

        def release() -> None:
            line.__exit__(None, None, None)
            if self._mode is mode:
                _modes._push_mode(mode)

        return release

    def _guard_user_modes(self, mode: LineMode) -> None:
        """While ours is on the stack, a user's mode entered before it must not pop it in place of itself."""
        kind = _modes.TorchFunctionMode
        original = kind.__exit__

        def leave(leaving: Any, *error: Any) -> Any:
            if leaving is not mode and _modes._get_current_function_mode() is mode:
                self.off()
            return original(leaving, *error)

        def restore() -> None:
            if kind.__exit__ is leave:
                kind.__exit__ = original

        kind.__exit__ = leave
        self._restore = restore
