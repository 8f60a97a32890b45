"""PD516: the parameters of data parallel ranks differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from perfdoctor.rules import (
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    RankSummary,
    captured_location,
    format_ranges,
    frozen_dataclass,
    vocabulary,
)

_ALL_REDUCE = vocabulary.COLLECTIVE_KINDS.index("all_reduce")
Checksums: TypeAlias = Mapping[str, int]


@frozen_dataclass
class Copies:
    """The copies of one model on several ranks before one step.

    Attributes:
        model: The class of the model.
        group: The ranks of its process group; empty for all of the job.
        step: The step.
        of_ranks: For each rank the checksums of its parameters by their names, in the order of the model.
    """

    model: str
    group: tuple[int, ...]
    step: int
    of_ranks: Mapping[int, Checksums]

    @property
    def differing(self) -> list[str]:
        """The names of the tensors that are not the same on all ranks."""
        first = next(iter(self.of_ranks.values()))
        return [name for name in first if len({each[name] for each in self.of_ranks.values()}) > 1]

    def ranks_apart(self, name: str) -> list[int]:
        """The ranks whose tensor differs from that of most ranks; all of them where no two are alike."""
        counts = Counter(each[name] for each in self.of_ranks.values())
        usual, count = counts.most_common(1)[0]
        if 2 * count <= len(self.of_ranks):
            return sorted(self.of_ranks)
        return sorted(rank for rank, each in self.of_ranks.items() if each[name] != usual)


class RanksDiverged(FleetAnalyzer):
    """Data parallel ranks train different parameters."""

    rule = "PD516"
    name = "ranks-diverged"
    needs = frozenset({"facts", "ranks"})
    references = ("https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """One finding for each model whose copies differ at the last step at which they were compared."""
        if len({summary.trace.device for summary in fleet.summaries}) > 1:
            return
        reducing = [summary for summary in fleet.summaries if _reduces_each_step(summary)]
        history: dict[tuple[str, tuple[int, ...]], list[Copies]] = {}
        for copies in find_copies(reducing):
            history.setdefault((copies.model, copies.group), []).append(copies)
        for samples in history.values():
            if samples[-1].differing:
                yield self._report(reducing, samples)

    def _report(self, summaries: Sequence[RankSummary], samples: Sequence[Copies]) -> Finding:
        last = samples[-1]
        differing = last.differing
        apart = last.ranks_apart(differing[0])
        equal = [each.step for each in samples if not each.differing]
        others = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        who = f"ranks {format_ranges(apart)} differ" if len(apart) > 1 else f"rank {apart[0]} differs"
        who = "which differ" if len(apart) == len(last.of_ranks) else who
        rank = next(each for each in summaries if each.rank == apart[0])
        finding = self.finding(
            rank,
            title=f"The training is wrong: the ranks train different models, {who} in {differing[0]}{others}",
            advice="Find what changes parameters on some ranks only: a new initialisation or a checkpoint after "
            "DistributedDataParallel was made, other seeds, a step outside of the wrapper. Change them on all ranks, "
            "or before it is made: it copies those of rank 0 to all.",
            fix="model = Model()   # load, initialise and freeze here\n"
            "model = torch.nn.parallel.DistributedDataParallel(model)",
            location=captured_location(rank.facts.ddp.created),
            subject=last.model,
            evidence=(
                Evidence("model", last.model),
                Evidence("tensors that differ", len(differing), "count"),
                Evidence("tensors compared", len(next(iter(last.of_ranks.values()))), "count"),
                Evidence("first of them", differing[0]),
                Evidence("compared before step", last.step),
                Evidence("still equal before step", max(equal, default=None)),
            ),
            makes_results_wrong=True,
        )
        return finding if len(apart) == 1 else replace(finding, rank=None)


def find_copies(summaries: Sequence[RankSummary]) -> Iterator[Copies]:
    """The copies of each model, step by step, where at least two ranks of its process group have it at that step."""
    found: dict[tuple[str, tuple[int, ...], int, tuple[str, ...]], dict[int, Checksums]] = {}
    for summary in summaries:
        for sample in summary.facts.parameter_checksums:
            for model in sample.models:
                checksums = {str(each.name): each.checksum for each in model.tensors if each.checksum is not None}
                if model.ddp and model.reduces_each_step and not model.sharded:
                    group = model.group
                    key = (str(model.class_), group, sample.step or 0, tuple(checksums))
                    found.setdefault(key, {})[summary.rank or 0] = checksums
    for (name, group, step, names), of_ranks in sorted(found.items(), key=lambda each: each[0][2]):
        if names and len(of_ranks) > 1:
            yield Copies(name, group, step, of_ranks)


def _reduces_each_step(summary: RankSummary) -> bool:
    """Whether gradients are reduced in the recorded steps, as they are not where ranks train by themselves for long."""
    table = summary.collectives
    if table is None:
        return False
    return int(np.count_nonzero(table.in_window & (table.kind == _ALL_REDUCE))) >= max(summary.steps.count, 1)
