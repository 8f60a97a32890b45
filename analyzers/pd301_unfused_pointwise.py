"""PD301: pointwise operations one by one, each through memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._cpu_evidence import report_work
from perfdoctor.analyzers._pd301_cpu_ops import find_formulas, find_large_passes
from perfdoctor.analyzers._pointwise_chains import Chains, find_chains
from perfdoctor.rules import (
    NONE,
    Claim,
    Edit,
    Evidence,
    Finding,
    GpuRows,
    Int64Array,
    Rank,
    RankAnalyzer,
    Saving,
    Trace,
    advise,
    fuse,
    intervals,
    top_kernels,
)

_MAX_OPS_SHOWN = 8
# The names of so many distinct chains are compared where savings are equal; more would take long.
_MAX_COMPARED_BY_NAME = 64
# Between one of the two accesses and both: a compiler fuses most of what it could.
_EXPECTED_IN_INFERENCE = 0.75
_HASH_BASE = np.uint64(1_000_003)


class UnfusedPointwise(RankAnalyzer):
    """Pointwise operations run one by one, and each reads its operands from memory and writes its result back."""

    rule = "PD301"
    name = "unfused-pointwise"
    needs = frozenset({"work", "work_launches"})
    # min_share: what could be saved, of the step. Compiling a model is work and has faults of its own, so it should be
    # worth a medium finding at least. On 33 real traces 28 stay below 1.1 %, the others reach 3.7 to
    # 21 %. min_kernels: the one intermediate of a pair is usually an activation that the backward pass needs anyway.
    defaults = {"min_share": 0.03, "min_kernels": 3}
    references = (
        "https://horace.io/brrr_intro.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when fusing all chains could save at least `min_share` of the step."""
        if rank.device_kind == "cpu":
            yield from report_work(self, rank, find_large_passes(rank), by_table=True)
            yield from report_work(self, rank, find_formulas(rank), by_table=True)
        else:
            yield from self._check_gpu(rank)

    def _check_gpu(self, rank: Rank) -> Iterator[Finding]:
        chains = find_chains(rank, min_kernels=round(self.settings["min_kernels"]))
        if not chains.count:
            return
        time = rank.time_in_window(chains.rows)
        cost_ns = rank.per_step(intervals.total(time))
        max_saving_ns = min(rank.per_step(round(float(chains.max_saving_ns.sum()))), cost_ns)
        if not self.exceeds_min_share(rank, max_saving_ns):
            return
        bytes_known = not np.isnan(chains.saved_bytes).any()
        costliest, kernels = _find_costliest_chain(rank.trace, chains)
        yield self.finding(
            rank,
            title=f"{rank.count_per_step(len(chains.rows)):,} pointwise kernels {rank.per_unit} run in chains that "
            "could be fused",
            cost_ns=cost_ns,
            saving=Saving(0, None, max_saving_ns, "bounded"),
            advice=advise("unfused pointwise kernels", rank.context),
            claim=Claim(time, kernels=True),
            confidence=0.8 if bytes_known else 0.5,
            location=rank.places.line_of_items(kernels),
            evidence=(
                Evidence("costliest chain", costliest),
                Evidence("chains per {unit}", rank.count_per_step(chains.count), "count"),
                Evidence(
                    "intermediates written and read per {unit}",
                    rank.count_per_step(round(float(chains.saved_bytes.sum()))) if bytes_known else None,
                    "bytes",
                ),
                *top_kernels(rank, chains.rows),
            ),
            edit=_fuse_chains(rank, chains, max_saving_ns / max(cost_ns, 1), bytes_known=bytes_known),
        )


def _fuse_chains(rank: Rank, chains: Chains, max_share: float, *, bytes_known: bool) -> Edit:
    """The chains as one kernel each.

    Each intermediate is written once and read once. At most both go; at least one of them does, and that is what is
    expected in training, where the backward pass needs most intermediates. Where sizes are unknown only the most is.
    """
    rows = GpuRows(rank.trace.gpu, chains.rows)
    first = GpuRows(rank.trace.gpu, chains.rows[chains.position == 0])
    whole = fuse(rank.trace, rows, max_share, first, is_upper_bound=not bytes_known)
    if not bytes_known:
        return whole
    half = fuse(rank.trace, rows, max_share / 2, first, is_upper_bound=False)
    share = _EXPECTED_IN_INFERENCE if rank.context.phase == "inference" else 0.5
    expected = fuse(rank.trace, rows, max_share * share, first, is_upper_bound=False)
    return replace(expected, at_least=half, at_most=whole)


def _find_costliest_chain(trace: Trace, chains: Chains) -> tuple[str | None, Int64Array]:
    """The sequence of ops that could save most, over all chains with the same sequence.

    Returns:
        The names of the ops, None where some are not recorded; and the rows of one such chain's kernels.
    """
    names = np.append(trace.ops.name, NONE)[trace.gpu.op[chains.rows]]
    # One hash for each sequence of ops: there are too many chains to be compared one by one.
    with np.errstate(over="ignore"):
        terms = (names + 2).astype(np.uint64) * np.power(_HASH_BASE, chains.position.astype(np.uint64))
    sequences = np.add.reduceat(terms, np.flatnonzero(chains.position == 0))
    _, example, sequence = np.unique(sequences, return_index=True, return_inverse=True)
    saving_ns = np.bincount(sequence[chains.chain], weights=chains.max_saving_ns).tolist()
    texts = [""] * len(example)
    if len(example) <= _MAX_COMPARED_BY_NAME:
        texts = [_format_chain(trace, names[chains.chain == chain]) or "" for chain in example.tolist()]
    best = max(range(len(example)), key=lambda i: (saving_ns[i], texts[i]))
    kernels = chains.chain == example[best]
    return _format_chain(trace, names[kernels]), chains.rows[kernels]


def _format_chain(trace: Trace, names: Int64Array) -> str | None:
    """The names of some ops, as in "add > mul > gelu"; None where some are not recorded."""
    if names.min() < 0:
        return None
    texts = [trace.strings[name].removeprefix("aten::") for name in names.tolist()]
    omitted = [f"({len(texts) - _MAX_OPS_SHOWN} more)"] if len(texts) > _MAX_OPS_SHOWN else []
    return " > ".join(texts[:_MAX_OPS_SHOWN] + omitted)
