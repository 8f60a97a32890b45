"""Where each nanosecond of the step went: the timeline over the whole trace, and the account over the analysed window.

Both follow contracts.md to the letter. The account is a partition: every instant of the window goes to the first of
compute, bandwidth, communication, memcpy, kernel_latency and the idle causes that covers it, so its details add up to
the window exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfdoctor.analysis.communication.collective_names import CALLED
from perfdoctor.analysis.host.compile_time import compile_time
from perfdoctor.analysis.kernels.tensor_core_verdicts import MATRIX_CATEGORIES
from perfdoctor.analysis.timeline.idle_gaps import cause_layers
from perfdoctor.gpu import classify_op
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH, COMPUTE, LATENCY
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import EMPTY, Intervals
from perfdoctor.trace.tables.model import KERNEL, Ops, Trace

if TYPE_CHECKING:
    from perfdoctor.rank import Rank

BUSY_DETAILS = ("compute", "bandwidth", "communication", "memcpy", "kernel_latency")
IDLE_CAUSES = ("dataloader", "sync", "launch", "communication", "allocator", "unexplained")
DETAILS = (
    "compute",
    "bandwidth",
    "memcpy",
    "communication",
    "kernel_latency",
    *(f"idle_{cause}" for cause in IDLE_CAUSES),
)
BUCKETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compute": ("compute",),
        "bandwidth": ("bandwidth", "memcpy"),
        "communication": ("communication",),
        "overhead": ("kernel_latency", *(f"idle_{cause}" for cause in IDLE_CAUSES)),
    }
)
# nccl or rccl; without regard to case the search would stop at every letter of the long names of kernels.
_COLLECTIVE_NAME = r"[NnRr][Cc][Cc][Ll]"

# CPU-only: an op this short is the framework's own time. (Kernels: `perfdoctor.gpu.roofline.kernel_bounds`.)
LATENCY_FLOOR_NS = 5_000
# CPU-only: time between two ops on a thread up to this long is Python and the dispatcher; longer, it may be anything.
_BETWEEN_OPS_NS = 1_000_000

TENSOR_CORE_USE = ("used", "slow_path", "not_used", "unknown")


class Timeline(NamedTuple):
    """One rank's GPU time over the whole trace, in ns; every figure is None when the trace has no GPU items."""

    rank: int | None = None
    window_ns: int | None = None
    busy_ns: int | None = None
    idle_ns: int | None = None
    computation_ns: int | None = None
    exposed_communication_ns: int | None = None
    exposed_memcpy_ns: int | None = None
    communication_ns: int | None = None
    memcpy_ns: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in the report schema."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Account:
    """One rank's window, split exactly.

    `detail` maps every name of DETAILS to ns, `buckets` sums them to compute, bandwidth, communication and overhead;
    each adds up to `window_ns`. `tensor_core` is the time of gemm, convolution and attention kernels by use of Tensor
    Cores, None where there is no GPU. Not part of the JSON report: `mfu` (0 to 1) and `achieved_bytes_per_s` of the
    kernels that memory bounds, None where FLOPs, bytes or peaks are unknown; `parts`, the intervals behind `detail`,
    and `steps` (n, 2), for exports.
    """

    rank: int | None
    window_ns: int
    detail: Mapping[str, int]
    tensor_core: Mapping[str, int | None]
    parts: Mapping[str, Intervals] = field(default_factory=dict, repr=False, compare=False)
    steps: Intervals = field(default_factory=lambda: EMPTY, repr=False, compare=False)
    mfu: float | None = field(default=None, compare=False)
    achieved_bytes_per_s: float | None = field(default=None, compare=False)

    @property
    def buckets(self) -> dict[str, int]:
        """The four words of the field: compute, bandwidth, communication, overhead, in ns."""
        return {bucket: sum(self.detail[name] for name in names) for bucket, names in BUCKETS.items()}

    def to_dict(self) -> dict[str, Any]:
        """As in the report schema."""
        return {
            "rank": self.rank,
            "window_ns": self.window_ns,
            "buckets": self.buckets,
            "detail": dict(self.detail),
            "tensor_core": dict(self.tensor_core),
        }


