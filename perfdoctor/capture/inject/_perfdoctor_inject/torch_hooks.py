"""What the recorder hears of the program: watchers around functions of torch.

Each calls the original unchanged and can be removed. There are no forward hooks, because dynamo traces global module
hooks and they break its graphs. What asks `Recorder.is_listening` first hears the training thread alone.
"""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import grad_scaler
from torch.autograd import profiler as autograd_profiler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import checkpoint
from torch.utils.data import _utils, dataloader, get_worker_info

from .core_usage import read_queued_ns, subtract_queued
from .loader_records import starts_workers
from .model_facts import LOCATED_MODULES
from .module_calls import ModuleCalls
from .recorder import LOADER_START, Recorder, StopProgram
from .user_code import user_location
from .watched_calls import RAISED, Arguments, Function, Patches, Watching, watch_calls
from .worker_fetches import watch_fetch, watch_next_index

# What a program gives to `step` as its first argument, where that is a closure; a model could be called, too.
CLOSURE_TYPES = (types.FunctionType, types.MethodType, functools.partial)


def _count_transforms() -> int:
    """In how many transforms of torch.func (grad, vmap) the calling code runs; 0 where this torch does not tell."""
    level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", None)
    return (level() or 0) if level is not None else 0


class Hooks:
    """All watchers of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._patches = Patches(self.call_recorder)
        self._is_in_backward = False

    def install(self) -> None:
        """Put the watchers around the functions."""
        recorder, patches, nn = self.recorder, self._patches, torch.nn
        hears = functools.partial(patches.watch, is_listening=recorder.is_listening)
        for fetcher in (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher):
            patches.watch(fetcher, "fetch", watch_fetch)
        patches.watch(torch, "set_num_threads", self._see_threads)
        loader_iterator, optimizer = dataloader._BaseDataLoaderIter, torch.optim.Optimizer
        hears(loader_iterator, "__next__", self._watch_loader_next)
        patches.watch(loader_iterator, "_next_index", watch_next_index)
        self._report_made(dataloader.DataLoader, recorder.loaders.add_loader)
        patches.watch(dataloader.DataLoader, "__iter__", self._watch_loader_iter)
        self._report_made(optimizer, recorder.on_optimizer_built)
        for located in (*LOCATED_MODULES, nn.parallel.DistributedDataParallel):
            self._report_made(located, recorder.module_lines.add)
        patches.replace(optimizer, "profile_hook_step", self._wrap_profile_hook_step)
        patches.add_undo(register_optimizer_step_post_hook(self._on_optimizer_step).remove)
        hears(optimizer, "zero_grad", self._watch_zero_grad)
        hears(nn.Module, "zero_grad", self._watch_zero_grad)
        hears(torch.autograd, "backward", self._watch_backward)
        # Called first by `loss.backward()`, outside the calls that a mode of torch functions handles.
        hears(torch.Tensor, "backward", self._watch_backward)
        hears(torch.autograd, "grad", self._watch_grad)
        for name in ("start", "step"):
            patches.watch(torch.profiler.profile, name, self._watch_profiler_step)
        for owner, name in (
            (autograd_profiler.profile, "_prepare_trace"),
            (autograd_profiler.emit_nvtx, "__enter__"),
            (autograd_profiler.emit_itt, "__enter__"),
        ):
            patches.watch(owner, name, self._see_profiler_open)
            patches.watch(owner, "__exit__", self._watch_profiler_close)
        hears(grad_scaler.GradScaler, "update", self._watch_scaler_update)
        recorder.scalers.install(hears)
        hears(nn.Module, "eval", lambda *_: recorder.meter.see("evaluation"))
        patches.replace(torch.no_grad, "__enter__", self._wrap_no_grad)
        recorder.meter.host_calls.install(hears, patches.add_undo, lambda: recorder.meter.see("save"), self._open_range)
        hears(checkpoint, "checkpoint", self._see_checkpoint)
        recorder.memory_watch.install(patches)
        recorder.debug_switches.install(hears)
        if recorder.automatic:
            self._watch_forwards(recorder.module_calls)
        recorder.float64_sources.install(hears)

    def remove(self) -> None:
        """Restore the functions that nobody has wrapped again; other wrappers stay, and only call the original."""
        self._patches.undo()

    def call_recorder(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the recorder; an error in it ends the recording, or takes a probe out, never the program.

        Returns what the function returned; False after an error.
        """
        try:
            return function(*args, **kwargs)
        except StopProgram:
            raise
        except Exception as error:
            if not self.recorder.probes.take_out(error):
                self.recorder.give_up(error)
            return False

    def _report_made(self, owner: Any, report: Function) -> None:
        """Report each new object of a class, and the frame that made it."""

        def watch_init(frame: types.FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
            if (yield) is not RAISED and not self.recorder.finished:
                report(args[0], frame)

        self._patches.watch(owner, "__init__", watch_init)

    def _watch_loader_next(self, _frame: types.FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
        recorder = self.recorder
        if not recorder.on_loader_next_begin():
            return
        depth = recorder.ranges.begin("data")
        queued_ns = read_queued_ns()
        start = time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns()
        batch = yield
        end = time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns()
        queued_ns = subtract_queued(read_queued_ns(), queued_ns)
        if batch is not RAISED:
            recorder.meter.add_batch()
        wait = end[0] - start[0], end[1] - start[1], end[2] - start[2], queued_ns
        self.call_recorder(recorder.on_loader_next_end, args[0], None if batch is RAISED else batch, wait)
        recorder.ranges.end(depth, "data")

    def _open_range(self, call: str) -> Callable[[], None] | None:
        close = self.call_recorder(self.recorder.open_range, f"perfdoctor::{call}")
        return functools.partial(self.call_recorder, close) if close else None

    def _see_threads(self, frame: types.FrameType, *_: Any) -> None:
        if not self.recorder.finished and get_worker_info() is None:  # each worker sets one thread for itself
            self.recorder.totals.threads_set = user_location(frame)

    def _watch_loader_iter(self, frame: types.FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
        recorder, loader = self.recorder, args[0]
        if recorder.finished:
            return
        starts = starts_workers(loader)
        close = None
        if starts and recorder.is_listening():
            recorder.meter.see("worker_start")
            close = recorder.open_range(LOADER_START)
        start_ns = time.perf_counter_ns()
        iterator = yield
        spent_ns = time.perf_counter_ns() - start_ns
        if close:
            close()
        if iterator is not RAISED and not recorder.finished:
            recorder.loaders.add_iterator(loader, iterator, frame, spent_ns if starts else None)

    def _wrap_profile_hook_step(self, original: Function) -> Function:
        """Wrap the function by which torch wraps the `step` of every optimizer class.

        The `Optimizer.step#` range is opened inside, so that a step boundary falls outside the range.
        """

        def profile_hook_step(function: Function) -> Function:
            step = original(function)
            watched = watch_calls(step, self._watch_optimizer, self.recorder.is_listening, self.call_recorder)
            return functools.wraps(step)(watched)

        return profile_hook_step

    def _watch_optimizer(self, frame: types.FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watching:
        recorder, optimizer = self.recorder, args[0]
        self.call_recorder(recorder.on_optimizer_begin)
        depth = recorder.ranges.begin("optimizer")
        line = OptimizerLine(self, optimizer, frame)
        changed = self._wrap_closure(line, args, kwargs)
        line.open()
        yield changed
        line.close()
        recorder.ranges.end(depth, "optimizer")
        recorder.on_optimizer_end(optimizer, frame)

    def _wrap_closure(self, line: OptimizerLine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """The arguments of `Optimizer.step` with its closure timed and marked, which runs the user's forward pass."""
        recorder = self.recorder

        def watch_closure(*_: Any) -> Watching:
            line.close()
            depth = recorder.ranges.begin("closure")
            self.call_recorder(recorder.optimizers.begin_call)
            yield
            self.call_recorder(recorder.optimizers.end_call)
            recorder.ranges.end(depth, "closure")
            line.open()

        def wrap(closure: Function) -> Function:
            return functools.wraps(closure)(watch_calls(closure, watch_closure, lambda: True, self.call_recorder))

        closure = kwargs.get("closure")
        if callable(closure) and not isinstance(closure, torch.nn.Module):
            return args, {**kwargs, "closure": wrap(closure)}
        if len(args) > 1 and isinstance(args[1], CLOSURE_TYPES):
            return (args[0], wrap(args[1]), *args[2:]), kwargs
        return None

    def _on_optimizer_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - torch passes them
        """Report a step; torch calls this hook for classes, too, whose `step` it wrapped before `install`."""
        if self.recorder.is_listening():
            self.call_recorder(self.recorder.on_optimizer_step, optimizer)

    def _watch_forwards(self, calls: ModuleCalls) -> None:
        """Report the calls of modules that `calls` hears, in place of those that were reported before."""
        if self.recorder.stop_watching_forwards is not None:
            self.recorder.stop_watching_forwards()
        calls.add(self._on_module_call, before_others=True)
        self.recorder.stop_watching_forwards = functools.partial(calls.remove, self._on_module_call)
        self._patches.add_undo(self.recorder.stop_watching_forwards)

    def _on_module_call(self, module: Any, *_: Any) -> None:
        """Report a call of a module; once it is known whose calls mark steps, those of its class alone."""
        if self.call_recorder(self.recorder.on_forward, module):
            self._watch_forwards(ModuleCalls(self.recorder.is_listening, type(module)))

    def _watch_zero_grad(self, _frame: types.FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watching:
        recorder, owner = self.recorder, args[0]
        self.call_recorder(recorder.on_zero_grad)
        if not kwargs.get("set_to_none", args[1] if len(args) > 1 else True):
            recorder.totals.counts["zero_grad_to_zero"] += 1
        if not recorder.optimizers.is_running:  # a closure, whose gradients its optimizer reads as it likes
            self.call_recorder(recorder.gradients.before_clearing, owner)
        depth = recorder.ranges.begin("zero_grad")
        yield
        recorder.ranges.end(depth, "zero_grad")
        self.call_recorder(recorder.gradients.after_clearing, owner)

    def _watch_backward(self, frame: types.FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
        recorder = self.recorder
        # A backward pass inside another one belongs to it: reentrant checkpoints, and the second of our watchers.
        if self._is_in_backward:
            return
        self.call_recorder(recorder.on_backward, frame, args[0] if args else None)
        depth = recorder.ranges.begin("backward")
        self._is_in_backward = True
        yield
        self._is_in_backward = False
        recorder.ranges.end(depth, "backward")
        recorder.on_backward_end()

    def _watch_grad(self, *_: Any) -> Watching:
        if self._is_in_backward:
            return
        self.call_recorder(self.recorder.on_gradient, _count_transforms())
        self._is_in_backward = True
        yield
        self._is_in_backward = False

    def _watch_profiler_step(self, _frame: types.FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
        """Let the program's own profiler mark no steps while ours records: they would be a second set of steps."""
        recorder, profile = self.recorder, args[0]
        marks = recorder.profiler.recording and getattr(profile, "record_steps", False)
        if not marks:
            return
        open_mark, profile.step_rec_fn = getattr(profile, "step_rec_fn", None), None
        if open_mark is not None:
            open_mark.__exit__(None, None, None)
        profile.record_steps = False
        yield
        profile.record_steps = True
        if not recorder.profiler.recording:  # it has taken over
            profile.step_rec_fn = autograd_profiler.record_function(f"ProfilerStep#{profile.step_num}")
            profile.step_rec_fn.__enter__()

    def _see_profiler_open(self, _frame: types.FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if not self.recorder.finished:
            self.recorder.on_user_profiler_open(args[0])

    def _watch_profiler_close(self, _frame: types.FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
        yield
        self.recorder.on_user_profiler_close(args[0])

    def _watch_scaler_update(self, _frame: types.FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
        recorder = self.recorder
        if (yield) is not RAISED and recorder.is_listening() and args[0].is_enabled():
            self.call_recorder(recorder.on_scaler_update)
            self.call_recorder(recorder.scalers.on_update)

    def _see_checkpoint(self, frame: types.FrameType, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A backward pass that computes a part again calls the checkpoints inside of it again.
        if not self._is_in_backward:
            self.call_recorder(self.recorder.checkpoints.add_call, frame, kwargs)

    def _wrap_no_grad(self, original: Function) -> Function:
        """Count blocks without gradients, a million in some programs: one without a loader plays or evaluates there."""
        meter = self.recorder.meter

        def __enter__(block: Any) -> Any:  # noqa: N807
            meter.no_grad_blocks += 1
            return original(block)

        return __enter__


class OptimizerLine:
    """One range of the line that calls `Optimizer.step`, open while torch's own code runs, not in the closure."""

    def __init__(self, hooks: Hooks, optimizer: Any, frame: types.FrameType) -> None:
        """Open nothing.

        The frame is the one that calls `step`.
        """
        self._hooks = hooks
        self._frame = frame
        self._runs_torch_only = type(optimizer).__module__.startswith("torch.optim.")
        self._close: Any = None

    def open(self) -> None:
        """Open the range, where lines are recorded."""
        if self._runs_torch_only:
            self._close = self._hooks.call_recorder(self._hooks.recorder.profiler.lines.open_line, self._frame)

    def close(self) -> None:
        """Close the range, if it is open."""
        close, self._close = self._close, None
        if close:
            self._hooks.call_recorder(close)
