"""PD107: the GPU idles while memory is allocated and freed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    Advice,
    Claim,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    count_recurrence,
    nesting,
    remove_calls,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# With the cache on at most 1 op in 6 asked the driver in the recordings that we have, warm-up included; without it all.
_UNCACHED_SHARE = 0.5
_MIN_UNCACHED = 20
_NO_CACHE = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management"
_NO_CACHE_ON_AMD = (
    "https://rocm.docs.amd.com/en/latest/how-to/rocm-for-ai/inference-optimization/model-quantization.html"
)


class AllocatorChurn(RankAnalyzer):
    """The GPU idles while the driver allocates and frees memory, in the middle of the steps."""

    rule = "PD107"
    name = "allocator-churn"
    needs = frozenset({"gpu_items", "launches"})
    defaults = {"min_share": 0.03}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding from `min_share` on: what happens once is no part of the account."""
        idle = rank.account.parts["idle_allocator"]
        cost_ns = rank.per_step(iv.total(idle))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        trace, calls = rank.trace, rank.trace.calls
        found = rank.calls.named(vocabulary.ALLOCATOR_CALL).where(iv.overlap(calls.start_ns, calls.end_ns, idle) > 0)
        longest = found.rows.index[np.argmax(calls.dur_ns[found.mask])]
        op = nesting.outermost(trace.ops.parent, calls.op[[longest]])[0] if len(trace.ops) else -1
        uncached = _allocates_without_cache(rank)
        count = "one call" if len(found) == 1 else f"{len(found)} calls"
        cache = " without a cache" if uncached else ""
        yield self.finding(
            rank,
            title=f"The GPU idles while memory is allocated and freed{cache}: {count} to the driver",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=_advise(rank, uncached=uncached),
            claim=Claim(idle),
            edit=remove_calls(found.rows),
            confidence=0.8 if rank.steps.count else 0.5,
            location=found.location,
            evidence=(
                Evidence("calls per {unit}", round(len(found) / max(rank.steps.count, 1), 1), "count"),
                Evidence("longest call", int(calls.dur_ns[longest]), "ns"),
                Evidence("longest call is", trace.text(int(calls.name[longest]))),
                Evidence("made by", trace.text(int(trace.ops.name[op])) if op >= 0 else None),
            ),
            recurrence=count_recurrence(idle, rank.steps, rank.profiler_factor),
        )


def _allocates_without_cache(rank: Rank) -> bool:
    """Whether most of the ops that allocate a tensor in the steps ask the driver, and the memory is freed again."""
    allocating = rank.ops.named(r"^aten::empty(_strided)?$").in_steps()
    mallocs, frees = (rank.calls.named(rf"^(cuda|hip){verb}").in_steps() for verb in ("Malloc", "Free"))
    op = rank.trace.calls.op[mallocs.mask]
    asking = np.zeros(len(rank.trace.ops), bool)
    asking[op[op >= 0]] = True
    asked = int(np.count_nonzero(asking & allocating.mask))
    return asked >= max(_MIN_UNCACHED, _UNCACHED_SHARE * len(allocating)) and 2 * len(frees) >= len(mallocs)


def _advise(rank: Rank, *, uncached: bool) -> Advice:
    is_amd = rank.trace.vendor == "amd"
    if not uncached:
        return advise(f"allocator calls the driver{', on an AMD device' * is_amd}", rank.context)
    return Advice(
        "Turn the caching allocator on again: without it the driver allocates and frees every tensor. An environment "
        "variable or torch.cuda.memory.caching_allocator_enable(False) turns it off.",
        f"env -u PYTORCH_NO_CUDA_MEMORY_CACHING{' -u PYTORCH_NO_HIP_MEMORY_CACHING' * is_amd} python ...",
        _NO_CACHE_ON_AMD if is_amd else _NO_CACHE,
    )
