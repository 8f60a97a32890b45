"""What a forward pass may save that records no graph: the same for evaluation in training and for inference."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.analyzers._unused_graphs import UnusedGraphs
from perfdoctor.rules import Intervals, Rank, Saving
from perfdoctor.rules import intervals as iv

# To make a node and to save what it needs takes 0.5 to 2 us: small ops with and without a graph, in torch 2.13 on CPUs.
LEAST_NODE_NS, MOST_NODE_NS = 500, 3_000


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
    if rank.device_kind == "cpu":
        slow = iv.union_of((parts["bandwidth"], parts["latency"], parts["idle_launch"]))
        time = iv.intersect(passes, slow)
        cost_ns = rank.per_step(iv.total(time))
    else:
        time = iv.intersect(passes, iv.union_of((parts["idle_launch"], parts["idle_sync"])))
        cost_ns = min(rank.per_step(iv.total(time)), round(nodes * MOST_NODE_NS))
    low_ns = min(round(nodes * LEAST_NODE_NS), cost_ns) if rank.device_kind == "cpu" else 0
    return GraphCost(cost_ns, time, Saving(low_ns, None, cost_ns, "bounded"))
