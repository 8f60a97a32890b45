"""PD303: the optimizer goes over the parameters several times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analysis.captured_facts import captured_list, yes_or_no
from perfdoctor.analysis.host.cpu_ops import cpu_optimizers_of
from perfdoctor.analysis.kernels.traffic_kinds import OPTIMIZER
from perfdoctor.analyzers._pd303_optimizer_steps import OptimizerSteps, steps_of
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.top_kernels import top_kernels
from perfdoctor.savings.edits import fuse
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.rows import GpuRows

_HAS_FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})  # torch.optim, since 2.4


class UnfusedOptimizer(RankAnalyzer):
    """The optimizer's step takes many kernels, each a pass over the parameters, where one pass would do.

    What it finds:
        GPU work launched within `Optimizer.step#...` by a loop over the parameters, or by foreach kernels: one pass
        over all parameters for each primitive (multiply, add, square root, divide). In a program on the CPU alone the
        ops within it.

    Why it costs time:
        An optimizer computes next to nothing: it is as fast as parameter, gradient and state can be read and written.
        Fused Adam moves 28 bytes a float32 parameter in one pass, foreach about three times that in ten passes, and a
        loop over the parameters also launches one kernel for each tensor and primitive. On a CPU foreach is a loop,
        too: only the fused one is a single pass.

    How it is measured:
        Passes are counted by op: kernels of one op, over those of the rarest op that matters. One fused pass takes at
        least about as long as the longest of them: the rest is the most that can be saved. Where the GPU waits for
        the step's launches longer than it works on it, that wait counts, too, even of a single pass tensor by tensor.
        Without a GPU: the time of the ranges, without what the profiler takes for each event (as a capture has measured
        it, else 1 us). The bound is all of it; the expected saving, told where a capture has timed steps without the
        profiler, leaves the longest pass. Fused steps on a CPU took 17 to 38 % of the loop's time for AdamW, 22 to 60 %
        for Adagrad, 31 to 91 % for SGD with momentum, and as long for plain SGD, which is one pass (torch 2.13, one
        thread, 400 to 34 million parameters).

    How to fix:
        fused=True for Adam, AdamW, SGD and Adagrad; foreach=True where there is no fused one; else
        torch.compile(optimizer.step).

    When it is wrong:
        Fused steps round differently in the last bits. Optimizers that do more than move data (Shampoo, K-FAC) are
        left alone if most of their time is matrix maths or communication. On CPUs torch.optim has fused ones since 2.4.

    Needs:
        Kernels and their launches, or the ops of a program on the CPU alone, and the ranges that PyTorch records around
        optimizer steps.

    References:
        PyTorch, "torch.optim", foreach and fused; PyTorch Performance Tuning Guide; NVIDIA Apex, fused optimizers.
    """

    rule: ClassVar[str] = "PD303"
    name: ClassVar[str] = "unfused-optimizer"
    needs: ClassVar[frozenset[str]] = frozenset({"work", "work_launches"})
    # min_share: of what could be saved, a low finding's worth (contracts.md): the fix is one argument.
    # min_passes: 1 is fused, unless the GPU waits for a loop over at least min_loop tensors (the smallest network of
    # the real traces, a ResNet-50, has 161; optimizers of another kind launch up to 24).
    # min_cpu_share: min_share for a program on the CPU alone, where what the profiler takes is known less well.
    # min_kernels: fewer kernels than this a step are a toy, or fused in all but name.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.01, "min_passes": 2, "min_kernels": 5, "min_loop": 50, "min_cpu_share": 0.05}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/optim.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each class of optimizer where a fused one could save `min_share` of the step.

        Without a GPU `min_cpu_share`.
        """
        yield from self._on_cpu(rank) if rank.device_kind == "cpu" else self._on_gpu(rank)

    def _on_gpu(self, rank: Rank) -> Iterator[Finding]:
        trace = rank.trace
        launched = rank.traffic.optimizer_step
        ranges = np.where(launched >= 0, trace.ranges.name[launched], -1) if len(trace.ranges) else launched
        for code in occurring(ranges[rank.traffic.match_rows(OPTIMIZER)]).tolist():
            steps = steps_of(rank, np.flatnonzero(ranges == code), trace.strings[code])
            if steps is not None:
                yield from self._judge(rank, steps)

    def _judge(self, rank: Rank, steps: OptimizerSteps) -> Iterator[Finding]:
        cost = rank.per_step(iv.total(steps.claim))
        kernels = rank.per_step(len(steps.rows))
        fact = _fact(rank, steps.optimizer)
        starving = steps.loops and steps.starved and kernels >= self.settings["min_loop"]
        if not starving and steps.count_of_passes < self.settings["min_passes"]:
            return
        if kernels < self.settings["min_kernels"] or fact.get("fused"):
            return
        most = min(rank.per_step(steps.saved_ns), cost)
        if not self.exceeds_min_share(rank, most):
            return
        yield self.finding(
            rank,
            title=f"{steps.optimizer} goes over the parameters"
            + (f" {steps.count_of_passes} times" if steps.count_of_passes > 1 else "")
            + f" {'tensor by tensor' if steps.loops else 'with foreach'}: {kernels:,} kernels a {rank.unit_name}",
            cost_ns=cost,
            saving=Saving(0, None, most, "bounded"),
            advice=_advice(steps),
            fix=f"torch.optim.{steps.optimizer}(..., fused=True)"
            if steps.optimizer in _HAS_FUSED
            else "optimizer.step = torch.compile(optimizer.step)",
            claim=Claim(steps.claim, kernels=not steps.starved),
            confidence=0.8,
            location=rank.locations.of_range(vocabulary.OPTIMIZER_STEP + re.escape(steps.optimizer)),
            evidence=(
                Evidence("kernel time of the step", rank.per_step(steps.busy_ns), "ns"),
                Evidence("GPU waits for its launches", rank.per_step(steps.wait_ns), "ns"),
                Evidence("foreach, as captured", yes_or_no(fact.get("foreach"))),
                Evidence("fused, as captured", yes_or_no(fact.get("fused"))),
                *top_kernels(rank, steps.rows),
            ),
            subject=steps.optimizer,
            edit=fuse(
                rank.trace,
                GpuRows(rank.trace.gpu, steps.rows),
                1 - 1 / max(steps.passes, 1),
                launches_left=GpuRows(rank.trace.gpu, _first_of_each(rank, steps)),
            ),
        )

    def _on_cpu(self, rank: Rank) -> Iterator[Finding]:
        least = max(self.settings["min_share"], self.settings["min_cpu_share"])
        for steps in cpu_optimizers_of(rank.trace, rank.window):
            own, fact = rank.unprofiled_time(steps.time), _fact(rank, steps.optimizer)
            ops = rank.per_step(steps.op_count)
            if steps.optimizer not in _HAS_FUSED or fact.get("fused") or ops < self.settings["min_kernels"]:
                continue
            if steps.pass_count < self.settings["min_passes"] or own.share * (1 - steps.remaining_share) < least:
                continue
            yield self.finding(
                rank,
                title=f"{steps.optimizer} goes over the parameters {steps.pass_count} times "
                f"{'with foreach' if steps.uses_foreach else 'tensor by tensor'}: {ops:,} ops a {rank.unit_name}",
                cost_ns=rank.per_step(iv.total(steps.time)),
                saving=own.saving(steps.remaining_share),
                advice=f"Use the fused {steps.optimizer}: one op reads and writes each parameter and its state once.",
                fix=f"torch.optim.{steps.optimizer}(..., fused=True)",
                claim=Claim(steps.time),
                confidence=0.8,
                location=rank.locations.of_range(vocabulary.OPTIMIZER_STEP + re.escape(steps.optimizer)),
                evidence=(
                    Evidence("without the profiler's part", own.program_ns, "ns"),
                    Evidence("longest pass", round(100 * steps.remaining_share, 1), "%"),
                    Evidence("foreach, as captured", yes_or_no(fact.get("foreach"))),
                    Evidence("fused, as captured", yes_or_no(fact.get("fused"))),
                ),
                subject=steps.optimizer,
            )


def _first_of_each(rank: Rank, steps: OptimizerSteps) -> Int64Array:
    """The first GPU item of each of the optimizer's steps: a fused one launches little more."""
    _, first = np.unique(rank.traffic.optimizer_step[steps.rows], return_index=True)
    return steps.rows[first]


def _advice(steps: OptimizerSteps) -> str:
    if steps.optimizer in _HAS_FUSED:
        return f"Use the fused {steps.optimizer}: one kernel reads and writes each parameter and its state once."
    if steps.loops:
        return "Update all tensors at once: a foreach or fused implementation, or torch.compile(optimizer.step)."
    return "There is no fused one in torch.optim: torch.compile(optimizer.step) fuses the foreach kernels."


def _fact(rank: Rank, optimizer: str) -> Mapping[str, object]:
    return next((each for each in captured_list(rank.facts, "optimizers") if each.get("class") == optimizer), {})
