"""What a forward pass may save that records no graph: the same for evaluation in training and for inference."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.analyzers._unused_graphs import UnusedGraphs
from perfdoctor.rules import Intervals, Rank, Saving
from perfdoctor.rules import intervals as iv

# What it takes to make a node, to save what it needs, and to free it. Measured with PyTorch 2.13 on one thread, an op
# with gradients less the same op under inference_mode(): view 0.4 us, relu, add, mul and conv2d 0.5, mm 0.7,
# linear 0.9, batch_norm 1.1; 1.5 us a node in a model of 50 layers, whose nodes live and are freed together. The upper
# bound is twice that, for slower cores and for the profiler.
_MIN_NODE_NS, _MAX_NODE_NS = 500, 3_000
# Of the time of the ops of a pass, convolutions and products among them: whichever op writes an activation first takes
# the faults of its new pages, which are filled with zeros. By CPU time with one thread (torch 2.13) a pass without a
# graph took 0.49 of it (convolutions of 16 channels), 0.67 (32), 0.88 to 0.96 (linear layers).
_MAX_SHARE_OF_OPS = 0.6


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
