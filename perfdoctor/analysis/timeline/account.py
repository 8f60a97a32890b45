"""The account: where each nanosecond of the analysed window went, by the definitions of docs/measuring.md.

The account is a partition: every instant of the window goes to the first of compute, bandwidth, communication, memcpy,
latency and the causes of idle time that covers it, so its details add up to the window exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from perfdoctor.analysis.host.compile_time import compile_time
from perfdoctor.analysis.kernels.flops_utilization import NO_UTILIZATION, FlopsUtilization
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.roof_classes import ROOFS, BucketRoof
from perfdoctor.analysis.kernels.tensor_core_verdicts import TensorCoreVerdicts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import classify_op
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH, COMPUTE, LATENCY
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import EMPTY, Intervals
from perfdoctor.trace.tables.model import KERNEL, Frames, Ops, Trace
from perfdoctor.trace.tables.steps import NO_STEPS, Steps

BUSY_DETAILS = ("compute", "bandwidth", "communication", "memcpy", "latency")
IDLE_CAUSES = ("dataloader", "sync", "launch", "communication", "allocator", "unexplained")
DETAILS = ("compute", "bandwidth", "memcpy", "communication", "latency", *(f"idle_{cause}" for cause in IDLE_CAUSES))
BUCKETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compute": ("compute",),
        "bandwidth": ("bandwidth", "memcpy"),
        "communication": ("communication",),
        "overhead": ("latency", *(f"idle_{cause}" for cause in IDLE_CAUSES)),
    }
)
# CPU-only: an op this short is the framework's own time. (Kernels: `perfdoctor.gpu.roofline.kernel_bounds`.)
LATENCY_FLOOR_NS = 5_000
# CPU-only: a break of up to this length between two ops of a thread is Python and the dispatcher; a longer one may be
# anything.
_MAX_BREAK_NS = 1_000_000

TENSOR_CORE_USE = ("used", "slow_path", "not_used", "unknown")


@frozen_dataclass
class Account:
    """One rank's window, split exactly; what is not in SCHEMA is not in the JSON report.

    Attributes:
        rank: The rank's number.
        window_ns: Length of the window.
        detail: By name of DETAILS its time in ns; together they add up to `window_ns`.
        tensor_core: By TENSOR_CORE_USE the time of gemm, convolution and attention kernels; None without a GPU.
        parts: By name of DETAILS the intervals of its time.
        steps: The analysed steps (n, 2).
        time_scale: What its time is multiplied by for people, who are shown the step without the profiler.
        mfu: Known FLOPs of the matrix work over one dense peak of the device (0 to 1); a lower bound unless
            `mfu_known_share` is 1. None where no FLOPs or no peak are known. See `flops_utilization`.
        mfu_known_share: The share (0 to 1) of the matrix kernels' time whose FLOPs are known; None without such
            kernels.
        mfu_peak_name: The type of that peak, such as "bf16", "tf32" or "fp32 without Tensor Cores"; None if unknown.
        mfu_peak_flops_per_s: That peak; None if unknown.
        achieved_bytes_per_s: Of the kernels that memory bounds; None where their bytes are unknown.
        roofs: How near their roofs the kernels of "compute" and "bandwidth" run; None where that is not known.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = ("rank", "window_ns", "buckets", "detail", "tensor_core", "roofs")

    rank: int | None
    window_ns: int
    detail: Annotated[Mapping[str, int], ("required", DETAILS)]
    tensor_core: Annotated[Mapping[str, int | None], ("required", TENSOR_CORE_USE)]
    parts: Mapping[str, Intervals] = field(default_factory=dict, repr=False, compare=False)
    steps: Intervals = field(default_factory=lambda: EMPTY, repr=False, compare=False)
    time_scale: float = field(default=1.0, compare=False)
    mfu: float | None = field(default=None, compare=False)
    mfu_known_share: float | None = field(default=None, compare=False)
    mfu_peak_name: str | None = field(default=None, compare=False)
    mfu_peak_flops_per_s: float | None = field(default=None, compare=False)
    achieved_bytes_per_s: float | None = field(default=None, compare=False)
    roofs: Annotated[Mapping[str, BucketRoof | None], ("required", ROOFS)] = field(
        default_factory=lambda: dict.fromkeys(ROOFS), compare=False
    )

    @property
    def buckets(self) -> Annotated[dict[str, int], ("required", tuple(BUCKETS))]:
        """The time of compute, bandwidth, communication and overhead, in ns; together they add up to `window_ns`."""
        return {bucket: sum(self.detail[name] for name in names) for bucket, names in BUCKETS.items()}

    @property
    def mean_step_ns(self) -> float:
        """The window as time per step, without the profiler."""
        return mean_per_step(self.window_ns, len(self.steps), self.time_scale)


