"""Exact source lines: ranges named `@file:line function` in the evidence window.

One stands around every torch call. The profiler's stacks give the line of a function's `def`. This gives the line that
runs, for operators written as `x * 2` or `if loss > 0`, too. It costs about 16 % on small steps. It is off once dynamo
has compiled anything: a mode on torch's stack would fail the guards of compiled code and make dynamo compile again.

One more stands around each outermost call of a module, and names the line that calls the model: the lines around torch
calls stand inside the model's own code, which training and evaluation share.

What is no operator, Python itself, `time.sleep`, a lock, a file, a socket, gets its lines when the window ends: while
its results are still in memory, the profiler knows the line from which each call was made. A function of the user's is
at the line of its next call until that call has ended; a stretch of calls from one line becomes a row of the trace, in
the same form. So have compiled programs their lines::

    number()   ... index ... index ...      ->   @words.py:39 number
               line 39   line 39
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import overrides

from .call_records import CallRecords
from .gradient_use import GradientUse
from .module_calls import End, ModuleCalls
from .needed_rows import LAYERS, MIN_WORK, NeededRows
from .silent_lines import find_silent_line
from .tracebacks import remove_own_frames
from .untraced import NO_PAUSE, pause_for_this_thread
from .user_code import absolute_path, is_foreign_file, name_file, user_line
from .value_looks import UNCHANGED, UnchangedResults, find_zeros
from .value_numbers import Key, ValueNumbers

MARK = "perfdoctor::module_call"
# Behind a call that computes what another one of the step has computed, with the line of that one.
AGAIN = "perfdoctor::again"


class ModuleCallLines:
    """Listens while the window is open: dynamo has compiled nothing then, see `SourceLines`."""

    def __init__(self, calls: ModuleCalls, gradients: GradientUse, rows: NeededRows) -> None:
        self._calls = calls
        self._gradients = gradients
        self._rows = rows

    def start(self) -> None:
        """Mark calls of the training thread, which calls this, from now on."""
        self._pause = pause_for_this_thread()
        self._gradients.watch()
        self._rows.start()
        self._calls.add(self._open_call)
        self._calls.inner_listener = self._open_rows

    def stop(self) -> None:
        """Mark no more calls."""
        self._gradients.end_watch()
        self._calls.remove(self._open_call)
        self._calls.inner_listener = None
        self._rows.stop()

    def _open_call(self, module: Any, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> End | None:
        """Look at an outermost call; returns what looks at its end, None where nothing does."""
        begin_pause, end_pause = self._pause
        begin_pause()
        try:
            end = self._open_range(module, frame, args, kwargs)
        finally:
            end_pause()
        if end is None:
            return None

        def close(result: Any) -> None:
            begin_pause()
            try:
                end(result)
            finally:
                end_pause()

        return close

    def _open_range(self, module: Any, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> End | None:
        """Open a range that names the line of the user's code in `frame`; None where it is none."""
        self._gradients.on_module_call(module, frame, (*args, *kwargs.values()))
        name = user_line(frame)
        if name is None:
            return None
        line_range = torch._C._profiler._RecordFunctionFast(f"{MARK} {name}")
        line_range.__enter__()
        rows_end = self._rows.open_call(module, frame, (*args, *kwargs.values()), is_outermost=True)

        def close(result: Any) -> None:
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


_PRODUCTS = frozenset({torch.nn.functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__})

# torch has no public interface that removes a mode from below another mode.
_modes: Any = overrides


