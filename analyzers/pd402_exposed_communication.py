"""PD402: collectives that run while nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.analysis.communication.collectives import CollectiveTable, CollectiveTotal
from perfdoctor.analysis.timeline.phases import BACKWARD, COMPUTE, FORWARD, OPTIMIZER
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.rules.analyzer import FleetAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals

# Less overlap than this rounds to none.
_HARDLY_ANY = 0.005
# Gradients are there while backward still works; what others reduce or gather can go beside any work.
_OF_GRADIENTS = frozenset({"all_reduce", "reduce_scatter"})
_MOST_TOLD = 4


class ExposedCommunication(FleetAnalyzer):
    """Collectives run while no computation does: the step waits for the network.

    What it finds:
        Time in which a collective runs and nothing computes, by kind and process group: kernels on a GPU, and gloo's
        collectives on the CPU.

    Why it costs time:
        Gradients can be reduced while backward still computes others; a collective that nothing overlaps lengthens
        the step by all of its time.

    How it is measured:
        The account's communication: collectives outside computation, in the window; the overlap share is what
        computation covered. A collective also waits for the last rank to arrive: with the traces of all ranks, that
        wait is not counted here, as overlap would not help: PD401 tells of it. What can be hidden at most is the work
        that no collective runs beside yet: the backward pass for gradients, any work for other collectives.

    How to fix:
        DistributedDataParallel overlaps by itself: smaller first buckets (bucket_cap_mb), static_graph,
        gradient_as_bucket_view; FSDP: prefetch; fewer bytes: bf16 gradient compression; no all-reduce in
        micro-batches (no_sync).

    When it is wrong:
        Where the wait is for a slow rank no overlap helps: make the ranks even first. One rank's trace alone cannot
        tell waiting from transferring.

    Needs:
        Collectives in the trace; those of all ranks for what was waiting.

    References:
        PyTorch Distributed: Experiences on Accelerating Data Parallel Training (VLDB 2020), sections 3.2.3 and 4.
    """

    rule: ClassVar[str] = "PD402"
    name: ClassVar[str] = "exposed-communication"
    needs: ClassVar[frozenset[str]] = frozenset({"work"})
    # 3 %: some of the last bucket is always exposed, there is no backward left to hide it.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.03})
    references: ClassVar[tuple[str, ...]] = (
        "https://arxiv.org/abs/2006.15704",
        "https://docs.pytorch.org/docs/stable/notes/ddp.html",
    )

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """A finding for each rank on which exposed communication reaches `min_share` of the step."""
        late = fleet.late_rank
        for summary in fleet.summaries:
            table = summary.collectives
            if table is not None and len(table):
                waiting = late.any_wait_time_of(table) if late is not None else iv.EMPTY
                yield from self._judged(summary, table, waiting, alone=len(fleet.summaries) == 1)

    def _judged(self, rank: RankSummary, table: CollectiveTable, waiting: Intervals, alone: bool) -> Iterator[Finding]:
        """The finding of one rank, without the time that it only waited for others to arrive."""
        exposed = iv.subtract(table.exposed, waiting)
        cost = rank.per_step(iv.total(exposed))
        if not self.exceeds_min_share(rank, cost):
            return
        running = sum(total.running_ns for total in table.totals)
        overlap = 1 - sum(total.exposed_ns for total in table.totals) / running if running else 0.0
        much = "none" if overlap < _HARDLY_ANY else f"only {overlap:.0%}"
        waits_unknown = alone and (rank.trace.world_size or 1) > 1
        yield self.finding(
            rank,
            title=f"Communication is exposed: {much} of it overlaps with computation",
            cost_ns=cost,
            saving=Saving(0, None, min(cost, rank.per_step(_could_hide(table))), "bounded"),
            advice="Overlap collectives with backward, or send less: bucket sizes, no_sync, compression."
            + (
                " The traces of all ranks would tell how much of it is waiting for a slow one." if waits_unknown else ""
            ),
            fix="DistributedDataParallel(model, bucket_cap_mb=..., gradient_as_bucket_view=True, static_graph=True)",
            claim=Claim(exposed),
            confidence=0.5 if waits_unknown else 0.8,
            evidence=(
                Evidence(
                    "collectives per step",
                    round(sum(total.count for total in table.totals) / max(rank.steps.count, 1), 1),
                    "count",
                ),
                Evidence("communication per step", rank.per_step(running), "ns"),
                Evidence("overlapped", round(100 * overlap, 1), "%"),
                *_waited(rank, waiting),
                *(evidence for total in table.totals[:_MOST_TOLD] for evidence in _of_kind(rank, total)),
            ),
        )


def _waited(rank: RankSummary, waiting: Intervals) -> tuple[Evidence, ...]:
    if not len(waiting):
        return ()
    return (Evidence("waiting for other ranks, not counted here", rank.per_step(iv.total(waiting)), "ns"),)


def _of_kind(rank: RankSummary, total: CollectiveTotal) -> tuple[Evidence, ...]:
    """What one kind of collective in one group takes, with the waits in it."""
    name = f"{total.kind}{f' in group {total.group}' if total.group else ''}"
    hidden = 100 * (1 - total.exposed_ns / total.running_ns) if total.running_ns else 0.0
    return (
        Evidence(f"{name}, exposed per step", rank.per_step(total.exposed_ns), "ns"),
        Evidence(f"{name}, overlapped", round(hidden, 1), "%"),
    )


def _could_hide(table: CollectiveTable) -> int:
    """Work in the window that no collective runs beside yet, in ns: of backward where only gradients are exposed."""
    exposed = {total.kind for total in table.totals if total.exposed_ns}
    work = table.phase_ns
    overlapped = sum(total.running_ns - total.exposed_ns for total in table.totals)
    if exposed <= _OF_GRADIENTS and work.get(BACKWARD):
        return max(work[BACKWARD] - overlapped, 0)
    return max(sum(work.get(phase, 0) for phase in (FORWARD, BACKWARD, OPTIMIZER, COMPUTE)) - overlapped, 0)