def mean_per_step(in_window: float, steps: int, time_scale: float = 1.0) -> float:
    """Recorded time (or events, bytes) in the window as its mean per step; of the whole window without steps.

    `time_scale` is time without the profiler over recorded time.
    """
    return time_scale * in_window / max(steps, 1)


def account_of(
    rank: int | None,
    window: Intervals,
    layers: Mapping[str, Intervals],
    tensor_core: Mapping[str, int | None],
    *,
    steps: Steps = NO_STEPS,
    time_scale: float = 1.0,
    utilization: FlopsUtilization = NO_UTILIZATION,
    achieved_bytes_per_s: float | None = None,
    roofs: Mapping[str, BucketRoof | None] | None = None,
) -> Account:
    """Where the window went; a partition, whatever the trace.

    `layers` holds for each detail the instants that it may take, see `gpu_layers` and its siblings: where several
    overlap, the first in the order of BUSY_DETAILS and of the causes of idle time takes the instant. `time_scale` is
    time without the profiler over recorded time.
    """
    ordered = {name: layers.get(name, EMPTY) for name in (*BUSY_DETAILS, *(f"idle_{c}" for c in _LAYERED_CAUSES))}
    sets = iv.partition(window, ordered.values())
    parts = dict(zip((*ordered, "idle_unexplained"), sets, strict=True))
    return Account(
        rank=rank,
        window_ns=iv.total(window),
        detail={name: iv.total(parts[name]) for name in DETAILS},
        tensor_core=tensor_core,
        parts=parts,
        steps=steps.intervals,
        time_scale=time_scale,
        mfu=utilization.share,
        mfu_known_share=utilization.known_share,
        mfu_peak_name=utilization.peak_name,
        mfu_peak_flops_per_s=utilization.peak_flops_per_s,
        achieved_bytes_per_s=achieved_bytes_per_s,
        roofs=roofs or dict.fromkeys(ROOFS),
    )


_LAYERED_CAUSES = ("dataloader", "sync", "allocator", "communication", "launch")


def gpu_layers(
    classes: KernelClasses, roof_classes: Int8Array, idle_causes: Mapping[str, Intervals]
) -> dict[str, Intervals]:
    """The layers of a program on a GPU: kernels by what binds them, copies, causes of idle time."""
    gpu = classes.trace.gpu
    rows = gpu_rows_by_detail(classes, roof_classes)
    busy = {name: iv.union(gpu.start_ns[which], gpu.end_ns[which]) for name, which in rows.items()}
    return busy | {f"idle_{cause}": layer for cause, layer in idle_causes.items()}


def gpu_rows_by_detail(classes: KernelClasses, roof_classes: Int8Array) -> dict[str, BoolArray]:
    """For each of BUSY_DETAILS, in their order, which GPU items are of it; see `gpu_layers`."""
    return {
        "compute": roof_classes == COMPUTE,
        "bandwidth": roof_classes == BANDWIDTH,
        "communication": classes.match_rows(lambda k: k.category == "communication"),
        "memcpy": classes.trace.gpu.kind != KERNEL,
        "latency": roof_classes == LATENCY,
    }


def cpu_layers(trace: Trace, loading: Intervals) -> dict[str, Intervals]:
    """The layers of a program without a GPU: each instant belongs to its innermost op.

    What an autograd.Function of the program's own does between its ops is Python. The time inside a DataLoader's
    `__next__` (`loading`) is loading, and the time in which torch.compile compiles is overhead, whatever ops run in it.
    So are the calls of a device's runtime, where the program has some; copies and waits are what they are.
    """
    ranges, calls = trace.ranges, trace.calls
    compiling = compile_time(trace)
    not_work = iv.union_of((loading, compiling, iv.union(calls.start_ns, calls.end_ns)))
    waits = trace.match_rows(ranges, vocabulary.COLLECTIVE_RANGE)
    start, end, owner = innermost_ops(trace.ops)
    category = _op_categories(trace)[owner]
    in_python = trace.match_rows(trace.ops, vocabulary.FUNCTION_OP)
    short = end - start <= LATENCY_FLOOR_NS
    communication = category == "communication"
    matrix = np.isin(category, list(MATRIX_CATEGORIES))
    groups = {
        "compute": matrix & ~short,
        "bandwidth": ~matrix & ~communication & ~short & ~in_python[owner],
        "communication": communication,
        "latency": short & ~communication & ~in_python[owner],
    }
    layers = {name: iv.subtract(iv.union(start[rows], end[rows]), not_work) for name, rows in groups.items()}
    waiting = iv.subtract(iv.union(ranges.start_ns[waits], ranges.end_ns[waits]), loading)
    layers["communication"] = iv.union_of((layers["communication"], waiting))
    layers |= {"idle_dataloader": loading, "idle_launch": iv.union_of((compiling, _between_ops(trace.ops, ~in_python)))}
    return _add_calls(trace, layers) if len(calls) else layers


