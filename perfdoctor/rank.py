"""Rank: one process of a job with all facts derived from its trace, each computed once, at its first use.

Only this file knows all facts. Functions of `perfdoctor.analysis` compute each of them from explicit inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from perfdoctor.analysis.captured_facts import RunSteps
from perfdoctor.analysis.communication.collectives import CollectiveTable, collectives_of
from perfdoctor.analysis.context.context import Context, context_of
from perfdoctor.analysis.context.where_it_ran import DeviceKind, WhereItRan, find_where_it_ran
from perfdoctor.analysis.core_contention import CoreContention, find_contention
from perfdoctor.analysis.device_work import device_work_of
from perfdoctor.analysis.forward_ops import ForwardOps, forward_ops_of
from perfdoctor.analysis.host.host_copies import pinned_bytes_per_s
from perfdoctor.analysis.host.loader_waits import LoaderWaits, find_worker_starts, find_worker_startups, loader_waits_of
from perfdoctor.analysis.host.locations import SourceLocation, captured_location, has_locations, loop_thread_of
from perfdoctor.analysis.host.module_tree import ModuleTree, module_tree_of
from perfdoctor.analysis.kernels.device_scaling import scaling_of_items, split_by_scaling
from perfdoctor.analysis.kernels.flops_utilization import NO_UTILIZATION, flops_utilization, step_flops
from perfdoctor.analysis.kernels.hardware import Hardware, hardware_of
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses, half_precision_share, kernel_classes_of
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts, kernel_costs_of
from perfdoctor.analysis.kernels.launch_bounds import achieved_bytes_per_s, launch_bounds_of
from perfdoctor.analysis.kernels.roof_classes import (
    MIN_ROOF_SHARE,
    RoofShares,
    bucket_roofs_of,
    roof_classes_of,
    roof_shares_of,
)
from perfdoctor.analysis.kernels.step_limit import NO_LIMIT, StepLimit, step_limit_of
from perfdoctor.analysis.kernels.tensor_core_verdicts import TensorCoreVerdicts, verdicts_of
from perfdoctor.analysis.kernels.traffic_kinds import TrafficKinds, traffic_kinds_of
from perfdoctor.analysis.queries import CallQuery, GpuQuery, OpQuery, QueryFacts
from perfdoctor.analysis.step_breakdown import (
    StepBreakdown,
    break_down_cpu_steps,
    break_down_gpu_steps,
    complete_with_evidence,
    count_matrix_work,
)
from perfdoctor.analysis.step_times import (
    comparable_unprofiled_ns,
    comparable_unprofiled_steps,
    compare_windows,
    describe_sample,
)
from perfdoctor.analysis.timeline.account import (
    Account,
    account_of,
    cpu_layers,
    gpu_layers,
    gpu_rows_by_detail,
    layers_without_gpu_events,
    mean_per_step,
    tensor_core_use,
)
from perfdoctor.analysis.timeline.clock_shift import ClockShift, clock_shift_of, shift_gpu_clock
from perfdoctor.analysis.timeline.cpu_waits import cpu_wait_ns, cpu_waits_of
from perfdoctor.analysis.timeline.engine_passes import EnginePasses, find_engine_passes
from perfdoctor.analysis.timeline.first_use import FirstUse, find_first_use, leave_out
from perfdoctor.analysis.timeline.idle_gaps import IdleGaps, find_idle_gaps, idle_cause_layers
from perfdoctor.analysis.timeline.idle_pieces import IdleInstants, IdlePieces, idle_instants_of, idle_pieces_of
from perfdoctor.analysis.timeline.own_time import GpuLabels, label_gpu_items
from perfdoctor.analysis.timeline.pauses import PauseGroup, find_pauses, pause_threshold_ns
from perfdoctor.analysis.timeline.phases import cpu_phases, gpu_phases
from perfdoctor.analysis.timeline.queue_stalls import StallCause, is_subsampled
from perfdoctor.analysis.timeline.recurrence import split_one_offs
from perfdoctor.analysis.timeline.starvation import Starvation, find_starvation
from perfdoctor.analysis.timeline.timeline import Timeline, timeline_of
from perfdoctor.facts.captured import NO_FACTS, CapturedFacts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import Device
from perfdoctor.gpu.roofline.kernel_bounds import LATENCY, KernelBounds
from perfdoctor.memory.allocator_replay import AllocatorReplay
from perfdoctor.memory.device_memory import DeviceMemory, memory_of_devices
from perfdoctor.places.account_by_place import PlaceAccount
from perfdoctor.places.ops_at_lines import OpAtLine, find_ops_at_lines
from perfdoctor.places.pieces import cut_cpu_window, cut_gpu_window, find_recorder_time
from perfdoctor.places.placed_window import PlacedWindow, place_window
from perfdoctor.places.worker_waits import shares_of_workers
from perfdoctor.report.memory_summary import MemorySummary, summarize_memory
from perfdoctor.report.pass_summary import PassSummary, summarize_passes
from perfdoctor.run_watch.run_drift import RunDrift, find_run_drift
from perfdoctor.run_watch.run_series import RunMark, RunSeries, marks_of_run, run_series_of
from perfdoctor.run_watch.window_growth import LineShare, WindowGrowth, compare_early_with_late
from perfdoctor.savings.edits import Edit, remove_cause
from perfdoctor.savings.saving_bounds import SavingBounds
from perfdoctor.savings.unprofiled_time import UnprofiledTime, unprofiled_time_of
from perfdoctor.savings.what_if import Replay, replay_of
from perfdoctor.trace.arrays import BoolArray, Int8Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, MEMCPY, Trace
from perfdoctor.trace.tables.steps import Steps, find_steps


@frozen_dataclass
class Rank:
    """One rank: the trace with aligned clocks of CPU and GPU, the device, the steps, the account, facts about kernels.

    Attributes:
        raw_trace: The trace as it was read.
        device_name: The name of the device, if the user gave one.
        step_slice: Which steps to analyse.
        facts: What was captured beside the trace; false without a capture.
        evidence_trace: The evidence window of a capture, with stacks and shapes; None without one.
        run_steps: The steps of the whole run that a capture timed without a profiler; None without any.
        min_roof_share: The share (0 to 1) of a roof from which on a kernel counts as bound by it in the account that
            is short, or leaves most multiprocessors empty.
        early: The first windows of a run whose steps have changed since, by themselves; None without.
        snapshot: The snapshot of CUDA's allocator that a capture took, by itself; None without one.
    """

    raw_trace: Trace
    device_name: str | None = None
    step_slice: slice = field(default_factory=lambda: slice(None))
    facts: CapturedFacts = NO_FACTS
    evidence_trace: Trace | None = field(default=None, repr=False)
    run_steps: RunSteps | None = field(default=None, repr=False)
    min_roof_share: float = MIN_ROOF_SHARE
    early: Rank | None = field(default=None, repr=False)
    snapshot: Rank | None = field(default=None, repr=False)

    # --- the trace and its time -----------------------------------------------------------------------------------

    @property
    def rank(self) -> int | None:
        """The number of the rank; None where the trace does not name it."""
        return self.raw_trace.rank

    def renumber(self, rank: int, note: str) -> Rank:
        """The same rank with another number; `note` joins its warnings."""
        trace = self.raw_trace
        return replace(self, raw_trace=replace(trace, rank=rank, warnings=(*trace.warnings, note)))

    @cached_property
    def evidence(self) -> Rank | None:
        """The evidence window of a capture as a rank, for what only that recorded; None without one."""
        trace = self.evidence_trace
        return None if trace is None else Rank(trace, self.device_name, min_roof_share=self.min_roof_share)

    @cached_property
    def clock_shift(self) -> ClockShift:
        """The shift of GPU times after which no kernel starts before its launch, and whether one shift suffices."""
        return clock_shift_of(self.raw_trace)

    @cached_property
    def trace(self) -> Trace:
        """The trace with GPU times shifted by `clock_shift`."""
        return shift_gpu_clock(self.raw_trace, self.clock_shift)

    @cached_property
    def where_it_ran(self) -> WhereItRan:
        """Where the work of the recording ran, and by what that is known."""
        return find_where_it_ran(self.raw_trace, self._recorded_steps.intervals, self._loading)

    @property
    def device_kind(self) -> DeviceKind:
        """What the program ran on: a GPU, the CPU, or a GPU whose items were not recorded, as in a snapshot."""
        return "gpu_not_recorded" if self.raw_trace.memory_ends else self.where_it_ran.device_kind

    @cached_property
    def steps(self) -> Steps:
        """The analysed steps: without the cold ones at the beginning, unless the user chose which."""
        return self._all_steps.select(self.step_slice)

    @cached_property
    def _all_steps(self) -> Steps:
        return leave_out(self._recorded_steps, self.first_use)

    @cached_property
    def _recorded_steps(self) -> Steps:
        return find_steps(self.trace)

    @cached_property
    def first_use(self) -> FirstUse:
        """What happens once in the recording, and what is left without it."""
        found = find_first_use(self.trace, self._recorded_steps, self.recorded_window)
        is_chosen = self.step_slice != slice(None)
        return found.keep_cold_steps(self._recorded_steps) if is_chosen else found

    @cached_property
    def recorded_window(self) -> Intervals:
        """The steps; without steps the span of the GPU items; without those that of all events."""
        if self._recorded_steps.count:
            return self._recorded_steps.window
        if self.device_kind == "gpu":
            return iv.window(int(self.trace.gpu.start_ns.min()), int(self.trace.gpu.end_ns.max()))
        return iv.window(*self.trace.extent_ns)

    @cached_property
    def window(self) -> Intervals:
        """The analysed time: the steps, without them `recorded_window`; in both what happens once is left out."""
        return self.steps.window if self.steps.count else self.first_use.window

    @cached_property
    def window_ns(self) -> int:
        """Length of the analysed window."""
        return iv.total(self.window)

    @cached_property
    def in_window(self) -> BoolArray:
        """For each GPU item whether it starts in the window; read-only."""
        result = iv.contains(self.window, self.trace.gpu.start_ns)
        result.flags.writeable = False
        return result

    def time_in_window(self, rows: BoolArray | Int64Array) -> Intervals:
        """The union of some GPU items, clipped to the window."""
        gpu = self.trace.gpu
        return iv.intersect(iv.union(gpu.start_ns[rows], gpu.end_ns[rows]), self.window)

    def per_step(self, window_ns: int) -> int:
        """Recorded time in the window as time per step, without the profiler; of the window when there are no steps."""
        return round(mean_per_step(window_ns, self.steps.count, self.time_scale))

    def in_window_ns(self, step_ns: int) -> int:
        """Time per step as recorded time in the window, the inverse of `per_step`; no more than there is."""
        return min(round(step_ns * max(self.steps.count, 1) / (self.time_scale or 1)), self.window_ns)

    @property
    def mean_step_ns(self) -> int:
        """The analysed window as time per step."""
        return self.per_step(self.window_ns)

    @cached_property
    def usual_step_ns(self) -> int:
        """The median step where that is shorter than the mean one: without what a slow step adds."""
        median_ns = self.steps.median_ns
        return self.mean_step_ns if not median_ns else min(self.mean_step_ns, self.to_unprofiled_ns(median_ns))

    def count_per_step(self, count: int) -> int:
        """A number of events or bytes in the window as the number per step; of the window when there are no steps."""
        return round(mean_per_step(count, self.steps.count))

    def to_unprofiled_ns(self, recorded_ns: float) -> int:
        """The length of something in one step, as it is without the profiler: what users are shown."""
        return round(recorded_ns / (self.profiler_factor or 1))

    def share(self, per_step_ns: int) -> float | None:
        """An amount per step as a share (0 to 1) of the step; None when the window is empty."""
        whole = self.mean_step_ns
        return min(per_step_ns / whole, 1.0) if whole else None

    @property
    def unit_name(self) -> str:
        """The unit of amounts `per_step`, for sentences: "step", or "trace" when there are no steps."""
        return "step" if self.steps.count else "trace"

    @property
    def per_unit(self) -> str:
        """What stands behind a count of one unit: "a step", or "in the recording" where there are no steps."""
        return "a step" if self.steps.count else "in the recording"

    @cached_property
    def available_data(self) -> frozenset[str]:
        """Which of `perfdoctor.rules.REQUIREMENTS` this rank meets; whether there are several "ranks" the job knows."""
        trace, evidence = self.raw_trace, self.evidence_trace
        # A few copies or kernels beside the work of the CPU are not what rules about a GPU judge.
        on_cpu, on_gpu = self.device_kind == "cpu", self.device_kind == "gpu"
        kernels = on_gpu and bool((trace.gpu.kind == KERNEL).any())
        launches = on_gpu and bool((trace.gpu.call >= 0).any())
        has = {
            "gpu_items": on_gpu,
            "kernels": kernels,
            "work": kernels or on_cpu,
            "work_items": on_gpu or on_cpu,
            "cpu": bool(len(trace.ops) or len(trace.ranges) or len(trace.calls)),
            "launches": launches,
            "work_launches": launches or (on_cpu and bool(len(trace.ops))),
            "steps": self.steps.count > 0,
            "shapes": bool((trace.ops.dims >= 0).any()),
            "stacks": bool(len(trace.frames)) or (evidence is not None and bool(len(evidence.frames))),
            "facts": bool(self.facts),
            "nvml": bool(self.facts.nvml.devices),
            "memory": self.memory_source is not None or bool(self.facts.memory.out_of_memory.error),
        }
        return frozenset(name for name, available in has.items() if available)

    @cached_property
    def context(self) -> Context:
        """What program this is: its phase, frameworks, parallelism, and whether it runs steadily."""
        shift = self.clock_shift
        return context_of(
            self.kernel_classes,
            self.traffic.is_compiled,
            self.in_window,
            self.steps,
            self.window,
            self.first_use,
            drift_ns=0 if shift.consistent else shift.needed_ns - shift.shift_ns,
            facts=self.facts,
        )

    # --- queries (`perfdoctor.analysis.queries`) --------------------------------------------------------------------

    @cached_property
    def _query_facts(self) -> QueryFacts:
        return QueryFacts(self.trace, self.window, self.kernel_classes, lambda: self.places)

    @property
    def kernels(self) -> GpuQuery:
        """All kernels of the trace."""
        return GpuQuery(self._query_facts, self.trace.gpu.kind == KERNEL)

    @property
    def copies(self) -> GpuQuery:
        """All copies of the trace."""
        return GpuQuery(self._query_facts, self.trace.gpu.kind == MEMCPY)

    @property
    def calls(self) -> CallQuery:
        """All runtime and driver calls of the trace."""
        return CallQuery(self._query_facts, np.ones(len(self.trace.calls), bool))

    @property
    def ops(self) -> OpQuery:
        """All operators of the trace."""
        return OpQuery(self._query_facts, np.ones(len(self.trace.ops), bool))

    # --- kernels --------------------------------------------------------------------------------------------------

    @cached_property
    def kernel_classes(self) -> KernelClasses:
        """The class of each kernel."""
        return kernel_classes_of(self.trace)

    @cached_property
    def hardware(self) -> Hardware:
        """The device: by the user's name for it, else by what the trace says."""
        return hardware_of(self.raw_trace, self.kernel_classes, self.device_name)

    @property
    def device(self) -> Device | None:
        """Peaks and bandwidths of the device; None when it is not in our table."""
        return self.hardware.device

    @cached_property
    def kernel_costs(self) -> KernelCosts:
        """FLOPs and bytes of each GPU item, from the recorded inputs of the ops that launched them."""
        return kernel_costs_of(self.trace, self.kernel_classes)

    @cached_property
    def verdicts(self) -> TensorCoreVerdicts:
        """Whether each GPU item used Tensor Cores, and how that is known."""
        return verdicts_of(self.kernel_classes, self.kernel_costs, self.hardware)

    @cached_property
    def bounds(self) -> KernelBounds:
        """The bound of each GPU item by the roofline: compute, bandwidth or latency."""
        return launch_bounds_of(self.kernel_classes, self.kernel_costs, self.verdicts, self.hardware)

    @cached_property
    def roof_classes(self) -> Int8Array:
        """What binds each GPU item, as the account splits kernels: COMPUTE, BANDWIDTH, LATENCY; -1 for none.

        `bounds` says the same of single launches, without `min_roof_share`, and whether they are inefficient.
        """
        return roof_classes_of(self.bounds, self.roof_shares, self.min_roof_share)

    @cached_property
    def roof_shares(self) -> RoofShares:
        """The roof of each GPU item, and the share of it that the item reaches."""
        return roof_shares_of(self.kernel_classes, self.kernel_costs, self.bounds)

    @cached_property
    def scaling(self) -> Int8Array:
        """What the time of each GPU item scales with on another device, an index into SCALES_WITH."""
        return scaling_of_items(self.kernel_classes, self.kernel_costs, self.verdicts, self.roof_classes)

    @cached_property
    def time_by_scaling(self) -> Mapping[str, int]:
        """The window by what its time scales with on another device, in ns by name of SCALES_WITH."""
        return split_by_scaling(self.kernel_classes, self.scaling, self.account.parts)

    @cached_property
    def traffic(self) -> TrafficKinds:
        """Why each memory-bound GPU item moves data: optimizer, layout copies, casts, pointwise work."""
        return traffic_kinds_of(self.kernel_classes, self.in_window)

    @cached_property
    def step_flops(self) -> tuple[int, ...]:
        """FLOPs of matrix maths in each step, for comparisons of ranks; empty where unknown.

        Where only the evidence window has shapes they are those of its steps.
        """
        if (self.trace.ops.dims >= 0).any():
            return step_flops(self.trace, self.steps)
        evidence = self.evidence_trace
        if evidence is not None and (evidence.ops.dims >= 0).any():
            return step_flops(evidence, find_steps(evidence))
        return ()

    @cached_property
    def half_precision_share(self) -> float | None:
        """The share (0 to 1) of the time of matrix kernels that multiply in half precision; None without any."""
        return half_precision_share(self.kernel_classes, self.in_window)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the figures: kernel rules that the trace contradicts, rates that were measured, the sample."""
        notes = [str(violation) for violation in self.verdicts.violations]
        notes += describe_sample(self.facts, self.run_steps)
        if self.device is not None and self.device.measured_on is not None:
            notes.append(
                f"rates of {self.device.name} as `perfdoctor calibrate` measured them on {self.device.measured_on}"
            )
        return tuple(notes)

    @cached_property
    def contention(self) -> CoreContention:
        """What other programs took of the cores that this one asked for."""
        return find_contention(self.facts, self.run_steps)

    # --- the whole run --------------------------------------------------------------------------------------------

    @cached_property
    def drift(self) -> RunDrift | None:
        """The drift of the steps of the whole run; None where they do not get longer, or where nobody timed them."""
        return None if self.run_steps is None else find_run_drift(self.run_steps)

    @property
    def run_series(self) -> RunSeries | None:
        """The steps of the whole run as a line; None where too few were timed."""
        return run_series_of(self.run_steps, self.drift)

    @property
    def run_marks(self) -> tuple[RunMark, ...]:
        """What happened where on that line: windows, epochs, evaluations, checkpoints, drift."""
        if self.run_steps is None:
            return ()
        early = None if self.early is None or self.growth is None else self.early.facts
        return marks_of_run(self.run_steps, self.drift, self.facts, early)

    @cached_property
    def growth(self) -> WindowGrowth | None:
        """What the step has more of than in the first windows of the run; None where these were not kept."""
        early, late = self.early, self.facts.windows.timing.first_step
        if early is None or early.facts.windows.timing.first_step == late:  # the program ended before a late window
            return None
        lines, ops_at_lines = (early.shares_of_lines, self.shares_of_lines), (early.ops_at_lines, self.ops_at_lines)
        return compare_early_with_late(early.breakdown, self.breakdown, lines, ops_at_lines)

    @property
    def ops_at_lines(self) -> tuple[OpAtLine, ...]:
        """The ops of a step at the lines that call them, with the sizes of their inputs."""
        source = self.evidence or self
        steps = source.steps.intervals if source.steps.count else source.window
        return find_ops_at_lines(source.trace, steps, source.loader_waits.intervals, on_gpu=source.device_kind == "gpu")

    @property
    def shares_of_lines(self) -> tuple[LineShare, ...]:
        """The lines of the user's code with what each takes of the step."""
        return tuple(
            LineShare(row.name.location, row.share) for row in self.places.rows() if row.name.location and row.share
        )

    # --- the CPU --------------------------------------------------------------------------------------------------

    @cached_property
    def loader_waits(self) -> LoaderWaits:
        """The calls of a DataLoader's `__next__`, in which the loop waits for its batch."""
        return loader_waits_of(self.trace)

    @cached_property
    def worker_startups(self) -> BoolArray:
        """For each of `loader_waits` whether it is the first of an epoch, in which workers start."""
        return find_worker_startups(self.trace, self.loader_waits)

    @cached_property
    def launching_thread(self) -> int:
        """The thread that launched the most GPU items (-1 without launches): usually the training loop's.

        Of several threads with as many it is the one that called first, whatever the order of the file.
        """
        calls, threads = self.trace.calls, self.trace.threads
        numbers, counts = np.unique(calls.thread[self.trace.gpu.call[self.trace.gpu.call >= 0]], return_counts=True)
        busiest = numbers[counts == counts.max(initial=0)].tolist()
        first_ns = {number: calls.start_ns[calls.thread == number].min() for number in busiest}
        return min(busiest, key=lambda number: (first_ns[number], threads[number]), default=-1)

    @cached_property
    def _loading(self) -> Intervals:
        """When a loop waits for its DataLoader, or the loader starts workers."""
        return iv.union_of((self.loader_waits.intervals, find_worker_starts(self.trace)))

    @cached_property
    def profiler_factor(self) -> float | None:
        """The median recorded step over the median step without the profiler; None where nobody timed such steps.

        All figures that users read are of the step without the profiler. `per_step` and `to_unprofiled_ns` convert
        them, and code without a Rank uses its `time_scale`.
        """
        unprofiled_ns, recorded_ns = comparable_unprofiled_ns(self.facts, self.run_steps), self._all_steps.median_ns
        return recorded_ns / unprofiled_ns if unprofiled_ns and recorded_ns else None

    @cached_property
    def time_scale(self) -> float:
        """What recorded time in the window becomes; 1 where the profiler's part is not known.

        It makes the mean recorded step as long as the median one without the profiler: a few steps in which the machine
        did something else are no part of the step that users have.
        """
        steps = self._all_steps
        if self.profiler_factor is None or steps.median_ns is None:
            return 1.0
        return steps.median_ns / self.profiler_factor / (iv.total(steps.window) / steps.count)

    @property
    def unprofiled_step_ns(self) -> int | None:
        """The length of a step without the profiler; None where nobody timed such steps."""
        return None if self.profiler_factor is None else self.mean_step_ns

    def unprofiled_time(self, time: Intervals) -> UnprofiledTime:
        """CPU time in the window, reduced by the overhead of the profiler."""
        base_steps_ns = comparable_unprofiled_steps(self.facts, self.run_steps)
        windows = compare_windows(self.facts, self.run_steps)
        recorded_ns = None if windows is None else windows.recorded_ns
        return unprofiled_time_of(
            self.trace, self.steps, self.window, time, base_steps_ns, self.time_scale, recorded_ns
        )

    # --- where the time went --------------------------------------------------------------------------------------

    @cached_property
    def timeline(self) -> Timeline:
        """GPU time over the whole trace."""
        return timeline_of(self.trace)

    @cached_property
    def gaps(self) -> IdleGaps:
        """The idle gaps between GPU items, each with what ended it."""
        return find_idle_gaps(self.trace)

    @cached_property
    def pause_threshold_ns(self) -> int:
        """From which length on a gap before a late launch is a pause, and no slow launch."""
        return pause_threshold_ns(self.trace, self.launching_thread, self.steps.median_ns or self.window_ns)

    @cached_property
    def pauses(self) -> tuple[PauseGroup, ...]:
        """The pauses by what the CPU did in them; empty where the file lacks most events."""
        idle = self.account.parts["idle_launch"]
        if self.is_subsampled or not len(idle):
            return ()
        return find_pauses(self.trace, self.gaps, idle, self.steps, self.window, self.pause_threshold_ns)

    @cached_property
    def one_offs(self) -> Intervals:
        """The idle time in the window of what happens once, which no step to come repeats."""
        waits, parts = self.loader_waits, self.account.parts
        startups = self.worker_startups
        starting = iv.intersect(iv.union(waits.start_ns[startups], waits.end_ns[startups]), parts["idle_dataloader"])
        allocating = split_one_offs(parts["idle_allocator"], self.steps).once
        return iv.union_of((starting, allocating, *(group.time for group in self.pauses if group.once)))

    @cached_property
    def account(self) -> Account:
        """The window by where its time went."""
        loading = self._loading
        utilization, bytes_per_s, roofs = NO_UTILIZATION, None, None
        if self.device_kind == "gpu":
            causes = idle_cause_layers(self.trace, self.gaps, loading, self.launching_thread)
            layers = gpu_layers(self.kernel_classes, self.roof_classes, causes)
            utilization = flops_utilization(
                self.kernel_classes,
                self.kernel_costs,
                self.verdicts,
                self.device,
                self.in_window,
                round(self.time_scale * self.window_ns),
            )
            bytes_per_s = achieved_bytes_per_s(
                self.trace.gpu.dur_ns, self.kernel_costs, self.roof_classes, self.in_window
            )
            roofs = bucket_roofs_of(self.trace.gpu.dur_ns, self.roof_shares, self.roof_classes, self.in_window)
        elif self.device_kind == "cpu":
            layers = cpu_layers(self.trace, loading)
        else:
            layers = layers_without_gpu_events(loading)
        return account_of(
            self.rank,
            self.window,
            layers,
            tensor_core_use(self.kernel_classes, self.verdicts, self.window),
            steps=self.steps,
            utilization=utilization,
            time_scale=self.time_scale,
            achieved_bytes_per_s=bytes_per_s,
            roofs=roofs,
        )

    @cached_property
    def limit(self) -> StepLimit:
        """How short a step can get: every kernel at its roof, and nothing waits."""
        if self.device_kind != "gpu":
            return NO_LIMIT
        return step_limit_of(
            self.kernel_classes,
            self.kernel_costs,
            self.verdicts,
            self.bounds,
            self.hardware,
            self.steps,
            self.window,
            self.exposed_parts["communication"],
            pinned_bytes_per_s(self.facts, self.device),
        )

    @cached_property
    def exposed_parts(self) -> Mapping[str, Intervals]:
        """The account's parts, but communication and copies only where no kernel computes beside them.

        The account gives an instant to communication or a copy before it gives it to a kernel of class latency; what a
        collective or a copy delays is only the time in which nothing computes.
        """
        parts = self.account.parts
        if self.device_kind != "gpu":
            return parts
        computing = self.time_in_window(self.roof_classes == LATENCY)
        exposed = {name: iv.subtract(parts[name], computing) for name in ("communication", "memcpy")}
        hidden = [iv.intersect(parts[name], computing) for name in exposed]
        return {**parts, **exposed, "latency": iv.union_of((parts["latency"], *hidden))}

    @cached_property
    def is_subsampled(self) -> bool:
        """Whether most events are missing from the file because somebody thinned it out."""
        return is_subsampled(self.raw_trace)

    @cached_property
    def missing_kernels(self) -> Intervals:
        """The unexplained idle time in which the GPU most likely ran kernels that are missing from the file.

        These are gaps in CUDA graphs of which only some kernels were recorded; in a subsampled file it is all
        unexplained idle time.
        """
        unexplained = self.account.parts["idle_unexplained"]
        if self.is_subsampled:
            return unexplained
        rows = self.gaps.stall == StallCause.MISSING_KERNELS
        return iv.intersect(iv.union(self.gaps.start_ns[rows], self.gaps.end_ns[rows]), unexplained)

    @cached_property
    def cpu_waits(self) -> Intervals:
        """When the CPU waited for the GPU, over the whole trace."""
        return cpu_waits_of(self.trace)

    @cached_property
    def cpu_wait_ns(self) -> int | None:
        """How long the CPU waited for the GPU in the window: the limit of what all faster kernels save together.

        None when the trace has no calls, because then nothing is known about the CPU.
        """
        if not len(self.trace.calls) or not len(self.window):
            return None
        return cpu_wait_ns(self.trace, self.cpu_waits, self.window)

    @cached_property
    def replay(self) -> Replay | None:
        """The replay of the trace, which computes what edits save; None where nothing or too little can be replayed."""
        if self.is_subsampled:
            return None
        once = iv.subtract(self.recorded_window, self.window)
        return replay_of(self.trace, self.steps, self.window, self.cpu_waits, self.unprofiled_step_ns, once=once)

    def counterfactual_cost_ns(self, edit: Edit) -> int | None:
        """What a cause costs: the step less its replay without it, alone; None where the replay cannot be trusted."""
        replay = self.replay
        if replay is None or replay.gates.reason is not None:
            return None
        return max(round(replay.step_ns() - replay.step_ns([(remove_cause(edit), 1.0)])), 0)

    @cached_property
    def saving_bounds(self) -> SavingBounds:
        """The most that a fix can save: the time of what it takes away, whatever a replay says."""
        return SavingBounds(self.trace, self.gaps, self.steps, self.window, self.cpu_waits, self.time_scale)

    @cached_property
    def starvation(self) -> Starvation:
        """The idle time before late launches, and what emptied the queue before it."""
        return find_starvation(self.trace, self.gaps, self.loader_waits.intervals, self.window)

    @cached_property
    def passes(self) -> EnginePasses | None:
        """The passes of an engine or a loop over its batch; None where the trace shows none."""
        return find_engine_passes(self.trace) if self.device_kind == "gpu" else None

    @property
    def engine_passes(self) -> EnginePasses | None:
        """The passes of a serving engine; None where the trace has no ranges of them."""
        return self.passes if self.passes is not None and self.passes.of_engine else None

    @cached_property
    def pass_summary(self) -> tuple[PassSummary, ...]:
        """What a report says of the passes; empty without any."""
        passes = self.passes
        if passes is None:
            return ()
        return summarize_passes(self.rank, passes, self.kernel_classes, self.bounds, self.window)

    @cached_property
    def gpu_labels(self) -> GpuLabels:
        """The op that each GPU item is counted for, and its call."""
        return label_gpu_items(self.trace, np.arange(len(self.trace.gpu)))

    @cached_property
    def breakdown(self) -> StepBreakdown:
        """The steps by kernels, ops, modules and collectives, for a comparison with another recording."""
        steps = self.steps.intervals if self.steps.count else self.window
        if self.device_kind == "cpu":
            tables = break_down_cpu_steps(self.trace, self.loader_waits.intervals, steps)
        else:
            tables = break_down_gpu_steps(self.kernel_classes, self.roof_classes, self.account.parts, steps)
        work = count_matrix_work(self.kernel_classes, steps)
        frames = bool(len(self.raw_trace.frames))
        recorded = {"shapes": "shapes" in self.available_data, "stacks": frames}
        breakdown = StepBreakdown(
            rank=self.rank,
            device_kind=self.device_kind,
            step_ns=self.steps.durations_ns if self.steps.count else steps[:, 1] - steps[:, 0],
            has_steps=self.steps.count > 0,
            unprofiled_step_ns=comparable_unprofiled_steps(self.facts, self.run_steps),
            time_scale=self.time_scale,
            tables=tables,
            matrix_ops=work.counts,
            has_varying_shapes=work.has_varying_shapes,
            recorded=tuple(name for name, is_there in recorded.items() if is_there),
        )
        if self.device_kind == "gpu":
            count = max(len(steps), 1)
            breakdown = replace(
                breakdown,
                device_work=device_work_of(
                    self.kernel_classes,
                    self.kernel_costs,
                    self.verdicts,
                    self.roof_shares.roof,
                    self.scaling,
                    self.gpu_labels,
                    steps,
                ),
                scaling_ns={name: ns / count for name, ns in self.time_by_scaling.items()},
            )
        return breakdown if self.evidence is None else complete_with_evidence(breakdown, self.evidence.breakdown)

    # --- what launched it, for tables ---------------------------------------------------------------------------------

    @cached_property
    def forward_ops(self) -> ForwardOps:
        """The forward op to which each op of a backward pass belongs."""
        return forward_ops_of(self.trace)

    @cached_property
    def module_tree(self) -> ModuleTree:
        """The nn.Modules that the program calls; empty where they were not recorded."""
        return module_tree_of(self.trace, self.forward_ops)

    @cached_property
    def idle_pieces(self) -> IdlePieces:
        """The idle time of the account in pieces, each with its cause and the call that made the GPU wait."""
        return idle_pieces_of(self.trace, self.gaps, self.account.parts)

    @cached_property
    def idle_instants(self) -> IdleInstants:
        """Where on the CPU the idle time comes from."""
        thread = self.launching_thread if self.launching_thread >= 0 else loop_thread_of(self.trace)
        return idle_instants_of(self.trace, self.idle_pieces, thread)

    @cached_property
    def places(self) -> PlaceAccount:
        """The account by place: which line of the user's code each nanosecond of the step belongs to."""
        evidence, workers = self.evidence, shares_of_workers(self.facts.loaders)
        made = ((each.location, captured_location(each.created)) for each in self.facts.optimizers)
        made_at: dict[tuple[str | None, int | None], SourceLocation] = {
            (at.file, at.line): line for at, line in made if at.file and line is not None
        }
        if evidence is None or has_locations(self.trace) or not has_locations(evidence.trace):
            timed = self._place_window()
            return PlaceAccount(timed, timed, self.mean_step_ns, self.rank, workers, made_at, self.facts.forms)
        timed = self._place_window(is_split=True)
        lined = evidence._place_window(find_recorder_time(evidence.trace), is_split=True)
        return PlaceAccount(timed, lined, self.mean_step_ns, self.rank, workers, made_at, self.facts.forms)

    def _place_window(self, without: Intervals = iv.EMPTY, *, is_split: bool = False) -> PlacedWindow:
        """The window with the place of each of its pieces; time in `without` is left out of a program on the CPU."""
        if self.device_kind == "gpu":
            rows = gpu_rows_by_detail(self.kernel_classes, self.roof_classes)
            pieces = cut_gpu_window(
                self.trace, self.account.parts, rows, self.idle_pieces, self.idle_instants, self.gaps
            )
        else:
            pieces = cut_cpu_window(self.trace, self.window, self.account.parts, without)
        return place_window(
            self.trace,
            self.forward_ops,
            self.module_tree,
            pieces,
            steps=self.steps.intervals if self.steps.count else self.window,
            step_count=max(self.steps.count, 1),
            loading=self._loading,
            is_split=is_split,
        )

    @cached_property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """The memory of each device, that with the highest peak first; empty where it was not recorded."""
        source = self.memory_source
        return () if source is None else memory_of_devices(source.trace, source.forward_ops)

    @cached_property
    def allocators(self) -> tuple[AllocatorReplay, ...]:
        """The replay of the allocator of each device of `memory`."""
        return tuple(map(AllocatorReplay, self.memory))

    @property
    def memory_source(self) -> Rank | None:
        """The capture's snapshot, the rank itself, or its evidence window: the first with memory; None without any."""
        sources = (self.snapshot, self, self.evidence)
        return next((each for each in sources if each is not None and len(each.trace.memory)), None)

    @cached_property
    def memory_summary(self) -> tuple[MemorySummary, ...]:
        """What a report says of the memory of each device."""
        source = self.memory_source
        return () if source is None else summarize_memory(self.rank, self.memory, source.steps)

    # --- other ranks ----------------------------------------------------------------------------------------------

    @cached_property
    def phases(self) -> Mapping[str, Intervals]:
        """The window by the phases of the training loop: loader, forward, backward, ..."""
        if self.device_kind == "gpu":
            return gpu_phases(self.trace, self.exposed_parts, self.traffic.optimizer_step)
        return cpu_phases(self.trace, self.account.parts, self.window)

    @cached_property
    def collectives(self) -> CollectiveTable:
        """The collectives in which this rank took part."""
        return collectives_of(
            self.kernel_classes,
            self.window,
            self.steps,
            on_gpu=self.device_kind == "gpu",
            exposed=self.exposed_parts["communication"],
            phases=self.phases,
            one_offs=self.one_offs,
            step_numbers=self.steps.numbers,
        )
