"""A program on the CPU alone: the time of a step that the framework takes, the optimizers, and zeroing gradients.

The three are disjoint, so that no two fixes promise the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from perfdoctor.analyzers._gpu_optimizers import longest_pass
from perfdoctor.rules import (
    BoolArray,
    Int32Array,
    Int64Array,
    Intervals,
    Trace,
    compile_time,
    distinct,
    frozen_dataclass,
    nesting,
    occurring,
    optimizer_steps_of,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# An op takes a few us in Python and the dispatcher, under the profiler and on a busy machine some ten. In a longer
# break between two ops the program itself computes or waits.
_MAX_BREAK_NS = 100_000


def framework_time(trace: Trace, parts: Mapping[str, Intervals], zeroing: CpuZeroing) -> Intervals:
    """Time of the window in Python and the dispatcher: pieces of ops up to 5 us, and breaks up to 100 us between ops.

    As in the account, only time in which no other thread computes. Without the time of compiling, optimizers and
    zeroing, about which there are other rules.
    """
    breaks = iv.subtract(parts["idle_launch"], compile_time(trace))
    breaks = breaks[breaks[:, 1] - breaks[:, 0] <= _MAX_BREAK_NS]
    others = optimizer_steps_of(trace).own_time(), _range_time(trace, vocabulary.ZERO_GRAD), zeroing.add_time
    return iv.subtract(iv.union_of((parts["latency"], breaks)), iv.union_of(others))


def ops_of_program(trace: Trace, window: Intervals) -> Int64Array:
    """The outermost ops that began in the window, in no optimizer: what the program itself called."""
    outside = _ranges_around(trace, trace.match_rows(trace.ranges, vocabulary.ZERO_GRAD)) < 0
    outside &= optimizer_steps_of(trace).around(trace.ops.start_ns, trace.ops.thread) < 0
    return np.flatnonzero(outside & (trace.ops.parent < 0) & iv.contains(window, trace.ops.start_ns))


def _range_time(trace: Trace, pattern: str) -> Intervals:
    """When any range with a matching name was open."""
    rows = trace.match_rows(trace.ranges, pattern)
    return iv.union(trace.ranges.start_ns[rows], trace.ranges.end_ns[rows])


@frozen_dataclass(eq=False)
class CpuOptimizer:
    """The steps of one class of optimizer in the window.

    Attributes:
        optimizer: Name of the class.
        rows: The ops that they call, rows of `trace.ops`.
        time: When its steps ran, without closures in them.
        op_count: How many ops they call.
        pass_count: How often a step goes over the parameters with these ops.
        remaining_share: The share of the ops' time (0 to 1) that the longest of these passes takes.
        uses_foreach: Whether ops that take all tensors at once have most of the time.
    """

    optimizer: str
    rows: Int64Array
    time: Intervals
    op_count: int
    pass_count: int
    remaining_share: float
    uses_foreach: bool


def cpu_optimizers_of(trace: Trace, window: Intervals) -> Iterator[CpuOptimizer]:
    """Each class of optimizer that steps in the window, except fused ones."""
    ranges = trace.ranges
    all_steps = optimizer_steps_of(trace)
    around = all_steps.around(trace.ops.start_ns, trace.ops.thread)
    around[~iv.contains(window, trace.ops.start_ns)] = -1
    outermost = (around >= 0) & ((trace.ops.parent < 0) | (around[trace.ops.parent] < 0))
    rows = np.flatnonzero(outermost)
    fused, foreach = trace.match_rows(trace.ops, r"fused"), trace.match_rows(trace.ops, r"_foreach_")
    name = ranges.name[around[rows]]
    for code in occurring(name).tolist():
        of_class = rows[name == code]
        time_ns = int(trace.ops.dur_ns[of_class].sum())
        if not time_ns or fused[of_class].any():
            continue
        steps = distinct(around[of_class])
        longest_ns, passes = _longest_pass(trace, of_class)
        yield CpuOptimizer(
            optimizer=vocabulary.optimizer_class(trace.strings[code]),
            rows=of_class,
            time=iv.intersect(all_steps.own_time(steps), window),
            op_count=len(of_class),
            pass_count=passes,
            remaining_share=longest_ns / time_ns,
            uses_foreach=bool(2 * trace.ops.dur_ns[of_class[foreach[of_class]]].sum() > time_ns),
        )


def _ranges_around(trace: Trace, rows: BoolArray) -> Int32Array:
    """For each op the row of the innermost of some ranges of its thread in which it began; -1 for an op in none."""
    ranges, ops, some = trace.ranges, trace.ops, np.flatnonzero(rows)
    found = nesting.innermost(ranges.start_ns[some], ranges.end_ns[some], ranges.thread[some], ops.start_ns, ops.thread)
    return np.append(some, -1)[found].astype(np.int32)


def _longest_pass(trace: Trace, rows: Int64Array) -> tuple[float, int]:
    """The time of the longest pass and the number of passes of some ops, see `longest_pass`."""
    _, kind = np.unique(trace.ops.name[rows], return_inverse=True)
    return longest_pass(np.bincount(kind, weights=trace.ops.dur_ns[rows]), np.bincount(kind))


@frozen_dataclass(eq=False)
class CpuZeroing:
    """Gradients that are filled with zeros in the window.

    Attributes:
        fill_count: How many are filled.
        fill_time: When.
        add_time: When new gradients are added to them.
    """

    fill_count: int
    fill_time: Intervals
    add_time: Intervals

    @property
    def time(self) -> Intervals:
        """When gradients are filled, and when new ones are added."""
        return iv.union_of((self.fill_time, self.add_time))


def cpu_zeroing_of(trace: Trace, window: Intervals) -> CpuZeroing:
    """The fills of `Optimizer.zero_grad`, and the additions to what it filled; not those of accumulated gradients."""
    ops = trace.ops
    in_window = iv.contains(window, ops.start_ns)
    inside = (_ranges_around(trace, trace.match_rows(trace.ranges, vocabulary.ZERO_GRAD)) >= 0) & in_window
    fills = inside & trace.match_rows(ops, r"^aten::(_foreach_)?zero_$")
    count = int((fills & trace.match_rows(ops, r"^aten::zero_$")).sum())
    adds = (
        trace.match_rows(ops, r"^aten::add_$")
        & (ops.parent >= 0)
        & trace.match_rows(ops, vocabulary.ACCUMULATE_GRAD)[ops.parent]
    )
    adds &= in_window
    if adds.sum() > count:  # gradients are accumulated over several passes, which needs the additions
        adds[:] = False
    filling, adding = (iv.intersect(iv.union(ops.start_ns[r], ops.end_ns[r]), window) for r in (fills, adds))
    return CpuZeroing(count, filling, adding)
