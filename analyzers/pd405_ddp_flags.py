"""PD405: settings of DistributedDataParallel that cost time in every step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from perfdoctor.analysis.captured_facts import captured_list, captured_part, yes_or_no
from perfdoctor.analysis.launching_ops import match_launching_ops
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# Names of torch's reducer.cpp, as traces of PyTorch 2.13 have them.


class DdpFlags(RankAnalyzer):
    """DistributedDataParallel does work in every step that a setting would spare.

    What it finds:
        A search for unused parameters (find_unused_parameters=True), gradients copied back out of the buckets
        (gradient_as_bucket_view=False), and buffers broadcast in each forward pass (broadcast_buffers=True).

    Why it costs time:
        The search walks the whole graph on the CPU after each forward pass and reduces a map of what was used. The
        copies read and write every gradient once more, and keep it twice. The broadcasts stand before the forward pass,
        where nothing can hide them.

    How it is measured:
        By what torch's reducer and module write into the trace: `search_unused_parameters`, `copy_bucket_to_grad`, and
        broadcasts beside `DistributedDataParallel.forward`. Of the search counts what the GPU was idle meanwhile for
        want of launches, of the copies their kernels, of the broadcasts what no kernel covered. Without a GPU all of
        these are CPU time.

    How to fix:
        Leave find_unused_parameters out when every parameter gets a gradient, or say static_graph=True when the same
        ones are unused each time; gradient_as_bucket_view=True; broadcast_buffers=False when the ranks' BatchNorm
        statistics need not be equal.

    When it is wrong:
        A model that does leave out other parameters in each step needs the search. With gradient_as_bucket_view
        gradients cannot be detached in place. Without broadcasts each rank keeps its own running statistics:
        evaluation then depends on the rank.

    Needs:
        CPU events.

    References:
        torch.nn.parallel.DistributedDataParallel; PyTorch Performance Tuning Guide, "Match the order of layers in
        constructors and during the execution if using DistributedDataParallel(find_unused_parameters=True)".
    """

    rule: ClassVar[str] = "PD405"
    name: ClassVar[str] = "ddp-flags"
    needs: ClassVar[frozenset[str]] = frozenset({"cpu"})
    # What a low finding costs (contracts.md).
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each setting whose work costs at least `min_share` of the step."""
        yield from self._search(rank)
        yield from self._copies(rank)
        yield from self._broadcasts(rank)

    def _search(self, rank: Rank) -> Iterator[Finding]:
        spans = _time_on_cpu(rank, vocabulary.DDP_UNUSED_PARAMETERS)
        lost = spans if rank.device_kind == "cpu" else iv.intersect(spans, rank.account.parts["idle_launch"])
        yield from self._judged(
            rank,
            Claim(lost),
            subject="find_unused_parameters",
            title="DistributedDataParallel searches the graph for unused parameters in every step",
            advice="Leave find_unused_parameters out if every parameter gets a gradient; if the same ones never do, "
            "say static_graph=True.",
            fix="DistributedDataParallel(model)  # or static_graph=True",
            evidence=(Evidence("searching per step", rank.per_step(iv.total(spans)), "ns"),),
        )

    def _copies(self, rank: Rank) -> Iterator[Finding]:
        yield from self._judged(
            rank,
            Claim(_time_of_ops(rank, vocabulary.DDP_COPY_BUCKET), kernels=rank.device_kind == "gpu"),
            subject="gradient_as_bucket_view",
            title="Gradients are copied out of DistributedDataParallel's buckets in every step",
            advice="Let gradients be views of the buckets: no copies, and the memory of one set of gradients less.",
            fix="DistributedDataParallel(model, gradient_as_bucket_view=True)",
        )

    def _broadcasts(self, rank: Rank) -> Iterator[Finding]:
        if not rank.trace.match_rows(rank.trace.ranges, vocabulary.DDP_FORWARD).any():
            return
        table = rank.collectives
        rows = np.flatnonzero((table.kind == COLLECTIVE_KINDS.index("broadcast")) & (table.exposed_ns > 0))
        exposed = iv.intersect(iv.union(table.start_ns[rows], table.end_ns[rows]), table.exposed)
        yield from self._judged(
            rank,
            Claim(exposed),
            subject="broadcast_buffers",
            title="DistributedDataParallel broadcasts the model's buffers in every forward pass",
            advice="If the ranks' buffers (BatchNorm's statistics) need not be equal in training, do without.",
            fix="DistributedDataParallel(model, broadcast_buffers=False)",
            evidence=(Evidence("broadcasts per step", round(len(rows) / max(rank.steps.count, 1), 1), "count"),),
        )

    def _judged(
        self,
        rank: Rank,
        claim: Claim,
        *,
        subject: str,
        title: str,
        advice: str,
        fix: str,
        evidence: tuple[Evidence, ...] = (),
    ) -> Iterator[Finding]:
        cost = rank.per_step(claim.total_ns)
        if not self.exceeds_min_share(rank, cost):
            return
        flags = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "broadcast_buffers")
        said = _settings(rank)
        yield self.finding(
            rank,
            title=title,
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=advice,
            fix=fix,
            claim=claim,
            confidence=0.8,
            location=rank.locations.of_range(vocabulary.DDP_FORWARD),
            evidence=(
                *evidence,
                *(Evidence(f"{flag}, as captured", yes_or_no(said.get(flag))) for flag in flags if said),
            ),
            subject=subject,
        )


def _time_on_cpu(rank: Rank, pattern: str) -> Intervals:
    """When ops with a matching name ran on the CPU, within the window."""
    ops = rank.trace.ops
    rows = rank.trace.match_rows(ops, pattern)
    return iv.intersect(iv.union(ops.start_ns[rows], ops.end_ns[rows]), rank.window)


def _time_of_ops(rank: Rank, pattern: str) -> Intervals:
    """What ops with a matching name launched, within the window; without a GPU they themselves are the work."""
    if rank.device_kind == "cpu":
        return _time_on_cpu(rank, pattern)
    return rank.time_in_window(match_launching_ops(rank.trace, re.compile(pattern)))


def _settings(rank: Rank) -> Mapping[str, Any]:
    """The captured settings of the first wrapped model; empty when there are none."""
    wrapped = (captured_part(model, "ddp") for model in captured_list(rank.facts, "models"))
    return next((settings for settings in wrapped if settings), {})
