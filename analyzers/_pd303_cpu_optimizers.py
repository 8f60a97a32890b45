"""What a program on the CPU alone can save in its optimizer's step: by class, size of the tensors, and settings.

All shares were measured on a CPU of two cores (torch 2.13, one and two threads, steps of 400 tensors of 64 elements up
to 40 tensors of 600,000): the time of a fused or foreach step over that of the default, which loops over the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perfdoctor.analyzers._cpu_ops import CpuOptimizer
from perfdoctor.rules import OptimizerFacts, Rank, UnprofiledTime

# Up to so many elements a tensor, calling ops takes longer than they do (2,000 elements: 4 us an op; 40,000: 10).
_MAX_SMALL_ELEMENTS = 8_000
# Where no sizes were captured: an op of a loop over tensors of that size, with the profiler.
_MAX_SMALL_OP_NS = 6_000
FUSED_ALREADY = "optimizer that is fused"
NOTHING_TO_JOIN = "optimizer of a few small tensors"
# With fewer ops there is nothing to join.
_MIN_OPS = 50


class Remaining(NamedTuple):
    """The share (0 to 1) of a step's time that remains after a fix."""

    at_best: float
    expected: float
    at_worst: float


# Plain SGD has one pass already: only where calling ops takes longer than they do is there something to save.
_FUSED_SMALL: Mapping[str, Remaining] = {
    "Adam": Remaining(0.25, 0.3, 0.35),
    "AdamW": Remaining(0.25, 0.3, 0.35),
    "Adagrad": Remaining(0.35, 0.42, 0.5),
    "SGD": Remaining(0.27, 0.35, 0.45),
    "plain SGD": Remaining(0.4, 0.65, 0.9),
}
_FUSED_LARGE: Mapping[str, Remaining] = {
    "Adam": Remaining(0.15, 0.3, 0.45),
    "AdamW": Remaining(0.15, 0.3, 0.45),
    "Adagrad": Remaining(0.2, 0.35, 0.5),
    "SGD": Remaining(0.55, 0.7, 0.95),
}
# Large tensors take up to 3.5 times as long with foreach, whose intermediate results do not stay in the cache.
_FOREACH_SMALL = Remaining(0.53, 0.7, 0.95)
_HAS_FOREACH = frozenset({"RMSprop", "NAdam", "RAdam", "Adadelta", "Adamax"})


def find_cpu_fix(rank: Rank, steps: CpuOptimizer, captured: Sequence[OptimizerFacts]) -> tuple[str, Remaining | None]:
    """What helps an optimizer on the CPU: a situation of the table of advice, and what it leaves; None without a fix.

    Args:
        rank: The rank.
        steps: Its steps.
        captured: What a capture says of the optimizers of this class.
    """
    is_small = _has_small_tensors(rank, steps, captured)
    name = "plain SGD" if steps.optimizer == "SGD" and steps.pass_count < 2 else steps.optimizer
    fused = (_FUSED_SMALL if is_small else _FUSED_LARGE).get(name)
    has_many_ops = rank.count_per_step(steps.op_count) >= _MIN_OPS
    if any(each.fused for each in captured):
        return FUSED_ALREADY, None
    if fused is not None and is_small and not has_many_ops:
        return NOTHING_TO_JOIN, None
    if fused is not None:
        is_adam = name in ("Adam", "AdamW")
        return "unfused Adam or AdamW on the CPU" if is_adam else "unfused optimizer on the CPU", fused
    if name in _HAS_FOREACH and is_small and has_many_ops and not steps.uses_foreach:
        return "optimizer of many small tensors on the CPU", _FOREACH_SMALL
    if name == "LBFGS":
        return "LBFGS on the CPU", None
    return "optimizer without a fused form on the CPU", None


def captured_optimizers_of(rank: Rank, optimizer: str) -> list[OptimizerFacts]:
    """What the capture says of the optimizers of a class."""
    return [each for each in rank.facts.optimizers if each.class_ == optimizer]


def own_time_of(rank: Rank, steps: CpuOptimizer, captured: Sequence[OptimizerFacts]) -> UnprofiledTime:
    """The time of the optimizer's own code: as a capture timed it without the profiler, else by the trace."""
    by_trace = rank.unprofiled_time(steps.time)
    own_ns = [each.own_ns for each in captured]
    timed_ns = sum(ns or 0 for ns in own_ns)
    base_ns = rank.facts.base.median_ns
    if rank.profiler_factor is None or not base_ns or not timed_ns or any(ns is None for ns in own_ns):
        return by_trace
    share = min(timed_ns / base_ns, 1.0)  # both are of the same steps
    own_ns_a_step = round(share * rank.mean_step_ns)
    return UnprofiledTime(own_ns_a_step, own_ns_a_step, share, True)


def _has_small_tensors(rank: Rank, steps: CpuOptimizer, captured: Sequence[OptimizerFacts]) -> bool:
    """Whether the tensors are so small that calling ops takes longer than they do."""
    tensors, elements = sum(each.tensors or 0 for each in captured), sum(each.parameters or 0 for each in captured)
    if tensors and elements:
        return elements <= _MAX_SMALL_ELEMENTS * tensors
    # By their time, not their number: one table of embeddings takes longer than all biases.
    dur_ns = rank.trace.ops.dur_ns[steps.rows]
    return not steps.uses_foreach and bool(2 * dur_ns[dur_ns <= _MAX_SMALL_OP_NS].sum() >= dur_ns.sum())
