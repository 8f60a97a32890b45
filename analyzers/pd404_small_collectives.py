"""PD404: many small collectives, where few large ones would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analysis.communication.bus_bandwidth import bus_bytes
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.rules.analyzer import FleetAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# What DistributedDataParallel gathers into one bucket unless told otherwise (bucket_cap_mb=25).
_BUCKET_BYTES = 25 << 20
# A collective of so many times the small ones' limit tells what the link can do.
_LARGE = 8
_BUCKETED = np.array(
    [COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")]
)


class SmallCollectives(FleetAnalyzer):
    """A step reduces or gathers its tensors in many small collectives, each of which takes its latency.

    What it finds:
        Many all-reduces, reduce-scatters, all-gathers and broadcasts of one group and kind, each of little data, with
        nothing to do meanwhile.

    Why it costs time:
        A collective takes tens of microseconds however little it moves: a launch, and a round over all ranks. Below a
        megabyte that is most of its time, and the link carries a fraction of what it could.

    How it is measured:
        By the sizes that the profiler writes on collectives. The cost is what small ones take while nothing computes,
        without the wait for a rank that PD401 names. The expected saving sends the same bytes in buckets of 25 MB, each
        with the shortest small collective's time and at the bandwidth that large ones reach in this trace; where none
        is large, the saving is a bound.

    How to fix:
        DistributedDataParallel with buckets of its usual size (bucket_cap_mb=25) instead of one all-reduce a parameter;
        torch.distributed's coalesced forms, or one flat tensor, for collectives of your own; metrics less often.

    When it is wrong:
        Where each collective's input is only known after the last one's output (tensor parallelism, one a layer) they
        cannot be put together.

    Needs:
        Sizes of collectives, as PyTorch records them for NCCL.

    References:
        PyTorch Distributed: Experiences on Accelerating Data Parallel Training (VLDB 2020), sections 3.2.2 and 5.2;
        nccl-tests, doc/PERFORMANCE.md.
    """

    rule: ClassVar[str] = "PD404"
    name: ClassVar[str] = "small-collectives"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})
    # max_bytes: DistributedDataParallel's own smallest bucket is 1 MiB. min_count: a few always remain.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.01, "max_bytes": 1 << 20, "min_count": 8}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://arxiv.org/abs/2006.15704",
        "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
    )

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """A finding for each rank, kind and group whose small collectives cost at least `min_share` of the step."""
        late = fleet.late_rank
        for summary in fleet.summaries:
            table = summary.collectives
            if table is None or "sizes" not in summary.available_data:
                continue
            waiting = late.wait_time_of(table) if late is not None and late.stands_out else iv.EMPTY
            small = table.in_window & (table.bytes >= 0) & (table.bytes < self.settings["max_bytes"])
            small &= np.isin(table.kind, _BUCKETED)
            lanes = sorted(set(zip(table.kind[small].tolist(), table.group[small].tolist(), strict=True)))
            for kind, group in lanes:
                of_lane = (table.kind == kind) & (table.group == group) & table.in_window
                yield from self._judged(summary, table, of_lane, small & of_lane, waiting)

    def _judged(
        self, rank: RankSummary, table: CollectiveTable, lane: BoolArray, small: BoolArray, waiting: Intervals
    ) -> Iterator[Finding]:
        count = int(np.count_nonzero(small)) / max(rank.steps.count, 1)
        exposed = iv.intersect(iv.union(table.start_ns[small], table.end_ns[small]), table.exposed)
        exposed = iv.subtract(exposed, waiting)
        cost = rank.per_step(iv.total(exposed))
        if count < self.settings["min_count"] or not self.exceeds_min_share(rank, cost):
            return
        size = int(table.bytes[small].sum() / max(rank.steps.count, 1))
        kept = self._kept_share(table, lane, small)
        name = COLLECTIVE_KINDS[int(table.kind[small][0])]
        reached, large = _gb_per_s(table, small), _gb_per_s(table, lane & self._is_large(table))
        yield self.finding(
            rank,
            title=f"{count:.3g} small collectives ({name}) a step move {size / 1e6:.3g} MB, and nothing else runs",
            cost_ns=cost,
            saving=Saving(0, None if kept is None else round(cost * (1 - kept)), cost, "bounded"),
            advice="Send them together: DistributedDataParallel's usual buckets, one flat tensor, or coalesced calls.",
            fix="DistributedDataParallel(model, bucket_cap_mb=25)",
            claim=Claim(exposed),
            confidence=0.6,
            evidence=(
                Evidence("small collectives per step", round(count, 1), "count"),
                Evidence("median size", int(np.median(table.bytes[small])), "bytes"),
                Evidence("bus bandwidth reached", reached, "GB/s"),
                Evidence("bus bandwidth of large ones", large, "GB/s"),
            ),
            subject=f"{name} {table.strings[int(table.group[small][0])]}" if table.group[small][0] >= 0 else name,
        )

    def _is_large(self, table: CollectiveTable) -> BoolArray:
        return np.asarray(table.bytes >= _LARGE * self.settings["max_bytes"], bool)

    def _kept_share(self, table: CollectiveTable, lane: BoolArray, small: BoolArray) -> float | None:
        """What would be left of the small ones' time in buckets; None where nothing tells how fast those would be."""
        large = lane & self._is_large(table)
        if not large.any():
            return None
        took, size = table.end_ns - table.start_ns, table.bytes
        # The fastest of each: what is longer waited for somebody.
        latency_ns = int(took[small].min())
        ns_per_byte = float((took[large] / size[large]).min())
        total = int(size[small].sum())
        buckets = -(-total // _BUCKET_BYTES)
        return min((buckets * latency_ns + total * ns_per_byte) / max(int(took[small].sum()), 1), 1.0)


def _gb_per_s(table: CollectiveTable, rows: BoolArray) -> float | None:
    """Bus bandwidth of some collectives, waits included; None where sizes do not tell."""
    crossing = bus_bytes(table.kind[rows], table.bytes[rows], table.group_size[rows])
    took = int((table.end_ns - table.start_ns)[rows].sum())
    if not took or not len(crossing) or np.isnan(crossing).any():
        return None
    return round(float(crossing.sum()) / took, 2)
