"""Wrappers around functions of torch that report to the recorder what the program does.

Each wrapper calls the original unchanged and can be removed. There are no forward hooks, because dynamo traces global
module hooks and they break its graphs. Every wrapper asks `Recorder.is_listening` first, which is constantly false
while dynamo traces. Where the original raises, the wrapper removes its own frame from the traceback.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import autocast_mode, grad_scaler
from torch.autograd import profiler as autograd_profiler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import checkpoint
from torch.utils.data import _utils, dataloader, get_worker_info

from .checkpoint_calls import wrap_checkpoint
from .debug_switches import DebugHooks
from .float64_sources import asks_for_float64
from .host_call_hooks import WATCHED_CALLS, watch_collections, wrap_host_call
from .loader_records import starts_workers
from .model_facts import LOCATED_MODULES
from .module_calls import ModuleCalls
from .recorder import Recorder, StopProgram
from .run_delay import read_queued_ns, subtract_queued
from .tracebacks import remove_own_frames
from .worker_fetches import wrap_fetch, wrap_next_index

Function = Callable[..., Any]
# What a program gives to `step` as its first argument, where that is a closure; a model could be called, too.
CLOSURE_TYPES = (types.FunctionType, types.MethodType, functools.partial)


def _count_transforms() -> int:
    """In how many transforms of torch.func (grad, vmap) the calling code runs; 0 where this torch does not tell."""
    level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", None)
    return (level() or 0) if level is not None else 0


class Hooks:
    """All wrappers of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._undo: list[Callable[[], None]] = []
        self._is_in_backward = False

    def install(self) -> None:
        """Replace the functions by their wrappers."""
        for fetcher in (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher):
            self._patch(fetcher, "fetch", wrap_fetch)
        self._patch(torch, "set_num_threads", self._wrap_set_num_threads)
        loader_iterator, optimizer = dataloader._BaseDataLoaderIter, torch.optim.Optimizer
        self._patch(loader_iterator, "__next__", self._wrap_loader_next)
        self._patch(loader_iterator, "_next_index", wrap_next_index)
        self._patch(dataloader.DataLoader, "__init__", self._wrap_init(self.recorder.loaders.add_loader))
        self._patch(dataloader.DataLoader, "__iter__", self._wrap_loader_iter)
        self._patch(optimizer, "__init__", self._wrap_init(self.recorder.on_optimizer_built))
        for located in (*LOCATED_MODULES, torch.nn.parallel.DistributedDataParallel):
            self._patch(located, "__init__", self._wrap_init(self.recorder.module_lines.add))
        self._patch(optimizer, "profile_hook_step", self._wrap_profile_hook_step)
        self._undo.append(register_optimizer_step_post_hook(self._on_optimizer_step).remove)
        self._patch(optimizer, "zero_grad", self._wrap_zero_grad)
        self._patch(torch.nn.Module, "zero_grad", self._wrap_zero_grad)
        self._patch(torch.autograd, "backward", self._wrap_backward)
        # Called first by `loss.backward()`, outside the calls that a mode of torch functions handles.
        self._patch(torch.Tensor, "backward", self._wrap_backward)
        self._patch(torch.autograd, "grad", self._wrap_grad)
        for name in ("start", "step"):
            self._patch(torch.profiler.profile, name, self._wrap_profiler_step)
        self._patch(autograd_profiler.profile, "_prepare_trace", self._wrap_profiler_open)
        self._patch(autograd_profiler.profile, "__exit__", self._wrap_profiler_close)
        for name in ("emit_nvtx", "emit_itt"):
            self._patch(getattr(autograd_profiler, name), "__enter__", self._wrap_profiler_open)
            self._patch(getattr(autograd_profiler, name), "__exit__", self._wrap_profiler_close)
        self._patch(grad_scaler.GradScaler, "update", self._wrap_scaler_update)
        for name in ("scale", "unscale_", "step", "get_scale"):
            report = functools.partial(self._report_scaling, getattr(self.recorder.scalers, f"on_{name}"))
            self._patch(grad_scaler.GradScaler, name, self._wrap_to_report(report))
        count_autocast = functools.partial(self._count, "autocast")
        self._patch(autocast_mode.autocast, "__enter__", self._wrap_to_report(count_autocast))
        for clipping in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                self._patch(clipping, name, self._wrap_clipping)
        self._patch(torch.nn.Module, "eval", self._wrap_to_report(self._see_evaluation))
        self._patch(torch.no_grad, "__enter__", self._wrap_no_grad)
        for owner, name, call in WATCHED_CALLS:
            self._patch(owner, name, wrap_host_call(self, call))
        self._undo.append(watch_collections(self))
        self._patch(checkpoint, "checkpoint", self._wrap_checkpoint)
        self.recorder.memory_watch.install(self._patch)
        DebugHooks(self.recorder.debug_switches, self.recorder.is_listening, self.call_recorder).install(self._patch)
        if self.recorder.automatic:
            self._watch_forwards(self.recorder.module_calls)
        self._patch(torch.nn.Module, "double", self._wrap_float64("Module.double"))
        self._patch(torch.nn.Module, "to", self._wrap_float64("Module.to"))
        self._patch(torch, "set_default_dtype", self._wrap_float64("set_default_dtype"))

    def remove(self) -> None:
        """Restore the functions that nobody has wrapped again; other wrappers stay, and only call the original."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def call_recorder(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the recorder; an error in it ends the recording, never the program.

        Returns what the function returned; False after an error.
        """
        try:
            return function(*args, **kwargs)
        except StopProgram:
            raise
        except Exception as error:
            self.recorder.give_up(error)
            return False

    def _patch(self, owner: Any, name: str, wrap: Callable[[Function], Function]) -> None:
        """Replace a function of a class or module by its wrapper; what this torch does not have is left out."""
        declared = vars(owner).get(name)
        if declared is None:
            return
        original = declared.__func__ if isinstance(declared, staticmethod) else declared
        wrapper: Any = functools.wraps(original)(wrap(original))
        if isinstance(declared, staticmethod):
            wrapper = staticmethod(wrapper)
        setattr(owner, name, wrapper)

        def undo() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, declared)

        self._undo.append(undo)

    def _wrap_loader_next(self, original: Function) -> Function:
        recorder = self.recorder

        def __next__(iterator: Any) -> Any:  # noqa: N807 - the name shows in the user's tracebacks
            if not recorder.is_listening() or not self.call_recorder(recorder.on_loader_next_begin):
                return original(iterator)
            depth = recorder.ranges.begin("data")
            queued_ns = read_queued_ns()
            start = time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns()
            batch = None
            try:
                batch = original(iterator)
                recorder.meter.add_batch()
                return batch
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                end = time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns()
                queued_ns = subtract_queued(read_queued_ns(), queued_ns)
                wait = end[0] - start[0], end[1] - start[1], end[2] - start[2], queued_ns
                self.call_recorder(recorder.on_loader_next_end, iterator, batch, wait)
                recorder.ranges.end(depth, "data")

        return __next__

    def _wrap_set_num_threads(self, original: Function) -> Function:
        def set_num_threads(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not self.recorder.finished and get_worker_info() is None:  # each worker sets one thread for itself
                self.call_recorder(self.recorder.totals.note_threads_set, sys._getframe(1))
            return result

        return set_num_threads

    def _wrap_init(self, report: Function) -> Callable[[Function], Function]:
        """A `wrap` for `_patch` whose wrapper of a constructor reports each new object and the frame that made it."""

        def wrap(original: Function) -> Function:
            def __init__(made: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
                try:
                    original(made, *args, **kwargs)
                except BaseException as error:
                    remove_own_frames(error)
                    raise
                if not self.recorder.finished:
                    self.call_recorder(report, made, sys._getframe(1))

            return __init__

        return wrap

    def _wrap_loader_iter(self, original: Function) -> Function:
        recorder = self.recorder

        def __iter__(loader: Any) -> Any:  # noqa: N807
            starts = not recorder.finished and self.call_recorder(starts_workers, loader)
            start = self.call_recorder(recorder.on_loader_start) if starts and recorder.is_listening() else None
            start_ns = time.perf_counter_ns()
            try:
                iterator = original(loader)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                spent_ns = time.perf_counter_ns() - start_ns
                if start:
                    self.call_recorder(start.close)
            if not recorder.finished:
                frame = sys._getframe(1)
                self.call_recorder(recorder.loaders.add_iterator, loader, iterator, frame, spent_ns if starts else None)
            return iterator

        return __iter__

    def _wrap_profile_hook_step(self, original: Function) -> Function:
        """Wrap the function by which torch wraps the `step` of every optimizer class.

        The `Optimizer.step#` range is opened inside, so that a step boundary falls outside the range.
        """
        recorder = self.recorder

        def profile_hook_step(function: Function) -> Function:
            torch_step = original(function)

            @functools.wraps(torch_step)
            def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if not recorder.is_listening():
                    return torch_step(optimizer, *args, **kwargs)
                self.call_recorder(recorder.on_optimizer_begin)
                depth = recorder.ranges.begin("optimizer")
                line = OptimizerLine(self, optimizer, sys._getframe(1))
                if args or kwargs:
                    args, kwargs = self._wrap_closure(line, args, kwargs)
                line.open()
                try:
                    return torch_step(optimizer, *args, **kwargs)
                except BaseException as error:
                    remove_own_frames(error)
                    raise
                finally:
                    line.close()
                    recorder.ranges.end(depth, "optimizer")
                    self.call_recorder(recorder.on_optimizer_end, optimizer, sys._getframe(1))

            return step

        return profile_hook_step

    def _wrap_closure(
        self, line: OptimizerLine, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `Optimizer.step` with its closure timed and marked, which runs the user's forward pass."""
        ranges = self.recorder.ranges
        open_ranges: list[int] = []

        def begin() -> None:
            line.close()
            open_ranges.append(ranges.begin("closure"))

        def end() -> None:
            ranges.end(open_ranges.pop(), "closure")
            line.open()

        wrap = functools.partial(self.recorder.optimizers.wrap_closure, begin=begin, end=end)
        closure = kwargs.get("closure")
        if callable(closure) and not isinstance(closure, torch.nn.Module):
            return args, {**kwargs, "closure": wrap(closure)}
        if args and isinstance(args[0], CLOSURE_TYPES):
            return (wrap(args[0]), *args[1:]), kwargs
        return args, kwargs

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
        self._undo.append(self.recorder.stop_watching_forwards)

    def _on_module_call(self, module: Any, *_: Any) -> None:
        """Report a call of a module; once it is known whose calls mark steps, those of its class alone."""
        if self.call_recorder(self.recorder.on_forward, module):
            self._watch_forwards(ModuleCalls(self.recorder.is_listening, type(module)))

    def _wrap_zero_grad(self, original: Function) -> Function:
        recorder = self.recorder

        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.is_listening():
                return original(owner, *args, **kwargs)
            self.call_recorder(recorder.on_zero_grad)
            if not kwargs.get("set_to_none", args[0] if args else True):
                recorder.totals.counts["zero_grad_to_zero"] += 1
            if not recorder.optimizers.is_running:  # a closure, whose gradients its optimizer reads as it likes
                self.call_recorder(recorder.gradients.before_clearing, owner)
            depth = recorder.ranges.begin("zero_grad")
            try:
                return original(owner, *args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                recorder.ranges.end(depth, "zero_grad")
                self.call_recorder(recorder.gradients.after_clearing, owner)

        return zero_grad

    def _wrap_backward(self, original: Function) -> Function:
        recorder = self.recorder

        def backward(*args: Any, **kwargs: Any) -> Any:
            # A backward pass inside another one belongs to it: reentrant checkpoints, and the second of our wrappers.
            is_outermost = not self._is_in_backward and recorder.is_listening()
            depth = 0
            if is_outermost:
                self.call_recorder(recorder.on_backward, sys._getframe(1), args[0] if args else None)
                depth = recorder.ranges.begin("backward")
                self._is_in_backward = True
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                if is_outermost:
                    self._is_in_backward = False
                    recorder.ranges.end(depth, "backward")
                    self.call_recorder(recorder.on_backward_end)

        return backward

    def _wrap_grad(self, original: Function) -> Function:
        recorder = self.recorder

        def grad(*args: Any, **kwargs: Any) -> Any:
            if self._is_in_backward or not recorder.is_listening():
                return original(*args, **kwargs)
            self.call_recorder(recorder.on_gradient, _count_transforms())
            self._is_in_backward = True
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                self._is_in_backward = False

        return grad

    def _wrap_profiler_step(self, original: Function) -> Function:
        """Let the program's own profiler mark no steps while ours records: they would be a second set of steps."""
        recorder = self.recorder

        def step(profile: Any, *args: Any, **kwargs: Any) -> Any:
            marks = recorder.profiler.recording and getattr(profile, "record_steps", False)
            if marks:
                open_mark, profile.step_rec_fn = getattr(profile, "step_rec_fn", None), None
                if open_mark is not None:
                    open_mark.__exit__(None, None, None)
                profile.record_steps = False
            try:
                return original(profile, *args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                if marks:
                    profile.record_steps = True
                    if not recorder.profiler.recording:  # it has taken over
                        profile.step_rec_fn = autograd_profiler.record_function(f"ProfilerStep#{profile.step_num}")
                        profile.step_rec_fn.__enter__()

        return step

    def _wrap_profiler_open(self, original: Function) -> Function:
        def open_profiler(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.recorder.finished:
                self.call_recorder(self.recorder.on_user_profiler_open, profile)
            try:
                return original(profile, *args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise

        return open_profiler

    def _wrap_profiler_close(self, original: Function) -> Function:
        def close_profiler(profile: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(profile, *args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                self.recorder.on_user_profiler_close(profile)

        return close_profiler

    def _wrap_scaler_update(self, original: Function) -> Function:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(scaler, *args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            if self.recorder.is_listening() and scaler.is_enabled():
                self.call_recorder(self.recorder.on_scaler_update)
                self.call_recorder(self.recorder.scalers.on_update)
            return result

        return update

    def _wrap_to_report(self, report: Function) -> Callable[[Function], Function]:
        """A `wrap` for `_patch` whose wrapper gives the arguments of each call to `report`, before the call."""

        def wrap(original: Function) -> Function:
            def report_and_call(*args: Any, **kwargs: Any) -> Any:
                if self.recorder.is_listening():
                    self.call_recorder(report, *args, **kwargs)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    remove_own_frames(error)
                    raise

            return report_and_call

        return wrap

    def _report_scaling(self, report: Function, scaler: Any, *args: Any, **kwargs: Any) -> None:
        if scaler.is_enabled():
            report(self.recorder.totals.counts, *args, **kwargs)

    def _count(self, name: str, *_: Any, **__: Any) -> None:
        self.recorder.totals.counts[name] += 1

    def _see_evaluation(self, *_: Any) -> None:
        self.recorder.meter.see("evaluation")

    def _wrap_float64(self, call: str) -> Callable[[Function], Function]:
        return self._wrap_to_report(functools.partial(self._note_float64, call))

    def _note_float64(self, call: str, *args: Any, **kwargs: Any) -> None:
        """Note the line of a call that asks for float64: the innermost that is not ours."""
        if call == "Module.double" or asks_for_float64(args, kwargs):
            self.recorder.totals.float64_sources.note(call, sys._getframe())

    def _wrap_clipping(self, original: Function) -> Function:
        recorder = self.recorder

        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.is_listening():
                recorder.totals.counts["clipped"] += 1
                if recorder.scalers.are_gradients_scaled:
                    if not isinstance(parameters, torch.Tensor):
                        parameters = list(parameters)  # as torch does: they may come from a generator
                    limit = args[0] if args else next(iter(kwargs.values()), None)
                    self.call_recorder(recorder.scalers.on_clip, parameters, limit, sys._getframe(1))
            try:
                return original(parameters, *args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise

        return clip

    def _wrap_checkpoint(self, original: Function) -> Function:
        recorder = self.recorder

        def is_listening() -> bool:
            # A backward pass that computes a part again calls the checkpoints inside of it again.
            return not self._is_in_backward and recorder.is_listening()

        return wrap_checkpoint(recorder.checkpoints, is_listening, self.call_recorder)(original)

    def _wrap_no_grad(self, original: Function) -> Function:
        """Count blocks without gradients: a program without a loader plays or evaluates in them."""
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
