"""The line that calls the model: a range around each outermost call of a module, in the evidence window.

The lines around torch calls (source_lines.py) stand inside the model's own code, which training and evaluation share.
This one tells them apart.
"""

from __future__ import annotations

import contextlib
from types import FrameType
from typing import Any

import torch

from .gradient_use import GradientUse
from .module_calls import End, ModuleCalls
from .user_code import user_line

MARK = "perfdoctor::module_call"


class ModuleCallLines:
    """Listens while the window is open: dynamo has compiled nothing then, see `SourceLines`."""

    def __init__(self, calls: ModuleCalls, gradients: GradientUse) -> None:
        self._calls = calls
        self._gradients = gradients

    def start(self) -> None:
        """Mark calls of the training thread from now on."""
        self._gradients.start()
        self._calls.add(self._open_range)

    def stop(self) -> None:
        """Mark no more calls."""
        self._gradients.stop()
        self._calls.remove(self._open_range)

    def _open_range(self, module: Any, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> End | None:
        """Open a range that names the line of the user's code in `frame`; None where it is none."""
        self._gradients.on_module_call(module, frame, (*args, *kwargs.values()))
        name = user_line(frame)
        if name is None:
            return None
        line_range = torch._C._profiler._RecordFunctionFast(f"{MARK} {name}")
        line_range.__enter__()

        def close(_: Any) -> None:
            # Where the window has ended and another one has begun inside the call, the range is no longer open.
            with contextlib.suppress(RuntimeError):
                line_range.__exit__(None, None, None)

        return close
