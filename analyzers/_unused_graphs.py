"""Forward passes that record a graph which no backward pass uses: PD507 in training, PD518 without any backward pass.

Autograd numbers the nodes of the graph of a thread one after the other, and the profiler writes the number at the
forward op that makes a node and at the op that runs it later::

    train     41 42 43 44 | backward 44 43 42 41
    evaluate  45 46 47 48 | nothing
    train     49 50 51 52 | backward 52 51 50 49

Numbers 45 to 48 are a pass in vain.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._module_calls import lines_of_module_calls
from perfdoctor.rules import (
    BoolArray,
    Int64Array,
    Intervals,
    Rank,
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