class SourceLineMode(overrides.TorchFunctionMode):
    """Opens the range of the line around each torch call and calls the function unchanged.

    Attributes:
        is_active: False once the window has ended, even where the mode could not be removed inside one of its calls.
    """

    is_active = True

    def __init__(self, results: UnchangedResults, rows: NeededRows, calls: CallRecords, values: ValueNumbers) -> None:
        """Push nothing yet; `results` gets what functions return, `rows` looks at products, the others at all calls."""
        super().__init__()
        self._results, self._rows, self._calls, self._values = results, rows, calls, values
        self._pause, self._thread = pause_for_this_thread(), threading.get_ident()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        pause, resume = self._pause if threading.get_ident() == self._thread else NO_PAUSE  # a backward pass has others
        pause()
        try:
            frame = sys._getframe(1)
            name = user_line(frame) if self.is_active else None
            if name is None:
                resume()
                try:
                    return func(*args, **(kwargs or {}))
                finally:
                    pause()
            line_range = torch._C._profiler._RecordFunctionFast(name)
            line_range.__enter__()
            is_product = func in _PRODUCTS and not is_foreign_file(frame.f_code.co_filename)
            rows_end = self._rows.open_product(name, args) if is_product else None
            given = self._calls.open_call(args, kwargs)
            value = self._values.open_call(func, args, kwargs)
            result, began_ns = None, time.perf_counter_ns()
            resume()
            try:
                result = func(*args, **(kwargs or {}))
            finally:
                pause()
                dur_ns = time.perf_counter_ns() - began_ns
                if rows_end is not None:
                    rows_end(result)
                # Where the window has ended and another one has begun inside the call, the range is no longer open.
                with contextlib.suppress(RuntimeError):
                    line_range.__exit__(None, None, None)
            for mark in self._look_at(name, func, args, result, dur_ns, given, value):
                with torch._C._profiler._RecordFunctionFast(mark):
                    pass
            return result
        except BaseException as error:
            remove_own_frames(error)
            raise
        finally:
            resume()

    def _look_at(
        self,
        line: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        result: Any,
        dur_ns: int,
        given: list[Any] | None,
        value: Key | None,
    ) -> list[str]:
        """What the looks say of a call that has ended: the names of marks."""
        self._calls.close_call(given, line, func, result, dur_ns)
        first = self._values.close_call(value, line, result, dur_ns)
        marks = [] if first is None else [f"{AGAIN} {first}"]
        with contextlib.suppress(Exception):  # tensors of transforms have no memory, others answer in ways of their own
            if self._results.add(line, func, args, result, dur_ns):
                marks.append(UNCHANGED)
            zeros = find_zeros(func, args, dur_ns)
            marks += [] if zeros is None else [zeros]
        return marks


def dynamo_has_compiled() -> bool:
    """Whether dynamo has compiled any graph; dynamo is not imported for the answer (1.4 s)."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["stats"].get("unique_graphs"))


class SourceLines:
    """Pushes the mode on torch's stack and removes it again, whatever modes the user has pushed or popped since.

    Attributes:
        rows: What the window shows of the rows that modules compute.
        calls: The calls of one of its steps.
    """

    def __init__(self, calls: ModuleCalls, gradients: GradientUse) -> None:
        self._mode: SourceLineMode | None = None
        self._restore_exit: Callable[[], None] | None = None
        self.rows = NeededRows()
        self.calls = CallRecords()
        self._values = ValueNumbers(lambda: gradients.steps)
        self._module_lines = ModuleCallLines(calls, gradients, self.rows)
        self._results = UnchangedResults()

    def start(self) -> None:
        """Push the mode, unless compiled code would have to be compiled again."""
        if dynamo_has_compiled():
            return
        self._results.begin_step()
        self.calls.start()
        self._mode = SourceLineMode(self._results, self.rows, self.calls, self._values)
        self._protect_from_user_modes(self._mode)
        _modes._push_mode(self._mode)
        self._module_lines.start()

    def begin_step(self) -> None:
        """What is called next is called in another step."""
        self._results.begin_step()
        self.calls.begin_step()
        self._values.forget()

    def stop(self) -> None:
        """Remove the mode from wherever it stands in the stack; without a mode, do nothing."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.is_active = False
        self._values.forget()
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


# Shorter stretches get no row: a function that is so short is known by its name. Of too many the longest are kept.
MIN_STRETCH_NS = 2_000
MAX_ROWS = 20_000
# Time of a function without a call that was recorded is looked up in its text from here on.
MIN_SILENT_NS = 100_000
# Calls that are looked at: each takes about a microsecond of the program's time, once a window.
MAX_CALLS = 200_000


@dataclass(frozen=True)
class ThreadIds:
    """The process id and the thread id of the recorded thread, as traces have them.

    They are stored when recording begins, because a forked copy of the process, which may save the trace, has others.
    """

    process: int
    thread: int

    @classmethod
    def of_this_thread(cls) -> ThreadIds:
        """The ids of the calling thread."""
        return cls(os.getpid(), threading.get_native_id())


