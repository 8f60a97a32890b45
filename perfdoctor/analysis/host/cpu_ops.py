"""A program on the CPU alone: what of a step is the framework's, the optimizers', and the zeroed gradients'.

The three are disjoint, so that what one fix saves no other promises. Recording costs the CPU time for each event, which
no fix saves: `unprofiled` takes it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfdoctor.analysis.captured_facts import captured_steps
from perfdoctor.analysis.host.compile_time import compile_time
from perfdoctor.analysis.kernels.optimizer_steps import longest_pass, optimizer_of
from perfdoctor.analysis.kernels.traffic_kinds import ACCUMULATES, STEP_RANGE, ZERO_RANGE
from perfdoctor.report.finding import Saving
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct, occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

if TYPE_CHECKING:
    from perfdoctor.rank import Rank

# An op takes a few us in Python and the dispatcher, under the profiler and on a busy machine some ten. What a program
# does for longer between two ops is its own.
_PYTHON_NS = 100_000
# Where no step was timed without the profiler: Kineto took 0.8 to 1.2 us an event (benchmarks/README.md, Capture).
_EVENT_NS = 1_000


class Unprofiled(NamedTuple):
    """Some time of the CPU without the profiler's part, in ns a step.

    Attributes:
        own_ns: What is left of it.
        most_ns: What it cannot exceed.
        share: `own_ns` of a step without the profiler, 0 to 1.
        timed: Whether steps were timed without the profiler; else an event is taken to cost 1 us.
    """

    own_ns: int
    most_ns: int
    share: float
    timed: bool

    def saving(self, kept: float | None = 0.0) -> Saving:
        """What a fix saves that leaves a share `kept` (0 to 1) of it; None where nobody can tell how much it leaves.

        Without timed steps there is no expectation.
        """
        expected = round(self.own_ns * (1 - kept)) if self.timed and self.own_ns and kept is not None else None
        return Saving(0, expected, self.most_ns, "bounded")


def unprofiled(rank: Rank, time: Intervals) -> Unprofiled:
    """What of some time in the window is the program's own: all events cost the profiler the same."""
    trace, recorded_ns, spent_ns = rank.trace, rank.per_step(rank.window_ns), rank.per_step(iv.total(time))
    base = captured_steps(rank.facts, "base") if rank.steps.count else ()
    event_ns = _event_ns(rank, min(base)) if base else _EVENT_NS
    events, inside = (rank.per_step(_begun(trace, some)) for some in (rank.window, time))
    whole_ns = round(median(base)) if base else recorded_ns - round(events * event_ns)
    most_ns = min(spent_ns, whole_ns) if base else spent_ns
    own_ns = min(max(spent_ns - round(inside * event_ns), 0), most_ns)
    return Unprofiled(own_ns, most_ns, own_ns / max(whole_ns, own_ns, 1), bool(base))


def _event_ns(rank: Rank, base_ns: int) -> float:
    """What the profiler takes for an event: what the least recorded step takes longer than `base_ns`, the least other.

    The least, because whatever else the machine does only adds to a step.
    """
    steps = rank.steps.intervals
    least = steps[np.argmin(rank.steps.durations_ns)][None]
    return max(iv.total(least) - base_ns, 0) / max(_begun(rank.trace, least), 1)


def _begun(trace: Trace, time: Intervals) -> int:
    """How many events were recorded that began in some time."""
    return sum(int(iv.contains(time, table.start_ns).sum()) for table in (trace.ops, trace.ranges))


def framework_time(rank: Rank) -> Intervals:
    """Time of the window in Python and the dispatcher: pieces of ops up to 5 us, and breaks up to 100 us between ops.

    As in the account, so no other thread computes meanwhile. Without compiling, optimizers and zeroing, which have
    rules of their own.
    """
    trace, parts = rank.trace, rank.account.parts
    breaks = iv.subtract(parts["idle_launch"], compile_time(trace))
    breaks = breaks[breaks[:, 1] - breaks[:, 0] <= _PYTHON_NS]
    others = _ranges(trace, STEP_RANGE), _ranges(trace, ZERO_RANGE), zeroing_of(rank).adding
    return iv.subtract(iv.union_of((parts["kernel_latency"], breaks)), iv.union_of(others))


def called_ops(rank: Rank) -> Int64Array:
    """The outermost ops that began in the window, in no optimizer: what the program itself called."""
    trace = rank.trace
    own = (_inside(trace, trace.match_rows(trace.ranges, f"{STEP_RANGE}|{ZERO_RANGE}")) < 0) & (trace.ops.parent < 0)
    return np.flatnonzero(own & iv.contains(rank.window, trace.ops.start_ns))