_CALL_LAYERS = (
    ("memcpy", vocabulary.COPY_CALL),
    ("idle_sync", vocabulary.SYNC_CALL),
    ("idle_allocator", vocabulary.ALLOCATOR_CALL),
    ("idle_launch", ""),
)
"""The details of a CPU program's account that calls of a device's runtime go to, by the first pattern that fits."""


def _add_calls(trace: Trace, layers: dict[str, Intervals]) -> dict[str, Intervals]:
    """The layers with the calls of a device's runtime: copies, waits, allocations, and all others as overhead."""
    calls = trace.calls
    left = np.ones(len(calls), bool)
    for name, pattern in _CALL_LAYERS:
        rows = left & trace.match_rows(calls, pattern)
        left &= ~rows
        layers[name] = iv.union_of((layers.get(name, EMPTY), iv.union(calls.start_ns[rows], calls.end_ns[rows])))
    return layers


def layers_without_gpu_events(loading: Intervals) -> dict[str, Intervals]:
    """The layers of a GPU program whose GPU events are missing: only loading is certain, the rest is unexplained."""
    return {"idle_dataloader": loading}


def innermost_ops(ops: Ops | Frames) -> tuple[Int64Array, Int64Array, Int32Array]:
    """The time of each thread cut where ops (or frames) start and end: start, end and innermost op of each piece.

    For example, an op 0 from 0 to 90 that calls op 1 from 20 to 50::

        start  end  op
        0      20   0
        20     50   1
        50     90   0
    """
    starts, ends, owners = [], [], []
    for thread in distinct(ops.thread).tolist():
        on_thread = np.flatnonzero(ops.thread == thread)
        edges = distinct(np.concatenate((ops.start_ns[on_thread], ops.end_ns[on_thread])))
        threads = np.full(len(edges), thread, np.int32)
        owner = nesting.innermost(ops.start_ns, ops.end_ns, ops.thread, edges, threads)
        inside = np.flatnonzero(owner[:-1] >= 0)
        starts.append(edges[inside])
        ends.append(edges[inside + 1])
        owners.append(owner[inside])
    if not starts:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)
    return np.concatenate(starts), np.concatenate(ends), np.concatenate(owners)


def _op_categories(trace: Trace) -> np.ndarray[Any, np.dtype[np.str_]]:
    """The category of each op, determined once for each distinct name."""
    table = np.full(len(trace.strings), "other", "U16")
    for code in trace.name_ids(trace.ops):
        table[code] = classify_op(trace.strings[code])
    return table[trace.ops.name]


def _between_ops(ops: Ops, which: BoolArray) -> Intervals:
    """Short breaks between some ops of a thread: Python and the framework."""
    parts = []
    for thread in distinct(ops.thread).tolist():
        on_thread = (ops.thread == thread) & which
        busy = iv.union(ops.start_ns[on_thread], ops.end_ns[on_thread])
        if len(busy):
            breaks = iv.gaps(busy, int(busy[0, 0]), int(busy[-1, 1]))
            parts.append(breaks[breaks[:, 1] - breaks[:, 0] <= _MAX_BREAK_NS])
    return iv.union_of(parts)


def tensor_core_use(classes: KernelClasses, verdicts: TensorCoreVerdicts, window: Intervals) -> dict[str, int | None]:
    """Kernel time in the window of gemm, convolution and attention kernels, in ns, by use of Tensor Cores.

    By the verdicts: a name that says nothing counts as used where the kernel's FLOP/s or operand type tell. All None
    without GPU kernels.
    """
    gpu = classes.trace.gpu
    if not (gpu.kind == KERNEL).any():
        return dict.fromkeys(TENSOR_CORE_USE)
    rows_of_use = {
        "used": verdicts.match_rows("yes") & ~verdicts.slow_path,
        "slow_path": verdicts.slow_path,
        "not_used": verdicts.match_rows("no"),
        "unknown": verdicts.match_rows("unknown"),
    }
    is_matrix = classes.match_rows(lambda k: k.category in MATRIX_CATEGORIES)
    result: dict[str, int | None] = {}
    for use in TENSOR_CORE_USE:
        rows = rows_of_use[use] & is_matrix
        result[use] = int(iv.overlap(gpu.start_ns[rows], gpu.end_ns[rows], window).sum())
    return result