@dataclass(frozen=True)
class LineStretch:
    """How long a function was at one line; times in ns since the epoch, by the profiler's clock."""

    ids: ThreadIds
    line: str
    start_ns: int
    dur_ns: int

    def to_trace_row(self, base_ns: int) -> bytes:
        """The stretch as one line of a trace whose times count from `base_ns`."""
        ids = f'"pid":{self.ids.process},"tid":{self.ids.thread}'
        times = f'"ts":{(self.start_ns - base_ns) / 1000:.3f},"dur":{self.dur_ns / 1000:.3f}'
        return f'{{"ph":"X","cat":"cpu_op","name":{json.dumps(self.line)},{ids},{times},"args":{{}}}},\n'.encode()


def find_line_stretches(results: Any, ids: ThreadIds, started_by: tuple[str, str]) -> list[LineStretch]:
    """Where the functions of the user's were on the recorded thread; an outer one stands before those inside it.

    `results` are Kineto's, of a window with stacks; `started_by` is the file and name of the function that started the
    recording in that thread.
    """
    roots = results.experimental_event_tree()
    thread = find_recorded_thread(roots, started_by)
    found: list[LineStretch] = []
    waiting = [root for root in reversed(roots) if root.start_tid == thread]
    looked_at = 0
    while waiting and looked_at < MAX_CALLS:
        event = waiting.pop()
        looked_at += 1
        if event.duration_time_ns >= MIN_STRETCH_NS:  # what is inside is shorter still
            children = event.children
            found += _stretches_of(event, children, ids)
            waiting.extend(reversed(children))
    longest = sorted(range(len(found)), key=lambda row: -found[row].dur_ns)[:MAX_ROWS]
    return [found[row] for row in sorted(longest)]


def _stretches_of(event: Any, children: list[Any], ids: ThreadIds) -> list[LineStretch]:
    """The stretches of a function of the user's, without the time of functions of the user's that it calls."""
    function = getattr(event.extra_fields, "callsite", None)
    if function is None or is_foreign_file(function.file_name):
        return []
    file, name = absolute_path(function.file_name), function.function_name
    path = name_file(file)
    stretches: list[list[int]] = []  # line, start, end
    at_ns, end_ns = event.start_time_ns, event.start_time_ns + event.duration_time_ns
    last: tuple[int, str] | None = None

    def add_silent(until_ns: int, before: int | None) -> int:
        """Add the time since the last call, where one line takes it; returns up to when all is said."""
        long = until_ns - at_ns >= MIN_SILENT_NS
        line = find_silent_line(file, name, function.line_number, last, before) if long else None
        if line is not None:
            stretches.append([line, at_ns, until_ns])
        return until_ns if line is not None else at_ns

    for child in children:
        caller = getattr(child.extra_fields, "caller", None)
        if caller is None:
            continue
        callee = getattr(child.extra_fields, "callsite", None)  # None for functions written in C
        is_own = callee is not None and not is_foreign_file(callee.file_name)
        start_ns, child_end_ns = child.start_time_ns, child.start_time_ns + child.duration_time_ns
        until_ns = start_ns if is_own else child_end_ns
        at_ns = add_silent(start_ns, caller.line_number)
        if stretches and stretches[-1][0] == caller.line_number and stretches[-1][2] == at_ns:
            stretches[-1][2] = until_ns
        else:
            stretches.append([caller.line_number, at_ns, until_ns])
        at_ns, last = child_end_ns, (caller.line_number, child.name)
    add_silent(end_ns, None)
    return [
        LineStretch(ids, f"@{path}:{line} {name}", start_ns, until_ns - start_ns)
        for line, start_ns, until_ns in stretches
        if until_ns - start_ns >= MIN_STRETCH_NS
    ]


def find_recorded_thread(roots: list[Any], started_by: tuple[str, str]) -> int | None:
    """The profiler's number of the thread whose first frames lead to the function that started the recording.

    Frames that were open when the recording began have no call before them: each is the first child of its caller.
    """
    for event in roots:
        inner: Any = event
        while inner is not None:
            callee = getattr(inner.extra_fields, "callsite", None)
            if callee is not None and (absolute_path(callee.file_name), callee.function_name) == started_by:
                return int(inner.start_tid)
            inner = next(iter(inner.children), None)
    return None
