"""PD406: gradients are reduced in every micro-batch."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    Claim,
    Evidence,
    Finding,
    Int64Array,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    find_outermost_ops,
    frozen_dataclass,
    vocabulary,
)
from perfdoctor.rules import intervals as iv


class NoSyncMissing(RankAnalyzer):
    """Gradients are accumulated over several micro-batches, and reduced over the ranks in each of them."""

    rule = "PD406"
    name = "no-sync-missing"
    needs = frozenset({"cpu"})
    # A smaller cost would not even be a finding of low severity.
    defaults = {"min_share": 0.01}
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when needless reductions cost at least `min_share` of the step."""
        passes = ddp_passes_of(rank)
        needless = passes.is_needless
        if not needless.any():
            return
        wasted = exposed_communication_of(rank, passes, needless)
        cost = rank.per_step(iv.total(wasted))
        if not self.exceeds_min_share(rank, cost):
            return
        updates = len(set(passes.update.tolist()))
        yield self.finding(
            rank,
            title=f"Gradients are reduced in every micro-batch: {passes.reduces.sum() / updates:.3g} times an update",
            cost_ns=cost,
            saving=Saving(0, cost, cost, "bounded"),
            advice=advise("gradients reduced in every micro-batch", rank.context),
            claim=Claim(wasted),
            confidence=0.9,
            location=rank.places.line_of_named(vocabulary.DDP_FORWARD),
            evidence=(
                Evidence("updates of the weights", updates, "count"),
                Evidence("forward passes", len(passes), "count"),
                Evidence("backward passes that reduce gradients", int(passes.reduces.sum()), "count"),
                Evidence("of these needless", int(needless.sum()), "count"),
            ),
        )


@frozen_dataclass(eq=False)
class DdpPasses:
    """The forward passes of wrapped models, each with its backward pass, sorted by start.

    For example, two micro-batches of one update that both reduce, and the first one of the next update::

        start_ns  end_ns   update  reduces  is_needless
        0         100_000  0       True     True         the next pass reduces the same gradients again
        100_000   200_000  0       True     False
        230_000   330_000  1       False    False

    Attributes:
        start_ns: When the forward pass begins.
        end_ns: When the next one begins, or the step of an optimizer if that comes first.
        update: Number of the update of the weights: gradients of passes with the same number are accumulated.
        reduces: Whether its backward pass reduced gradients.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    update: Int64Array
    reduces: BoolArray

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def is_needless(self) -> BoolArray:
        """For each pass whether it reduced gradients that a later pass of the same update reduces again."""
        last_reducing = np.full(int(self.update.max()) + 1 if len(self) else 0, -1, np.int64)
        rows = np.flatnonzero(self.reduces)
        last_reducing[self.update[rows]] = rows
        result: BoolArray = self.reduces & (last_reducing[self.update] != np.arange(len(self)))
        return result


def ddp_passes_of(rank: Rank) -> DdpPasses:
    """The passes of complete updates in the window: those after the last step of an optimizer are left out."""
    trace, ranges = rank.trace, rank.trace.ranges
    inside = iv.contains(rank.window, ranges.start_ns)
    optimizer = trace.match_rows(ranges, vocabulary.OPTIMIZER_STEP) & inside
    update_ns = np.sort(ranges.start_ns[optimizer])
    start = np.sort(ranges.start_ns[trace.match_rows(ranges, vocabulary.DDP_FORWARD) & inside])
    # Passes within the step of an optimizer evaluate a closure (LBFGS): their gradients are not accumulated.
    start = start[~iv.contains(iv.union(ranges.start_ns[optimizer], ranges.end_ns[optimizer]), start)]
    update = np.searchsorted(update_ns, start)
    start, update = start[update < len(update_ns)], update[update < len(update_ns)]
    end = np.minimum(np.append(start[1:], np.iinfo(np.int64).max), update_ns[update]) if len(start) else start
    reduction_ns = _find_reductions(rank)
    reduces = np.searchsorted(reduction_ns, end) > np.searchsorted(reduction_ns, start)
    return DdpPasses(start, end, update, reduces)


def _find_reductions(rank: Rank) -> Int64Array:
    """When backward passes issued all-reduces, sorted; those of metrics and losses are issued outside of autograd."""
    trace, ops = rank.trace, rank.trace.ops
    rows = np.flatnonzero(rank.ops.named(vocabulary.ALL_REDUCE_OP).mask).astype(np.int32)
    if not len(rows):
        return np.empty(0, np.int64)
    _, autograd_op = find_outermost_ops(trace, rows, lambda name: not re.search(vocabulary.AUTOGRAD_OP, name))
    return np.sort(ops.start_ns[rows[autograd_op >= 0]])


def exposed_communication_of(rank: Rank, passes: DdpPasses, chosen: BoolArray) -> Intervals:
    """When collectives ran that some passes issued, and nothing computed.

    Args:
        rank: The rank.
        passes: Its passes.
        chosen: For each pass whether it counts.
    """
    trace, ranges, gpu = rank.trace, rank.trace.ranges, rank.trace.gpu
    if rank.device_kind == "cpu":
        rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.CPU_COLLECTIVE_RANGE))
        start, end, issued = ranges.start_ns[rows], ranges.end_ns[rows], ranges.start_ns[rows]
    else:
        rows = np.flatnonzero(rank.kernels.of_category("communication").mask & (gpu.call >= 0))
        start, end, issued = gpu.start_ns[rows], gpu.end_ns[rows], trace.calls.start_ns[gpu.call[rows]]
    if not len(rows) or not len(passes):
        return iv.EMPTY
    row = np.searchsorted(passes.start_ns, issued, side="right") - 1
    counts = (row >= 0) & (issued < passes.end_ns[row]) & chosen[row]
    return iv.intersect(iv.union(start[counts], end[counts]), rank.exposed_parts["communication"])
