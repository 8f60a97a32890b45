"""CapturedFacts: the whole of facts.json, what `perfdoctor run` knows of one rank besides its trace."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Annotated, Literal

from perfdoctor.facts.forms import MeasuredForm
from perfdoctor.facts.gpu_facts import GpuFacts, MemoryFacts, NvmlFacts
from perfdoctor.facts.loaders import LoaderFacts
from perfdoctor.facts.models import (
    DdpSettings,
    FsdpSettings,
    ModelFacts,
    NeededRows,
    OptimizerFacts,
    ParameterChecksums,
    UnusedGradients,
)
from perfdoctor.facts.part import NOTHING, CapturedLine, CapturedPart, Flat, Later, OrNull, Written
from perfdoctor.value_limits import Amount, Positive

# How a recording ended, while its program runs on; None where nothing was written.
RUNNING = (None, "running", "recorded")


class WindowSteps(CapturedPart):
    """The steps of one window, in their order, what each of them cost, and what it did.

    Attributes:
        cpu_ns: CPU time of the training thread in each of these steps.
        process_cpu_ns: The same of all threads of the process.
        preempted: Involuntary context switches of the training thread: how often others got its core.
        queued_ns: How long the training thread could have run and had no core.
        system_cpu_ns: CPU time of the system for all threads of the process: page faults, reads, switches. By ticks of
            some ms: right on average only.
        minor_faults: Minor page faults of the process: pages touched for the first time.
        batches: Batches that loaders returned.
        gc_ns: The time in which garbage was collected: automatic collections of the oldest generation, and gc.collect.
        host_call_ns: The time in the other calls of host_calls.
        backwards: Backward passes.
        samples: Samples in the batches, by the first dimension of their tensors.
    """

    step_ns: tuple[Written[int], ...] = ()
    cpu_ns: Later[tuple[int | None, ...]] = ()
    process_cpu_ns: Later[tuple[int | None, ...]] = ()
    preempted: Later[tuple[int | None, ...]] = ()
    queued_ns: Later[tuple[int | None, ...]] = ()
    system_cpu_ns: Later[tuple[int | None, ...]] = ()
    minor_faults: Later[tuple[int | None, ...]] = ()
    batches: Later[tuple[int | None, ...]] = ()
    gc_ns: Later[tuple[Written[int], ...]] = ()
    host_call_ns: Later[tuple[Written[int], ...]] = ()
    backwards: Later[tuple[int | None, ...]] = ()
    samples: Later[tuple[int | None, ...]] = ()

    @property
    def timed_ns(self) -> tuple[int, ...]:
        """The steps that were timed; empty where none was."""
        return tuple(ns for ns in self.step_ns if ns)

    @property
    def median_ns(self) -> int | None:
        """The median step; None where no step was timed."""
        return round(median(self.timed_ns)) if self.timed_ns else None


class BaseSteps(WindowSteps):
    """The steps of the base window, which ran without a profiler, right before the timing window.

    Attributes:
        loader_wait_ns: Of each of these steps, the wait in DataLoader.__next__.
    """

    loader_wait_ns: tuple[Written[int], ...] = ()


class ProgramFolders(CapturedPart):
    """Where the program lies and where it runs: reports name files relative to that."""

    folder: Later[str | None] = None
    working_directory: Later[str | None] = None


class RecordedWindow(CapturedPart):
    """A recorded window."""

    steps: Written[int] = None
    complete: Written[bool] = None
    file: str | None = None
    first_step: int | None = None


class RecordedWindows(CapturedPart):
    """The recorded windows."""

    timing: Later[RecordedWindow] = RecordedWindow()
    evidence: Later[RecordedWindow] = RecordedWindow()


class WholeRun(CapturedPart):
    """The whole run, recorded or not.

    Attributes:
        median_ns: Of the steps without a profiler.
        seen_ns: From the first step to the end.
        unprofiled_steps: Steps without a profiler, after the warm-up of the program.
        unprofiled_ns: How long these took together.
        unrecorded: Sentences on what was not seen.
    """

    steps: Written[int] = None
    median_ns: int | None = None
    seen_ns: Written[int] = None
    unprofiled_steps: Later[Written[int]] = None
    unprofiled_ns: Later[Written[int]] = None
    unrecorded: tuple[str, ...] = ()


class TraceWriting(CapturedPart):
    """What the recorder wrote, and how long the program waited for it."""

    events: Written[int] = None
    ns: Written[int] = None


class MixedPrecisionCalls(CapturedPart):
    """How often mixed precision was used, and gradients were clipped.

    Attributes:
        clipped_before_unscale: How often gradients were clipped while they were scaled.
        clip_location: The line that clipped scaled gradients last.
        scaler_steps: Calls of GradScaler.step.
        scale_was_read: Calls of GradScaler.get_scale: who makes them may unscale without the scaler.
    """

    autocast: Written[int] = None
    scaled: Written[int] = None
    unscaled: Written[int] = None
    clipped: Written[int] = None
    clipped_before_unscale: Written[int] = None
    clip_location: Later[OrNull[CapturedLine]] = CapturedLine()
    scaler_steps: Later[Written[int]] = None
    scale_was_read: Later[Written[int]] = None


class CollectorFacts(CapturedPart):
    """Python's garbage collector; run.unprofiled_steps says of how many steps.

    Attributes:
        enabled: Whether Python collects by itself.
        frozen: Objects that gc.freeze has taken from it.
        collect_calls: Calls of gc.collect in steps without a profiler.
        collect_steps: In how many of these steps there was one.
        collect_step_ns: How long these steps took.
        collect_largest_step_ns: The most that the calls of a step took.
        location: The line that calls gc.collect for longest.
        collections: Automatic collections of the oldest generation in steps without a profiler.
        collection_steps: In how many of these steps there was one.
        collection_step_ns: How long these steps took.
    """

    enabled: Later[Written[bool]] = None
    frozen: Later[Written[int]] = None
    collect_calls: Later[Written[int]] = None
    collect_ns: Later[Written[int]] = None
    collect_steps: Later[Written[int]] = None
    collect_step_ns: Later[Written[int]] = None
    collect_largest_step_ns: Later[Written[int]] = None
    location: Later[OrNull[CapturedLine]] = CapturedLine()
    collections: Later[Written[int]] = None
    collections_ns: Later[Written[int]] = None
    collection_steps: Later[Written[int]] = None
    collection_step_ns: Later[Written[int]] = None
    collection_largest_step_ns: Later[Written[int]] = None


class HostCall(CapturedPart):
    """Calls at one line that keep the training thread waiting for a disk, or copy a model.

    Attributes:
        bytes: Size of the files that were saved.
        steps: In how many steps there was one.
        step_ns: How long these steps took.
        largest_step_ns: The most that the calls of a step took.
        copied: What the first copy there was of: "model", "state" of one, or the type and size of something else.
        checksum: Size and checksum of the largest tensor in the first file saved there, in jobs of several ranks.
    """

    call: Written[Literal["torch.save", "os.fsync", "os.fdatasync", "copy.deepcopy"]] = None
    location: Later[OrNull[CapturedLine]] = CapturedLine()
    count: Written[int] = None
    ns: Written[int] = None
    bytes: Later[int | None] = None
    steps: Written[int] = None
    step_ns: Later[Written[int]] = None
    largest_step_ns: Later[Written[int]] = None
    checksum: Later[str | None] = None
    copied: Later[str | None] = None


class CompiledInWindow(CapturedPart):
    """What was compiled in the steps of a window."""

    frames: Written[int] = None
    ns: Written[int] = None


class CompileFacts(CapturedPart):
    """Counters of dynamo.

    Attributes:
        break_reasons: How often dynamo broke a graph, by the first line of its reason.
        break_lines: Lines after which it goes on with a new graph.
        frames: How often a frame was compiled, the first time included.
        recompiles: How often one was compiled again.
        windows: What was compiled in the steps of each window, by its label in steps.jsonl.
    """

    graphs: Written[int] = None
    graph_breaks: Written[int] = None
    break_reasons: Later[Mapping[str, int]] = NOTHING
    break_lines: Later[tuple[OrNull[CapturedLine], ...]] = ()
    frames: int | None = None
    recompiles: int | None = None
    ns: int | None = None
    windows: Mapping[str, CompiledInWindow] = NOTHING


class Float64Source(CapturedPart):
    """A line that asks for float64 by name."""

    call: Written[Literal["Module.double", "Module.to", "set_default_dtype"]] = None
    location: OrNull[CapturedLine] = CapturedLine()


class TorchFlags(CapturedPart):
    """Flags of torch.

    Attributes:
        fill_uninitialized_memory: Whether deterministic algorithms also fill each new tensor; null where this torch
            cannot.
    """

    cudnn_benchmark: Written[bool] = None
    cudnn_allow_tf32: bool | None = None
    matmul_allow_tf32: bool | None = None
    float32_matmul_precision: str | None = None
    cudnn_deterministic: Later[Written[bool]] = None
    fill_uninitialized_memory: Later[bool | None] = None
    deterministic_algorithms: Written[bool] = None
    anomaly_detection: Written[bool] = None
    default_dtype: Written[str] = None


class DebugSwitch(CapturedPart):
    """A switch for debugging that was on in some step.

    Attributes:
        steps: In how many steps it was on.
        of_steps: Of how many that ended.
        step_ns: Mean time of its calls in a step without a profiler: of anomaly detection, formatting a stack for each
            node of the graph; null is not measured.
        location: The line that turned it on.
    """

    switch: Written[Literal["anomaly detection", "profiler", "emit_nvtx", "gradcheck", "deterministic algorithms"]] = (
        None
    )
    steps: Written[int] = None
    of_steps: Written[int] = None
    step_ns: int | None = None
    location: OrNull[CapturedLine] = CapturedLine()


class KeptGraphs(CapturedPart):
    """Small tensors with a graph, such as losses.

    Attributes:
        tensors: Live tensors of 16 elements at most that have a graph.
        chain: Longest chain of additions at the end of one of them.
    """

    step: Written[int] = None
    tensors: Written[int] = None
    chain: Written[int] = None


class RetainedGraphs(CapturedPart):
    """Small tensors with a graph before the first window and after the last one."""

    first: KeptGraphs = KeptGraphs()
    last: KeptGraphs = KeptGraphs()


class CpuFacts(CapturedPart):
    """Cores and threads.

    Attributes:
        affinity: Cores that the process may use.
        threads_set: The line that called torch.set_num_threads last.
        bfloat16: Whether the CPU has instructions for products in bfloat16; None where the system does not say.
    """

    count: int | None = None
    affinity: int | None = None
    torch_threads: Written[int] = None
    interop_threads: Written[int] = None
    omp_num_threads: str | None = None
    mkl_num_threads: str | None = None
    numa_nodes: int | None = None
    threads_set: OrNull[CapturedLine] = CapturedLine()
    bfloat16: Later[bool | None] = None


class CoreUse(CapturedPart):
    """How many cores there are, and who used them.

    Attributes:
        available: Cores that the process may use, by affinity and control groups.
        training: Cores that the process used in the base window: CPU time / wall time.
        workers: The same of its worker processes while they loaded.
        others: The same of other programs.
        local_ranks: Ranks of the job on this machine, as the launcher says it or as the program has spawned them.
        throttled: Cores on which the quota of a control group stopped the process in the base window, on average; null
            without a quota.
        queued: Threads of the process that could have run in the base window and had no core, on average.
    """

    available: Amount | None = None
    training: Amount | None = None
    workers: Amount | None = None
    others: Amount | None = None
    local_ranks: int | None = None
    throttled: Later[Amount | None] = None
    queued: Later[Amount | None] = None


class LoadedLibraries(CapturedPart):
    """Libraries of the host that the process has loaded."""

    allocators: Written[tuple[str, ...]] = None
    openmp: Written[tuple[str, ...]] = None


class CheckpointingFacts(CapturedPart):
    """torch.utils.checkpoint.checkpoint, as called in forward passes that record a graph.

    Attributes:
        calls: In the whole run so far.
        calls_per_step: Median over the steps of the base window.
        use_reentrant: As the program passes it.
        location: The line that calls it most often.
    """

    calls: Written[int] = None
    calls_per_step: Amount | None = None
    use_reentrant: bool | None = None
    preserve_rng_state: bool | None = None
    location: OrNull[CapturedLine] = CapturedLine()


class CapturedFacts(CapturedPart):
    """What perfdoctor run knows besides the trace: an allow-list. Times are nanoseconds; null is unknown.

    Attributes:
        program: Where the program lies and where it runs: reports name files relative to that.
        script: Name of the script without its folder; never its arguments.
        exit: How the recording ended: running, recorded, stopped, exit, os._exit, SIGTERM, session, exception, failed.
        step_source: What marked the end of steps.
        recorder_worked: Steps before which the recorder of any rank of the job has worked, so that others waited for
            it. Empty where there is one rank.
        run: The whole run, recorded or not.
        trace_writing: What the recorder wrote, and how long the program waited for it.
        models: null before they were looked for.
        parameter_checksums: In a job of several ranks: checksums of the parameters before some steps, for a comparison
            of the ranks.
        zero_grad_to_zero: Calls of zero_grad(set_to_none=False).
        collector: Python's garbage collector; run.unprofiled_steps says of how many steps.
        host_calls: Calls that keep the training thread waiting for a disk, or copy a model, by line, in steps without a
            profiler. A call inside another one belongs to that one. copy.deepcopy: of modules and dictionaries.
        compile: Dynamo's counters; null when the program never loaded it.
        float64_sources: The lines that ask for float64 by name, each once.
        flags: As the facts were written: at the end of the run, in most programs.
        debug_switches: Switches for debugging that were on in any step.
        retained: Small tensors with a graph, such as losses, before the first window and after the last one; null where
            there was one look at most.
        unused_gradients: What the program made and dropped in the evidence window.
        needed_rows: Calls of modules in the evidence window that computed rows in vain.
        forms: Other forms of the dearest calls, measured after the program has ended; see `perfdoctor measure`.
        flags_by_window: The flags as each window began: programs and trainers set some in a block, and clear them at
            its end.
        environment: Switches that are set, of the list in environment_facts.py; of LD_PRELOAD the base names of its
            files.
        devices: Empty when the program has not initialised CUDA.
        cuda_memory: Allocator statistics of the current device, by torch's names.
        checkpointing: torch.utils.checkpoint.checkpoint, as called in forward passes that record a graph.
        nvml: null when the program has not initialised CUDA.
    """

    schema: Written[Literal["perfdoctor.facts/1"]] = None
    rank: Written[int] = None
    world_size: Written[Positive] = None
    pid: Written[int] = None
    program: Later[ProgramFolders] = ProgramFolders()
    script: str | None = None
    python: Written[str] = None
    torch: Written[str] = None
    exit: Written[str] = None
    steps_seen: Written[int] = None
    step_source: Literal["loader", "zero_grad", "backward", "optimizer", "gradient", "forward", "session"] | None = None
    windows: RecordedWindows = RecordedWindows()
    recorder_worked: Later[tuple[int, ...]] = ()
    base: Flat[BaseSteps] = BaseSteps()
    timing: Flat[WindowSteps] = WindowSteps()
    evidence: Flat[WindowSteps] = WindowSteps()
    run: Later[WholeRun] = WholeRun()
    trace_writing: Later[TraceWriting] = TraceWriting()
    loaders: tuple[LoaderFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    models: OrNull[tuple[ModelFacts, ...]] = ()
    parameter_checksums: Later[tuple[ParameterChecksums, ...]] = ()
    amp: MixedPrecisionCalls = MixedPrecisionCalls()
    zero_grad_to_zero: Written[int] = None
    collector: Later[CollectorFacts] = CollectorFacts()
    host_calls: Later[Written[tuple[HostCall, ...]]] = None
    compile: OrNull[CompileFacts] = CompileFacts()
    float64_sources: Later[tuple[Float64Source, ...]] = ()
    flags: TorchFlags = TorchFlags()
    debug_switches: Later[tuple[DebugSwitch, ...]] = ()
    retained: Later[OrNull[RetainedGraphs]] = RetainedGraphs()
    unused_gradients: Later[tuple[UnusedGradients, ...]] = ()
    needed_rows: Later[tuple[NeededRows, ...]] = ()
    forms: Later[tuple[MeasuredForm, ...]] = ()
    flags_by_window: Later[Mapping[Literal["base", "timing", "evidence"], TorchFlags]] = NOTHING
    environment: Later[Mapping[str, Annotated[str, ("maxLength", 120)]]] = NOTHING
    cpu: CpuFacts = CpuFacts()
    cores: CoreUse = CoreUse()
    libraries: OrNull[LoadedLibraries] = LoadedLibraries()
    devices: tuple[GpuFacts, ...] = ()
    cuda_memory: OrNull[Mapping[str, int]] = NOTHING
    memory: Later[MemoryFacts] = MemoryFacts()
    checkpointing: Later[CheckpointingFacts] = CheckpointingFacts()
    nvml: OrNull[NvmlFacts] = NvmlFacts()
    notes: tuple[str, ...] = ()

    @property
    def ddp(self) -> DdpSettings:
        """The settings of DistributedDataParallel of the first model that it wraps."""
        return next((model.ddp for model in self.models if model.ddp), DdpSettings())

    @property
    def fsdp(self) -> FsdpSettings:
        """The settings of FSDP of the first model that it shards."""
        return next((model.fsdp for model in self.models if model.fsdp), FsdpSettings())

    @property
    def main_loader(self) -> LoaderFacts:
        """What is known of the DataLoader that the loop waited for longest."""
        return max(self.loaders, key=lambda loader: loader.wait_ns or 0, default=LoaderFacts())


NO_FACTS = CapturedFacts()
"""Nothing was captured."""