def timeline_of(run: Rank) -> Timeline:
    """The timeline over the whole trace, from the first GPU item's start to the last one's end.

    Collectives are here the kernels named nccl or rccl, as in contracts.md and HTA, so that the figures compare with
    other tools'; the account knows others too.
    """
    gpu = run.trace.gpu
    if not len(gpu):
        return Timeline(rank=run.trace.rank)
    kernel = gpu.kind == KERNEL
    collective = kernel & run.trace.match_rows(gpu, _COLLECTIVE_NAME)
    computation = _union(run.trace, kernel & ~collective)
    communication = _union(run.trace, collective)
    memcpy = _union(run.trace, ~kernel)
    exposed_communication = iv.subtract(communication, computation)
    exposed_memcpy = iv.subtract(iv.subtract(memcpy, computation), communication)
    window_ns = int(gpu.end_ns.max() - gpu.start_ns.min())
    busy_ns = sum(iv.total(part) for part in (computation, exposed_communication, exposed_memcpy))
    return Timeline(
        rank=run.trace.rank,
        window_ns=window_ns,
        busy_ns=busy_ns,
        idle_ns=window_ns - busy_ns,
        computation_ns=iv.total(computation),
        exposed_communication_ns=iv.total(exposed_communication),
        exposed_memcpy_ns=iv.total(exposed_memcpy),
        communication_ns=iv.total(communication),
        memcpy_ns=iv.total(memcpy),
    )


def account_of(run: Rank) -> Account:
    """Where the window of a run went; a partition, whatever the trace."""
    layers = {"gpu": _gpu_layers, "cpu": _cpu_layers, "gpu_not_recorded": _layers_without_gpu_events}[run.device_kind](
        run
    )
    ordered = {name: layers.get(name, EMPTY) for name in (*BUSY_DETAILS, *(f"idle_{c}" for c in _LAYERED_CAUSES))}
    sets = iv.partition(run.window, ordered.values())
    parts = dict(zip((*ordered, "idle_unexplained"), sets, strict=True))
    return Account(
        rank=run.trace.rank,
        window_ns=run.window_ns,
        detail={name: iv.total(parts[name]) for name in DETAILS},
        tensor_core=_tensor_core_use(run),
        mfu=run.mfu,
        achieved_bytes_per_s=run.achieved_bytes_per_s,
        parts=parts,
        steps=run.steps.intervals,
    )


_LAYERED_CAUSES = ("dataloader", "sync", "allocator", "communication", "launch")


def _union(trace: Trace, rows: BoolArray) -> Intervals:
    return iv.union(trace.gpu.start_ns[rows], trace.gpu.end_ns[rows])


def _gpu_layers(run: Rank) -> dict[str, Intervals]:
    """Kernels by what bounds them, `run.bounds`.

    A kernel that is bound by neither maths nor memory (inefficient), or whose roofline is invalid, counts to the
    ceiling that is nearest: a better kernel would have to climb to that one.
    """
    trace, bounds = run.trace, run.bounds
    kernel = trace.gpu.kind == KERNEL
    latency = bounds.kind == LATENCY
    busy = {
        "compute": _union(trace, (bounds.nearest_roof == COMPUTE) & ~latency),
        "bandwidth": _union(trace, (bounds.nearest_roof == BANDWIDTH) & ~latency),
        "communication": _union(trace, run.kernels_where(lambda k: k.category == "communication")),
        "memcpy": _union(trace, ~kernel),
        "kernel_latency": _union(trace, latency),
    }
    causes = cause_layers(trace, run.gaps, run.loader_waits.intervals, run.launching_thread)
    return busy | {f"idle_{cause}": layer for cause, layer in causes.items()}