def _ranges(trace: Trace, pattern: str) -> Intervals:
    rows = trace.match_rows(trace.ranges, pattern)
    return iv.union(trace.ranges.start_ns[rows], trace.ranges.end_ns[rows])


class HostOptimizer(NamedTuple):
    """The steps of one class of optimizer in the window.

    Attributes:
        optimizer: Name of the class.
        time: When its steps ran.
        ops: How many ops they call, and
        passes: how often they go over the parameters with them.
        kept: The share of their ops' time (0 to 1) that the longest of these passes takes.
        foreach: Whether an op takes all tensors.
    """

    optimizer: str
    time: Intervals
    ops: int
    passes: int
    kept: float
    foreach: bool


def optimizers_of(rank: Rank) -> Iterator[HostOptimizer]:
    """Each class of optimizer that steps in the window, but for fused ones."""
    trace, ranges = rank.trace, rank.trace.ranges
    around = _inside(trace, trace.match_rows(ranges, STEP_RANGE))
    around[~iv.contains(rank.window, trace.ops.start_ns)] = -1
    outermost = (around >= 0) & ((trace.ops.parent < 0) | (around[trace.ops.parent] < 0))
    rows = np.flatnonzero(outermost)
    fused, foreach = trace.match_rows(trace.ops, r"fused"), trace.match_rows(trace.ops, r"_foreach_")
    name = ranges.name[around[rows]]
    for code in occurring(name, len(trace.strings)).tolist():
        mine = rows[name == code]
        time_ns = int(trace.ops.dur_ns[mine].sum())
        if not time_ns or fused[mine].any():
            continue
        steps = distinct(around[mine])
        longest_ns, passes = _passes(trace, mine)
        yield HostOptimizer(
            optimizer=optimizer_of(trace.strings[code]),
            time=iv.intersect(iv.union(ranges.start_ns[steps], ranges.end_ns[steps]), rank.window),
            ops=len(mine),
            passes=passes,
            kept=longest_ns / time_ns,
            foreach=bool(2 * trace.ops.dur_ns[mine[foreach[mine]]].sum() > time_ns),
        )


def _inside(trace: Trace, rows: BoolArray) -> Int32Array:
    """For each op the row of the innermost of some ranges that it began in, on its thread; -1 outside."""
    ranges, ops, some = trace.ranges, trace.ops, np.flatnonzero(rows)
    found = nesting.innermost(ranges.start_ns[some], ranges.end_ns[some], ranges.thread[some], ops.start_ns, ops.thread)
    return np.append(some, -1)[found].astype(np.int32)


def _passes(trace: Trace, rows: Int64Array) -> tuple[float, int]:
    """The longest pass and the number of passes of ops, see `longest_pass`."""
    _, kind = np.unique(trace.ops.name[rows], return_inverse=True)
    return longest_pass(np.bincount(kind, weights=trace.ops.dur_ns[rows]), np.bincount(kind))


class HostZeroing(NamedTuple):
    """Gradients filled with zeros in the window: how many, when, and when new ones were added to them."""

    fills: int
    filling: Intervals
    adding: Intervals

    @property
    def time(self) -> Intervals:
        """Both."""
        return iv.union_of((self.filling, self.adding))


def zeroing_of(rank: Rank) -> HostZeroing:
    """What `Optimizer.zero_grad` fills, and additions to it; those of accumulation over several passes are wanted."""
    trace, ops = rank.trace, rank.trace.ops
    inside = (_inside(trace, trace.match_rows(trace.ranges, ZERO_RANGE)) >= 0) & iv.contains(rank.window, ops.start_ns)
    fills = inside & trace.match_rows(ops, r"^aten::(_foreach_)?zero_$")
    count = int((fills & trace.match_rows(ops, r"^aten::zero_$")).sum())
    adds = trace.match_rows(ops, r"^aten::add_$") & (ops.parent >= 0) & trace.match_rows(ops, ACCUMULATES)[ops.parent]
    adds &= iv.contains(rank.window, ops.start_ns)
    if adds.sum() > count:
        adds[:] = False
    filling, adding = (iv.intersect(iv.union(ops.start_ns[r], ops.end_ns[r]), rank.window) for r in (fills, adds))
    return HostZeroing(count, filling, adding)
