"""The phase of the training loop at each instant of a rank's window: loader, forward, backward.

The account has what the hardware did (compute, copies, idle time by cause). To explain why a rank is late, the time of
each part of the loop is needed. The phases are the same partition with the work split by the part of the loop that
launched it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfdoctor.analysis.launching_ops import launching_ranges, match_launching_ops
from perfdoctor.analysis.optimizer_steps import optimizer_steps_of
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int32Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import EMPTY, Intervals
from perfdoctor.trace.tables.model import Trace

LOADER, FORWARD, BACKWARD, OPTIMIZER, COMPUTE, SYNC, COPY, LAUNCH, ALLOCATOR, COMMUNICATION, OTHER = PHASES = (
    "loader",
    "forward",
    "backward",
    "optimizer",
    "compute",
    "sync",
    "copy",
    "launch",
    "allocator",
    "communication",
    "other",
)
_WORK = ("compute", "bandwidth", "latency")
# The details of the account that are phases themselves.
_DETAILS_OF_PHASE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        LOADER: ("idle_dataloader",),
        SYNC: ("idle_sync",),
        COPY: ("memcpy",),
        LAUNCH: ("idle_launch",),
        ALLOCATOR: ("idle_allocator",),
        COMMUNICATION: ("communication", "idle_communication"),
        OTHER: ("idle_unexplained",),
    }
)


def gpu_phases(trace: Trace, parts: Mapping[str, Intervals], optimizer_step: Int32Array) -> dict[str, Intervals]:
    """The GPU's time in the window by PHASES, in their order: disjoint sets that add up to the window exactly.

    An item belongs to the part of the loop in which it was launched, and idle time has its cause from the account.
    "launch" is idle time before a late launch, so time of the CPU, in any part of the loop. "compute" is work whose
    part of the loop is not known. `parts` are `Rank.exposed_parts`.
    """
    from_account = {phase: iv.union_of(parts[name] for name in names) for phase, names in _DETAILS_OF_PHASE.items()}
    work = iv.union_of(parts[name] for name in _WORK)
    return _in_order(from_account | _split(work, _gpu_layers(trace, optimizer_step >= 0), COMPUTE))


def cpu_phases(trace: Trace, parts: Mapping[str, Intervals], window: Intervals) -> dict[str, Intervals]:
    """The window of a program on the CPU alone by PHASES, in their order: disjoint sets that add up to it exactly.

    "other" is the time that no range and no op covers.
    """
    fixed = {phase: iv.union_of(parts[name] for name in _DETAILS_OF_PHASE[phase]) for phase in (LOADER, COMMUNICATION)}
    rest = iv.subtract(window, iv.union_of(fixed.values()))
    by_range = _split(rest, _cpu_layers(trace), OTHER)
    work = iv.union_of(parts[name] for name in _WORK)
    unmarked = {COMPUTE: iv.intersect(by_range[OTHER], work), OTHER: iv.subtract(by_range[OTHER], work)}
    return _in_order(fixed | by_range | unmarked)


def _in_order(sets: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """The sets of all PHASES in their order; empty for those that are missing."""
    return {phase: sets.get(phase, EMPTY) for phase in PHASES}


def _split(whole: Intervals, layers: Mapping[str, Intervals], rest: str) -> dict[str, Intervals]:
    """A set split among layers: each instant belongs to the first one that covers it, or to `rest`."""
    return dict(zip((*layers, rest), iv.partition(whole, layers.values()), strict=True))


def _gpu_layers(trace: Trace, optimizer: BoolArray) -> dict[str, Intervals]:
    """GPU items by the part of the loop that launched them.

    `perfdoctor run` marks forward and backward passes, DistributedDataParallel its forward pass. Where any backward
    pass is known, all other items that ops launch outside of the optimizer belong to the forward pass.
    """
    gpu = trace.gpu
    marked = launching_ranges(trace, vocabulary.BACKWARD_RANGE) >= 0
    backward = (marked | match_launching_ops(trace, vocabulary.AUTOGRAD_OP)) & ~optimizer
    marked = launching_ranges(trace, vocabulary.FORWARD_RANGE) >= 0
    forward = (marked | ((gpu.op >= 0) & bool(backward.any()))) & ~optimizer & ~backward
    rows = {BACKWARD: backward, FORWARD: forward, OPTIMIZER: optimizer}
    return {phase: iv.union(gpu.start_ns[which], gpu.end_ns[which]) for phase, which in rows.items()}


def _cpu_layers(trace: Trace) -> dict[str, Intervals]:
    """The time of the CPU within the ranges that mark a part of the loop, and in autograd's ops on any thread."""
    ranges, ops = trace.ranges, trace.ops
    autograd = trace.match_rows(ops, vocabulary.AUTOGRAD_OP)

    def marked(pattern: str) -> Intervals:
        rows = trace.match_rows(ranges, pattern)
        return iv.union(ranges.start_ns[rows], ranges.end_ns[rows])

    backward = iv.union_of((marked(vocabulary.BACKWARD_RANGE), iv.union(ops.start_ns[autograd], ops.end_ns[autograd])))
    own_time = optimizer_steps_of(trace).own_time()
    return {BACKWARD: backward, FORWARD: marked(vocabulary.FORWARD_RANGE), OPTIMIZER: own_time}
