"""The line that calls the model: a range around each outermost call of a module, in the evidence window.

The lines around torch calls (source_lines.py) stand inside the model's own code, which training and evaluation share.
This one tells them apart.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from types import FrameType
from typing import Any

import torch
from torch import nn

from .gradient_use import GradientUse
from .tracebacks import remove_own_frames
from .user_code import user_line

MARK = "perfdoctor::module_call"


class ModuleCallLines:
    """Replaces `Module.__call__` while the window is open: dynamo has compiled nothing then, see `SourceLines`."""

    def __init__(self, gradients: GradientUse) -> None:
        self._gradients = gradients
        self._original: Any = None
        self._wrapper: Any = None

    def start(self) -> None:
        """Mark calls of this thread from now on."""
        self._original = nn.Module.__call__
        self._wrapper = _wrap_call(self._original, self._gradients)
        self._gradients.start()
        nn.Module.__call__ = self._wrapper  # type: ignore[method-assign]

    def stop(self) -> None:
        """Mark no more calls; where somebody has wrapped the call again, our wrapper stays and only calls on."""
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is None:
            return
        self._gradients.stop()
        wrapper.is_active = False
        if nn.Module.__call__ is wrapper:
            nn.Module.__call__ = self._original  # type: ignore[method-assign]


def _wrap_call(original: Any, gradients: GradientUse) -> Any:
    thread = threading.get_ident()
    is_inside = False

    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        is_ours = call.is_active and threading.get_ident() == thread  # type: ignore[attr-defined]
        is_outermost = is_ours and not is_inside and not torch.compiler.is_compiling()
        line_range = _open_range(sys._getframe(1)) if is_outermost else None
        if is_outermost:
            is_inside = True
            gradients.on_module_call(module, sys._getframe(1), (*args, *kwargs.values()))
        try:
            return original(module, *args, **kwargs)
        except BaseException as error:
            remove_own_frames(error)
            raise
        finally:
            if is_outermost:
                is_inside = False
            if line_range is not None:
                # Where the window has ended and another one has begun inside the call, the range is no longer open.
                with contextlib.suppress(RuntimeError):
                    line_range.__exit__(None, None, None)

    call.is_active = True  # type: ignore[attr-defined]
    return call


def _open_range(frame: FrameType) -> Any:
    """A range that names the line of the user's code in `frame`, open; None where it is none."""
    name = user_line(frame)
    if name is None:
        return None
    line_range = torch._C._profiler._RecordFunctionFast(f"{MARK} {name}")
    line_range.__enter__()
    return line_range
