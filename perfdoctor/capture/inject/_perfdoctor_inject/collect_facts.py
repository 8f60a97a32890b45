"""facts.json: what is worth knowing besides the trace. An allow-list, so that no secret can slip in.

Of the environment only named switches (environment_facts.py), never arguments, never tensor values.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from typing import Any, Protocol

import torch

from . import machine_facts
from .checkpoint_calls import CheckpointCalls
from .compile_counters import describe_compilation
from .core_usage import CoreUsage, describe_cores
from .debug_switches import DebugSwitches
from .gradient_use import GradientUse
from .loader_records import LoaderRecords
from .machine_facts import describe_environment
from .memory_watch import MemoryWatch
from .model_facts import ModuleLines, describe_models
from .nvml_sampler import GpuSampler
from .optimizer_records import OptimizerRecords, ScalerRecords
from .parameter_checksums import ParameterChecksums
from .process_memory import MemoryRecords
from .retained_graphs import RetainedGraphs
from .run_totals import RunTotals
from .step_detector import StepDetector
from .step_meter import StepMeter
from .window_profiler import WindowProfiler

SCHEMA = "perfdoctor.facts/1"


class Recording(Protocol):
    """What the facts say of a recording: what `Recorder` knows so far."""

    rank: int
    world_size: int
    pid: int
    exit_reason: str
    automatic: bool
    step: int
    detector: StepDetector
    windows: dict[str, dict[str, Any]]
    flags_by_window: dict[str, dict[str, Any]]
    totals: RunTotals
    meter: StepMeter
    core_usage: CoreUsage
    memory: MemoryRecords
    memory_watch: MemoryWatch
    checkpoints: CheckpointCalls
    debug_switches: DebugSwitches
    retained: RetainedGraphs
    gradients: GradientUse
    profiler: WindowProfiler
    loaders: LoaderRecords
    optimizers: OptimizerRecords
    scalers: ScalerRecords
    checksums: ParameterChecksums
    gpu_sampler: GpuSampler | None
    notes: list[str]

    def list_work(self) -> list[int]:
        """Steps before which the recorder of any rank of the job has worked; empty where there is one rank."""
        ...

    def list_unrecorded(self) -> list[str]:
        """Sentences on what was not seen of the run."""
        ...


def describe_program(lines: ModuleLines) -> dict[str, Any]:
    """Models and libraries: the part that takes 0.1 to 0.2 s, and is therefore gathered once, between two steps."""
    return {"models": describe_models(lines), "libraries": machine_facts.describe_libraries()}


def collect_facts(recording: Recording, program: dict[str, Any]) -> dict[str, Any]:
    """The whole of facts.json.

    `program` is what `describe_program` returned; empty before it was called.
    """
    totals = recording.totals
    base_span_ns = recording.core_usage.span_ns
    return {
        "schema": SCHEMA,
        "rank": recording.rank,
        "world_size": recording.world_size,
        "pid": recording.pid,
        "script": os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else None,
        "program": describe_folders(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "exit": recording.exit_reason,
        "steps_seen": recording.step,
        "step_source": recording.detector.source if recording.automatic else "session",
        "windows": recording.windows,
        "recorder_worked": recording.list_work(),
        "base_step_ns": [step.dur_ns for step in totals.steps_of("base")],
        "base_loader_wait_ns": [step.wait_ns for step in totals.steps_of("base")],
        "timing_step_ns": [step.dur_ns for step in totals.steps_of("timing")],
        "evidence_step_ns": [step.dur_ns for step in totals.steps_of("evidence")],
        **totals.describe_work(),
        "run": {**totals.describe_run(), "unrecorded": recording.list_unrecorded()},
        "trace_writing": {"events": totals.written_events, "ns": totals.writing_ns},
        "loaders": [record.to_dict(base_span_ns) for record in recording.loaders.records],
        "optimizers": recording.optimizers.to_list(),
        "models": program.get("models"),
        "parameter_checksums": recording.checksums.samples,
        "amp": {**describe_amp(totals.counts), **recording.scalers.to_dict()},
        "float64_sources": totals.float64_sources.found,
        "zero_grad_to_zero": totals.counts["zero_grad_to_zero"],
        "collector": recording.meter.host_calls.describe_collector(),
        "host_calls": recording.meter.host_calls.describe_calls(),
        "compile": describe_compilation(totals.compiles),
        "flags": machine_facts.describe_torch_flags(),
        "debug_switches": recording.debug_switches.to_list(),
        "retained": recording.retained.to_dict(),
        "unused_gradients": recording.gradients.to_list(),
        "needed_rows": recording.profiler.lines.rows.found,
        "flags_by_window": recording.flags_by_window,
        "environment": describe_environment(),
        "cpu": {**machine_facts.describe_cpu(), "threads_set": totals.threads_set},
        "cores": describe_cores(recording.core_usage, recording.loaders.count_worker_cores(base_span_ns)),
        "libraries": program.get("libraries"),
        "devices": machine_facts.describe_gpus(),
        "cuda_memory": machine_facts.read_cuda_memory(),
        "memory": {**recording.memory.to_dict(recording.meter.rss_peak_bytes), **recording.memory_watch.to_dict()},
        "checkpointing": recording.checkpoints.to_dict(),
        "nvml": None if recording.gpu_sampler is None else recording.gpu_sampler.facts(),
        "notes": recording.notes,
    }


def describe_folders() -> dict[str, str | None]:
    """Where the program lies and where it runs, so that a report can name its files as its author does."""
    try:
        working_directory = os.getcwd()
    except OSError:  # it was deleted
        return {"folder": None, "working_directory": None}
    # Python takes __file__ away again before exit handlers run; a program may have changed its arguments.
    file = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else None)
    folder = os.path.dirname(os.path.abspath(file)) if isinstance(file, str) and os.path.isfile(file) else None
    return {"folder": folder, "working_directory": working_directory}


def describe_amp(counts: Counter[str]) -> dict[str, int]:
    """How often mixed precision was used, and gradients were clipped."""
    names = ("autocast", "scaled", "unscaled", "clipped")
    return {name: counts[name] for name in names}
