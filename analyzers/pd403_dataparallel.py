"""PD403: DataParallel, where DistributedDataParallel would do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.analysis.captured_facts import captured_list
from perfdoctor.analysis.launching_ops import match_launching_ops
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct

# The autograd functions of torch.nn.parallel: weights out, inputs out, outputs and gradients back.
_MOVES = re.compile(r"^(Broadcast|Scatter|Gather|ReduceAddCoalesced)(Backward)?$")


class DataParallelUsed(RankAnalyzer):
    """One process drives several GPUs through torch.nn.DataParallel.

    What it finds:
        DataParallel's forward pass on more than one device, and what it moves between them.

    Why it costs time:
        Each step copies all weights to every GPU, scatters the batch, gathers the outputs and adds the gradients on the
        first GPU; and one Python interpreter launches the kernels of all GPUs in turn.

    How it is measured:
        The range `DataParallel.forward` in the trace, or the model's class in the captured facts. The cost is copies
        and collectives that its Broadcast, Scatter, Gather and ReduceAddCoalesced launched and no kernel covered. What
        the shared interpreter costs is not in it: PD104 tells of GPUs that wait for launches.

    How to fix:
        DistributedDataParallel with one process a GPU, also on a single machine.

    When it is wrong:
        With one device DataParallel only calls the model: then it keeps quiet.

    Needs:
        CPU events.

    References:
        PyTorch Performance Tuning Guide, "Use DistributedDataParallel"; CUDA semantics, "Use
        nn.parallel.DistributedDataParallel instead of multiprocessing or nn.DataParallel".
    """

    rule: ClassVar[str] = "PD403"
    name: ClassVar[str] = "dataparallel"
    needs: ClassVar[frozenset[str]] = frozenset({"cpu"})
    # A fact, not a share, makes it speak; how loudly is the cost's to say.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_devices": 2})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#use-nn-parallel-distributeddataparallel-instead-of-multiprocessing-or-nn-dataparallel",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when DataParallel ran on at least `min_devices` devices."""
        trace = rank.trace
        passes = trace.match_rows(trace.ranges, vocabulary.DATA_PARALLEL_FORWARD)
        in_ops = trace.match_rows(trace.ops, vocabulary.DATA_PARALLEL_FORWARD)
        count = int(iv.contains(rank.window, trace.ranges.start_ns[passes]).sum())
        count += int(iv.contains(rank.window, trace.ops.start_ns[in_ops]).sum())
        devices = len(distinct(trace.gpu.device[trace.gpu.device >= 0]))
        if devices < self.settings["min_devices"] or not (count or _as_captured(rank)):
            return
        parts = rank.account.parts
        moved = rank.time_in_window(match_launching_ops(trace, _MOVES))
        exposed = iv.intersect(moved, iv.union_of((parts["memcpy"], parts["communication"])))
        cost = rank.per_step(iv.total(exposed))
        yield self.finding(
            rank,
            title=f"DataParallel drives {devices} GPUs from one process, and copies the model to each in every step",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded") if cost else Saving(),
            advice="Use DistributedDataParallel, one process a GPU: the weights stay, gradients overlap with backward.",
            fix=f"DistributedDataParallel(model.to(local_rank))  # torchrun --nproc-per-node {devices} train.py",
            claim=Claim(exposed),
            confidence=0.9,
            location=rank.locations.of_range(vocabulary.DATA_PARALLEL_FORWARD),
            evidence=(
                Evidence("GPUs in one process", devices, "count"),
                Evidence("forward passes of DataParallel seen", count or None, "count"),
                Evidence("moving between GPUs, per step", rank.per_step(iv.total(moved)), "ns"),
            ),
        )


def _as_captured(rank: Rank) -> bool:
    return any(model.get("data_parallel") is True for model in captured_list(rank.facts, "models"))