def _cpu_layers(run: Rank) -> dict[str, Intervals]:
    """Without a GPU the innermost op of each instant is the work.

    Inside a DataLoader's `__next__` it is loading, and while torch.compile compiles the framework's own.
    """
    trace, ranges = run.trace, run.trace.ranges
    loading, compiling = run.loader_waits.intervals, compile_time(trace)
    elsewhere = iv.union_of((loading, compiling))
    waits = trace.match_rows(ranges, CALLED)
    start, end, owner = _innermost_ops(trace.ops)
    category = _op_categories(trace)[owner]
    short = end - start <= LATENCY_FLOOR_NS
    communication = category == "communication"
    matrix = np.isin(category, list(MATRIX_CATEGORIES))
    groups = {
        "compute": matrix & ~short,
        "bandwidth": ~matrix & ~communication & ~short,
        "communication": communication,
        "kernel_latency": short & ~communication,
    }
    layers = {name: iv.subtract(iv.union(start[rows], end[rows]), elsewhere) for name, rows in groups.items()}
    waiting = iv.subtract(iv.union(ranges.start_ns[waits], ranges.end_ns[waits]), loading)
    layers["communication"] = iv.union_of((layers["communication"], waiting))
    return layers | {"idle_dataloader": loading, "idle_launch": iv.union_of((compiling, _between_ops(trace.ops)))}


def _innermost_ops(ops: Ops) -> tuple[Int64Array, Int64Array, Int32Array]:
    """Time cut at every start and end of an op, thread by thread: start, end and innermost op of each piece."""
    starts, ends, owners = [], [], []
    for thread in distinct(ops.thread).tolist():
        mine = np.flatnonzero(ops.thread == thread)
        edges = distinct(np.concatenate((ops.start_ns[mine], ops.end_ns[mine])))
        lane = np.full(len(edges), thread, np.int32)
        owner = nesting.innermost(ops.start_ns, ops.end_ns, ops.thread, edges, lane)
        inside = np.flatnonzero(owner[:-1] >= 0)
        starts.append(edges[inside])
        ends.append(edges[inside + 1])
        owners.append(owner[inside])
    if not starts:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)
    return np.concatenate(starts), np.concatenate(ends), np.concatenate(owners)


def _op_categories(trace: Trace) -> np.ndarray[Any, np.dtype[np.str_]]:
    """The category of each op; worked out once a distinct name."""
    table = np.full(len(trace.strings), "other", "U16")
    for code in trace.name_ids(trace.ops):
        table[code] = classify_op(trace.strings[code])
    return table[trace.ops.name]


def _between_ops(ops: Ops) -> Intervals:
    """Short breaks between the outermost ops of a thread: Python and the framework."""
    parts = []
    for thread in distinct(ops.thread).tolist():
        mine = ops.thread == thread
        busy = iv.union(ops.start_ns[mine], ops.end_ns[mine])
        if len(busy):
            breaks = iv.gaps(busy, int(busy[0, 0]), int(busy[-1, 1]))
            parts.append(breaks[breaks[:, 1] - breaks[:, 0] <= _BETWEEN_OPS_NS])
    return iv.union_of(parts)


def _layers_without_gpu_events(run: Rank) -> dict[str, Intervals]:
    """A GPU program whose GPU events are missing: only what the CPU says for certain, the rest stays unexplained."""
    return {"idle_dataloader": run.loader_waits.intervals}


def _tensor_core_use(run: Rank) -> dict[str, int | None]:
    """Kernel time in the window of gemm, convolution and attention kernels, by use of Tensor Cores.

    All None without GPU kernels.
    """
    if "kernels" not in run.available_data:
        return dict.fromkeys(TENSOR_CORE_USE)
    use = {
        "used": lambda k: k.tensor_core == "yes" and not k.slow_path,
        "slow_path": lambda k: k.tensor_core == "yes" and k.slow_path,
        "not_used": lambda k: k.tensor_core == "no",
        "unknown": lambda k: k.tensor_core == "unknown",
    }
    gpu = run.trace.gpu
    result: dict[str, int | None] = {}
    for name, test in use.items():
        rows = run.kernels_where(lambda k, test=test: k.category in MATRIX_CATEGORIES and test(k))
        result[name] = int(iv.overlap(gpu.start_ns[rows], gpu.end_ns[rows], run.window).sum())
    return result
