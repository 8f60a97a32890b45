"""PD404: many small collectives, where few large ones would do."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    Claim,
    CollectiveTable,
    Edit,
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    Intervals,
    RankSummary,
    Saving,
    advise,
    bus_bytes,
    captured_location,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# The size of DistributedDataParallel's buckets by default (bucket_cap_mb=25).
_BUCKET_BYTES = 25 << 20
# A collective of so many times `max_bytes` shows what bandwidth the link can reach.
_LARGE_FACTOR = 8
# The kinds that can be sent in buckets.
_BUCKETABLE_KINDS = np.array(
    [vocabulary.COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")]
)


# What helps depends on the kind.
_SITUATIONS: Mapping[str, str] = {
    "all_reduce": "small all_reduce",
    "all_gather": "small all_gather or reduce_scatter",
    "reduce_scatter": "small all_gather or reduce_scatter",
    "broadcast": "small broadcast",
}


class SmallCollectives(FleetAnalyzer):
    """A step reduces or gathers its tensors in many small collectives, each of which takes its latency."""

    rule = "PD404"
    name = "small-collectives"
    needs = frozenset({"sizes"})
    # max_bytes: DistributedDataParallel's first bucket has 1 MiB. min_count: a few small collectives always remain.
    defaults = {"min_share": 0.01, "max_bytes": 1 << 20, "min_count": 8}
    references = (
        "https://arxiv.org/abs/2006.15704",
        "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
    )

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """A finding for each rank, kind and group whose small collectives cost at least `min_share` of the step."""
        late = fleet.late_rank
        without: set[Hashable] = set()
        for summary in fleet.summaries:
            table = summary.collectives
            if table is None or "sizes" not in summary.available_data:
                continue
            content = table.content_of("bytes")
            if content in without:  # as on most ranks of one program
                continue
            small = (table.bytes >= 0) & (table.bytes < self.settings["max_bytes"])
            if not small.any():
                without.add(content)
                continue
            small &= table.in_window & np.isin(table.kind, _BUCKETABLE_KINDS)
            if not small.any():
                continue
            waiting = late.wait_time_of(table) if late is not None and late.stands_out else iv.EMPTY
            for kind, group in sorted(set(zip(table.kind[small].tolist(), table.group[small].tolist(), strict=True))):
                alike = (table.kind == kind) & (table.group == group) & table.in_window
                yield from self._check_group(summary, table, alike, small & alike, waiting)

    def _check_group(
        self, rank: RankSummary, table: CollectiveTable, alike: BoolArray, small: BoolArray, waiting: Intervals
    ) -> Iterator[Finding]:
        """The finding on the collectives of one kind and process group (`alike`), of which some are small."""
        count = int(np.count_nonzero(small)) / max(rank.steps.count, 1)
        exposed = iv.intersect(iv.union(table.start_ns[small], table.end_ns[small]), table.exposed)
        exposed = iv.subtract(exposed, waiting)
        cost = rank.per_step(iv.total(exposed))
        if count < self.settings["min_count"] or not self.exceeds_min_share(rank, cost):
            return
        step_mb = int(table.bytes[small].sum() / max(rank.steps.count, 1)) / 1e6
        large = alike & (table.bytes >= _LARGE_FACTOR * self.settings["max_bytes"])
        name = vocabulary.COLLECTIVE_KINDS[int(table.kind[small][0])]
        advice = advise(_SITUATIONS[name], rank.context, collective=name)
        # Collectives that layers wait for one by one cannot be put together, so buckets promise nothing for them.
        remaining = None if advice.code is None else _remaining_share(table, small, large)
        yield self.finding(
            rank,
            title=f"{count:.3g} small collectives ({name}) a step move {step_mb:.3g} MB, and nothing else runs",
            cost_ns=cost,
            saving=Saving(0, None if remaining is None else round(cost * (1 - remaining)), cost, "bounded"),
            advice=advice,
            claim=Claim(exposed),
            edit=_join(rank, exposed, remaining),
            confidence=0.6,
            location=captured_location(rank.facts.ddp.created) if name == "all_reduce" and advice.code else None,
            evidence=(
                Evidence("small collectives per {unit}", round(count, 1), "count"),
                Evidence("median size", int(np.median(table.bytes[small])), "bytes"),
                Evidence("bus bandwidth reached", _bus_gb_per_s(table, small), "GB/s"),
                Evidence("bus bandwidth of large ones", _bus_gb_per_s(table, large), "GB/s"),
            ),
            subject=f"{name} {table.strings[int(table.group[small][0])]}" if table.group[small][0] >= 0 else name,
        )


def _join(rank: RankSummary, exposed: Intervals, remaining: float | None) -> Edit | None:
    """The edit that puts small collectives together: of their exposed time a share (0 to 1) remains, if it is known."""
    edit = whole = rank.shorten_collectives(exposed, 1.0)
    if remaining is not None:
        edit = rank.shorten_collectives(exposed, 1 - remaining, is_upper_bound=False)
    return edit if remaining is None or edit is None else replace(edit, at_least=Edit(), at_most=whole)


def _remaining_share(table: CollectiveTable, small: BoolArray, large: BoolArray) -> float | None:
    """The share of the small collectives' time that remains in buckets; None without large collectives to compare."""
    if not large.any():
        return None
    dur_ns = table.end_ns - table.start_ns
    # The fastest of each: longer ones waited for a rank.
    latency_ns = int(dur_ns[small].min())
    ns_per_byte = float((dur_ns[large] / table.bytes[large]).min())
    total_bytes = int(table.bytes[small].sum())
    buckets = -(-total_bytes // _BUCKET_BYTES)
    return min((buckets * latency_ns + total_bytes * ns_per_byte) / max(int(dur_ns[small].sum()), 1), 1.0)


def _bus_gb_per_s(table: CollectiveTable, rows: BoolArray) -> float | None:
    """Bus bandwidth of some collectives, waits included; None where a size or the number of ranks is unknown."""
    crossing = bus_bytes(table.kind[rows], table.bytes[rows], table.group_size[rows])
    time_ns = int((table.end_ns - table.start_ns)[rows].sum())
    if not time_ns or not len(crossing) or np.isnan(crossing).any():
        return None
    return round(float(crossing.sum()) / time_ns, 2)
