"""Forward passes that record a graph which no backward pass uses: PD507 in training, PD518 without any backward pass.

Autograd numbers the nodes of the graph of a thread one after the other, and the profiler writes the number at the
forward op that makes a node and at the op that runs it later::

    train     41 42 43 44 | backward 44 43 42 41
    evaluate  45 46 47 48 | nothing
    train     49 50 51 52 | backward 52 51 50 49

Numbers 45 to 48 are a pass in vain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._module_calls import lines_of_module_calls
from perfdoctor.rules import (
    BoolArray,
    Int64Array,
    Intervals,
    Rank,
    Saving,
    SourceLocation,
    Trace,
    compile_time,
    find_locations,
    forward_ops_of,
    frozen_dataclass,
    most_common_location,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# A pass of fewer nodes is no pass through a model: a metric, an auxiliary loss that is only logged.
MIN_NODES = 10
# Nodes of which no op was recorded, between two that were.
_MAX_MISSING_NODES = 2
# What it takes to make a node, to save what it needs, and to free it. Measured with PyTorch 2.13 on one thread, an op
# with gradients less the same op under inference_mode(): view 0.4 us, relu, add, mul and conv2d 0.5, mm 0.7,
# linear 0.9, batch_norm 1.1; 1.5 us a node in a model of 50 layers, whose nodes live and are freed together. The upper
# bound is twice that, for slower cores and for the profiler.
_MIN_NODE_NS, _MAX_NODE_NS = 500, 3_000
# Of the time of the ops of a pass, convolutions and products among them: whichever op writes an activation first takes
# the faults of its new pages, which are filled with zeros. By CPU time with one thread (torch 2.13) a pass without a
# graph took 0.49 of it (convolutions of 16 channels), 0.67 (32), 0.88 to 0.96 (linear layers).
_MAX_SHARE_OF_OPS = 0.6


@frozen_dataclass(eq=False)
class UnusedGraphs:
    """Passes whose graphs nobody uses.

    Attributes:
        time: When they run.
        node_count: How many nodes they make.
        pass_count: How many runs of numbers in a row there are: passes, or passes one after the other.
        first_ops: The op that makes the first node of each run, rows of `trace.ops`.
    """

    time: Intervals
    node_count: int
    pass_count: int
    first_ops: Int64Array


NO_GRAPHS = UnusedGraphs(iv.EMPTY, 0, 0, np.empty(0, np.int64))


def find_unused_graphs(trace: Trace, *, trains: bool, is_proof: bool = True) -> UnusedGraphs:
    """The passes that record a graph for nothing, in the thread with the most numbered ops.

    Args:
        trace: The trace.
        trains: Whether the program has backward passes: then only what lies between two passes that were
            differentiated is known to be in vain. What is recorded last may yet be used.
        is_proof: False to take that, too, for the lines of what another trace proves.
    """
    ops = trace.ops
    is_node = trace.match_rows(ops, vocabulary.BACKWARD_NODE)
    numbered = ops.sequence >= 0
    if trains != bool((numbered & is_node).any()):
        return NO_GRAPHS
    makers = np.flatnonzero(numbered & ~is_node & ~forward_ops_of(trace).in_backward)
    # torch.compile runs the forward pass with tensors that hold nothing, to see its ops.
    makers = makers[~iv.contains(compile_time(trace), ops.start_ns[makers])]
    if not len(makers):
        return NO_GRAPHS
    thread = int(np.bincount(ops.thread[makers]).argmax())
    makers = _without_earlier_ones(trace, makers[ops.thread[makers] == thread])
    used = np.isin(ops.sequence[makers], ops.sequence[numbered & is_node])
    numbers, first = np.unique(ops.sequence[makers], return_index=True)
    first_op, is_used = makers[first], used[first]
    if not trains:  # the last number is only seen by ops that make no node: it is the next one's
        numbers, first_op, is_used = numbers[:-1], first_op[:-1], is_used[:-1]
    if not len(numbers):
        return NO_GRAPHS
    # Runs of numbers in a row that are all used, or all unused.
    begins = np.append(True, (np.diff(numbers) > 1 + _MAX_MISSING_NODES) | (is_used[1:] != is_used[:-1]))
    run = np.cumsum(begins) - 1
    counts, run_used = np.bincount(run), is_used[begins]
    wanted = ~run_used & (counts >= MIN_NODES)
    if trains and is_proof:
        later_used = np.append(np.cumsum(run_used[::-1])[::-1][1:] > 0, False)
        earlier_used = np.append(False, np.cumsum(run_used)[:-1] > 0)
        wanted &= later_used & earlier_used
    runs = np.flatnonzero(wanted)
    if not len(runs):
        return NO_GRAPHS
    time = _time_of_runs(trace, numbers, run, makers, runs)
    first_ops = first_op[begins][runs]
    return UnusedGraphs(time, int(counts[runs].sum()), len(runs), first_ops)


def _without_earlier_ones(trace: Trace, makers: Int64Array) -> Int64Array:
    """Those of some ops that make the node of their number, or are around the one that does: the last one with it.

    A pass under no_grad makes none, and all its ops see the number of the next node, which another pass makes.
    """
    ops = trace.ops
    _, number = np.unique(ops.sequence[makers], return_inverse=True)
    start_ns = ops.start_ns[makers]
    last_ns = np.zeros(len(makers), np.int64)
    np.maximum.at(last_ns, number, start_ns)
    makes: BoolArray = (ops.end_ns[makers] > last_ns[number]) | (start_ns == last_ns[number])
    result: Int64Array = makers[makes]
    return result


def _time_of_runs(
    trace: Trace, numbers: Int64Array, run: Int64Array, makers: Int64Array, runs: Int64Array
) -> Intervals:
    """From the first op of each run to the end of its last one; never beyond the next backward pass."""
    ops = trace.ops
    makers = makers[np.isin(ops.sequence[makers], numbers)]
    of_run = run[np.searchsorted(numbers, ops.sequence[makers])]
    wanted = np.isin(of_run, runs)
    makers, position = makers[wanted], np.searchsorted(runs, of_run[wanted])
    starts, ends = np.full(len(runs), np.iinfo(np.int64).max), np.zeros(len(runs), np.int64)
    np.minimum.at(starts, position, ops.start_ns[makers])
    np.maximum.at(ends, position, ops.end_ns[makers])
    return iv.union(starts, ends)


def may_be_differentiated(rank: Rank) -> bool:
    """Whether something shows that a recording of forward passes lacks the backward passes.

    That are wrappers for training, and backward passes in the timed steps of a capture.
    """
    is_wrapped = not {"DDP", "FSDP"}.isdisjoint(rank.context.parallelism)
    return is_wrapped or any(rank.facts.base.backwards)


def locate_calls(rank: Rank, *, trains: bool) -> SourceLocation | None:
    """The line that calls the model in these passes, or the function; without modules that of the first op."""
    traces = [
        (trace, find_unused_graphs(trace, trains=trains, is_proof=False).first_ops)
        for trace in (rank.trace, rank.evidence_trace)
        if trace is not None
    ]
    by_call = [line for trace, rows in traces for line in lines_of_module_calls(trace, rows)]
    by_op = [
        line
        for trace, rows in traces
        for line in find_locations(trace, trace.ops.thread[rows], trace.ops.start_ns[rows])
    ]
    return most_common_location(by_call) or most_common_location(by_op)


class GraphCost(NamedTuple):
    """What the graphs of some passes may cost a step, when, and what is promised."""

    cost_ns: int
    time: Intervals
    saving: Saving


def bound_bookkeeping(rank: Rank, graphs: UnusedGraphs) -> GraphCost:
    """What making the nodes of the graphs of some passes may cost: microseconds a node, where the CPU sets the pace.

    That is where a GPU waits for launches, and on a CPU what its account has for the framework.
    """
    parts, passes = rank.account.parts, iv.intersect(graphs.time, rank.window)
    host = ("latency", "idle_launch") if rank.device_kind == "cpu" else ("idle_launch", "idle_sync")
    time = iv.intersect(passes, iv.union_of(tuple(parts[name] for name in host)))
    nodes = rank.count_per_step(graphs.node_count)
    time = iv.shorten(time, round(graphs.node_count * _MAX_NODE_NS / rank.time_scale))
    cost_ns = rank.per_step(iv.total(time))
    # Beside a GPU the bookkeeping may be hidden behind kernels that the CPU is ahead of.
    low_ns = min(round(nodes * _MIN_NODE_NS), cost_ns) if rank.device_kind == "cpu" else 0
    return GraphCost(cost_ns, time, Saving(low_ns, None, cost_ns, "bounded"))


def bound_saving(rank: Rank, graphs: UnusedGraphs) -> GraphCost:
    """The bounds of what an evaluation in a training saves without its graphs: the bookkeeping, and memory on a CPU.

    On a CPU activations that no graph keeps are freed and used again at once, in place of new memory that the system
    fills with zeros page by page: that takes part of the time of ops, which is the bound. On a GPU its allocator does
    so anyway.
    """
    bookkeeping = bound_bookkeeping(rank, graphs)
    if rank.device_kind != "cpu":
        return bookkeeping
    parts, passes = rank.account.parts, iv.intersect(graphs.time, rank.window)
    ops = iv.intersect(passes, iv.union_of((parts["bandwidth"], parts["compute"])))
    ops_ns = rank.per_step(iv.total(ops))
    high_ns = bookkeeping.cost_ns + round(_MAX_SHARE_OF_OPS * ops_ns)
    return GraphCost(
        bookkeeping.cost_ns + ops_ns,
        iv.union_of((bookkeeping.time, ops)),
        Saving(bookkeeping.saving.low_ns, None, high_ns, "bounded"),
    )
