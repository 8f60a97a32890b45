"""What a rank was doing at each instant of its window, in the words of a training loop: loader, forward, backward.

The account says what the hardware did (compute, copies, idle and why); a late rank wants to know which part of the
loop took the time. The phases are the same partition seen that way: work is split by the part of the loop that
launched it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from perfdoctor.analysis.kernels.traffic_kinds import STEP_RANGE, launched_in, launched_inside
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import EMPTY, Intervals
from perfdoctor.trace.tables.model import Trace

if TYPE_CHECKING:
    from perfdoctor.rank import Rank

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
_WORK = ("compute", "bandwidth", "kernel_latency")
# The details of the account that are a phase as they stand.
_OF_DETAIL: Mapping[str, tuple[str, ...]] = MappingProxyType(
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
# `perfdoctor run` marks forward and backward passes; without it DistributedDataParallel marks its own forward.
FORWARD_RANGE = r"^(perfdoctor::forward|DistributedDataParallel\.forward|FullyShardedDataParallel\.forward)$"
BACKWARD_RANGE = r"^perfdoctor::backward$"
_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function|^torch::autograd::")


def phases_of(rank: Rank) -> Mapping[str, Intervals]:
    """The window of a rank split by PHASES, in their order: disjoint sets that add up to it exactly.

    On a GPU it is the GPU's time: what it worked at is told by the launch, and why it was idle by the account. "launch"
    is idle time before a launch that came late, so time that the CPU took, wherever in the loop. Without a GPU it is
    the CPU's time: "other" is what no range and no op says anything about. "compute" is work that cannot be told apart.
    """
    parts = rank.account.parts
    given = {phase: iv.union_of(parts[name] for name in names) for phase, names in _OF_DETAIL.items()}
    if rank.device_kind == "gpu":
        return _ordered(given | _split(iv.union_of(parts[name] for name in _WORK), _gpu_layers(rank), COMPUTE))
    fixed = {phase: given[phase] for phase in (LOADER, COMMUNICATION)}
    rest = iv.subtract(rank.window, iv.union_of(fixed.values()))
    by_part = _split(rest, _cpu_layers(rank.trace), OTHER)
    work = iv.union_of(parts[name] for name in _WORK)
    known = {COMPUTE: iv.intersect(by_part[OTHER], work), OTHER: iv.subtract(by_part[OTHER], work)}
    return _ordered(fixed | by_part | known)


def _ordered(sets: Mapping[str, Intervals]) -> dict[str, Intervals]:
    return {phase: sets.get(phase, EMPTY) for phase in PHASES}


def _split(whole: Intervals, layers: Mapping[str, Intervals], rest: str) -> dict[str, Intervals]:
    """A set given to the first layer that covers each instant; `rest` is what none covers."""
    return dict(zip((*layers, rest), iv.partition(whole, layers.values()), strict=True))


def _gpu_layers(rank: Rank) -> dict[str, Intervals]:
    """GPU items by the part of the loop that launched them.

    Where a backward pass is seen, what ops launch outside of it and of the optimizer is the forward pass.
    """
    trace, gpu = rank.trace, rank.trace.gpu
    optimizer = rank.traffic.optimizer >= 0
    backward = ((launched_in(trace, BACKWARD_RANGE) >= 0) | launched_inside(trace, _AUTOGRAD)) & ~optimizer
    marked = launched_in(trace, FORWARD_RANGE) >= 0
    forward = (marked | ((gpu.op >= 0) & bool(backward.any()))) & ~optimizer & ~backward
    rows = {BACKWARD: backward, FORWARD: forward, OPTIMIZER: optimizer}
    return {phase: iv.union(gpu.start_ns[which], gpu.end_ns[which]) for phase, which in rows.items()}


def _cpu_layers(trace: Trace) -> dict[str, Intervals]:
    """The time of the CPU within the ranges that mark a part of the loop, and in autograd's ops on any thread."""
    ranges, ops = trace.ranges, trace.ops
    autograd = trace.match_rows(ops, _AUTOGRAD)

    def marked(pattern: str) -> Intervals:
        which: BoolArray = trace.match_rows(ranges, pattern)
        return iv.union(ranges.start_ns[which], ranges.end_ns[which])

    backward = iv.union_of((marked(BACKWARD_RANGE), iv.union(ops.start_ns[autograd], ops.end_ns[autograd])))
    return {BACKWARD: backward, FORWARD: marked(FORWARD_RANGE), OPTIMIZER: marked(STEP_RANGE)}
