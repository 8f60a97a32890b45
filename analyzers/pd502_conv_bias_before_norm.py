"""PD502: convolutions have biases that the norm behind them subtracts again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    Action,
    Advice,
    BiasBeforeNorm,
    BoolArray,
    Claim,
    Evidence,
    Finding,
    GpuQuery,
    Int32Array,
    Int64Array,
    Rank,
    RankAnalyzer,
    Saving,
    captured_location,
    remove_items,
    vocabulary,
)

_GUIDE = (
    "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#disable-bias-for-convolutions-directly-followed-by-a-batch-norm"
)
_CONVOLUTION = r"^aten::conv(_transpose)?[123]d$"
_CONVOLUTION_BACKWARD = vocabulary.engine_node_of("ConvolutionBackward0$")
_NORM = r"^aten::(batch_norm|instance_norm)$"
_NORM_BACKWARD = vocabulary.engine_node_of(r"\w*BatchNormBackward0$")
# Of the ops of a backward pass: autograd handles the gradients of weights before it goes on.
_PASS_ON = vocabulary.engine_node_of("(?!torch::autograd::AccumulateGrad)")
_MAX_NAMES = 3


class ConvBiasBeforeNorm(RankAnalyzer):
    """Convolutions add a bias that the batch norm right behind them subtracts again."""

    rule = "PD502"
    name = "conv-bias-before-norm"
    needs = frozenset({"kernels", "launches"})
    # min_share: less would not even be a finding of low severity.
    defaults = {"min_share": 0.01}
    references = (_GUIDE,)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where these kernels take at least `min_share` of the step, in training."""
        additions, sums = find_bias_kernels(rank)
        if not len(additions) or not len(sums):  # without gradients of biases nothing is trained
            return
        kernels = additions | sums
        cost_ns = rank.per_step(kernels.time_ns)
        if not self.exceeds_min_share(rank, cost_ns):
            return
        modules = [each for model in rank.facts.models for each in model.bias_before_norm]
        yield self.finding(
            rank,
            title=_title(rank.count_per_step(len(additions))),
            cost_ns=cost_ns,
            saving=Saving(0, cost_ns, cost_ns, "bounded"),
            advice=Advice(
                f"Leave the biases out{_name(modules)}: a batch norm takes any constant of a channel out again, and "
                "has a bias of its own. Weights that were saved with them load with strict=False.",
                "nn.Conv2d(..., bias=False)   # and nn.Linear before a batch norm",
                _GUIDE,
                actions=(Action("no-bias"),),
            ),
            claim=Claim(kernels.time, kernels=True),
            confidence=0.9,
            location=next((captured_location(each.created) for each in modules if each.created), None)
            or additions.location,
            edit=remove_items(rank.trace, kernels.rows, is_upper_bound=False),
            evidence=(
                Evidence("adding biases per {unit}", rank.per_step(additions.time_ns), "ns"),
                Evidence("summing their gradients per {unit}", rank.per_step(sums.time_ns), "ns"),
                Evidence("modules", ", ".join(str(each.name) for each in modules) or None),
            ),
        )


def find_bias_kernels(rank: Rank) -> tuple[GpuQuery, GpuQuery]:
    """The kernels that add a bias before a norm, and those that sum up its gradient, in the steps."""
    trace, ops = rank.trace, rank.trace.ops
    kernels = rank.kernels.in_steps()
    is_convolution, is_norm = (trace.match_rows(ops, pattern) for pattern in (_CONVOLUTION, _NORM))
    beside = _match_siblings(ops.parent, is_convolution)
    followed = is_convolution & _next_is(ops.parent, ops.thread, ops.start_ns, beside, is_norm)
    additions = kernels.launched_by("aten::add_") & rank.ops.where(followed).kernels
    is_backward, is_norm_backward, passes_on = (
        trace.match_rows(ops, pattern) for pattern in (_CONVOLUTION_BACKWARD, _NORM_BACKWARD, _PASS_ON)
    )
    reversed_ns = -ops.start_ns
    follows = is_backward & _next_is(ops.parent, ops.thread, reversed_ns, passes_on, is_norm_backward)
    return additions, kernels.launched_by("aten::sum") & rank.ops.where(follows).kernels


def _match_siblings(parent: Int32Array, of: BoolArray) -> BoolArray:
    """For each op whether one of some ops stands beside it, in the same op or in none."""
    around = np.zeros(len(parent) + 1, bool)  # the last entry is for ops in none
    around[parent[of]] = True
    result: BoolArray = around[parent]
    return result


def _next_is(
    parent: Int32Array, thread: Int32Array, start_ns: Int64Array, among: BoolArray, wanted: BoolArray
) -> BoolArray:
    """For each op whether the next one beside it, of those in `among`, is a wanted one."""
    rows = np.flatnonzero(among)
    order = rows[np.lexsort((start_ns[rows], parent[rows], thread[rows]))]
    before, after = order[:-1], order[1:]
    is_sibling = (parent[before] == parent[after]) & (thread[before] == thread[after])
    result = np.zeros(len(among), bool)
    result[before] = is_sibling & wanted[after]
    return result


def _title(count: int) -> str:
    if count == 1:
        return "The bias of a convolution is added though a batch norm subtracts it again"
    return f"Biases of {count:,} convolutions are added though a batch norm subtracts them again"


def _name(modules: list[BiasBeforeNorm]) -> str:
    """The first modules by their names: " (body.0, body.3 and 4 more)"; empty where none is known."""
    names = [str(each.name) for each in modules]
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f" ({', '.join(names[:_MAX_NAMES])}{more})"
