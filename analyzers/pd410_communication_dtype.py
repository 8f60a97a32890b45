"""PD410: gradients of a half-precision program travel in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    Claim,
    CollectiveTable,
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    Int64Array,
    Intervals,
    RankSummary,
    Saving,
    advise,
    captured_location,
    vocabulary,
    yes_or_no,
)
from perfdoctor.rules import intervals as iv

# These reduce gradients in data-parallel training.
_KINDS = [vocabulary.COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter")]
_OF_DATA = frozenset({"DDP", "FSDP", "ZeRO", "DeepSpeed", "Megatron", "data parallel"})
# Hooks that send less than float32 already.
_COMPRESSING = ("fp16", "bf16", "powerSGD", "powersgd", "quantiz")


class CommunicationDtype(FleetAnalyzer):
    """A model trained in half precision reduces its gradients in float32: twice the bytes."""

    rule = "PD410"
    name = "communication-dtype"
    needs = frozenset({"kernels", "sizes"})
    # min_share: a smaller saving would not even be a finding of low severity.
    # min_bytes: in nccl-tests' curves an all-reduce of 4 MB within a machine reaches about half of its final bandwidth.
    # min_half_share: of the time of products in half precision, so that a part in float32 does not hide it.
    defaults = {"min_share": 0.01, "min_bytes": 4 << 20, "min_half_share": 0.5}
    references = (
        "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
        "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    )

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """A finding for each rank on which the saving reaches `min_share` of the step."""
        late = fleet.late_rank
        for rank in fleet.summaries:
            table = rank.collectives
            if table is not None and len(table) and self._may_reduce_in_half(rank):
                rows = np.flatnonzero(self._match_float_reductions(table))
                if not len(rows):
                    continue
                waiting = late.any_wait_time_of(table) if late is not None else iv.EMPTY
                yield from self._check_rank(rank, table, rows, waiting, is_alone=len(fleet.summaries) == 1)

    def _may_reduce_in_half(self, rank: RankSummary) -> bool:
        """Whether it is data-parallel training in half precision, and no hook sends less than float32 already."""
        context = rank.context
        used = {*context.frameworks, *context.parallelism}
        compressed = any(word in hook for hook in rank.facts.ddp.comm_hooks or () for word in _COMPRESSING)
        is_half = (rank.half_precision_share or 0.0) >= self.settings["min_half_share"]
        return context.phase == "training" and is_half and not compressed and not used.isdisjoint(_OF_DATA)

    def _check_rank(
        self, rank: RankSummary, table: CollectiveTable, rows: Int64Array, waiting: Intervals, is_alone: bool
    ) -> Iterator[Finding]:
        transfers = iv.subtract(iv.union(table.start_ns[rows], table.end_ns[rows]), waiting)
        exposed = iv.intersect(transfers, table.exposed)
        # The half of the last transfer of a step has nothing to hide behind.
        remaining_ns = iv.total(iv.intersect(_last_of_steps(table, rows), exposed)) // 2
        freed_ns = min(iv.total(transfers) // 2, iv.total(exposed) - remaining_ns)
        cost, saved_ns = rank.per_step(iv.total(exposed)), rank.per_step(freed_ns)
        if not self.exceeds_min_share(rank, saved_ns):
            return
        steps, moved_bytes = max(rank.steps.count, 1), int(table.bytes[rows].sum())
        ddp, fsdp = rank.facts.ddp, rank.facts.fsdp
        waits_unknown = is_alone and (rank.trace.world_size or 1) > 1
        yield self.finding(
            rank,
            title=f"Gradients travel in float32, {moved_bytes / steps / 1e6:,.0f} MB a step, in a model that "
            "computes in half precision",
            cost_ns=cost,
            saving=Saving(0, None if waits_unknown else saved_ns, saved_ns, "bounded"),
            advice=advise("gradients reduced in float32", rank.context),
            claim=Claim(exposed),
            edit=rank.shorten_collectives(transfers, 0.5, 1.0, is_upper_bound=waits_unknown),
            confidence=0.5 if waits_unknown else 0.7,
            location=captured_location(rank.facts.ddp.created),
            evidence=(
                Evidence("float32 reductions per {unit}", round(len(rows) / steps, 1), "count"),
                Evidence("their median size", int(np.median(table.bytes[rows])), "bytes"),
                Evidence("transferring per {unit}, without waiting", rank.per_step(iv.total(transfers)), "ns"),
                Evidence("products in half precision", round(100 * (rank.half_precision_share or 0.0), 1), "%"),
                Evidence("communication hooks, as captured", _name_hooks(ddp.comm_hooks)),
                Evidence("reduce_dtype of FSDP, as captured", fsdp.reduce_dtype),
                Evidence("autocast, as captured", yes_or_no(_uses_autocast(rank))),
            ),
        )

    def _match_float_reductions(self, table: CollectiveTable) -> BoolArray:
        """For each collective whether it is a large reduction of float32 in the window."""
        floats = [code for code, text in enumerate(table.strings) if text.lower() == "float"]
        if not floats:
            return np.zeros(len(table), bool)
        is_large = table.bytes >= self.settings["min_bytes"]
        return np.asarray(table.in_window & is_large & np.isin(table.dtype, floats) & np.isin(table.kind, _KINDS), bool)


def _last_of_steps(table: CollectiveTable, rows: Int64Array) -> Intervals:
    """When the last of some collectives of each step run."""
    by_end = rows[np.lexsort((table.end_ns[rows], table.step[rows]))]
    last = by_end[np.append(np.diff(table.step[by_end]) != 0, True)]
    return iv.union(table.start_ns[last], table.end_ns[last])


def _name_hooks(hooks: Sequence[str] | None) -> str | None:
    return None if hooks is None else ", ".join(hooks) or "none"


def _uses_autocast(rank: RankSummary) -> bool | None:
    return (rank.facts.amp.autocast or 0) > 0 if rank.facts.amp else None
