"""The recorder of a trial: it times steps without a profiler, and ends the program after them.

It leaves steps.jsonl, as every recording does, and trial.json: losses, GPU time, peak memory, and what came of each
change. No step waits for what is measured.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from .machine_facts import cuda_is_initialized
from .messages import leave_marker, warn
from .module_calls import is_in_backward
from .proc_files import read_host_bytes
from .process_memory import read_rss_peak_bytes
from .rank_folder import RankFolder
from .recorder import Recorder
from .recorder_settings import RecorderSettings, TrialOptions
from .step_meter import StepWork
from .trial import TrialProgram
from .user_code import user_location
from .watched_calls import Patches

# A call may give a list of losses to `torch.autograd.backward`: the first ones are enough to compare.
MAX_LOSSES_PER_CALL = 16


class Losses:
    """The losses of each step: scalars from which backward passes began, read when the program ends.

    Of a program without backward passes the norms of what its model returns.
    """

    def __init__(self) -> None:
        self._by_step: dict[int, list[Any]] = {}
        self._outputs: dict[int, list[Any]] = {}

    def add(self, step: int, tensors: Any) -> None:
        """Keep the scalars of a call of `torch.autograd.backward`: copies, which do not wait for a GPU."""
        found = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if not isinstance(found, Sequence):
            return
        for tensor in found[:MAX_LOSSES_PER_CALL]:
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 and not tensor.is_meta:
                # A CUDA graph writes its next result into the same memory: a copy keeps this one.
                self._by_step.setdefault(step, []).append(tensor.detach().clone())

    def add_output(self, step: int, output: Any) -> None:
        """Keep the norm of the first tensor of real numbers that a model has returned; a copy, as of losses."""
        tensor = first_tensor(output)
        if tensor is not None and not self._by_step:
            norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32)
            self._outputs.setdefault(step, []).append(norm)

    def to_dict(self) -> dict[str, float | str]:
        """The sum of each step's losses, by the step's number; "nan", "inf" and "-inf" as words."""
        by_step = self._by_step or self._outputs
        return {str(step): to_json_number(sum(map(float, losses))) for step, losses in by_step.items()}


def first_tensor(output: Any) -> Any:
    """The first tensor of real numbers in what a model returns: itself, or within tuples, lists and dictionaries.

    None of a class of its own, which may stand for what is not computed yet, as the logits of a chunked loss do.
    """
    if isinstance(output, torch.Tensor):
        is_plain = type(output) is torch.Tensor and output.is_floating_point() and not output.is_meta
        return output if is_plain else None
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((found for each in values if (found := first_tensor(each)) is not None), None)


def to_json_number(value: float) -> float | str:
    """A number that JSON has; the word for one that it has not."""
    return value if math.isfinite(value) else str(value)


class GpuStepTimes:
    """The time of each step on the GPU, by events at its borders.

    The CPU may run ahead of the GPU: the time between two borders on the CPU is that of launching then. Where the GPU
    waits for the CPU, its events pass as the CPU records them, so that they show the CPU's time.
    """

    def __init__(self) -> None:
        self._begins: list[Any] = []
        self._ends: list[Any] = []

    def begin_step(self) -> None:
        """A step begins on the current stream."""
        self._begins.append(_record_event())

    def end_step(self) -> None:
        """The step ends."""
        if len(self._ends) < len(self._begins):
            self._ends.append(_record_event())

    def read(self) -> list[int]:
        """Wait for the GPU, and return the duration of each whole step in nanoseconds."""
        torch.cuda.synchronize()
        pairs = zip(self._begins, self._ends, strict=False)
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in pairs]


def _record_event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def read_peak_memory() -> tuple[int | None, str]:
    """The peak of memory so far, and its kind.

    On a GPU the bytes of tensors ("cuda"), since the timed steps began; else the bytes of the process in memory
    ("rss"), since it began, without its workers. None where the system does not tell.
    """
    if cuda_is_initialized():
        return int(torch.cuda.max_memory_allocated()), "cuda"
    peak_bytes = read_host_bytes("VmHWM", "/proc/self/status")  # getrusage has the peak of before exec, too
    return (read_rss_peak_bytes() if peak_bytes is None else peak_bytes), "rss"


MAX_SAVES_NOTED = 20


class TrialRecorder(Recorder):
    """Skipped steps, timed steps, and the end of the program."""

    def __init__(self, settings: RecorderSettings) -> None:
        super().__init__(settings)
        self.program = TrialProgram(settings.trial or TrialOptions(), self.module_calls)
        self._losses = Losses()
        self._saves: list[str] = []
        self._skipped_ns = 0
        self._has_trained = False
        self._gpu_times: GpuStepTimes | None = None
        self._late_rows: list[tuple[int, str, int, StepWork]] = []

    def start(self) -> None:
        """Set the seeds and apply the changes; the hooks are installed."""
        self.program.start()
        patches = Patches(self._guard)
        patches.watch(torch, "save", self._see_save)
        patches.watch(torch.autograd, "backward", self._see_backward, self.is_listening)
        self.module_calls.add(self._watch_output)

    # What the hooks call --------------------------------------------------------------------------------------------

    def on_loader_next_begin(self) -> bool:
        """A loop asks a DataLoader for a batch: this process is one that trains or evaluates."""
        self._has_trained = True
        return super().on_loader_next_begin()

    def on_optimizer_built(self, optimizer: Any, frame: FrameType | None) -> None:
        """An optimizer was made: this process is going to train."""
        self._has_trained = True
        super().on_optimizer_built(optimizer, frame)

    def on_backward(self, frame: FrameType | None, roots: Any = None) -> None:
        """A backward pass is about to begin."""
        self._has_trained = True
        super().on_backward(frame, roots)

    def on_user_profiler_open(self, profile: Any) -> None:
        """Do nothing: the program's profiler is part of what is timed."""

    def on_user_profiler_close(self, profile: Any) -> None:
        """Do nothing."""

    def on_fork_in_child(self) -> None:
        """A helper of this process leaves no trial.json."""
        self._has_trained = False
        super().on_fork_in_child()

    # Steps ----------------------------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """End a step and begin the next one.

        Raises:
            StopProgram: The timed steps have passed.
        """
        now_ns = time.perf_counter_ns()
        if self._gpu_times is not None:
            self._gpu_times.end_step()
        self._bind_training_thread()
        if self.folder is None and not self._make_rank_folder():
            return
        window = self.plan.stage.window
        self._record_step(now_ns - self._step_start_ns)
        self.step += 1
        self.plan.advance()
        if self.plan.finished:
            self.finish("recorded")
            self.stop_program()
        if window != "base" and self.plan.stage.window == "base":
            self._begin_timing()
        self._begin_step()
        self.program.begin_step(self.step)

    def _begin_step(self, *, opens_ranges: bool = False) -> None:
        super()._begin_step(opens_ranges=opens_ranges)
        if self._gpu_times is not None:
            self._gpu_times.begin_step()

    def _begin_timing(self) -> None:
        self.module_calls.remove(self._watch_output)
        self.program.begin_timing()
        if cuda_is_initialized() and self._gpu_times is None:
            torch.cuda.reset_peak_memory_stats()
            self._gpu_times = GpuStepTimes()

    def _record_step(self, dur_ns: int) -> None:
        """Write the times of the step that ends; those of a GPU are read at the end, because reading them waits."""
        window = self.plan.stage.window
        compiled = self.totals.compiles.end_step(window)
        work = self.meter.end_step(compiled=compiled, may_roll_out=self.detector.may_roll_out)
        wait_ns, self._loader_wait_ns = self._loader_wait_ns, 0
        if window == "skip":
            self._skipped_ns += dur_ns
        if self._gpu_times is not None:
            self._late_rows.append((dur_ns, window, wait_ns, work))
        elif self.folder is not None:
            self.folder.write_step(self.step, dur_ns, window, wait_ns, work)

    def _write_late_rows(self) -> None:
        if self._gpu_times is None or self.folder is None:
            return
        rows, self._late_rows = self._late_rows, []
        durations = self._gpu_times.read()
        first = self.step - len(rows)
        for number, (dur_ns, window, wait_ns, work) in enumerate(rows):
            gpu_ns = durations[number] if number < len(durations) else dur_ns
            self.folder.write_step(first + number, gpu_ns, window, wait_ns, work)

    # What is left behind --------------------------------------------------------------------------------------------

    def finish(self, reason: str) -> None:
        """Write trial.json, because the timed steps have passed or the process ends; safe to call again."""
        if self.finished:
            return
        try:
            if self.folder is None and not self._make_folder_of_failed_start():
                return
            with contextlib.suppress(RuntimeError):  # a GPU that has failed tells no times
                self._write_late_rows()
            self._write_trial(reason)
        finally:
            self.finished = True
            if self.folder is not None:
                self.folder.close()

    def give_up(self, error: BaseException) -> None:
        """Write one warning line after a failure of ours; the program runs on untimed."""
        if self.finished:
            return
        self.finished = True
        warn(f"the trial failed in step {self.step}; the program runs on: {error!r}")
        self._write_trial("failed")

    def _make_folder_of_failed_start(self) -> bool:
        """Make the folder of a rank that ends before its first whole step, so that its changes are known."""
        if not self._has_trained or self.is_forked_helper or not self._is_recorded_rank():
            return False
        try:
            self.folder = RankFolder(self.settings.folder, self.rank)
        except OSError:  # FileExistsError: another process has trained as this rank
            leave_marker("duplicate")
            return False
        return True

    def _write_facts(self, exit_reason: str) -> None:
        """Write trial.json in place of facts.json."""
        self._write_trial(exit_reason)

    def _write_trial(self, reason: str) -> None:
        self.exit_reason = reason
        if self.folder is None:
            return
        peak_bytes, kind = read_peak_memory()
        losses: dict[str, float | str] = {}
        with contextlib.suppress(RuntimeError):  # a GPU that has failed tells no losses
            losses = self._losses.to_dict()
        values = {
            "exit_reason": reason,
            "steps": self.step,
            "losses": losses,
            "changes": {name: each.to_dict() for name, each in self.program.records.items()},
            "peak_memory_bytes": peak_bytes,
            "memory_kind": kind,
            "skipped_ns": self._skipped_ns,
            "saves": self._saves,
            "workers": max((each.settings.get("num_workers") or 0 for each in self.loaders.records), default=0),
        }
        self.folder.write_facts(values, "trial.json")

    def _watch_output(self, *_: Any) -> Callable[[Any], None]:
        """Keep what the model returns, before steps are timed, where no backward pass shows a loss."""
        return self._keep_output

    def _keep_output(self, output: Any) -> None:
        with contextlib.suppress(RuntimeError, TypeError):  # of a tensor of somebody's own kind, or a GPU that failed
            self._losses.add_output(self.step, output)

    def _see_backward(self, _frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the losses from which backward passes begin; `Tensor.backward` comes by here, too."""
        if not is_in_backward():
            self._losses.add(self.step, args[0] if args else kwargs.get("tensors"))

    def _see_save(self, frame: FrameType, *_: Any) -> None:
        """Note the lines that save: the same files are written again and again in trials."""
        location = user_location(frame)
        place = f"{location['file']}:{location['line']}" if location else "torch"
        if not self.finished and place not in self._saves and len(self._saves) < MAX_SAVES_NOTED:
            self._saves.append(place)

    def _guard(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            self.give_up(error)
