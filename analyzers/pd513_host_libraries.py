"""PD513: a library of the host costs time: an allocator that gives memory back, or layers without oneDNN."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._cpu_evidence import (
    name_longest,
    own_time_of,
    project,
    rank_with_shapes,
    report_work,
    sizes_of,
)
from perfdoctor.analyzers._cpu_parallel_ops import find_parallel_ops
from perfdoctor.analyzers._loader_texts import format_ms
from perfdoctor.analyzers._pd513_measures import (
    PageFaults,
    find_half_products,
    measure_page_faults,
    share_of_large_float32,
)
from perfdoctor.rules import (
    Action,
    BoolArray,
    Claim,
    Evidence,
    Finding,
    LoadedLibraries,
    Rank,
    RankAnalyzer,
    Saving,
    format_per_step,
    read_advice,
)
from perfdoctor.rules import intervals as iv

# Ops take longer on pages that are in no cache: 1.2 times what the system takes went away in one program.
_COLD_PAGES = 1.25
_SLOW_CONVOLUTION = r"^aten::_?slow_conv(_dilated|_transpose)?[23]d"
_ONEDNN_CONVOLUTION = r"^aten::mkldnn_convolution"
# PyTorch computes small inputs so even where oneDNN is there: batches of one with less than 20,480 elements, and
# convolutions of 1 x 1 on one thread (`use_mkldnn` in ATen's Convolution.cpp). They take some 0.1 ms.
_SMALL_SAMPLE, _MIN_CONVOLUTION_NS = 20_480, 500_000
# oneDNN took 1 / 8.4 of the time at best.
_MOST_BY_ONEDNN = 1 - 1 / 8.4
KEEP_PAGES = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184"


class HostLibraries(RankAnalyzer):
    """A library of the host costs time: the allocator gives large blocks back, or layers run without oneDNN."""

    rule = "PD513"
    name = "host-libraries"
    needs = frozenset({"cpu"})
    # min_share: of the step; the system's share is known by ticks, to some percent of the step.
    # min_faults: a step; below 4 MB in pages it is no large block that comes and goes.
    # min_float32_share: of the step in large products; of less bfloat16 saves little more than its casts cost.
    # min_ns_per_fault, max_ns_per_fault: what a fault takes, by 4 kB (0.25 to 1 us measured) up to a page of 2 MB.
    defaults = {
        "min_share": 0.05,
        "min_faults": 1000,
        "min_ns_per_fault": 50,
        "max_ns_per_fault": 200_000,
        "min_float32_share": 0.3,
    }
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#switch-memory-allocator",
        "https://man7.org/linux/man-pages/man3/mallopt.3.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """Findings where page faults, convolutions or products without oneDNN take `min_share` of the step."""
        if rank.device_kind == "cpu":
            yield from self._check_convolutions(rank)
            yield from report_work(self, rank, find_half_products(rank))
            yield from self._check_float32_products(rank)
            yield from self._check_allocator(rank, rank.facts.libraries)

    def _check_convolutions(self, rank: Rank) -> Iterator[Finding]:
        ops = rank.ops.where(rank.where_it_ran.cpu_ops).in_steps().named(_SLOW_CONVOLUTION)
        ops = ops.where(own_time_of(rank.trace) >= _MIN_CONVOLUTION_NS)
        # Where oneDNN computes others, PyTorch chose its own op for these: a batch of one, or 1 x 1 on one thread.
        # Fewer than one a step are small ones that lost their core meanwhile: a layer is as long in each step.
        if len(ops) < max(rank.steps.count, 1) or len(rank.ops.named(_ONEDNN_CONVOLUTION)):
            return
        ops = ops.where(~(_match_other_types(rank) | _match_small_ones(rank)))
        cost_ns = rank.per_step(ops.time_ns)
        if not self.exceeds_min_share(rank, cost_ns):
            return
        name = name_longest(rank.trace, np.flatnonzero(ops.mask)).removeprefix("aten::")
        yield self.finding(
            rank,
            title=f"Convolutions run without oneDNN, as {name}: {format_per_step(rank, len(ops))}",
            cost_ns=cost_ns,
            saving=Saving(0, None, round(cost_ns * _MOST_BY_ONEDNN), "bounded"),
            advice=read_advice("convolutions without oneDNN"),
            claim=Claim(ops.time),
            confidence=0.8,
            location=ops.location,
            evidence=(
                Evidence("longest of them", name),
                Evidence(
                    "their share of the time of all ops", ops.time_ns / max(rank.ops.in_steps().time_ns, 1), "share"
                ),
            ),
            subject="convolutions",
        )

    def _check_float32_products(self, rank: Rank) -> Iterator[Finding]:
        """A hint at bfloat16, whose worth no trace shows."""
        if not rank.facts.cpu.bfloat16 or rank.facts.amp.autocast:
            return
        share = share_of_large_float32(rank)
        if not self.exceeds_min_share(rank, round(share * rank.mean_step_ns), self.settings["min_float32_share"]):
            return
        yield self.finding(
            rank,
            title=f"Large products in float32 take {share:.0%} of the {rank.unit_name}, on a CPU with instructions for "
            "bfloat16",
            advice=read_advice("products in float32"),
            claim=Claim(iv.EMPTY),
            confidence=0.5,
            subject="float32",
        )

    def _check_allocator(self, rank: Rank, libraries: LoadedLibraries) -> Iterator[Finding]:
        if libraries.allocators != ():
            return
        faults = measure_page_faults(rank)
        if faults is None or faults.pages < self.settings["min_faults"]:
            return
        if not self.settings["min_ns_per_fault"] <= faults.ns_per_fault <= self.settings["max_ns_per_fault"]:
            return
        cost_ns = rank.per_step(round(min(_COLD_PAGES * faults.share, 1.0) * rank.window_ns))
        if self.exceeds_min_share(rank, cost_ns):
            yield self._report(rank, faults, cost_ns, libraries)

    def _report(self, rank: Rank, faults: PageFaults, cost_ns: int, libraries: LoadedLibraries) -> Finding:
        large = find_parallel_ops(rank, faults.threads)
        expected_ns = round(cost_ns / _COLD_PAGES)
        system_ns = faults.system_ns * rank.mean_step_ns / max(faults.step_ns, 1)
        return self.finding(
            rank,
            title=(
                f"{faults.pages:,.0f} pages a step are asked for and cleared anew: the system takes "
                f"{format_ms(system_ns)} of CPU time a step for them"
            ),
            cost_ns=cost_ns,
            saving=Saving(expected_ns // 2, expected_ns, cost_ns, "bounded"),
            advice=(
                "Let the allocator keep what is freed, so that ops get the same pages again: set both variables before "
                "the command (either alone makes it worse), or preload jemalloc or tcmalloc where installed. The "
                "process then keeps its peak of memory."
            ),
            fix=f"{KEEP_PAGES} python ...   # or LD_PRELOAD=libjemalloc.so.2",
            actions=(Action("allocator", ("keep-pages", "jemalloc")),),
            topics=("allocator",),
            claim=Claim(iv.shorten(large.time, round(_COLD_PAGES * faults.share * rank.window_ns))),
            confidence=0.7,
            location=rank.places.line_of_ops(large.rows),
            evidence=(
                Evidence("minor page faults per {unit}", round(faults.pages), "count"),
                Evidence("system CPU time per {unit}", round(faults.system_ns), "ns"),
                Evidence("time of a fault", round(faults.ns_per_fault), "ns"),
                Evidence("cores that the program uses", round(faults.cores, 2)),
                Evidence("largest op", large.top),
                Evidence("OpenMP libraries", None if libraries.openmp is None else ", ".join(libraries.openmp)),
            ),
            is_symptom=True,
        )


def _match_small_ones(rank: Rank) -> BoolArray:
    """For each op whether PyTorch leaves oneDNN out of it: for a small sample, and for 1 x 1 on one thread."""
    shaped = rank_with_shapes(rank)
    if shaped is None:
        return np.zeros(len(rank.trace.ops), bool)
    trace, ops = shaped.trace, shaped.trace.ops
    marks = trace.match_rows(ops, _SLOW_CONVOLUTION) & (ops.dims >= 0)
    rows = np.flatnonzero(marks)
    has_one_thread = (rank.facts.cpu.torch_threads or 1) == 1
    sizes = [sizes_of(trace.text(code)) for code in ops.dims[rows].tolist()]
    marks[rows] = [_is_small_sample(each) or (has_one_thread and _has_1_x_1_weight(each)) for each in sizes]
    return project(rank, shaped, marks)


def _is_small_sample(sizes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the first argument of a convolution is a batch of one with few elements."""
    return bool(sizes) and sizes[0][:1] == (1,) and math.prod(sizes[0]) < _SMALL_SAMPLE


def _has_1_x_1_weight(sizes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether one argument of a convolution, or of its backward pass, is a weight of 1 x 1."""
    return any(len(size) > 3 and set(size[2:]) == {1} for size in sizes)


def _match_other_types(rank: Rank) -> BoolArray:
    """For each op whether its first input is known to be of another type than float32: oneDNN computes no float64."""
    shaped = rank_with_shapes(rank)
    if shaped is None:
        return np.zeros(len(rank.trace.ops), bool)
    other = [text.startswith('["') and not text.startswith('["float"') for text in shaped.trace.strings]
    return project(rank, shaped, np.append(other, False)[shaped.trace.ops.types])
