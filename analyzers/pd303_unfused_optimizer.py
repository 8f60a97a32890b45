"""PD303: the optimizer goes over the parameters several times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._cpu_ops import CpuOptimizer, cpu_optimizers_of
from perfdoctor.analyzers._gpu_optimizers import SETTINGS, GpuOptimizer, captured_settings_of, unfused_optimizers_of
from perfdoctor.analyzers._pd303_cpu_optimizers import (
    FUSED_ALREADY,
    NOTHING_TO_JOIN,
    Remaining,
    captured_optimizers_of,
    find_cpu_fix,
    own_time_of,
)
from perfdoctor.rules import (
    USED_AT,
    Claim,
    Edit,
    Evidence,
    Finding,
    OptimizerFacts,
    Rank,
    RankAnalyzer,
    Saving,
    SourceLocation,
    UnprofiledTime,
    advise,
    captured_location,
    fuse,
    intervals,
    top_kernels,
    vocabulary,
    yes_or_no,
)

# How many of the longest passes one fused pass takes: at worst, as expected, at best. The longest of Adam's (addcdiv)
# moves 16 bytes a float32 parameter, that of SGD with momentum 12; fused steps move 28 and 20. At worst they reach 70 %
# of the bandwidth that the longest pass does.
_FUSED_PASSES = (2.5, 1.75, 1.0)


class UnfusedOptimizer(RankAnalyzer):
    """The optimizer's step takes many kernels, each a pass over the parameters, where one pass would do."""

    rule = "PD303"
    name = "unfused-optimizer"
    needs = frozenset({"work", "work_launches"})
    defaults = SETTINGS
    references = (
        "https://docs.pytorch.org/docs/stable/optim.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each class of optimizer where a fused one could save `min_share` of the step.

        Without a GPU, for each that takes `min_cpu_share` of it.
        """
        if rank.device_kind == "cpu":
            for on_cpu in cpu_optimizers_of(rank.trace, rank.window):
                yield from self._analyze_on_cpu(rank, on_cpu)
        else:
            for on_gpu in unfused_optimizers_of(rank, self.settings):
                yield self._report_on_gpu(rank, on_gpu)

    def _report_on_gpu(self, rank: Rank, steps: GpuOptimizer) -> Finding:
        captured = captured_settings_of(rank, steps.optimizer)
        kernels, cost_ns = rank.count_per_step(len(steps.rows)), rank.per_step(intervals.total(steps.time))
        return self.finding(
            rank,
            title=f"{steps.optimizer} goes over the parameters"
            + (f" {steps.pass_count} times" if steps.pass_count > 1 else "")
            + f" {'tensor by tensor' if steps.is_loop else 'with foreach'}: {kernels:,} kernels {rank.per_unit}",
            cost_ns=cost_ns,
            saving=Saving(0, None, min(rank.per_step(steps.max_saving_ns), cost_ns), "bounded"),
            advice=advise(_situation_of(rank, steps), rank.context, optimizer=steps.optimizer),
            claim=Claim(steps.time, kernels=not steps.is_starved),
            confidence=0.8,
            location=_locate_constructor(rank, steps.optimizer),
            evidence=(
                Evidence("used at", _place_of_use(rank, steps.optimizer), id=USED_AT),
                Evidence("kernel time of the step", rank.per_step(steps.busy_ns), "ns"),
                Evidence("GPU waits for its launches", rank.per_step(steps.wait_ns), "ns"),
                Evidence("foreach, as captured", yes_or_no(captured.foreach)),
                Evidence("fused, as captured", yes_or_no(captured.fused)),
                *top_kernels(rank, steps.rows.index),
            ),
            subject=steps.optimizer,
            edit=_fuse(rank, steps),
        )

    def _analyze_on_cpu(self, rank: Rank, steps: CpuOptimizer) -> Iterator[Finding]:
        captured = captured_optimizers_of(rank, steps.optimizer)
        unprofiled = own_time_of(rank, steps, captured)
        ops = rank.count_per_step(steps.op_count)
        min_share = max(self.settings["min_share"], self.settings["min_cpu_share"])
        if ops < self.settings["min_kernels"] or unprofiled.share < min_share:
            return
        situation, remaining = find_cpu_fix(rank, steps, captured)
        if situation in (FUSED_ALREADY, NOTHING_TO_JOIN):
            return
        if remaining is not None and unprofiled.share * (1 - remaining.expected) < self.settings["min_share"]:
            return
        settings = captured[0] if captured else OptimizerFacts()
        passes = "once" if steps.pass_count == 1 else f"{steps.pass_count} times"
        how = "with foreach" if steps.uses_foreach else "tensor by tensor"
        found = self.finding(
            rank,
            title=f"{steps.optimizer} takes {unprofiled.share:.0%} of the {rank.unit_name}: {ops:,} ops"
            if remaining is None
            else f"{steps.optimizer} goes over the parameters {passes} {how}: {ops:,} ops {rank.per_unit}",
            cost_ns=rank.per_step(intervals.total(steps.time)),
            saving=_saving_on_cpu(unprofiled, remaining),
            advice=advise(situation, rank.context, optimizer=steps.optimizer),
            claim=Claim(steps.time),
            confidence=0.8,
            location=_locate_constructor(rank, steps.optimizer),
            evidence=(
                Evidence("used at", _place_of_use(rank, steps.optimizer), id=USED_AT),
                Evidence("of it by the profiler's cost of an event", unprofiled.program_ns, "ns"),
                Evidence("of the step without the profiler", round(100 * unprofiled.share, 1), "%"),
                Evidence("longest pass", round(100 * steps.remaining_share, 1), "%"),
                Evidence("foreach, as captured", yes_or_no(settings.foreach)),
                Evidence("fused, as captured", yes_or_no(settings.fused)),
            ),
            subject=steps.optimizer,
        )
        yield replace(found, severity="info") if remaining is None else found


def _situation_of(rank: Rank, steps: GpuOptimizer) -> str:
    """The situation in the table of advice."""
    if steps.optimizer in ("Adam", "AdamW"):
        return "unfused Adam or AdamW"
    if steps.optimizer == "SGD":
        return "unfused SGD beside a GradScaler" if len(rank.ops.named(vocabulary.GRAD_SCALER_OP)) else "unfused SGD"
    if steps.optimizer == "Adagrad":
        return "unfused Adagrad"
    return "optimizer updates tensor by tensor" if steps.is_loop else "optimizer without a fused form"


def _fuse(rank: Rank, steps: GpuOptimizer) -> Edit:
    """What a fused step changes: it launches little more than one kernel, which takes some longest passes."""
    low, expected, high = (
        fuse(
            rank.trace,
            steps.rows,
            max(1 - (1 - steps.saved_share) * passes, 0.0),
            launches_left=steps.first_rows,
            is_upper_bound=False,
        )
        for passes in _FUSED_PASSES
    )
    return replace(expected, at_least=low, at_most=high)


def _saving_on_cpu(unprofiled: UnprofiledTime, remaining: Remaining | None) -> Saving:
    """What a fix saves that leaves these shares of the time: bounds alone where no step was timed unprofiled."""
    if remaining is None:
        return Saving()
    if not unprofiled.timed:
        return Saving(0, None, round(unprofiled.max_ns * (1 - remaining.at_best)), "bounded")
    low, expected, high = (round(unprofiled.program_ns * (1 - share)) for share in reversed(remaining))
    return Saving(low, expected, high, "bounded")


def _locate_constructor(rank: Rank, optimizer: str) -> SourceLocation | None:
    """Where the user's code makes the optimizer, as captured; else where it calls its `step`."""
    return captured_location(captured_settings_of(rank, optimizer).created) or _locate_step(rank, optimizer)


def _place_of_use(rank: Rank, optimizer: str) -> str | None:
    """Where the user's code calls the optimizer's `step`; None where that is the finding's own location."""
    captured = captured_settings_of(rank, optimizer)
    if captured_location(captured.created) is None:
        return None
    used = captured_location(captured.location) or _locate_step(rank, optimizer)
    return None if used is None else str(used)


def _locate_step(rank: Rank, optimizer: str) -> SourceLocation | None:
    """Where the user's code calls the optimizer's `step`."""
    return rank.places.line_of_named(vocabulary.OPTIMIZER_STEP + re.escape(optimizer))
