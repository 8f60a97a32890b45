"""PD513: memory is given back to the system and asked for again in each step."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._cpu_parallel_ops import claim_share, find_parallel_ops
from perfdoctor.analyzers._pd101_texts import format_ms
from perfdoctor.analyzers._pd513_page_faults import PageFaults, measure_page_faults
from perfdoctor.rules import Action, Claim, Evidence, Finding, LoadedLibraries, Rank, RankAnalyzer, Saving
from perfdoctor.rules import intervals as iv

# Ops take longer on pages that are in no cache: 1.2 times what the system takes went away in one program.
_COLD_PAGES = 1.25
KEEP_PAGES = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184"


class HostLibraries(RankAnalyzer):
    """The allocator of memory gives large blocks back to the system, which clears them again for each op.

    What it finds:
        Programs without a GPU in which page faults take a good part of each step, under an allocator that returns
        what is freed: glibc's, which maps blocks of more than 32 MB anew each time, and trims its heap.

    Why it costs time:
        A page that comes from the system is cleared and mapped when it is touched first: 0.3 to 1 us for each 4 kB,
        as much as an element-wise op takes to write them. An allocator that keeps what is freed gives the next op the
        same pages, which are there and often in a cache.

    How it is measured:
        Minor page faults of the process and its CPU time in the system (`getrusage`), in steps of the run without a
        profiler and without events such as a save or a start of workers. The system's share, divided by the cores that
        the process uses, is expected to go: it is half of what was measured at least, as reads and thread switches are
        in it, and a quarter more at most, as fresh pages are in no cache. Faults that batches from workers cause (fresh
        shared memory) are left out by their size.

    How to fix:
        Before the command: `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184`, by which glibc keeps what is freed;
        set both, as either alone switches off glibc's own adjustment. Or
        `LD_PRELOAD=libjemalloc.so.2` or `libtcmalloc.so.4`, where installed, which also share better between threads.
        On Intel CPUs Intel's OpenMP (`LD_PRELOAD=libiomp5.so`) often beats GNU's, and oneCCL serves collectives between
        sockets; neither is judged here. `perfdoctor try --only allocator` measures both.

    When it is wrong:
        Files that are mapped into memory, and read for the first time, fault in the same way; so does memory that
        a growing program keeps. The process then keeps its peak of memory, which may be too much beside others.

    Needs:
        CPU ops. Captured facts (`perfdoctor run`) on page faults and system time of steps.

    References:
        PyTorch Performance Tuning Guide, "Switch memory allocator"; glibc, mallopt(3).
    """

    rule = "PD513"
    name = "host-libraries"
    needs = frozenset({"cpu"})
    # min_share: of the step; the system's share is known by ticks, to some percent of the step.
    # min_faults: a step; below 4 MB in pages it is no large block that comes and goes.
    # min_ns_per_fault, max_ns_per_fault: what a fault takes, by 4 kB (0.25 to 1 us measured) up to a page of 2 MB.
    defaults = {"min_share": 0.05, "min_faults": 1000, "min_ns_per_fault": 50, "max_ns_per_fault": 200_000}
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#switch-memory-allocator",
        "https://man7.org/linux/man-pages/man3/mallopt.3.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where page faults take at least `min_share` of the step and another allocator keeps pages."""
        libraries = rank.facts.libraries
        if rank.device_kind != "cpu" or libraries.allocators != ():
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
        share = min(_COLD_PAGES * faults.share * rank.window_ns / max(iv.total(large.time), 1), 1.0)
        expected_ns = round(cost_ns / _COLD_PAGES)
        return self.finding(
            rank,
            title=(
                f"{faults.pages:,.0f} pages a step are asked for and cleared anew: the system takes "
                f"{format_ms(faults.system_ns)} of CPU time for them in each {format_ms(faults.step_ns)} step"
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
            claim=Claim(claim_share(large.time, share)),
            confidence=0.7,
            evidence=(
                Evidence("minor page faults per {unit}", round(faults.pages), "count"),
                Evidence("system CPU time per {unit}", round(faults.system_ns), "ns"),
                Evidence("time of a fault", round(faults.ns_per_fault), "ns"),
                Evidence("cores that the program uses", round(faults.cores, 2)),
                Evidence("largest op", large.top),
                Evidence("OpenMP libraries", None if libraries.openmp is None else ", ".join(libraries.openmp)),
            ),
        )
