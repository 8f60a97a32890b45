"""The all-gathers of FSDP that its layers wait for, in the forward and in the backward pass of each step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.rules import BoolArray, CapturedFacts, CollectiveTable, Int64Array, Intervals, RankSummary, vocabulary
from perfdoctor.rules import intervals as iv
from perfdoctor.rules.internal import phases

_GATHER, _REDUCTION = (vocabulary.COLLECTIVE_KINDS.index(kind) for kind in ("all_gather", "reduce_scatter"))
# A step with fewer of them has one unit, or nearly: there is nothing to fetch ahead.
MIN_GATHERS = 4
# As in PD402: a part of each pass, its first unit, is always exposed.
MIN_SHARE = 0.03


class ExposedGathers(NamedTuple):
    """The time in which nothing computes but parameters are gathered, without waits for other ranks.

    Attributes:
        forward, backward: In the two passes; the first one of each step is in neither, as nothing can hide it.
        per_step: All-gathers a step.
        hideable_ns: Work in the window that no collective overlaps yet.
    """

    forward: Intervals
    backward: Intervals
    per_step: float
    hideable_ns: int


def may_prefetch(rank: RankSummary) -> bool:
    """Whether FSDP gathers the parameters of the rank's model, and no framework around it decides when."""
    used = {*rank.context.parallelism, *rank.context.frameworks}
    return "FSDP" in used and used.isdisjoint({"DeepSpeed", "Megatron"})


def find_exposed_gathers(rank: RankSummary, waiting: Intervals) -> ExposedGathers | None:
    """The exposed all-gathers of a model that FSDP shards; None for another program, or with too few of them.

    Args:
        rank: The rank.
        waiting: When it only waited for other ranks.
    """
    table = rank.collectives
    if table is None or not may_prefetch(rank):
        return None
    if not len(table.step_start_ns) or not table.on_gpu:
        return None
    gathers = np.flatnonzero((table.kind == _GATHER) & table.in_window)
    per_step = len(gathers) / len(table.step_start_ns)
    if per_step < MIN_GATHERS:
        return None
    exposed = iv.subtract(table.exposed, waiting)
    first = gathers[np.unique(table.step[gathers], return_index=True)[1]]
    later = np.setdiff1d(gathers, first)
    is_backward = _match_backward(table, later)
    by_pass = [
        iv.intersect(iv.union(table.start_ns[rows], table.end_ns[rows]), exposed)
        for rows in (later[~is_backward], later[is_backward])
    ]
    work_ns = sum(
        table.phase_ns.get(phase, 0) for phase in (phases.FORWARD, phases.BACKWARD, phases.OPTIMIZER, phases.COMPUTE)
    )
    overlapped_ns = sum(total.running_ns - total.exposed_ns for total in table.totals)
    return ExposedGathers(by_pass[0], by_pass[1], per_step, max(work_ns - overlapped_ns, 0))


def explained_by_prefetch(rank: RankSummary, waiting: Intervals) -> Intervals:
    """The exposed time of which PD411 tells, with its usual threshold."""
    gathers = find_exposed_gathers(rank, waiting)
    if gathers is None:
        return iv.EMPTY
    passes = (gathers.forward, gathers.backward)
    return iv.union_of(each for each in passes if (rank.share(rank.per_step(iv.total(each))) or 0.0) >= MIN_SHARE)


def _match_backward(table: CollectiveTable, gathers: Int64Array) -> BoolArray:
    """For each all-gather whether it comes after the first reduce-scatter of its step: the backward pass."""
    reductions = np.flatnonzero((table.kind == _REDUCTION) & table.in_window)
    begin_ns = np.full(len(table.step_start_ns), np.iinfo(np.int64).max)
    np.minimum.at(begin_ns, table.step[reductions], table.start_ns[reductions])
    return np.asarray(table.start_ns[gathers] >= begin_ns[table.step[gathers]], bool)


def reshards_after_forward(facts: CapturedFacts) -> bool | None:
    """Whether the units give their gathered parameters back after the forward pass; None where it was not captured."""
    if facts.fsdp.version == 1:
        return None if facts.fsdp.sharding is None else facts.fsdp.sharding in ("FULL_SHARD", "HYBRID_SHARD")
    return facts.fsdp.reshard_after_forward


def unsharded_bytes(facts: CapturedFacts) -> int | None:
    """What all gathered parameters take on a rank; None where it was not captured."""
    if facts.fsdp.version != 2:  # FSDP1's are counted by their shards
        return None
    counts = [model.parameters for model in facts.models if model.fsdp]
    if not counts or None in counts:
        return None
    return sum(count or 0 for count in counts) * (
        2 if facts.fsdp.param_dtype in ("torch.bfloat16", "torch.float16") else 4
    )


def free_memory_bytes(facts: CapturedFacts) -> int | None:
    """The memory of the device that the allocator never reserved; None where it was not captured."""
    reserved = facts.cuda_memory.get("reserved_bytes.all.peak")
    total = next((gpu.memory_bytes for gpu in facts.devices if gpu.current), None)
    if reserved is None or total is None:
        return None
    return max(total - reserved, 0)
