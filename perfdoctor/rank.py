"""Run: what an analyzer sees.

Each Rank is a trace with everything that several analyzers derive from it, worked out once, when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.analysis.captured_facts import RunSteps
from perfdoctor.analysis.communication.collectives import CollectiveTable, collectives_of
from perfdoctor.analysis.host.loader_waits import LoaderWaits, loader_waits
from perfdoctor.analysis.kernels.kernel_costs import Work, kernel_costs_of
from perfdoctor.analysis.kernels.launch_bounds import achieved_bytes_per_s, bounds_of, model_flops_utilization
from perfdoctor.analysis.kernels.tensor_core_verdicts import Verdicts, verdicts_of
from perfdoctor.analysis.kernels.traffic_kinds import Traffic, traffic_kinds_of
from perfdoctor.analysis.timeline.account import Account, Timeline, account_of, timeline_of
from perfdoctor.analysis.timeline.clock_shift import ClockShift, clock_shift
from perfdoctor.analysis.timeline.idle_gaps import IdleGaps, find_gaps
from perfdoctor.analysis.timeline.queue_stalls import GRAPH, is_subsampled
from perfdoctor.gpu import Device, KernelClass, classify_kernel, find_device, has_tensor_cores
from perfdoctor.gpu.calibration import apply_calibration, find_calibration
from perfdoctor.gpu.roofline.kernel_bounds import KernelBounds
from perfdoctor.report.rank_summary import Fleet, summary_of
from perfdoctor.savings.what_if import cpu_waits
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, Trace
from perfdoctor.trace.tables.steps import Steps, find_steps

DeviceKind: TypeAlias = Literal["gpu", "cpu", "gpu_not_recorded"]


@dataclass(frozen=True)
class Rank:
    """One rank: its trace (clocks of CPU and GPU aligned), the device, the steps, the account, look-ups over kernels.

    `source` is the trace as it was read, `detail` that of a capture's evidence window, with stacks and shapes.
    """

    raw_trace: Trace
    device_name: str | None = None
    step_slice: slice = field(default_factory=lambda: slice(None))
    facts: Mapping[str, Any] | None = None
    evidence_trace: Trace | None = field(default=None, repr=False)
    run_steps: RunSteps | None = field(default=None, repr=False)

    @property
    def rank(self) -> int | None:
        """The rank's number; None where nothing says it."""
        return self.raw_trace.rank

    def renumbered(self, rank: int, note: str) -> Rank:
        """The same rank under another number, with a sentence about that among its warnings."""
        return replace(self, raw_trace=replace(self.raw_trace, rank=rank, warnings=(*self.raw_trace.warnings, note)))

    @cached_property
    def clock_shift(self) -> ClockShift:
        """How far GPU times are moved so that no kernel starts before its launch, and whether that can be."""
        return clock_shift(self.raw_trace)

    @property
    def clock_shift_ns(self) -> int:
        """By how much GPU times were moved later; 0 when the clocks agree."""
        return self.clock_shift.shift_ns

    @cached_property
    def trace(self) -> Trace:
        """The trace, with GPU times moved by `clock_shift_ns`."""
        warning = self.clock_shift.warning
        if warning is None:
            return self.raw_trace
        shift = self.clock_shift_ns
        gpu, ranges = self.raw_trace.gpu, self.raw_trace.gpu_ranges
        return replace(
            self.raw_trace,
            gpu=replace(gpu, start_ns=gpu.start_ns + shift, end_ns=gpu.end_ns + shift),
            gpu_ranges=replace(ranges, start_ns=ranges.start_ns + shift, end_ns=ranges.end_ns + shift),
            warnings=(*self.raw_trace.warnings, warning),
        )

    @cached_property
    def device_kind(self) -> DeviceKind:
        """What the account is about: GPU items, a CPU-only program, or a GPU program whose GPU was not recorded."""
        if len(self.raw_trace.gpu):
            return "gpu"
        launched = self.raw_trace.match_rows(self.raw_trace.calls, r"Launch|Memcpy").any()
        return "gpu_not_recorded" if launched or self.raw_trace.device.name is not None else "cpu"

    @cached_property
    def steps(self) -> Steps:
        """The analysed steps."""
        found = find_steps(self.trace)
        return replace(found, intervals=found.intervals[self.step_slice])

    @cached_property
    def window(self) -> Intervals:
        """The analysed time: the steps; without any, from the first GPU item to the last; without those, all events."""
        if self.steps.count:
            return self.steps.window
        if len(self.trace.gpu):
            return iv.window(int(self.trace.gpu.start_ns.min()), int(self.trace.gpu.end_ns.max()))
        return iv.window(*self.trace.extent_ns)

    @cached_property
    def in_window(self) -> BoolArray:
        """For each GPU item whether it starts in the window; read-only."""
        result = iv.contains(self.window, self.trace.gpu.start_ns)
        result.flags.writeable = False
        return result

    @cached_property
    def window_ns(self) -> int:
        """Length of the analysed time."""
        return iv.total(self.window)

    def per_step(self, window_ns: int) -> int:
        """A sum over the window as an amount a step (of the window when there are no steps)."""
        return round(window_ns / self.steps.count) if self.steps.count else window_ns

    @property
    def unit_name(self) -> str:
        """What amounts `per_step` are of, for sentences: a step, or the trace."""
        return "step" if self.steps.count else "trace"

    def share(self, per_step_ns: int) -> float | None:
        """An amount a step as a share (0 to 1) of the step; None when the window is empty."""
        whole = self.per_step(self.window_ns)
        return min(per_step_ns / whole, 1.0) if whole else None

    @cached_property
    def device(self) -> Device | None:
        """The device, by the name given, else by what the trace says; None when it is not in our table.

        With the rates that `perfdoctor calibrate` measured on a device of that name, where it did.
        """
        given = self.raw_trace.device
        name, capability = (self.device_name, None) if self.device_name is not None else (given.name, given.capability)
        vendor = self.raw_trace.vendor if self.device_name is None else None
        found = find_device(name, capability, vendor)
        measured = find_calibration(name)
        return found if measured is None else apply_calibration(found, measured, given.capability)

    @property
    def device_label(self) -> str | None:
        """What to call the device: as given, as the trace says, or by our table; None when nobody knows."""
        return self.device_name or self.raw_trace.device.name or (self.device.name if self.device else None)

    @cached_property
    def kernel_classes(self) -> dict[int, KernelClass]:
        """The class of each distinct kernel name of the trace, by string code."""
        gpu = self.trace.gpu
        codes = occurring(gpu.name[gpu.kind == KERNEL], len(self.trace.strings)).tolist()
        return {code: classify_kernel(self.trace.strings[code]) for code in codes}

    def kernels_where(self, test: Any) -> BoolArray:
        """For each GPU item whether it is a kernel whose KernelClass passes `test`."""
        hits = np.zeros(len(self.trace.strings), bool)
        hits[[code for code, kernel in self.kernel_classes.items() if test(kernel)]] = True
        gpu = self.trace.gpu
        result: BoolArray = hits[gpu.name] & (gpu.kind == KERNEL)
        return result

    @cached_property
    def tensor_cores(self) -> bool | None:
        """Whether the device has Tensor Cores (matrix cores); None when nothing tells.

        A kernel that uses them is proof enough.
        """
        given = self.raw_trace.device
        known = has_tensor_cores(
            self.device_name or given.name, None if self.device_name else given.capability, self.raw_trace.vendor
        )
        if known is None and self.kernels_where(lambda k: k.tensor_core == "yes").any():
            return True
        return known

    @cached_property
    def work(self) -> Work:
        """FLOPs and bytes of each GPU item, from the recorded inputs of the ops that launched them."""
        return kernel_costs_of(self)

    @cached_property
    def traffic(self) -> Traffic:
        """Which story each memory-bound GPU item belongs to: optimizer, layout copies, casts, pointwise work."""
        return traffic_kinds_of(self)

    @cached_property
    def verdicts(self) -> Verdicts:
        """Whether each GPU item used Tensor Cores, and how that is known."""
        return verdicts_of(self, self.work)

    @cached_property
    def bounds(self) -> KernelBounds:
        """What bounds each GPU item: compute, bandwidth, latency; or how far it is from either."""
        return bounds_of(self, self.work, self.verdicts)

    @cached_property
    def mfu(self) -> float | None:
        """Model FLOPs utilization of the window, 0 to 1; None where FLOPs or peaks are unknown."""
        return model_flops_utilization(self)

    @cached_property
    def achieved_bytes_per_s(self) -> float | None:
        """How fast the kernels that memory bounds move their data; None where their bytes are unknown."""
        return achieved_bytes_per_s(self)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the figures themselves: rules that the trace contradicts, rates that were measured."""
        said = [str(violation) for violation in self.verdicts.violations]
        if self.device is not None and self.device.measured_on is not None:
            said.append(
                f"rates of {self.device.name} as `perfdoctor calibrate` measured them on {self.device.measured_on}"
            )
        return tuple(said)

    @cached_property
    def collectives(self) -> CollectiveTable:
        """The collectives that this rank took part in."""
        return collectives_of(self)

    @cached_property
    def gaps(self) -> IdleGaps:
        """The gaps between GPU items, each with what ended it."""
        return find_gaps(self.trace)

    @cached_property
    def missing_kernels(self) -> Intervals:
        """Time of the account's unexplained idle in which the GPU most likely worked: its kernels are not in the file.

        In CUDA graphs of which only some kernels were recorded, and all of it in a file that was thinned out.
        """
        unexplained = self.account.parts["idle_unexplained"]
        if self.subsampled:
            return unexplained
        rows = self.gaps.stall == GRAPH
        return iv.intersect(iv.union(self.gaps.start_ns[rows], self.gaps.end_ns[rows]), unexplained)

    @cached_property
    def subsampled(self) -> bool:
        """Whether most events were taken out of the file."""
        return is_subsampled(self.raw_trace)

    @cached_property
    def timeline(self) -> Timeline:
        """GPU time over the whole trace."""
        return timeline_of(self)

    @cached_property
    def account(self) -> Account:
        """Where the window went."""
        return account_of(self)

    @cached_property
    def launching_thread(self) -> int:
        """The thread that launched the most GPU items (-1 without launches): usually the training loop's."""
        linked = self.trace.gpu.call[self.trace.gpu.call >= 0]
        return int(np.bincount(self.trace.calls.thread[linked]).argmax()) if len(linked) else -1

    def time_in_window(self, rows: BoolArray | npt.NDArray[np.int64]) -> Intervals:
        """The union of some GPU items, clipped to the window."""
        gpu = self.trace.gpu
        return iv.intersect(iv.union(gpu.start_ns[rows], gpu.end_ns[rows]), self.window)

    @cached_property
    def loader_waits(self) -> LoaderWaits:
        """The calls of a DataLoader's `__next__`: the loop waits for its batch."""
        return loader_waits(self.trace)

    @cached_property
    def cpu_waits(self) -> Intervals:
        """When the CPU waited for the GPU, over the whole trace."""
        return cpu_waits(self.trace)

    @cached_property
    def available_data(self) -> frozenset[str]:
        """Which of NEEDS this rank has ("ranks" is the run's to say)."""
        t = self.raw_trace
        has = {
            "kernels": bool((t.gpu.kind == KERNEL).any()),
            "work": bool((t.gpu.kind == KERNEL).any()) or self.device_kind == "cpu",
            "cpu": bool(len(t.ops) or len(t.ranges) or len(t.calls)),
            "launches": bool((t.gpu.call >= 0).any()),
            "work_launches": bool((t.gpu.call >= 0).any()) or (self.device_kind == "cpu" and bool(len(t.ops))),
            "steps": self.steps.count > 0,
            "shapes": bool((t.ops.dims >= 0).any()),
            "stacks": bool(len(t.frames))
            or (self.evidence_trace is not None and bool(len(self.evidence_trace.frames))),
            "facts": self.facts is not None,
        }
        return frozenset(need for need, there in has.items() if there)


@dataclass(frozen=True)
class Run:
    """All ranks of one analysis."""

    ranks: tuple[Rank, ...]

    @cached_property
    def available_data(self) -> frozenset[str]:
        """What at least one rank has, and "ranks" when there are several."""
        return frozenset().union(*(r.available_data for r in self.ranks), {"ranks"} if len(self.ranks) > 1 else set())

    @cached_property
    def fleet(self) -> Fleet:
        """The ranks as their summaries, without findings."""
        return Fleet(tuple(map(summary_of, self.ranks)))
