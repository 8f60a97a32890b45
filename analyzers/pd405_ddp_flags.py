"""PD405: settings of DistributedDataParallel that cost time in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._pd405_buffer_syncs import buffer_syncs_of, drop_syncs
from perfdoctor.rules import (
    USED_AT,
    Advice,
    Claim,
    CollectiveTable,
    Edit,
    Evidence,
    Finding,
    GpuRows,
    Int64Array,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    captured_location,
    fuse,
    remove_cpu_time,
    remove_items,
    vocabulary,
    yes_or_no,
)
from perfdoctor.rules import intervals as iv

# Reductions that remain with the usual buckets, at least: of the first bucket and of the others.
_USUAL_BUCKETS = 2
_FLAGS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "broadcast_buffers")


class DdpFlags(RankAnalyzer):
    """DistributedDataParallel does work in every step that a setting would spare."""

    rule = "PD405"
    name = "ddp-flags"
    needs = frozenset({"cpu"})
    # min_share: a smaller cost would not even be a finding of low severity.
    # max_bucket_bytes: no default of PyTorch is smaller: the first bucket has 1 MiB, the others 25.
    # min_buckets: reductions a step, as in PD404.
    defaults = {"min_share": 0.01, "max_bucket_bytes": 1 << 20, "min_buckets": 8}
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each setting whose work costs at least `min_share` of the step."""
        yield from self._check_search(rank)
        yield from self._check_copies(rank)
        yield from self._check_broadcasts(rank)
        yield from self._check_buckets(rank)

    def _check_buckets(self, rank: Rank) -> Iterator[Finding]:
        """A finding where buckets that were made small on purpose are reduced one by one."""
        bucket_bytes = rank.facts.ddp.bucket_bytes_cap
        if bucket_bytes is None or bucket_bytes >= self.settings["max_bucket_bytes"]:
            return
        table, steps = rank.collectives, max(rank.steps.count, 1)
        rows = np.flatnonzero(table.in_window & (table.kind == vocabulary.COLLECTIVE_KINDS.index("all_reduce")))
        count = len(rows) / steps
        if count < self.settings["min_buckets"]:
            return
        exposed = iv.intersect(iv.union(table.start_ns[rows], table.end_ns[rows]), table.exposed)
        # All that remain take what two take now: the first bucket has a megabyte at most.
        remaining = min(_USUAL_BUCKETS / count, 1.0)
        yield from self._report(
            rank,
            Claim(exposed, kernels=table.on_gpu),
            edit=_join_buckets(rank, table, rows, remaining) if table.on_gpu else None,
            situation="DDP has tiny buckets",
            subject="bucket_cap_mb",
            title=f"{count:.3g} buckets of gradients are reduced one by one in a step: bucket_cap_mb is "
            f"{bucket_bytes / (1 << 20):.2g}",
            expected_share=1 - remaining,
            evidence=(
                Evidence("all-reduces per {unit}", round(count, 1), "count"),
                Evidence("bucket_cap_mb, as captured", round(bucket_bytes / (1 << 20), 3)),
            ),
        )

    def _check_search(self, rank: Rank) -> Iterator[Finding]:
        searches = rank.ops.named(vocabulary.DDP_UNUSED_PARAMETERS)
        ops, at, lost = searches.table, searches.mask, searches.time
        if rank.device_kind != "cpu":
            lost = iv.intersect(lost, rank.account.parts["idle_launch"])
        captured = rank.facts.ddp
        unused = captured.unused_elements
        yield from self._report(
            rank,
            Claim(lost),
            edit=remove_cpu_time(ops.thread[at], (ops.start_ns[at], ops.end_ns[at]), rank.window),
            situation="DDP searches for unused parameters",
            subject="find_unused_parameters",
            title="DistributedDataParallel searches the graph for unused parameters in every step"
            + (", and none is unused" if unused == 0 else ""),
            evidence=(
                Evidence("searching per {unit}", rank.per_step(searches.time_ns), "ns"),
                Evidence("elements of unused parameters, by the reducer", unused),
                Evidence("buckets follow the backward pass", yes_or_no(captured.has_rebuilt_buckets)),
            )
            if captured
            else (Evidence("searching per {unit}", rank.per_step(searches.time_ns), "ns"),),
        )

    def _check_copies(self, rank: Rank) -> Iterator[Finding]:
        copies = rank.ops.named(vocabulary.DDP_COPY_BUCKET)
        work = copies.time if rank.device_kind == "cpu" else copies.kernels.time
        yield from self._report(
            rank,
            Claim(work, kernels=rank.device_kind == "gpu"),
            edit=remove_items(rank.trace, copies.kernels.rows, is_upper_bound=False),
            situation="DDP copies gradients out of its buckets",
            subject="gradient_as_bucket_view",
            title="Gradients are copied out of DistributedDataParallel's buckets in every step",
        )

    def _check_broadcasts(self, rank: Rank) -> Iterator[Finding]:
        if not rank.trace.match_rows(rank.trace.ranges, vocabulary.DDP_FORWARD).any():
            return
        syncs, table = buffer_syncs_of(rank), rank.collectives
        broadcast = vocabulary.COLLECTIVE_KINDS.index("broadcast")
        rows = np.flatnonzero((table.kind == broadcast) & (table.exposed_ns > 0))
        exposed = iv.intersect(iv.union(table.start_ns[rows], table.end_ns[rows]), table.exposed)
        steps = max(rank.steps.count, 1)
        yield from self._report(
            rank,
            Claim(iv.union_of((exposed, _time_lost_in(rank, syncs.time)))),
            situation="DDP broadcasts buffers",
            subject="broadcast_buffers",
            title="DistributedDataParallel broadcasts the model's buffers in every forward pass",
            edit=drop_syncs(rank, syncs) if len(syncs.start_ns) else None,
            evidence=(
                Evidence("broadcasts per {unit}", round(len(rows) / steps, 1), "count"),
                Evidence("buffers copied back per {unit}", round(syncs.copied / steps, 1) or None, "count"),
                Evidence("CPU at the buffers per {unit}", rank.per_step(iv.total(syncs.time)) or None, "ns"),
            ),
        )

    def _report(
        self,
        rank: Rank,
        claim: Claim,
        *,
        situation: str,
        subject: str,
        title: str,
        edit: Edit | None = None,
        expected_share: float | None = None,
        evidence: tuple[Evidence, ...] = (),
    ) -> Iterator[Finding]:
        """The finding on one setting, whose work is the claimed time, where that costs enough.

        `expected_share` of it (0 to 1) should go; None where only the bound is known.
        """
        cost = rank.per_step(claim.total_ns)
        if not self.exceeds_min_share(rank, cost):
            return
        captured = rank.facts.ddp
        created, used = captured_location(rank.facts.ddp.created), rank.places.line_of_named(vocabulary.DDP_FORWARD)
        advice = advise(situation, rank.context)
        if rank.trace.world_size == 1:
            advice = Advice(
                "Leave DistributedDataParallel out: there is one process, so there is nothing to reduce.",
                "model = Net().to(device)   # without DistributedDataParallel",
                "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
            )
        yield self.finding(
            rank,
            title=title,
            cost_ns=cost,
            saving=Saving(0, None if expected_share is None else round(cost * expected_share), cost, "bounded"),
            advice=advice,
            claim=claim,
            edit=edit,
            confidence=0.8,
            location=created or used,
            evidence=(
                Evidence("used at", str(used) if created and used else None, id=USED_AT),
                *evidence,
                *(Evidence(f"{flag}, as captured", yes_or_no(getattr(captured, flag))) for flag in _FLAGS if captured),
            ),
            subject=subject,
        )


def _join_buckets(rank: Rank, table: CollectiveTable, rows: Int64Array, remaining: float) -> Edit:
    """The edit that reduces gradients in few buckets, which take a share (0 to 1) of the time that all take now."""
    kernels = rank.kernels.of_category("communication")
    items = kernels.where(np.isin(kernels.table.end_ns, table.end_ns[rows])).rows
    left = GpuRows(items.table, items.index[:: max(round(1 / remaining), 1)])
    expected = fuse(rank.trace, items, 1 - remaining, left, is_upper_bound=False)
    return replace(expected, at_least=Edit(), at_most=remove_items(rank.trace, items))


def _time_lost_in(rank: Rank, time: Intervals) -> Intervals:
    """The part of some time of the CPU in which a GPU had nothing to do; all of it without a GPU."""
    if rank.device_kind == "cpu":
        return iv.intersect(time, rank.window)
    idle = (part for name, part in rank.account.parts.items() if name.startswith("idle_"))
    return iv.intersect(time, iv.union_of(idle))
