"""The middle of it: what the hooks report becomes steps, and steps move the windows on.

Every call comes from the user's program, in the training thread. Time spent here is not part of any step: a step ends
on entry and the next begins on return.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from . import facts
from .facts import cuda_in_use as gpu_in_use
from .loaders import LoaderBook, user_location
from .nvml import Sampler, devices_in_use
from .output import OWN_PROFILER, RankFolder, leave_mark, warn
from .plan import Plan
from .profiler import WindowProfiler, device_in_use
from .ranges import Ranges
from .ranks import identity
from .settings import Settings
from .steps import StepDetector

# A recorded step that lasts this much longer than the steps before it has left the loop (evaluation, a checkpoint,
# the end of training): the window is closed, because events of minutes would fill the memory.
LONG_STEP_FACTOR = 20
LONG_STEP_NS = 5_000_000_000
# Stacks cost about 0.25 us for every Python call; saving the trace of a step takes fifty times as long again.
DEAR_STACKS_NS = 20_000_000
# A profiler of the user's that opens again and again leaves no room for ours.
MOST_INTERRUPTIONS = 3
# 80 bytes a step: a run of days must not fill the disk with step times.
MOST_STREAMED_STEPS = 200_000


class StopProgram(SystemExit):
    """Raised in the user's loop once everything is recorded, when `stop_after` asks for it."""


