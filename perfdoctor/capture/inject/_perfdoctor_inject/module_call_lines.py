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
from .needed_rows import LAYERS, MIN_WORK, NeededRows
from .user_code import user_line
from .value_looks import RepeatedCalls

MARK = "perfdoctor::module_call"
AGAIN = "perfdoctor::module_call_again"


class ModuleCallLines:
    """Listens while the window is open: dynamo has compiled nothing then, see `SourceLines`."""

    def __init__(self, calls: ModuleCalls, gradients: GradientUse, rows: NeededRows) -> None:
        self._calls = calls
        self._gradients = gradients
        self._repeated = RepeatedCalls()
        self._rows = rows

    def start(self) -> None:
        """Mark calls of the training thread from now on."""
        self._gradients.watch()
        self._rows.start()
        self._calls.add(self._open_range)
        self._calls.inner_listener = self._open_rows

    def stop(self) -> None:
        """Mark no more calls."""
        self._gradients.end_watch()
        self._calls.remove(self._open_range)
        self._calls.inner_listener = None
        self._repeated.clear()
        self._rows.stop()

    def _open_range(self, module: Any, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> End | None:
        """Open a range that names the line of the user's code in `frame`; None where it is none."""
        self._gradients.on_module_call(module, frame, (*args, *kwargs.values()))
        name = user_line(frame)
        if name is None:
            return None
        with torch._C.DisableTorchFunction():  # its looks at tensors are no calls of the program
            is_repeated, keep = self._repeated.add(module, (*args, *kwargs.values()), self._gradients.steps)
        line_range = torch._C._profiler._RecordFunctionFast(f"{AGAIN if is_repeated else MARK} {name}")
        line_range.__enter__()
        rows_end = self._rows.open_call(module, frame, (*args, *kwargs.values()), is_outermost=True)

        def close(result: Any) -> None:
            keep()
            if rows_end is not None:
                rows_end(result)
            # Where the window has ended and another one has begun inside the call, the range is no longer open.
            with contextlib.suppress(RuntimeError):
                line_range.__exit__(None, None, None)

        return close

    def _open_rows(self, module: Any, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> End | None:
        if not isinstance(module, LAYERS):  # most calls are of others, and each call is recorded
            return None
        if type(module) is torch.nn.Linear and args and isinstance(args[0], torch.Tensor):
            with torch._C.DisableTorchFunction():
                if args[0].numel() * module.out_features < MIN_WORK:
                    return None
        return self._rows.open_call(module, frame, (*args, *kwargs.values()), is_outermost=False)
