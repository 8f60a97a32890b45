"""What a forward pass may save that records no graph: the same for evaluation in training and for inference."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.analyzers._unused_graphs import UnusedGraphs
from perfdoctor.rules import Intervals, Rank, Saving
from perfdoctor.rules import intervals as iv

# What it takes to make a node and to save what it needs, as bounds: a choice around a microsecond or two, not measured.
_MIN_NODE_NS, _MAX_NODE_NS = 500, 3_000
# Of the time of an op that waits for memory: to fill new pages with zeros writes what it writes once more, beside the
# fault of each page. A choice, not fitted: most of it at best, as the op itself still has to write.
_MAX_SHARE_OF_MEMORY_TIME = 0.6


class GraphCost(NamedTuple):
    """What the graphs of some passes may cost a step, when, and what is promised."""

    cost_ns: int
    time: Intervals
    saving: Saving


def bound_saving(rank: Rank, graphs: UnusedGraphs) -> GraphCost:
    """The bounds of what passes save without their graphs.

    On a CPU activations that no graph keeps are freed and used again at once, in place of new memory that the system
    fills with zeros page by page: that takes part of the time of ops that wait for memory, which is the bound. On a GPU
    its allocator does so anyway, and what is left is the CPU's bookkeeping, as far as the GPU waits for launches.
    """
    parts, passes = rank.account.parts, iv.intersect(graphs.time, rank.window)
    nodes = rank.count_per_step(graphs.node_count)
    if rank.device_kind != "cpu":
        time = iv.intersect(passes, iv.union_of((parts["idle_launch"], parts["idle_sync"])))
        cost_ns = rank.per_step(iv.total(time))
        return GraphCost(cost_ns, time, Saving(0, None, min(cost_ns, round(nodes * _MAX_NODE_NS)), "bounded"))
    memory = iv.intersect(passes, parts["bandwidth"])
    framework = iv.intersect(passes, iv.union_of((parts["latency"], parts["idle_launch"])))
    time = iv.union_of((memory, framework))
    cost_ns, framework_ns = rank.per_step(iv.total(time)), rank.per_step(iv.total(framework))
    bookkeeping_ns = min(round(nodes * _MAX_NODE_NS), framework_ns)
    high_ns = min(bookkeeping_ns + round(_MAX_SHARE_OF_MEMORY_TIME * rank.per_step(iv.total(memory))), cost_ns)
    low_ns = min(round(nodes * _MIN_NODE_NS), high_ns)
    return GraphCost(cost_ns, time, Saving(low_ns, None, high_ns, "bounded"))
