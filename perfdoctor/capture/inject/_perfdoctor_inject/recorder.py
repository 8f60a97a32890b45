"""The centre of the recorder: what the hooks report becomes steps, and steps move from window to window.

The hooks call it in the training thread of the user's program. The time spent here belongs to no step: a step ends when
`end_step` is entered, and the next step begins when it returns.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

import torch

from . import machine_facts
from .checkpoint_calls import CheckpointCalls
from .control_socket import ControlSocket
from .core_usage import CoreUsage
from .debug_switches import DebugSwitches
from .gradient_use import GradientUse
from .hang_watch import HangWatch
from .loader_records import LoaderRecords
from .machine_facts import cuda_is_initialized, describe_torch_flags
from .memory_watch import MemoryWatch
from .messages import USER_PROFILER, leave_marker, warn
from .model_facts import ModuleLines, describe_models
from .module_calls import ModuleCalls, has_parameters
from .nvml_sampler import GpuSampler, devices_in_use
from .optimizer_records import OptimizerRecords, ScalerRecords
from .parameter_checksums import ParameterChecksums
from .phase_ranges import PhaseRanges, RecordedRange
from .probes import EndedStep, Facts, Once, Probe, Probes
from .process_memory import BACKWARD, OPTIMIZER, MemoryRecords, count_samples
from .rank_folder import EVIDENCE_SLACK, RankFolder
from .rank_identity import rank_and_world_size
from .recorder_settings import RecorderSettings
from .retained_graphs import RetainedGraphs
from .run_totals import TIMED_WINDOWS, UNPROFILED_WINDOWS, Float64Sources, RunTotals, StepLevels
from .step_detector import StepDetector
from .step_meter import StepMeter, count_graph_nodes
from .user_code import user_location
from .window_plan import EVIDENCE_FACTOR, WindowPlan
from .window_profiler import PythonCalls, WindowProfiler

# A recorded step that takes this much longer than the steps before it has left the loop (evaluation, a checkpoint, the
# end of training). Its window is closed, because the events of minutes would fill the memory.
LONG_STEP_FACTOR = 20
LONG_STEP_NS = 5_000_000_000
# Of early steps with more events only one is recorded.
MANY_EVENTS = 50_000
# A step with more is recorded in part: writing it takes 10 to 20 s.
MAX_STEP_EVENTS = 1_500_000
# Text of an event of the evidence window: 320 bytes for calls of Python, 400 for ops with shapes.
EVENT_BYTES = 350
# Gradient accumulation may grow every few steps: a base window of equal steps is worth some attempts, not all.
MAX_BASE_RESTARTS = 3
# Windows are recorded again this often at most. The first look whether the run has changed comes so long after the
# first windows, and each later one when the run is a quarter longer: most of its end is looked at.
MAX_LATE_SAMPLES = 2
MIN_LOOK_NS = 3_000_000_000
LOOK_SHARE = 4
# A profiler of the user's that opens again and again leaves no room for ours.
MAX_INTERRUPTIONS = 3
# 80 bytes a step: a run of days must not fill the disk with step times.
MAX_STREAMED_STEPS = 200_000


SCHEMA = "perfdoctor.facts/1"
# The range around `iter(loader)` that starts workers; torch has one around `__next__` only.
LOADER_START = "perfdoctor::loader_start"


# 0 of 42 jobs of two ranks aborted that waited so long before their end.
_SETTLE_S = 0.5


class StopProgram(SystemExit):
    """Raised in the user's loop once everything is recorded, when `stop_after` asks for it."""


