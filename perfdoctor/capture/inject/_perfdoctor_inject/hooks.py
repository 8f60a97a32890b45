"""The functions of torch that tell us what the program does; each calls the original unchanged and can be taken back.

No forward hooks: global module hooks are traced by dynamo and break its graphs. Every wrapper asks
`Recorder.listens` first, which is constant false while dynamo traces.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import autocast_mode, grad_scaler
from torch.autograd import profiler as autograd_profiler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from .recorder import Recorder, StopProgram
from .tracebacks import leave_no_frame

Function = Callable[..., Any]


class Hooks:
    """All patches of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Put every wrapper in place."""
        loop, steps = dataloader._BaseDataLoaderIter, torch.optim.Optimizer
        self._patch(loop, "__next__", self._loader_next)
        self._patch(dataloader.DataLoader, "__init__", self._loader_init)
        self._patch(dataloader.DataLoader, "__iter__", self._loader_iter)
        self._patch(steps, "__init__", self._optimizer_init)
        self._patch(steps, "profile_hook_step", self._optimizer_step)
        self._undo.append(register_optimizer_step_post_hook(self._optimizer_stepped).remove)
        self._patch(steps, "zero_grad", self._zero_grad)
        self._patch(torch.nn.Module, "zero_grad", self._zero_grad)
        self._patch(torch.autograd, "backward", self._backward)
        self._patch(autograd_profiler.profile, "_prepare_trace", self._user_profiler_opens)
        self._patch(autograd_profiler.profile, "__exit__", self._user_profiler_closes)
        for kind in ("emit_nvtx", "emit_itt"):
            self._patch(getattr(autograd_profiler, kind), "__enter__", self._user_profiler_opens)
            self._patch(getattr(autograd_profiler, kind), "__exit__", self._user_profiler_closes)
        self._patch(grad_scaler.GradScaler, "update", self._scaler_update)
        self._patch(grad_scaler.GradScaler, "scale", self._counted("scaled"))
        self._patch(grad_scaler.GradScaler, "unscale_", self._counted("unscaled"))
        self._patch(autocast_mode.autocast, "__enter__", self._counted("autocast"))
        self._patch(torch.nn.utils, "clip_grad_norm_", self._counted("clipped"))

    def remove(self) -> None:
        """Take back what nobody has wrapped again; the other wrappers stay, and pass everything through."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def tell(self, event: Function, *values: Any, **named: Any) -> Any:
        """Report an event; an error of ours ends the recording, never the program."""
        try:
            return event(*values, **named)
        except StopProgram:
            raise
        except Exception as error:
            self.recorder.give_up(error)
            return False

    def _patch(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        declared = vars(owner).get(name)
        if declared is None:
            return
        original = declared.__func__ if isinstance(declared, staticmethod) else declared
        wrapper: Any = functools.wraps(original)(make(original))
        if isinstance(declared, staticmethod):
            wrapper = staticmethod(wrapper)
        setattr(owner, name, wrapper)

        def undo() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, declared)

        self._undo.append(undo)

    def _loader_next(self, original: Function) -> Function:
        recorder = self.recorder

        def __next__(iterator: Any) -> Any:  # noqa: N807 - the name shows in the user's tracebacks
            if not recorder.listens() or not self.tell(recorder.loader_next):
                return original(iterator)
            depth = recorder.ranges.begin("data")
            start_ns, start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            try:
                return original(iterator)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                cpu_ns = time.thread_time_ns() - start_cpu_ns
                self.tell(recorder.loader_gave, iterator, time.perf_counter_ns() - start_ns, cpu_ns)
                recorder.ranges.end(depth, "data")

        return __next__

    def _loader_init(self, original: Function) -> Function:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                original(loader, *args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            if not self.recorder.finished:
                self.tell(self.recorder.loaders.created, loader, sys._getframe(1))

        return __init__

    def _loader_iter(self, original: Function) -> Function:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            try:
                iterator = original(loader)
            except BaseException as error:
                leave_no_frame(error)
                raise
            if not self.recorder.finished:
                self.tell(self.recorder.loaders.iterated, loader, iterator, sys._getframe(1))
            return iterator

        return __iter__

    def _optimizer_init(self, original: Function) -> Function:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                original(optimizer, *args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            if not self.recorder.finished:
                self.tell(self.recorder.detector.optimizer_built)

        return __init__

    def _optimizer_step(self, original: Function) -> Function:
        """Wraps what wraps every class's `step`, so that boundaries fall outside of the `Optimizer.step#` range."""
        recorder = self.recorder

        def profile_hook_step(function: Function) -> Function:
            hooked = original(function)

            @functools.wraps(hooked)
            def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if not recorder.listens():
                    return hooked(optimizer, *args, **kwargs)
                self.tell(recorder.optimizer_begins)
                depth = recorder.ranges.begin("optimizer")
                # A closure is the user's code, and so is an optimizer of the user's: their lines are many.
                whole = not args and not kwargs and type(optimizer).__module__.startswith("torch.optim.")
                release = self.tell(recorder.profiler.lines.hold, sys._getframe(1)) if whole else None
                try:
                    return hooked(optimizer, *args, **kwargs)
                except BaseException as error:
                    leave_no_frame(error)
                    raise
                finally:
                    if release:
                        self.tell(release)
                    recorder.ranges.end(depth, "optimizer")
                    recorder.optimizer_ends()

            return step

        return profile_hook_step

    def _optimizer_stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - torch passes them
        """Torch's own hook, inside the range: sees optimizers whose class was hooked before we came, too."""
        if self.recorder.listens():
            self.tell(self.recorder.optimizer_stepped, optimizer)

    def _zero_grad(self, original: Function) -> Function:
        recorder = self.recorder

        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.listens():
                return original(owner, *args, **kwargs)
            self.tell(recorder.zero_grad)
            if not kwargs.get("set_to_none", args[0] if args else True):
                recorder.tally.count("zero_grad_to_zero")
            depth = recorder.ranges.begin("zero_grad")
            try:
                return original(owner, *args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                recorder.ranges.end(depth, "zero_grad")

        return zero_grad

    def _backward(self, original: Function) -> Function:
        recorder = self.recorder

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not recorder.listens():
                return original(*args, **kwargs)
            self.tell(recorder.backward_begins)
            depth = recorder.ranges.begin("backward")
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                recorder.ranges.end(depth, "backward")

        return backward

    def _user_profiler_opens(self, original: Function) -> Function:
        def opens(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.recorder.finished:
                self.tell(self.recorder.user_profiler_opens, profile)
            try:
                return original(profile, *args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise

        return opens

    def _user_profiler_closes(self, original: Function) -> Function:
        def closes(profile: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(profile, *args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                self.recorder.user_profiler_closes(profile)

        return closes

    def _scaler_update(self, original: Function) -> Function:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(scaler, *args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            if self.recorder.listens() and scaler.is_enabled():
                self.tell(self.recorder.scaler_updated)
            return result

        return update

    def _counted(self, what: str) -> Callable[[Function], Function]:
        """A wrapper that only counts the calls."""

        def make(original: Function) -> Function:
            def counted(*args: Any, **kwargs: Any) -> Any:
                if not self.recorder.listens():
                    return original(*args, **kwargs)
                self.recorder.tally.count(what)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    leave_no_frame(error)
                    raise

            return counted

        return make