class Recorder:
    """One process's recording. Nothing is written before its first whole step, so helpers leave no trace."""

    def __init__(self, settings: Settings, *, automatic: bool = True) -> None:
        """Prepare to record.

        Args:
            settings: Folder and window sizes.
            automatic: Find the steps; False when a session marks them.
        """
        self.settings = settings
        self.automatic = automatic
        self.finished = False
        self.why = "running"
        self.folder: RankFolder | None = None
        self.rank, self.world_size = 0, 1
        self.pid = 0
        # A step that is found is over: unless they are marked, the first one cannot be recorded.
        unseen = automatic and not (settings.skip or settings.base or settings.warmup)
        self.plan = Plan(replace(settings, skip=1) if unseen else settings)
        self.detector = StepDetector()
        self.profiler = WindowProfiler(self._thread_ended)
        self.ranges = Ranges(required=settings.nvtx_only)
        self.loaders = LoaderBook()
        self.tally = facts.Tally()
        self.windows: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.step = 0
        self.sampler: Sampler | None = None
        self._thread: int | None = None
        self._loader_threads: set[int] = set()
        self._start_ns = 0
        self._wait_ns = 0
        self._in_loader = False
        self._range: Any = None
        self._models: dict[str, Any] | None = None
        self._recorded = False
        self._interruptions = 0
        self._window: dict[str, Any] = {}

    # What the hooks call -------------------------------------------------------------------------------------------

    def listens(self) -> bool:
        """Whether the caller is the training thread, running rather than being compiled, and there is work left."""
        if self.finished or torch.compiler.is_compiling():
            return False
        return self._thread is None or self._thread == threading.get_ident()

    def loader_next(self) -> bool:
        """A loop asks a DataLoader for a batch; False for a loader inside a loader."""
        if self._in_loader:
            return False
        self._loader_threads.add(threading.get_ident())
        self._mark(self.detector.loader_next())
        if self.profiler.recording:
            self._watch_long_step()
        self._in_loader = True
        return True

    def loader_gave(self, iterator: Any, wait_ns: int, cpu_ns: int) -> None:
        """The batch is there, or the loader is exhausted; the thread has computed for `cpu_ns` of the wait."""
        self._in_loader = False
        self._wait_ns += wait_ns
        self.loaders.waited(iterator, wait_ns, cpu_ns)

    def zero_grad(self) -> None:
        """Gradients are about to be cleared."""
        self._mark(self.detector.zero_grad())

    def backward_begins(self) -> None:
        """A backward pass is about to begin: this is the training thread."""
        self._bind()
        self._mark(self.detector.backward_begins())

    def optimizer_begins(self) -> None:
        """`Optimizer.step` is about to run, outside of its own profiler range."""
        self._bind()
        self._mark(self.detector.optimizer_begins())

    def optimizer_ends(self) -> None:
        """`Optimizer.step` has returned or raised."""
        self.detector.optimizer_ends()

    def optimizer_stepped(self, optimizer: Any) -> None:
        """`Optimizer.step` has done its work."""
        self._bind()
        trained = self.detector.trains
        self.detector.optimizer_stepped(id(optimizer))
        self.tally.optimizer_stepped(optimizer)
        if self.detector.trains and not trained and self.plan.untouched:
            self.plan.restart()  # what came before was validation, not training

    def scaler_updated(self) -> None:
        """`GradScaler.update` was called."""
        self._bind()
        self.detector.scaler_updated()

    def user_profiler_opens(self, profile: Any) -> None:
        """The program opens its own profiler: ours is closed first, or the process would crash on saving."""
        if not self.profiler.user_opens(profile):
            return
        trace = self.plan.stage.trace
        self._note(f"{OWN_PROFILER} took over while a window was open")
        self._close_window(partial=True)
        if trace is None:
            return
        self._interruptions += 1
        if self._interruptions <= MOST_INTERRUPTIONS:
            self.plan.again(trace)
        else:
            self.plan.leave(trace)

    def user_profiler_closes(self, profile: Any) -> None:
        """The program's own profiler has ended."""
        self.profiler.user_closes(profile)

    def held_up(self, frame: FrameType | None) -> None:
        """A signal ends the process in a call that does not come back."""
        place = user_location(frame)
        where = f"in {place['file']}:{place['line']} ({place['function']})" if place else "somewhere in torch"
        self._note(f"SIGTERM came while the program was held up {where}")

    @property
    def can_be_copied(self) -> bool:
        """Whether a window of the main thread is open that a copy of the process could save: CUDA survives no fork."""
        main = threading.main_thread().ident
        return not self.finished and self.profiler.recording and self._thread == main and device_in_use() is None

    # Steps ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The first step begins here: used by a session, which knows."""
        self._bind()
        self._start_ns = time.perf_counter_ns()
        if self._activate():
            self._open_stage()
            self._begin_range()
        self._start_ns = time.perf_counter_ns()

    def boundary(self) -> None:
        """A step ends and the next begins.

        Raises:
            StopProgram: Everything is recorded and the program was to be stopped then.
        """
        now_ns = time.perf_counter_ns()
        self._bind()
        if self.folder is None and not self._activate():
            return
        dur_ns = now_ns - self._start_ns
        self._finish_step(dur_ns)
        self.step += 1
        if self._recorded:  # nothing is open, and nothing will be
            self._start_ns = time.perf_counter_ns()
            return
        if self.plan.stage.counted and self._stacks_cost_too_much(dur_ns):
            self._close_window(partial=False)
            self.plan.leave("evidence", but_last=True)
        if not self.profiler.prepared and self.profiler.user_profiles:
            self._note(f"{OWN_PROFILER} was running, so the windows waited for its end")
        else:
            self._advance()
        self._start_ns = time.perf_counter_ns()

    def give_up(self, error: BaseException) -> None:
        """A failure of ours: one warning line, everything closed, the program goes on."""
        if self.finished:
            return
        self.finished = True
        self.ranges.off(here=self._thread == threading.get_ident())
        self.profiler.abort()
        if self.sampler is not None:
            self.sampler.stop()
        warn(f"recording failed in step {self.step} and stops here; the program runs on: {error!r}")
        self._note(f"recording failed: {error!r}")
        self._write_facts("failed")

    def finish(self, why: str) -> None:
        """The process ends, or the session does: save what is there. Safe to call again."""
        if self.finished:
            return
        if self.folder is None:
            self.finished = True
            return
        try:
            if self.sampler is not None:
                self.sampler.stop()
            self._close_window(partial=True)
            self._gather_models()
        except Exception as error:
            self._note(f"the last window was lost: {error!r}")
        self.finished = True
        self._write_facts(why)
        self.folder.close()

    def forked(self) -> None:
        """In the child of a fork: a rank in its own right when nothing had begun, else a helper of the parent's."""
        if self.folder is not None:
            self.finished = True
            return
        self._thread = None
        self._loader_threads.clear()
        self._in_loader = False
        self.detector = StepDetector()

    # Inside --------------------------------------------------------------------------------------------------------

    def _mark(self, ends: bool) -> None:
        if not self._start_ns:
            self._start_ns = time.perf_counter_ns()
        if ends and self.automatic:
            self.boundary()

    def _bind(self) -> None:
        """The training thread is the one that steps; a loader asked from another one is a prefetcher's."""
        if self._thread is not None:
            return
        self._thread = threading.get_ident()
        if self._loader_threads and self._thread not in self._loader_threads:
            self.detector.forget_loader()

    def _activate(self) -> bool:
        """Claim the rank's folder; False when this process is not to be recorded."""
        if not self._is_chosen():
            self.finished = True
            return False
        try:
            self.folder = RankFolder(self.settings.folder, self.rank)
        except FileExistsError:
            self.finished = True
            leave_mark("again")
            return False
        except OSError as error:
            self.finished = True
            warn(
                f"cannot write to {self.settings.folder} ({error.strerror}); nothing is recorded, the program runs on."
            )
            return False
        self._write_facts("running")
        return True

    def _is_chosen(self) -> bool:
        """Whether this process is a rank that is to be recorded."""
        from torch.utils.data import get_worker_info

        self.rank, self.world_size = identity()
        self.pid = os.getpid()
        ranks = self.settings.ranks
        return get_worker_info() is None and (ranks is None or self.rank in ranks)

    def _finish_step(self, dur_ns: int) -> None:
        stage = self.plan.stage
        window = stage.window
        self.ranges.step_ends()
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        if not self.profiler.prepared and self.profiler.user_profiles:
            window = "user_profiler"
        if self.step < MOST_STREAMED_STEPS and self.folder is not None:
            self.folder.write_step(self.step, dur_ns, window, self._wait_ns)
        self.tally.step(window, dur_ns, self._wait_ns)
        if stage.counted and self.profiler.recording:
            self._window["steps"] += 1
        self._wait_ns = 0

    def _advance(self) -> None:
        old, new = self.plan.stage, self.plan.next()
        if old.trace is not None and new.trace != old.trace:
            self._close_window(partial=False)
        self.plan.advance()
        self._watch_gpu()
        if self.plan.stage is not old:
            self._open_stage()
        if self.plan.finished and not self._recorded:
            self._everything_recorded()
        self._begin_range()

    def _open_stage(self) -> None:
        stage = self.plan.stage
        if stage.trace is None:
            return
        if not self.profiler.prepared:
            self._gather_models()
            self._write_facts("running")
            self.profiler.prepare(stage.trace)
        if stage.recording and not self.profiler.recording:
            self.profiler.start()
            self._window = {"steps": 0, "complete": False, "file": None, "first_step": None}
        if stage.counted and self._window["first_step"] is None:
            self._window["first_step"] = self.step

    def _watch_gpu(self) -> None:
        """Sample NVML from the first boundary after the program has initialised CUDA until all is recorded."""
        if self.sampler is None and self.folder is not None and not self.plan.finished and gpu_in_use():
            self.sampler = Sampler(devices_in_use(torch.cuda), self.folder.write_sample)
            self.sampler.start()

    def _begin_range(self) -> None:
        if self.plan.stage.counted and self.profiler.recording:
            self._range = torch.autograd.profiler.record_function(f"ProfilerStep#{self.step}")
            self._range.__enter__()
        if self.profiler.recording:
            self.ranges.on(profiled=True)
        self.ranges.step_begins()

    def _close_window(self, *, partial: bool) -> None:
        """Stop and save the open window; a step that is still running loses its name in the trace."""
        trace = self.plan.stage.trace
        self.ranges.off(here=self._thread == threading.get_ident())
        running, self._range = self._range, None
        if self.profiler.out_of_reach:
            self._note(f"the {trace} window was lost: the training thread was gone or held up in a call")
            return
        if not self.profiler.recording or trace is None or self.folder is None:
            self.profiler.abort()
            return
        if running is not None and self._thread == threading.get_ident():
            running.__exit__(None, None, None)
        before = self.windows.get(trace)
        if before is not None and before["steps"] > self._window["steps"]:
            self.profiler.abort()  # an earlier attempt, interrupted too, has got further
            return
        name = self.profiler.stop_and_save(self.folder, self.step if running is not None else None)
        self.windows[trace] = {**self._window, "complete": not partial, "file": name}

    def _thread_ended(self) -> None:
        """The training thread ends: what it has open is closed while it can be."""
        if not self.finished and self.profiler.prepared:
            self._close_window(partial=True)

    def _everything_recorded(self) -> None:
        self._recorded = True
        if self.sampler is not None:
            self.sampler.stop()
        self._gather_models()
        self._write_facts("recorded")
        if self.settings.stop_after and self.automatic:
            self.finish("stopped")
            raise StopProgram(0)

    def _stacks_cost_too_much(self, dur_ns: int) -> bool:
        """Whether one step of the evidence window is enough: Python loops make 100,000 events a step and more."""
        usual_ns = self.tally.median_step_ns()
        return self.plan.stage.trace == "evidence" and dur_ns > max(2 * usual_ns, usual_ns + DEAR_STACKS_NS)

    def _watch_long_step(self) -> None:
        elapsed_ns = time.perf_counter_ns() - self._start_ns
        if elapsed_ns > LONG_STEP_NS + LONG_STEP_FACTOR * self.tally.median_step_ns():
            trace = self.plan.stage.trace
            self._note("the loop was left before the window was complete")
            self._close_window(partial=True)
            if trace is not None:
                self.plan.leave(trace)

    def _gather_models(self) -> None:
        """Once: looking for models walks all objects (0.1 to 0.2 s)."""
        if self._models is None:
            self._models = {}
            self._models = facts.describe_program()

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _write_facts(self, why: str) -> None:
        self.why = why
        if self.folder is None:
            return
        try:
            self.folder.write_facts(facts.collect(self, self._models or {}))
        except Exception as error:
            warn(f"facts are incomplete: {error!r}")
