"""PD301: pointwise operations one by one, each through memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analyzers._pd301_pointwise_chains import Chains, chains_of
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.top_kernels import top_kernels
from perfdoctor.savings.edits import fuse
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import NONE, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.rows import GpuRows

_LONGEST_SHOWN = 8
_FEW = 64
_PRIME = 1_000_003


class UnfusedPointwise(RankAnalyzer):
    """Pointwise operations run one by one, and each takes its operands from memory and puts its result back.

    What it finds:
        Runs of three or more pointwise kernels on one stream that memory bounds and that nothing separates: no matrix
        product, no norm, no collective. Casts of activations count, the optimizer's step does not (PD303).

    Why it costs time:
        Adding, scaling or an activation does one operation an element, and reading and writing the element takes a
        hundred times as long. In a chain of such operations each intermediate is written by one kernel and read by
        the next; in one fused kernel it never leaves the registers.

    How it is measured:
        With shapes: a kernel belongs to a run if it reads something as large as what the kernel before wrote, and
        that intermediate's share of both kernels' traffic is the part of their time that fusion can save at most.
        Without shapes: a run's time without its longest kernel. Kernels too short to be bound by memory are left to
        PD104, and code that is compiled already (Triton kernels, compiled regions) never counts. The saving is an
        upper bound: what training keeps for the backward pass is still written once.

    How to fix:
        torch.compile fuses such chains; so does writing them as one operation that is fused already:
        nn.functional.rms_norm, gelu, scaled_dot_product_attention.

    When it is wrong:
        Two neighbours of equal size need not depend on each other. Graph breaks, shapes that change at every step, and
        code that torch.compile cannot trace keep it from fusing.

    Needs:
        Kernels and their launches; shapes for the bytes, stacks for the place.

    References:
        Making Deep Learning Go Brrrr From First Principles, "Bandwidth"; PyTorch Performance Tuning Guide, "Fuse
        operations".
    """

    rule: ClassVar[str] = "PD301"
    name: ClassVar[str] = "unfused-pointwise"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches"})
    # min_share: of what could be saved. Compiling a model is work and has its own faults: it should be worth at least
    # a medium finding (contracts.md). On 33 real traces 28 stay below 1.1 %, the others reach 3.7 to 21 %.
    # min_kernels: in a pair the one intermediate is usually an activation that is kept for the backward pass anyway.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.03, "min_kernels": 3})
    references: ClassVar[tuple[str, ...]] = (
        "https://horace.io/brrr_intro.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when fusing all runs could save at least `min_share` of the step."""
        chains = chains_of(rank, round(self.settings["min_kernels"]))
        if not chains.count:
            return
        time = rank.time_in_window(chains.rows)
        cost = rank.per_step(iv.total(time))
        most = min(rank.per_step(round(float(chains.saved_ns.sum()))), cost)
        if not self.exceeds_min_share(rank, most):
            return
        bytes_known = not np.isnan(chains.saved_bytes).any()
        pattern, costliest = _costliest_pattern(rank, chains)
        yield self.finding(
            rank,
            title=f"{rank.per_step(len(chains.rows)):,} pointwise kernels a {rank.unit_name} run in chains that could "
            "be fused",
            cost_ns=cost,
            saving=Saving(0, None, most, "bounded"),
            advice="Fuse them with torch.compile, or use the fused operation where there is one: rms_norm, layer_norm, "
            "gelu, scaled_dot_product_attention."
            + (" Some of the program is compiled; these are not." if rank.traffic.is_compiled.any() else ""),
            fix="model = torch.compile(model)",
            claim=Claim(time, kernels=True),
            confidence=0.8 if bytes_known else 0.5,
            location=rank.locations.of_items(costliest),
            evidence=(
                Evidence("costliest chain", pattern),
                Evidence(f"chains per {rank.unit_name}", rank.per_step(chains.count), "count"),
                Evidence(
                    f"intermediates written and read per {rank.unit_name}",
                    rank.per_step(round(float(chains.saved_bytes.sum()))) if bytes_known else None,
                    "bytes",
                ),
                *top_kernels(rank, chains.rows),
            ),
            edit=fuse(
                rank.trace,
                GpuRows(rank.trace.gpu, chains.rows),
                most / max(cost, 1),
                launches_left=GpuRows(rank.trace.gpu, chains.rows[chains.position == 0]),
            ),
        )


def _costliest_pattern(rank: Rank, chains: Chains) -> tuple[str | None, Int64Array]:
    """The chain of ops that could save most in all its runs (None where no ops are recorded), and one run's rows."""
    trace = rank.trace
    op = trace.gpu.op[chains.rows]
    codes = np.full(len(op), NONE, np.int64)
    codes[op >= 0] = trace.ops.name[op[op >= 0]]
    # A number for each sequence of codes: the runs are too many to be compared one by one.
    with np.errstate(over="ignore"):
        weight = np.power(np.uint64(_PRIME), chains.position.astype(np.uint64))
        term = (codes + 2).astype(np.uint64) * weight
    first = np.flatnonzero(chains.position == 0)
    key = np.add.reduceat(term, first)
    _, run, kind = np.unique(key, return_index=True, return_inverse=True)
    saved = np.bincount(kind[chains.run], weights=chains.saved_ns)
    texts = [_chain(trace, codes[chains.run == number]) for number in run.tolist()] if len(run) <= _FEW else []
    best = max(range(len(run)), key=lambda i: (saved[i], texts[i] or "" if texts else ""))
    members = chains.run == run[best]
    return _chain(trace, codes[members]), chains.rows[members]


def _chain(trace: Trace, codes: Int64Array) -> str | None:
    if codes.min() < 0:
        return None
    names = [trace.strings[code].removeprefix("aten::") for code in codes.tolist()]
    more = [f"({len(names) - _LONGEST_SHOWN} more)"] if len(names) > _LONGEST_SHOWN else []
    return " > ".join(names[:_LONGEST_SHOWN] + more)
