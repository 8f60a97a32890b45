"""Exact source lines: a range named `@file:line function` around every torch call of the evidence window.

The profiler's stacks give the line of a function's `def`. This gives the line that runs, for operators written as
`x * 2` or `if loss > 0`, too. It costs about 16 % on small steps. It is off once dynamo has compiled anything: a mode
on torch's stack would fail the guards of compiled code and make dynamo compile again.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import overrides

from .gradient_use import GradientUse
from .module_call_lines import ModuleCallLines
from .module_calls import ModuleCalls
from .needed_rows import NeededRows
from .tracebacks import remove_own_frames
from .user_code import user_line
from .value_looks import UNCHANGED, UnchangedResults, find_zeros

# torch has no public interface that removes a mode from below another mode.
_modes: Any = overrides


class SourceLineMode(overrides.TorchFunctionMode):
    """Opens the range of the line around each torch call and calls the function unchanged.

    Attributes:
        is_active: False once the window has ended, even where the mode could not be removed inside one of its calls.
    """

    is_active = True

    def __init__(self, results: UnchangedResults) -> None:
        """Push nothing yet; `results` gets what the functions return."""
        super().__init__()
        self._results = results

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = user_line(sys._getframe(1)) if self.is_active else None
        try:
            if name is None:
                return func(*args, **(kwargs or {}))
            line_range = torch._C._profiler._RecordFunctionFast(name)
            line_range.__enter__()
            began_ns = time.perf_counter_ns()
            try:
                result = func(*args, **(kwargs or {}))
                dur_ns = time.perf_counter_ns() - began_ns
            finally:
                # Where the window has ended and another one has begun inside the call, the range is no longer open.
                with contextlib.suppress(RuntimeError):
                    line_range.__exit__(None, None, None)
            try:
                is_unchanged = self._results.add(name, func, args, result, dur_ns)
                marks = (UNCHANGED if is_unchanged else None, find_zeros(func, args, dur_ns))
            except Exception:  # tensors of transforms have no memory, others answer in ways of their own
                marks = (None, None)
            for mark in marks:
                if mark is not None:
                    with torch._C._profiler._RecordFunctionFast(mark):
                        pass
            return result
        except BaseException as error:
            remove_own_frames(error)
            raise


def dynamo_has_compiled() -> bool:
    """Whether dynamo has compiled any graph; dynamo is not imported for the answer (1.4 s)."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["stats"].get("unique_graphs"))


class SourceLines:
    """Pushes the mode on torch's stack and removes it again, whatever modes the user has pushed or popped since.

    Attributes:
        rows: What the window shows of the rows that modules compute.
    """

    def __init__(self, calls: ModuleCalls, gradients: GradientUse) -> None:
        self._mode: SourceLineMode | None = None
        self._restore_exit: Callable[[], None] | None = None
        self.rows = NeededRows()
        self._module_lines = ModuleCallLines(calls, gradients, self.rows)
        self._results = UnchangedResults()

    def start(self) -> None:
        """Push the mode, unless compiled code would have to be compiled again."""
        if dynamo_has_compiled():
            return
        self._results.begin_step()
        self._mode = SourceLineMode(self._results)
        self._protect_from_user_modes(self._mode)
        _modes._push_mode(self._mode)
        self._module_lines.start()

    def begin_step(self) -> None:
        """What is called next is called in another step."""
        self._results.begin_step()

    def stop(self) -> None:
        """Remove the mode from wherever it stands in the stack; without a mode, do nothing."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.is_active = False
        self._module_lines.stop()
        if self._restore_exit is not None:
            self._restore_exit()
            self._restore_exit = None
        above = []
        while _modes._len_torch_function_stack():
            top = _modes._pop_mode()
            if top is mode:
                break
            above.append(top)
        for other in reversed(above):
            _modes._push_mode(other)

    def open_line(self, frame: FrameType | None) -> Callable[[], None] | None:
        """Open one range for all torch calls until it is closed, and pop the mode meanwhile.

        For the optimizers of torch: a step of theirs is one line of the user's and most of the operators of a small
        model, and the mode would find the same line for each operator. Returns a function that closes the range; None
        when the mode is off or not the innermost mode.
        """
        mode = self._mode
        if mode is None or _modes._get_current_function_mode() is not mode:
            return None
        name = user_line(frame)
        if name is None:
            return None
        _modes._pop_mode()
        line_range = torch._C._profiler._RecordFunctionFast(name)
        line_range.__enter__()

        def close() -> None:
            line_range.__exit__(None, None, None)
            if self._mode is mode:
                _modes._push_mode(mode)

        return close

    def _protect_from_user_modes(self, mode: SourceLineMode) -> None:
        """Replace the exit of modes: a user's mode below ours would pop our mode in place of itself."""
        mode_class = _modes.TorchFunctionMode
        original = mode_class.__exit__

        def exit_mode(leaving: Any, *error: Any) -> Any:
            if leaving is not mode and _modes._get_current_function_mode() is mode:
                self.stop()
            return original(leaving, *error)

        def restore() -> None:
            if mode_class.__exit__ is exit_mode:
                mode_class.__exit__ = original

        mode_class.__exit__ = exit_mode
        self._restore_exit = restore
