"""PD107: the GPU idles while memory is allocated and freed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    Advice,
    Claim,
    Evidence,
    Finding,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    count_recurrence,
    nesting,
    remove_calls,
    split_one_offs,
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
    """The GPU idles while the driver allocates and frees memory, in the middle of the steps.

    What it finds:
        cudaMalloc, cudaFree and their like within the analysed steps, with the GPU idle meanwhile.

    Why it costs time:
        PyTorch keeps freed memory and gives it out again without asking the driver. When it has to ask, the call
        takes 0.1 to 70 ms, and cudaFree waits until the GPU is through.

    How it is measured:
        The account's idle_allocator: gaps between GPU items during such calls. What stands out in one or two steps, or
        only in the first half of the steps, happens once and costs the median step nothing.

    How to fix:
        Warm up with the largest input, pad inputs to few sizes, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, use
        less memory than the device has; never call torch.cuda.empty_cache() in the loop. On ROCm a new convolution
        shape makes MIOpen allocate workspace while it searches: warm up, or set MIOPEN_FIND_MODE. Where aten::empty
        asks the driver each time, the cache is off: unset PYTORCH_NO_CUDA_MEMORY_CACHING (on ROCm also
        PYTORCH_NO_HIP_MEMORY_CACHING).

    When it is wrong:
        The first steps of a program allocate; that does not recur. Record later steps.

    Needs:
        Kernels or copies, and runtime calls.

    References:
        PyTorch CUDA semantics, "Memory management"; PyTorch Performance Tuning Guide, "Preallocate memory in case of
        variable input length"; PyTorch, CUDA environment variables.
    """

    rule = "PD107"
    name = "allocator-churn"
    needs = frozenset({"gpu_items", "launches"})
    defaults = {"min_share": 0.03}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding about what comes back and one about what happens once, each from `min_share` on."""
        recurring, once = split_one_offs(rank.account.parts["idle_allocator"], rank.steps)
        if self.exceeds_min_share(rank, rank.per_step(iv.total(recurring))):
            yield self._report(rank, recurring, once=False)
        if self.exceeds_min_share(rank, rank.per_step(iv.total(once))):
            yield self._report(rank, once, once=True)

    def _report(self, rank: Rank, idle: Intervals, *, once: bool) -> Finding:
        cost_ns, recurrence = rank.per_step(iv.total(idle)), count_recurrence(idle, rank.steps, rank.profiler_factor)
        trace, calls = rank.trace, rank.trace.calls
        found = rank.calls.named(vocabulary.ALLOCATOR_CALL).where(iv.overlap(calls.start_ns, calls.end_ns, idle) > 0)
        longest = found.rows.index[np.argmax(calls.dur_ns[found.mask])]
        op = nesting.outermost(trace.ops.parent, calls.op[[longest]])[0] if len(trace.ops) else -1
        uncached = not once and _allocates_without_cache(rank)
        count = "one call" if len(found) == 1 else f"{len(found)} calls"
        cache = " without a cache" if uncached else ""
        title = f"The GPU idles while memory is allocated and freed{cache}: {count} to the driver"
        if once and recurrence is not None:
            when = "" if recurrence.steps == 1 else f"In {recurrence.steps} of {recurrence.of} steps: "
            title = f"{when}the GPU idles {iv.total(idle) / 1e6:.3g} ms while memory is allocated and freed, in {count}"
        advice = _advise(rank, once=once, uncached=uncached)
        return self.finding(
            rank,
            title=title,
            occurs_once=once and recurrence is not None and recurrence.steps == 1,
            cost_ns=0 if once else cost_ns,
            saving=Saving() if once else Saving(0, None, cost_ns, "bounded"),
            advice=advice,
            claim=Claim(idle),
            edit=None if once else remove_calls(found.rows),
            confidence=0.8 if rank.steps.count else 0.5,
            location=found.location,
            evidence=(
                Evidence("calls per {unit}", round(len(found) / max(rank.steps.count, 1), 1), "count"),
                Evidence("longest call", int(calls.dur_ns[longest]), "ns"),
                Evidence("longest call is", trace.text(int(calls.name[longest]))),
                Evidence("made by", trace.text(int(trace.ops.name[op])) if op >= 0 else None),
            ),
            subject="once" if once else "",
            recurrence=recurrence,
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


def _advise(rank: Rank, *, once: bool, uncached: bool) -> Advice:
    if once:
        return Advice(
            "Keep input sizes few and leave memory free if it comes back, in every epoch or with every new size "
            "of input. Memory that is allocated for the first time, or given back once, costs no later step.",
            source=_NO_CACHE,
        )
    is_amd = rank.trace.vendor == "amd"
    if not uncached:
        return advise(f"allocator calls the driver{', on an AMD device' * is_amd}", rank.context)
    return Advice(
        "Turn the caching allocator on again: without it the driver allocates and frees every tensor. An environment "
        "variable or torch.cuda.memory.caching_allocator_enable(False) turns it off.",
        f"env -u PYTORCH_NO_CUDA_MEMORY_CACHING{' -u PYTORCH_NO_HIP_MEMORY_CACHING' * is_amd} python ...",
        _NO_CACHE_ON_AMD if is_amd else _NO_CACHE,
    )
