"""PD402: collectives that run while nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._cpu_cores_of_ranks import has_spare_core
from perfdoctor.rules import (
    Claim,
    CollectiveTable,
    CollectiveTotal,
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    Int64Array,
    Intervals,
    RankSummary,
    Saving,
    advise,
    format_rate,
    format_time,
    phases,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# A smaller overlap share rounds to 0 %.
_MIN_OVERLAP_SHARE = 0.005
# These reduce gradients, which are ready while backward still runs. Other kinds can run beside any work.
_GRADIENT_KINDS = frozenset({"all_reduce", "reduce_scatter"})
# The evidence names the kinds and groups with the most exposed time, so many of them.
_MAX_KINDS = 4
# What helps depends on the kind; kinds that are not named here have one advice.
_SITUATIONS: Mapping[str, str] = {
    "all_reduce": "exposed all_reduce",
    "all_to_all": "exposed all_to_all",
    "all_gather": "exposed all_gather or reduce_scatter",
    "reduce_scatter": "exposed all_gather or reduce_scatter",
    "send_recv": "exposed send_recv",
}
_OTHER_SITUATION = "exposed collectives"
# A model that is split over ranks exchanges the same amounts in each layer. An all_gather so many times as long as the
# median exchange is none of these: it puts together the output.
_TIMES_AN_EXCHANGE = 10
_MIN_EXCHANGES = 4
# DistributedDataParallel's first bucket (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES), and what a parameter takes in
# it.
_FIRST_BUCKET_BYTES, _PARAMETER_BYTES = 1 << 20, 4
# From this share of the exposed time on the title says which kind it is.
_MIN_KIND_SHARE = 0.5
_ALL_OF_IT = 0.995  # what would print as 100 %


class ExposedCommunication(FleetAnalyzer):
    """Collectives run while no computation does: the step waits for the network."""

    rule = "PD402"
    name = "exposed-communication"
    needs = frozenset({"work"})
    # 3 %: a part of the last bucket is always exposed, as no backward is left to hide it.
    defaults = {"min_share": 0.03}
    references = ("https://arxiv.org/abs/2006.15704", "https://docs.pytorch.org/docs/stable/notes/ddp.html")

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """A finding for each rank on which exposed communication reaches `min_share` of the step."""
        late = fleet.late_rank
        for summary in fleet.summaries:
            table = summary.collectives
            if table is not None and len(table):
                min_wait_ns = 0 if late is None else late.min_wait_ns_of(table)
                if not self.exceeds_min_share(summary, summary.per_step(iv.total(table.exposed) - min_wait_ns)):
                    continue
                waiting = late.any_wait_time_of(table) if late is not None else iv.EMPTY
                yield from self._check_rank(summary, table, waiting, is_alone=len(fleet.summaries) == 1)

    def _check_rank(
        self, rank: RankSummary, table: CollectiveTable, waiting: Intervals, is_alone: bool
    ) -> Iterator[Finding]:
        """The finding on one rank; `waiting` is the time in which it only waited for other ranks to arrive."""
        exposed = iv.subtract(table.exposed, waiting)
        # What is reduced again before the update is left to PD406: to leave it out is better than to overlap it.
        needless_ns = sum(finding.cost_ns for finding in rank.findings if finding.rule == "PD406")
        cost = max(rank.per_step(iv.total(exposed)) - needless_ns, 0)
        if not self.exceeds_min_share(rank, cost):
            return
        running_ns = sum(total.running_ns for total in table.totals)
        overlap = 1 - sum(total.exposed_ns for total in table.totals) / running_ns if running_ns else 0.0
        how_much = "none" if overlap < _MIN_OVERLAP_SHARE else f"only {overlap:.0%}"
        waits_unknown = is_alone and (rank.trace.world_size or 1) > 1
        kind, kind_share = _find_prevailing_kind(table)
        # Where the others' arrivals are unknown a long collective may be a wait.
        outputs = np.empty(0, np.int64) if waits_unknown else _find_gathered_outputs(rank, table)
        outputs_ns = iv.total(iv.intersect(iv.union(table.start_ns[outputs], table.end_ns[outputs]), exposed))
        is_output = outputs_ns > 0 and outputs_ns >= _MIN_KIND_SHARE * iv.total(exposed)
        situation = "exposed all_gather of logits" if is_output else _SITUATIONS.get(kind, _OTHER_SITUATION)
        why_not = _why_nothing_overlaps(rank, table, kind)
        advice = advise(why_not or situation, rank.context)
        saved_ns = min(cost, rank.per_step(_hideable_ns(table) + outputs_ns))
        share = cost / (cost + needless_ns)
        finding = self.finding(
            rank,
            title=f"Communication is exposed: {how_much} of it overlaps with computation"
            + (_describe_outputs(table, outputs) if is_output else _describe_kind(table, kind, kind_share)),
            cost_ns=cost,
            saving=Saving() if why_not else Saving(0, None, saved_ns, "bounded"),
            advice=advice.extend(
                "A slow link and a late rank look alike here: the traces of all ranks tell them apart." * waits_unknown
            ),
            # Which of it PD406 claims is not known here, only how much.
            claim=Claim(unshared_ns=cost * max(rank.steps.count, 1)) if needless_ns else Claim(exposed),
            edit=None if why_not else rank.shorten_collectives(exposed, share * saved_ns / cost, share),
            confidence=0.5 if waits_unknown else 0.8,
            evidence=(
                Evidence(
                    "collectives per {unit}",
                    round(sum(total.count for total in table.totals) / max(rank.steps.count, 1), 1),
                    "count",
                ),
                Evidence("communication per {unit}", rank.per_step(running_ns), "ns"),
                Evidence("overlapped", round(100 * overlap, 1), "%"),
                *_wait_evidence(rank, waiting),
                *(evidence for total in table.totals[:_MAX_KINDS] for evidence in _kind_evidence(rank, total)),
            ),
        )
        yield replace(finding, severity="info") if why_not else finding


def _why_nothing_overlaps(rank: RankSummary, table: CollectiveTable, kind: str) -> str | None:
    """The situation in which DistributedDataParallel on CPUs cannot hide its reductions; None where it may.

    Without a GPU the collectives run on the cores that compute. And gradients that fill less than the first bucket are
    all sent at the end of the backward pass, when nothing is left to compute.
    """
    if table.on_gpu or kind not in _GRADIENT_KINDS or not rank.facts.ddp:
        return None
    parameters = max((each.parameters or 0 for each in rank.facts.models), default=0)
    if 0 < parameters * _PARAMETER_BYTES <= _FIRST_BUCKET_BYTES:
        return "exposed all_reduce of a small model on CPUs"
    return "exposed all_reduce without a spare core" if has_spare_core(rank) is False else None


def _find_prevailing_kind(table: CollectiveTable) -> tuple[str, float]:
    """The kind whose collectives are exposed longest over all groups, and its share (0 to 1) of the exposed time."""
    exposed_ns: dict[str, int] = {}
    for total in table.totals:
        exposed_ns[total.kind] = exposed_ns.get(total.kind, 0) + total.exposed_ns
    if not any(exposed_ns.values()):
        return "other", 0.0
    kind = max(sorted(exposed_ns), key=lambda each: exposed_ns[each])
    return kind, exposed_ns[kind] / sum(exposed_ns.values())


def _describe_kind(table: CollectiveTable, kind: str, share: float) -> str:
    """The end of a title: the kind of which most is, and how fast it is where sizes are recorded."""
    if share < _MIN_KIND_SHARE:
        return ""
    longest = next((total for total in table.totals if total.kind == kind), None)
    rate = longest.bus_bytes_per_s if longest else None
    part = "all" if share >= _ALL_OF_IT else f"{share:.0%}"
    return f"; {part} of the exposed part is {kind}" + (f" at {format_rate(rate)}" if rate else "")


def _describe_outputs(table: CollectiveTable, outputs: Int64Array) -> str:
    """The end of a title: how long the output is gathered."""
    count, longest_ns = len(outputs), int((table.end_ns - table.start_ns)[outputs].max())
    if count == 1:
        return f"; one all_gather takes {format_time(longest_ns)}"
    return f"; {count} of its all_gathers take up to {format_time(longest_ns)} each"


def _find_gathered_outputs(rank: RankSummary, table: CollectiveTable) -> Int64Array:
    """The rows of collectives of a forward pass that put together the output that its ranks have in parts."""
    kinds = [vocabulary.COLLECTIVE_KINDS.index(kind) for kind in ("all_gather", "reduce_scatter", "all_reduce")]
    rows = np.flatnonzero(table.in_window & np.isin(table.kind, kinds))
    if not rank.context.is_forward_only or len(rows) < _MIN_EXCHANGES:
        return rows[:0]
    dur_ns = (table.end_ns - table.start_ns)[rows]
    is_long = dur_ns >= _TIMES_AN_EXCHANGE * np.median(dur_ns)
    outputs: Int64Array = rows[is_long & (table.kind[rows] == kinds[0])]
    return outputs


def _wait_evidence(rank: RankSummary, waiting: Intervals) -> tuple[Evidence, ...]:
    """How long the rank waited for other ranks; nothing where it did not."""
    if not len(waiting):
        return ()
    return (Evidence("waiting for other ranks, not counted here", rank.per_step(iv.total(waiting)), "ns"),)


def _kind_evidence(rank: RankSummary, total: CollectiveTotal) -> tuple[Evidence, ...]:
    """How long one kind of collective in one group is exposed, and its overlap share; waits are included."""
    name = f"{total.kind}{f' in group {total.group}' if total.group else ''}"
    overlap_percent = 100 * (1 - total.exposed_ns / total.running_ns) if total.running_ns else 0.0
    rate = total.bus_bytes_per_s
    return (
        Evidence(f"{name}, exposed per {{unit}}", rank.per_step(total.exposed_ns), "ns"),
        Evidence(f"{name}, overlapped", round(overlap_percent, 1), "%"),
        *(() if rate is None else (Evidence(f"{name}, bus bandwidth, waits included", round(rate / 1e9, 2), "GB/s"),)),
    )


def _hideable_ns(table: CollectiveTable) -> int:
    """Work in the window that no collective overlaps yet, in ns; only backward where only gradients are exposed."""
    exposed_kinds = {total.kind for total in table.totals if total.exposed_ns}
    work_ns = table.phase_ns
    overlapped_ns = sum(total.running_ns - total.exposed_ns for total in table.totals)
    if exposed_kinds <= _GRADIENT_KINDS and work_ns.get(phases.BACKWARD):
        return max(work_ns[phases.BACKWARD] - overlapped_ns, 0)
    return max(
        sum(work_ns.get(phase, 0) for phase in (phases.FORWARD, phases.BACKWARD, phases.OPTIMIZER, phases.COMPUTE))
        - overlapped_ns,
        0,
    )
