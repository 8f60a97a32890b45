"""PD209: kernels that stay far below what comparable kernels reach."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._pd209_causes import Cause, find_cause
from perfdoctor.analyzers._pd209_slow_kernels import (
    SlowFamily,
    SlowKind,
    device_of,
    find_slow_families,
    name_of_op,
    tensors_of,
)
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    format_per_step,
    read_texts,
    set_durations,
    top_kernels,
    top_op,
)

_MAX_SHOWN = 3


class SlowKernel(RankAnalyzer):
    """Kernels take much longer than comparable kernels take for the same work."""

    rule = "PD209"
    name = "slow-kernel"
    needs = frozenset({"kernels", "shapes"})
    # min_share: the excess; half of a bound at a confidence of 0.6 is then 1 % of the step, a low finding.
    # max_of_comparable: recorded kernels without a fault lie within a third of the table's middle. min_kernel_ns: some
    # 10 us are the floor of launch and tail.
    defaults = {"min_share": 0.03, "max_of_comparable": 0.67, "min_kernel_ns": 10_000}
    references = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/",
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each family whose slow kernels take at least `min_share` of the step more than need be."""
        settings = self.settings
        min_excess_ns = settings["min_share"] * rank.window_ns
        for slow in find_slow_families(rank, settings["max_of_comparable"], settings["min_kernel_ns"], min_excess_ns):
            yield self._make_finding(rank, slow)

    def _make_finding(self, rank: Rank, slow: SlowFamily) -> Finding:
        kernels = rank.kernels.where(slow.mask)
        costliest = slow.kinds[0]
        cause = find_cause(rank, costliest)
        cost_ns = rank.per_step(kernels.time_ns)
        op = top_op(rank, kernels.mask)
        return self.finding(
            rank,
            title=f"{read_texts('words')['kernels'][slow.family]} reach {_describe_shares(rank, slow)}: {cause.clause}",
            cost_ns=cost_ns,
            saving=Saving(0, None, min(rank.per_step(round(slow.excess_ns)), cost_ns), "bounded"),
            advice=advise(f"slow kernels: {cause.id}", rank.context),
            claim=Claim(kernels.time, kernels=True),
            confidence=_confidence(rank, cause),
            location=kernels.location,
            evidence=(
                Evidence("launches", format_per_step(rank, len(kernels))),
                Evidence("all kernels of the family", rank.per_step(round(slow.family_time_ns)), "ns"),
                *(
                    Evidence(_describe_kind(rank, kind, of_costliest=cause), rank.per_step(round(kind.time_ns)), "ns")
                    for kind in slow.kinds[:_MAX_SHOWN]
                ),
                Evidence("launched by", op),
                *top_kernels(rank, kernels.mask),
            ),
            subject=slow.family,
            edit=set_durations(kernels.rows, slow.after_ns),
        )


def _confidence(rank: Rank, cause: Cause) -> float:
    """How sure it is that the kernels can be faster: by the basis of their roof, and by whether a cause is known."""
    if rank.device is None:
        return 0.4
    return 0.6 if cause.is_known else 0.5


def _describe_shares(rank: Rank, slow: SlowFamily) -> str:
    """How much the kernels and comparable ones reach: "23% of the matrix peak, comparable ones 34%"."""
    device = device_of(rank)
    if device is None:
        return f"{slow.roof_share:.0%} of the bandwidth of the fastest kernel here"
    roof = "the memory bandwidth" if slow.kinds[0].memory_binds else f"the {_type_of(rank, slow.kinds[0])} peak"
    of_device = "" if rank.device is not None else f" of an {device.name} at most"
    return f"{slow.roof_share:.0%} of {roof}{of_device}, comparable ones {slow.reach:.0%}"


def _type_of(rank: Rank, kind: SlowKind) -> str:
    """The type whose peak limits a kernel."""
    verdicts, costs = rank.verdicts, rank.kernel_costs
    operand = verdicts.operands[int(verdicts.operand[costs.kind[kind.row]])]
    return operand or costs.op_costs[int(costs.op_cost[kind.row])].dtype


def _describe_kind(rank: Rank, kind: SlowKind, *, of_costliest: Cause) -> str:
    """One kind of launches: its op with the sizes, its rate, and its cause where that is another one."""
    sizes = " and ".join("x".join(f"{n}" for n in tensor.sizes) for tensor in tensors_of(rank, kind.row)[:2])
    cause = find_cause(rank, kind)
    why = "" if cause.id == of_costliest.id or not cause.is_known else f"; {cause.id}"
    return f"{name_of_op(rank, kind.row)} of {sizes}: {kind.roof_share:.0%}, comparable {kind.reach:.0%}{why}"
