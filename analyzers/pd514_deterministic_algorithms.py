"""PD514: deterministic algorithms are on, and take time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._debug_switches import DETERMINISTIC, Switch, find_switch, flags_of_trace
from perfdoctor.rules import BoolArray, Claim, Evidence, Finding, OpQuery, Rank, RankAnalyzer, Saving, advise
from perfdoctor.rules import intervals as iv

# Of "Reproducibility" and `torch.use_deterministic_algorithms`: ops that sum in the order of their input then, by a
# sort on a GPU and by one thread on a CPU.
_SLOWER_OPS = (
    r"^aten::(index_add_?|scatter_add_?|scatter_reduce_?|_?index_put(_impl)?_?|index_copy_?|put_|"
    r"embedding_dense_backward|_embedding_bag.*backward|gather_backward|index_select_backward|repeat_interleave|"
    r"bincount|cumsum_?|upsample_\w+_backward|\w+_pool\w*_backward)$"
)
# index_select resizes its output by itself.
_NEW_TENSORS = r"^aten::(empty|empty_like|empty_strided|new_empty|new_empty_strided|resize_|index_select)$"


class DeterministicAlgorithms(RankAnalyzer):
    """torch.use_deterministic_algorithms(True) is on, and ops that are slower for it take real time."""

    rule = "PD514"
    name = "deterministic-algorithms"
    needs = frozenset({"cpu"})
    # min_share: of the step in such ops. Below 5 % less than a medium finding (3 %) comes back.
    defaults = {"min_share": 0.05}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/randomness.html#avoiding-nondeterministic-algorithms",
        "https://docs.pytorch.org/docs/stable/deterministic.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such ops take at least `min_share` of the step."""
        switch = find_switch(rank, DETERMINISTIC)
        if switch is None and flags_of_trace(rank.facts).deterministic_algorithms:
            switch = Switch()
        if switch is None:
            return
        slower, fills = rank.ops.named(_SLOWER_OPS), rank.ops.where(_find_fills(rank)).named(r"^aten::fill_$")
        time = {"slower": _time_of(rank, slower), "fills": _time_of(rank, fills)}
        ns = {name: rank.per_step(iv.total(each)) for name, each in time.items()}
        both = iv.union_of(time.values())
        cost_ns = rank.per_step(iv.total(both))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        why = "sums by index are sorted or taken by one thread, and each new tensor is filled"
        advice = advise("deterministic algorithms", rank.context, why=why)
        if ns["fills"] > cost_ns / 2:
            advice = advise("new tensors are filled", rank.context)
        yield self.finding(
            rank,
            title=f"Deterministic algorithms are on: {rank.share(cost_ns):.0%} of the step in slower ops",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advice,
            claim=Claim(both, kernels=rank.device_kind == "gpu"),
            confidence=0.8,
            location=switch.location,
            evidence=(
                Evidence("sums by index per {unit}", ns["slower"], "ns"),
                Evidence("fills of new tensors per {unit}", ns["fills"], "ns"),
            ),
        )


def _find_fills(rank: Rank) -> BoolArray:
    """The ops that are called by one which makes a tensor without values."""
    ops = rank.trace.ops
    makes = np.append(rank.trace.match_rows(ops, _NEW_TENSORS), False)
    found: BoolArray = (ops.parent >= 0) & makes[ops.parent]
    return found


def _time_of(rank: Rank, ops: OpQuery) -> iv.Intervals:
    """When these ops, or on a GPU their kernels, run in the window."""
    in_steps = ops.in_steps()
    return in_steps.kernels.time if rank.device_kind == "gpu" else iv.intersect(in_steps.time, rank.window)