class Recorder:
    """The recording of one process. It writes nothing before the first whole step, so that helpers leave no files.

    Attributes:
        settings: Folder and window sizes.
        automatic: Whether steps are detected; False when a session marks them.
        finished: Whether the recorder ignores everything from now on.
        exit_reason: How the recording ended; "running" or "recorded" before that.
        folder: The rank's folder, None before the first whole step.
        step: Number of the running step.
        windows: The recorded windows, as they stand in facts.json.
        flags_by_window: Torch's flags as each window began: programs set some in a block, and at exit they are gone.
        module_calls: Who listens to calls of modules.
        notes: What went wrong, without a full stop.
        is_forked_helper: Whether this process was forked from one that is recorded.
        stop_watching_forwards: Takes `on_forward` from the calls of modules; None where nobody watches.
        control: The socket through which windows are asked for; None where nobody may ask.
    """

    def __init__(self, settings: RecorderSettings, *, automatic: bool = True) -> None:
        self.settings = settings
        self.automatic = automatic
        self.finished = False
        self.exit_reason = "running"
        self.folder: RankFolder | None = None
        self.rank, self.world_size = 0, 1
        self.pid = 0
        # A detected step has already ended: unless a session marks the steps, the first one cannot be recorded.
        misses_first_step = automatic and not (settings.skip or settings.base or settings.warmup)
        self.plan = WindowPlan(replace(settings, skip=1) if misses_first_step else settings)
        self.detector = StepDetector(count_graph_nodes)
        self.notes: list[str] = []
        self.gradients = GradientUse()
        self.module_calls = ModuleCalls(self.is_listening)
        self.profiler = self._make_profiler()
        self.ranges = PhaseRanges(required=settings.nvtx_only)
        self.loaders = LoaderRecords()
        self.optimizers = OptimizerRecords()
        self.module_lines = ModuleLines()
        self.totals = RunTotals()
        self.float64_sources = Float64Sources()
        self.scalers = ScalerRecords()
        self.checksums = ParameterChecksums()
        self.core_usage = CoreUsage(self.loaders.count_worker_cores)
        self.memory = MemoryRecords()
        self.checkpoints = CheckpointCalls()
        self.debug_switches = DebugSwitches()
        self.meter = StepMeter()
        self.calls = PythonCalls()
        self.windows: dict[str, dict[str, Any]] = {}
        self.flags_by_window: dict[str, dict[str, Any]] = {}
        self.memory_watch = MemoryWatch(
            enabled=settings.memory, max_bytes=settings.max_evidence_bytes, loaders=self.loaders, note=self._add_note
        )
        self.hang_watch = HangWatch(settings.folder, lambda: [each.pid for each in list(self.loaders.processes)])
        self.stop_watching_forwards: Callable[[], None] | None = None
        self.step = 0
        self.gpu_sampler: GpuSampler | None = None
        self.is_forked_helper = False
        self.control: ControlSocket | None = None
        self._training_thread: int | None = None
        self._loader_threads: set[int] = set()
        self._step_start_ns = 0
        self._loader_wait_ns = 0
        self._in_loader = False
        self._open_loader: weakref.ref[Any] | None = None
        self._step_range: Any = None
        self._all_recorded = False
        self._late_samples = 0
        self._next_look_ns = 0
        self._events_per_step: dict[str, int] = {}
        self._base_restarts = 0
        self._late_optimizers = 0
        self._optimizer_was_built_late = False
        self._interruptions = 0
        self._open_window: dict[str, Any] = {}
        self._recorded_steps = 0
        self.probes = Probes(self._add_note)
        self._add_probes()

    def _add_probes(self) -> None:
        """All that looks at the program, in the order of its facts."""
        totals, memory, watch = self.totals, self.memory, self.memory_watch
        self.probes.add(
            totals,
            Facts("run", lambda: {**totals.describe_run(), "unrecorded": self.list_unrecorded()}),
            Facts("trace_writing", lambda: {"events": totals.written_events, "ns": totals.writing_ns}),
            Facts("loaders", lambda: [each.to_dict(self.core_usage.span_ns) for each in self.loaders.records]),
            self.optimizers,
            Once("models", lambda: describe_models(self.module_lines)),
            self.checksums,
            self.scalers,
            self.float64_sources,
            Facts("zero_grad_to_zero", lambda: totals.counts["zero_grad_to_zero"]),
            self.meter.host_calls,
            totals.compiles,
            Facts("flags", lambda: describe_torch_flags()),
            self.debug_switches,
            RetainedGraphs(),
            self.gradients,
            Facts("needed_rows", lambda: self.profiler.lines.rows.found),
            Facts("flags_by_window", lambda: self.flags_by_window),
            Facts("environment", lambda: machine_facts.describe_environment()),
            Facts("cpu", lambda: {**machine_facts.describe_cpu(), "threads_set": totals.threads_set}),
            self.core_usage,
            Once("libraries", machine_facts.describe_libraries),
            Facts("devices", lambda: machine_facts.describe_gpus()),
            Facts("cuda_memory", lambda: machine_facts.read_cuda_memory()),
            Facts("memory", lambda: {**memory.to_dict(self.meter.rss_peak_bytes), **watch.to_dict()}),
            self.checkpoints,
            Facts("nvml", lambda: None if self.gpu_sampler is None else self.gpu_sampler.facts()),
        )

    def _make_profiler(self) -> WindowProfiler:
        return WindowProfiler(
            self._on_training_thread_end, self.module_calls, self.gradients, always_profiles_memory=self.settings.memory
        )

    def start(self) -> None:
        """The hooks are installed, and the program's own code comes next."""
        if self.settings.watches_hangs:
            self.hang_watch.start(torch.__version__)

    # What the hooks call -------------------------------------------------------------------------------------------

    def is_listening(self) -> bool:
        """Whether a hook must report: unfinished, not while dynamo traces, and only in the training thread."""
        if self.finished or torch.compiler.is_compiling():
            return False
        return self._training_thread is None or self._training_thread == threading.get_ident()

    def on_loader_next_begin(self) -> bool:
        """A loop asks a DataLoader for a batch; False for a loader inside a loader, which is not reported."""
        if self._in_loader:
            return False
        self._loader_threads.add(threading.get_ident())
        self.memory_watch.observe_failures(self._find_folder)
        self.meter.on_loader_next()
        self._end_step_if(self.detector.on_loader_next())
        self._close_window_in_long_step()
        self._in_loader = True
        return True

    def on_loader_next_end(self, iterator: Any, batch: Any, wait: tuple[int, int, int, int | None]) -> None:
        """The batch is there, or the loader is exhausted; `wait` as in `LoaderRecords.add_wait`."""
        self._in_loader = False
        self._open_loader = weakref.ref(iterator)
        if batch is None:
            self.memory_watch.note_killed_workers()
        self._loader_wait_ns += wait[0]
        self.loaders.add_batch(iterator, batch)
        self.meter.add_samples(count_samples(batch))
        exhausted = batch is None
        if self.loaders.add_wait(iterator, wait, profiled=self.profiler.prepared, exhausted=exhausted):
            self.meter.see("epoch")

    def open_range(self, name: str) -> Callable[[], None] | None:
        """Open a range of the trace, while one is recorded; returns what closes it, unless the window has ended."""
        if not self.profiler.recording:
            return None
        window, opened = self.profiler, RecordedRange(name)
        return lambda: opened.close() if window.recording else None

    def on_forward(self, module: Any) -> bool:
        """The program is about to call a module that lies in no other; until something else marks steps.

        Returns whether it is the first that marks one.
        """
        is_first = self.detector.source is None
        is_loading = self._open_loader is not None and self._open_loader() is not None
        if not has_parameters(module) or not self.detector.on_forward(id(module), is_loading=is_loading):
            return False
        self._end_step_if(self._step_start_ns > 0)
        return is_first

    def on_zero_grad(self) -> None:
        """Gradients are about to be cleared."""
        self._end_step_if(self.detector.on_zero_grad())

    def on_backward(self, frame: FrameType | None, roots: Any = None) -> None:
        """A backward pass from `roots`, which the code in `frame` called, begins; its thread is the training thread."""
        self._bind_training_thread()
        self.detector.on_backward()
        self._end_step_if(False)
        self._close_window_in_long_step()
        self.meter.add_backward()
        self.loaders.note_training()
        self.probes.call(self.gradients.on_backward, frame)
        self.profiler.lines.rows.on_backward(roots)
        self.probes.call(self.debug_switches.on_backward)
        self.memory_watch.enter(BACKWARD)

    def on_backward_end(self) -> None:
        """The backward pass has returned or raised."""
        self.memory_watch.leave(in_optimizer=self.optimizers.is_running)
        self._end_step_if(self.detector.on_backward_end())

    def on_optimizer_built(self, optimizer: Any, frame: FrameType | None) -> None:
        """An optimizer was made by the code in `frame`; after the first steps, another training may begin."""
        self.detector.on_optimizer_built()
        self.memory_watch.observe_failures(self._find_folder)
        self.probes.call(self.optimizers.add_optimizer, optimizer, frame)
        self.probes.call(self.gradients.add_optimizer, optimizer)
        if self.totals.counts["optimizer_step"] > 1 and not self._optimizer_was_built_late:
            # After the first steps: another training may begin.
            self._late_optimizers += 1
            self._optimizer_was_built_late = True

    def on_optimizer_begin(self) -> None:
        """`Optimizer.step` is about to run; its `Optimizer.step#` range is not open yet."""
        self._bind_training_thread()
        self._close_window_in_long_step()
        self.detector.on_optimizer_begin()
        self.probes.call(self.optimizers.begin_call)
        self.memory_watch.enter(OPTIMIZER)

    def on_optimizer_end(self, optimizer: Any, frame: FrameType | None) -> None:
        """`Optimizer.step`, which the code in `frame` called, has returned or raised."""
        self.probes.call(self.optimizers.end_optimizer_step, optimizer, frame)
        self.probes.call(self.gradients.on_optimizer_end, optimizer)
        self.memory_watch.leave(in_optimizer=self.optimizers.is_running)
        self._end_step_if(self.detector.on_optimizer_end())

    def on_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer has updated its weights."""
        self._bind_training_thread()
        self.meter.optimizer_steps += 1
        self.totals.counts["optimizer_step"] += 1
        self._optimizer_was_built_late = False
        was_training = self.detector.is_training
        ends = self.detector.on_optimizer_step(id(optimizer))
        self.probes.call(self.optimizers.count_step, optimizer)
        if self.detector.is_training and not was_training:
            self._restart_plan()  # the steps so far were validation, not training
        self._end_step_if(ends)

    def on_gradient(self, nesting: int) -> None:
        """`torch.autograd.grad` is about to run, inside that number of transforms of torch.func."""
        self._end_step_if(self.detector.on_gradient(nesting))

    def on_scaler_update(self) -> None:
        """`GradScaler.update` has run."""
        self._bind_training_thread()
        self._end_step_if(self.detector.on_scaler_update())

    def on_user_profiler_open(self, profile: Any) -> None:
        """The program opens a profiler: our session is closed first, or the process would crash when ours is saved."""
        if not self.profiler.on_user_profiler_open(profile):
            return
        trace = self.plan.stage.trace
        self._add_note(f"{USER_PROFILER} took over while a window was open")
        self._close_window(partial=True)
        if trace is None:
            return
        self._interruptions += 1
        if self._interruptions <= MAX_INTERRUPTIONS:
            self.plan.repeat_trace(trace)
        else:
            self.plan.skip_trace(trace)

    def on_user_profiler_close(self, profile: Any) -> None:
        """The program has closed its profiler."""
        self.profiler.on_user_profiler_close(profile)

    # What the exit handlers call -----------------------------------------------------------------------------------

    def note_blocked_call(self, frame: FrameType | None) -> None:
        """Note where the main thread was blocked when a signal ended the process."""
        location = user_location(frame)
        where = "somewhere in torch"
        if location:
            where = f"in {location['file']}:{location['line']} ({location['function']})"
        self._add_note(f"SIGTERM came while the program was blocked {where}")

    def on_fork_in_child(self) -> None:
        """Continue in the child of a fork: as a rank of its own when nothing is recorded yet, else as a mere helper."""
        if self.finished:
            return
        if self.folder is not None:
            # Should the child train as the same rank, its first step finds the folder taken and leaves a marker.
            self.is_forked_helper = True
            self.folder = None
            self._step_range, self.gpu_sampler = None, None
            self.profiler = self._make_profiler()
            self.memory_watch.enabled = False  # its thread is the parent's
            if self.control is not None:
                self.control.forget()
            self.ranges.forget()
        self.hang_watch.forget()
        self._training_thread = None
        self._loader_threads.clear()
        self._in_loader = False
        self.detector = StepDetector(count_graph_nodes)

    def finish(self, reason: str) -> None:
        """Save what was recorded, because the process or the session ends; safe to call again."""
        if self.finished:
            return
        # A session gets its error; what an earlier cell of a notebook has raised is none of its own.
        self.hang_watch.close()
        if self.automatic and reason == "exit" and self.memory_watch.note_end():
            self._find_folder()
        if self.folder is None:
            self.finished = True
            return
        try:
            self.calls.stop()
            if self.gpu_sampler is not None:
                self.gpu_sampler.stop()
            self._close_window(partial=True)
            self.probes.each(Probe.stop, self.step)
        except Exception as error:
            self._add_note(f"the last window was lost: {error!r}")
        self.finished = True
        self.memory_watch.stop()
        self.meter.memory.close()
        if self.control is not None:
            self.control.close(reason)
        self._write_facts(reason)
        self.folder.close()

    def give_up(self, error: BaseException) -> None:
        """Close everything after a failure of ours, with one warning line; the program runs on."""
        if self.finished:
            return
        warn(f"recording failed in step {self.step} and stops here; the program runs on: {error!r}")
        self._add_note(f"recording failed: {error!r}")
        self._stop_early()

    def _stop_early(self) -> None:
        """Record nothing more; what was written is kept."""
        self.finished = True
        self.calls.stop()
        self.ranges.stop(in_training_thread=self._is_training_thread())
        self.profiler.abort()
        if self.gpu_sampler is not None:
            self.gpu_sampler.stop()
        self.memory_watch.stop()
        self.meter.memory.close()
        self._write_facts("failed")

    # Steps ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the first step now; a session calls it, because it knows where its steps begin."""
        self._bind_training_thread()
        self._step_start_ns = time.perf_counter_ns()
        has_folder = self._make_rank_folder()
        if has_folder:
            self._begin_stage()
        self._begin_step(opens_ranges=has_folder)

    def end_step(self) -> None:
        """End a step and begin the next one.

        Raises:
            StopProgram: Everything is recorded, and `stop_after` asks to stop the program then.
        """
        now_ns = time.perf_counter_ns()
        self._bind_training_thread()
        if self.folder is None and not self._make_rank_folder():
            return
        dur_ns = now_ns - self._step_start_ns
        self._record_step(dur_ns)
        self.step += 1
        self.hang_watch.beat(self.step, dur_ns)
        if self.folder is not None and self.folder.broken:
            self._stop_early()
            return
        if self._all_recorded and (self._is_asked() or not self._begin_late_sample(now_ns)):
            self._begin_step()
            return
        self._adapt_plan()
        advances = self.profiler.prepared or not self.profiler.user_profiler_is_active
        if advances:
            self._advance_plan()
        else:
            self._add_note(f"{USER_PROFILER} was running, so the windows waited for its end")
        self._begin_step(opens_ranges=advances)

    def _adapt_plan(self) -> None:
        """Shorten or repeat the running window, by what the step that has ended shows."""
        stage = self.plan.stage
        if stage.counted and stage.trace == "evidence" and self.totals.stacks_are_expensive():
            self.plan.shorten_trace()
        if not self.plan.adapts:
            return
        if stage.is_early and self.meter.estimate_events() > MANY_EVENTS:
            if stage.window == "base":
                self.plan.skip_warm_recording()
            elif stage.counted and stage.trace == "timing":
                self.plan.shorten_trace()
        if stage.window == "base" and self._base_restarts < MAX_BASE_RESTARTS and self.totals.base_work_changes():
            self._base_restarts += 1
            self.totals.begin_window("base")
            self.plan.restart_base()

    def _is_asked(self) -> bool:
        """Whether a window that somebody asked for is recorded, by a recorder of its own beside this one."""
        if self.control is None:
            return False
        self.control.end_step(self.step)
        return self.control.is_recording

    def _begin_late_sample(self, now_ns: int) -> bool:
        """Whether windows are recorded once more, because the steps of late are unlike those that were recorded.

        A look costs 100 us at most. What was recorded first is kept beside it, for a comparison.
        """
        if now_ns < self._next_look_ns or not self.plan.adapts or self._late_samples >= MAX_LATE_SAMPLES:
            return False
        is_first = not self._next_look_ns
        self._next_look_ns = now_ns + max(self.totals.seen_ns() // LOOK_SHARE, MIN_LOOK_NS)
        if is_first or not self.totals.run_has_changed():
            return False
        self._late_samples += 1
        if self.folder is not None:
            self.folder.keep_early_windows()
        self.gpu_sampler = None  # clocks and temperature of now are sampled anew
        self.totals.levels = StepLevels()
        self.plan.add_sample()
        self._all_recorded = False
        return True

    def _restart_plan(self) -> None:
        """Take the windows again from the start, because what ran before was no training."""
        if self.plan.can_restart:
            self.plan.restart()
        elif (self.plan.adapts or self.detector.source == "forward") and not self._late_samples:
            self._late_samples += 1
            self._close_window(partial=True)
            self.plan.add_sample()
            self._all_recorded = False

    def _begin_step(self, *, opens_ranges: bool = False) -> None:
        """Start the clocks and the ranges of a step, after all work of ours: on a busy machine it takes 0.1 ms."""
        self.memory_watch.begin_step()
        self.meter.begin_step()
        if opens_ranges:
            self._open_step_ranges()
        self._step_start_ns = time.perf_counter_ns()

    def _end_step_if(self, detected: bool) -> None:
        """End the step when a boundary was detected; the first event of all begins the first step."""
        if not self.detector.awaits_forwards and self.stop_watching_forwards is not None:
            self.stop_watching_forwards()
            self.stop_watching_forwards = None
        if not self._step_start_ns:
            self._begin_step()
        if detected and self.automatic and not self.finished:
            self.end_step()

    def _record_step(self, dur_ns: int) -> None:
        """Close the ranges of the step that ends, and write its times."""
        stage = self.plan.stage
        window, label = stage.window, stage.label
        self.calls.stop()
        self.ranges.end_step()
        if self._step_range is not None:
            self._step_range.close()
            self._step_range = None
        if self.control is not None and self.control.is_recording:
            window = label = "requested"
        elif not self.profiler.prepared and self.profiler.user_profiler_is_active:
            window = label = "user_profiler"
        compiled = self.totals.compiles.end_step(label)
        work = self.meter.end_step(compiled=compiled, may_roll_out=self.detector.may_roll_out)
        peaks = self.memory_watch.end_step(label)
        if self.step < MAX_STREAMED_STEPS and self.folder is not None:
            self.folder.write_step(self.step, dur_ns, label, self._loader_wait_ns, work, peaks)
        self.totals.add_step(window, label, dur_ns, self._loader_wait_ns, work)
        # Not by its constructor, whose code has no file: the trace would take it for a function of the user's.
        ended = EndedStep._make((self.step, window, label, dur_ns, label not in UNPROFILED_WINDOWS))
        self.probes.each(Probe.step, ended)
        if self.profiler.recording:
            self._recorded_steps += 1
            self.profiler.lines.begin_step()
            self._open_window["steps"] += stage.counted
        self._loader_wait_ns = 0

    def _open_step_ranges(self) -> None:
        if self.plan.stage.counted and self.profiler.recording:
            self._step_range = RecordedRange(f"ProfilerStep#{self.step}")
        if self.profiler.recording:
            self.ranges.start(profiled=True)
        self.ranges.begin_step()
        if self.settings.evidence and (self.plan.stage.window, self.plan.stage.trace) == ("warm", "timing"):
            self.calls.start()

    # The process and its threads -----------------------------------------------------------------------------------

    def _bind_training_thread(self) -> None:
        """Make the calling thread the training thread, unless there is one; loaders of other threads only prefetch."""
        if self._training_thread is not None:
            return
        self._training_thread = threading.get_ident()
        if self._loader_threads and self._training_thread not in self._loader_threads:
            self.detector.forget_loader()

    def _is_training_thread(self) -> bool:
        return self._training_thread == threading.get_ident()

    def _on_training_thread_end(self) -> None:
        """Close the window in the thread that opened it, because no other thread can."""
        if not self.finished and self.profiler.prepared:
            self._close_window(partial=True)

    def _make_rank_folder(self) -> bool:
        """Make the rank's folder; False when this process is not to be recorded."""
        if not self._is_recorded_rank():
            self.finished = True
            return False
        if self.is_forked_helper:  # its parent is recorded, and Kineto does not survive a fork
            self.finished = True
            leave_marker("duplicate")
            return False
        try:
            self.folder = RankFolder(self.settings.folder, self.rank, self.settings.max_evidence_bytes)
        except FileExistsError:
            self.finished = True
            leave_marker("duplicate")
            return False
        except OSError as error:
            self.finished = True
            warn(
                f"cannot write to {self.settings.folder} ({error.strerror}); nothing is recorded, the program runs on."
            )
            return False
        if self.world_size > 1:
            self.plan.warm_up_evidence()
        self.memory_watch.start()
        if self.control is not None:
            try:
                self.control.open(self.folder.path)
            except (OSError, AttributeError) as error:  # Windows has no such sockets
                self._add_note(f"perfdoctor record can ask for no window: {error}")
        self.hang_watch.open(self.rank)
        self._write_facts("running")
        return True

    def _find_folder(self) -> str | None:
        """The rank's folder for what must be kept even before the first whole step has ended."""
        if self.folder is None and not self.finished:
            self._make_rank_folder()
        return None if self.folder is None else self.folder.path

    def _is_recorded_rank(self) -> bool:
        """Whether this process is a rank that is to be recorded, not a worker of a DataLoader."""
        from torch.utils.data import get_worker_info

        self.rank, self.world_size = rank_and_world_size()
        self.meter.host_calls.wants_checksums = self.world_size > 1
        self.pid = os.getpid()
        ranks = self.settings.ranks
        return get_worker_info() is None and (ranks is None or self.rank in ranks)

    # Windows -------------------------------------------------------------------------------------------------------

    def _advance_plan(self) -> None:
        old, new = self.plan.stage, self.plan.next_stage
        if old.trace is not None and new.trace != old.trace:
            self._close_window(partial=False)
            if old.trace == "evidence":
                self.probes.call(self.checksums.take, self.step, self.world_size)
        self.plan.advance()
        if self.plan.stage.window == "base" and old.window != "base":
            self.totals.begin_window("base")
            self.core_usage.begin_window()
        self._start_gpu_sampler()
        if self.plan.stage is not old:
            self.memory.end_window(old.window, self.step)
            self._begin_stage()
        if self.plan.finished and not self._all_recorded:
            self._finish_windows()
        self.probes.call(self.core_usage.begin_step)

    def _begin_stage(self) -> None:
        stage = self.plan.stage
        if stage.window in TIMED_WINDOWS:
            self.flags_by_window[stage.window] = describe_torch_flags()
        if stage.trace is None:
            return
        if stage.recording != self.profiler.recording or not self.profiler.prepared:
            self._note_work()
        if not self.profiler.prepared:
            self.probes.each(Probe.start, self.step)
            self._write_facts("running")
            self.totals.begin_window(stage.trace)
            with_stacks = stage.trace == "timing" or self._fit_evidence()
            events = self._events_per_step.get("timing", 0) if self.plan.adapts else 0
            self.profiler.prepare(stage.trace, events, with_stacks=with_stacks)
        if stage.recording and not self.profiler.recording:
            self.memory_watch.begin_window(stage.trace)
            self.profiler.start()
            self._open_window = {"steps": 0, "complete": False, "file": None, "first_step": None}
            self._recorded_steps = 0
        if stage.counted and self._open_window["first_step"] is None:
            self._open_window["first_step"] = self.step

    def _fit_evidence(self) -> bool:
        """Cut the evidence window to the bytes that it may have; False where the stacks of one step have more."""
        calls, max_bytes = self.calls.per_step or 0, self.settings.max_evidence_bytes
        step_bytes = (EVIDENCE_FACTOR * self._events_per_step.get("timing", 0) + calls) * EVENT_BYTES
        fitting = max_bytes // max(step_bytes, 1)
        wanted = self.plan.limit_steps("evidence", max(fitting, 1))
        if fitting < wanted:
            means = f"shapes and lines are of {fitting} steps"
            if not fitting:
                means = f"a step calls {calls:,} functions, which are not recorded, so time in Python has no function"
            whole_bytes = step_bytes * self.settings.evidence
            self._add_note(
                f"the evidence window was cut to {max_bytes / 1e6:g} MB: {means}; "
                f"--max-evidence {-(-whole_bytes // 1_000_000)} records all"
            )
        return fitting > 0

    def _start_gpu_sampler(self) -> None:
        """Sample NVML from the first step boundary after the program has initialised CUDA until all is recorded."""
        if self.gpu_sampler is None and self.folder is not None and not self.plan.finished and cuda_is_initialized():
            keys, plan = devices_in_use(torch.cuda), self.plan
            self.gpu_sampler = GpuSampler(keys, self.folder.write_sample, lambda: plan.stage.window)
            self.gpu_sampler.start()

    def _close_window(self, *, partial: bool) -> None:
        """Stop and save the open window; the range of a step that still runs is renamed in the trace."""
        trace = self.plan.stage.trace
        self.ranges.stop(in_training_thread=self._is_training_thread())
        step_range, self._step_range = self._step_range, None
        self.memory_watch.history.stop(None if self.folder is None else self.folder.path)
        if self.profiler.belongs_to_other_thread:
            self._add_note(f"the {trace} window was lost: the training thread was gone or blocked in a call")
            return
        if not self.profiler.recording or trace is None or self.folder is None:
            self.profiler.abort()
            return
        if step_range is not None and self._is_training_thread():
            step_range.close()
        earlier, steps = self.windows.get(trace), self._open_window["steps"]
        if partial and earlier is not None and earlier["steps"] > steps:
            self.profiler.abort()  # an earlier window has recorded more steps
            return
        self._note_work()
        start_ns = time.perf_counter_ns()
        name = self.profiler.stop_and_save(self.folder, self.step if step_range is not None else None)
        self.windows[trace] = {**self._open_window, "complete": not partial, "file": name}
        self.totals.keep_window(trace)
        if self.folder.dropped_calls:
            self._add_note(
                f"the evidence has more than {EVIDENCE_SLACK} times --max-evidence: {self.folder.dropped_calls:,} "
                "calls of functions were left out, so time in Python has no function in a part of it"
            )
        if name is not None:
            self._count_events(trace, self.folder.events, time.perf_counter_ns() - start_ns)

    def _note_work(self) -> None:
        """Note that the next step, or the running one, may be longer: ranks wait for each other's recorders."""
        if self.world_size > 1 and self.folder is not None:
            self.folder.note_work(self.step)

    def _count_events(self, trace: str, events: int, writing_ns: int) -> None:
        """Add up what was written, and shorten later windows when its steps have many events."""
        self.totals.written_events += events
        self.totals.writing_ns += writing_ns
        if self._recorded_steps:
            self._events_per_step[trace] = events // self._recorded_steps
            if self.plan.adapts:
                self.plan.limit_events(trace, self._events_per_step[trace])

    def _close_window_in_long_step(self) -> None:
        """Close the window of a step that never ends, or that has more events than can be written."""
        if not self.profiler.recording or self.detector.is_in_optimizer:
            return
        elapsed_ns = time.perf_counter_ns() - self._step_start_ns
        if self.plan.adapts and self.meter.estimate_events() > MAX_STEP_EVENTS:
            why = f"a step was recorded in part, because it has more than {MAX_STEP_EVENTS:,} events, which takes long "
            why += "to write"
        elif elapsed_ns > LONG_STEP_NS + LONG_STEP_FACTOR * self.totals.usual_step_ns():
            why = "the loop was left before the window was complete"
        else:
            return
        trace = self.plan.stage.trace
        self._add_note(why)
        self._close_window(partial=True)
        if trace is not None:
            self.plan.skip_trace(trace)

    def _finish_windows(self) -> None:
        self._all_recorded = True
        if self.gpu_sampler is not None:
            self.gpu_sampler.stop()
        self.probes.each(Probe.stop, self.step)
        self._write_facts("recorded")
        if self.settings.stop_after and self.automatic:
            self.finish("stopped")
            self.stop_program()

    def stop_program(self) -> NoReturn:
        """End the program from within its loop; a rank of several after a moment.

        A thread of gloo drops its last work after the rank has its result, and torch 2.13 aborts where the interpreter
        ends meanwhile ("terminate called without an active exception"): 5 of 34 jobs of two ranks, without perfdoctor.
        """
        if self.world_size > 1:
            time.sleep(_SETTLE_S)
        raise StopProgram(0)

    # Facts ---------------------------------------------------------------------------------------------------------

    def list_work(self) -> list[int]:
        """Steps before which the recorder of any rank of the job has worked; empty where there is one rank."""
        return self.folder.list_work() if self.world_size > 1 and self.folder is not None else []

    def list_unrecorded(self) -> list[str]:
        """Sentences on what was not seen of the run, for facts.json."""
        found = []
        if self.totals.counts["optimizer_step"] and not self.loaders.records:
            found.append(
                "The batches come from no torch DataLoader (an iterator of the program's own, or tensors made in the "
                "loop): the wait for them was not measured."
            )
        if self._late_optimizers and not self._optimizer_was_built_late:
            times = "once" if self._late_optimizers == 1 else f"{self._late_optimizers} times"
            found.append(
                f"New optimizers were made {times} in the middle of the run (several trainings, one after the other?): "
                "the windows show the steps of one of them."
            )
        if self.totals.user_profiled_steps:
            found.append(
                f"The program's own profiler ran in {self.totals.user_profiled_steps} of {self.step} steps: their "
                "times hold its cost."
            )
        return found

    def _add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _write_facts(self, exit_reason: str) -> None:
        self.exit_reason = exit_reason
        if self.folder is None:
            return
        if self.folder.broken:
            self._add_note(
                f"the folder could not be written any more ({self.folder.broken}): what came after that is missing"
            )
        try:
            self.loaders.read_workers()
            self.folder.write_facts(self._collect_facts())
        except Exception as error:
            warn(f"facts are incomplete: {error!r}")

    def _collect_facts(self) -> dict[str, Any]:
        """The whole of facts.json: what is worth knowing besides the trace. An allow-list, so that no secret slips in.

        Of the environment only named switches, never arguments, never tensor values.
        """
        return {
            "schema": SCHEMA,
            "rank": self.rank,
            "world_size": self.world_size,
            "pid": self.pid,
            "script": os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else None,
            "program": machine_facts.describe_folders(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "exit": self.exit_reason,
            "steps_seen": self.step,
            "step_source": self.detector.source if self.automatic else "session",
            "windows": self.windows,
            "recorder_worked": self.list_work(),
            **self.probes.facts(),
            "notes": self.notes,
        }
