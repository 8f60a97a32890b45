"""PD403: DataParallel, where DistributedDataParallel would do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, Saving, advise, distinct, vocabulary
from perfdoctor.rules import intervals as iv

# The autograd functions of torch.nn.parallel: weights and inputs to the GPUs, outputs and gradients back.
_TRANSFER_OPS = re.compile(r"^(Broadcast|Scatter|Gather|ReduceAddCoalesced)(Backward)?$")


class DataParallelUsed(RankAnalyzer):
    """One process drives several GPUs through torch.nn.DataParallel."""

    rule = "PD403"
    name = "dataparallel"
    needs = frozenset({"cpu"})
    # No min_share: using DataParallel is worth a finding whatever it costs; the cost decides the severity.
    defaults = {"min_devices": 2}
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#use-nn-parallel-distributeddataparallel-instead-of-multiprocessing-or-nn-dataparallel",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when DataParallel ran on at least `min_devices` devices."""
        trace, ranges = rank.trace, rank.trace.ranges
        forward = trace.match_rows(ranges, vocabulary.DATA_PARALLEL_FORWARD)
        count = int(iv.contains(rank.window, ranges.start_ns[forward]).sum())
        count += len(rank.ops.named(vocabulary.DATA_PARALLEL_FORWARD).in_steps())
        devices = len(distinct(trace.gpu.device[trace.gpu.device >= 0]))
        if devices < self.settings["min_devices"] or not (count or _is_captured(rank)):
            return
        parts = rank.exposed_parts
        transfers = rank.ops.named(_TRANSFER_OPS).kernels
        exposed = iv.intersect(transfers.time, iv.union_of((parts["memcpy"], parts["communication"])))
        cost = rank.per_step(iv.total(exposed))
        advice = advise("DataParallel", rank.context, devices=devices)
        yield self.finding(
            rank,
            title=f"DataParallel drives {devices} GPUs from one process, and copies the model to each in every step",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded") if cost else Saving(),
            advice=advice,
            claim=Claim(exposed),
            confidence=0.9,
            location=rank.places.line_of_named(vocabulary.DATA_PARALLEL_FORWARD),
            evidence=(
                Evidence("GPUs in one process", devices, "count"),
                Evidence("forward passes of DataParallel seen", count or None, "count"),
                Evidence("moving between GPUs, per {unit}", rank.per_step(transfers.time_ns), "ns"),
            ),
        )


def _is_captured(rank: Rank) -> bool:
    """Whether the captured facts name a model that is wrapped in DataParallel."""
    return any(model.data_parallel for model in rank.facts.models)
