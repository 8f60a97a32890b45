"""PD512: more threads compute than there are cores, or their memory is on another NUMA node."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._cpu_parallel_ops import claim_share, find_parallel_ops
from perfdoctor.rules import (
    Action,
    Claim,
    CoreUse,
    CpuFacts,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    captured_location,
)
from perfdoctor.rules import intervals as iv


class CpuThreads(RankAnalyzer):
    """Each op is divided among more threads than cores may be used, or among the cores of several NUMA nodes.

    What it finds:
        Programs without a GPU whose PyTorch has more threads for an op than cores may be used: by affinity, by the
        quota of a container, or because several ranks share the machine. Large ops have to take a tenth of the step.
        Also, for information, processes whose threads are more than a NUMA node's cores and that no node was chosen
        for.

    Why it costs time:
        An op ends when its last thread does, and threads that lack a core wait for another one's turn, some ms. In a
        container with a quota all threads stop once they have used it up, for the rest of each 100 ms. Threads that
        wait busily use the quota, too. Memory of another node takes up to twice as long.

    How it is measured:
        The threads against the cores, from the capture. How long the quota stopped the threads (`cpu.stat`), in steps
        without a profiler, is what another number saves at most. Without a quota nobody knows what it costs: GNU's
        OpenMP does not wait busily where it sees more threads than cores, and 16 threads on two cores took as
        long as two here. So that is for information, and `perfdoctor try --only threads` measures it.

    How to fix:
        `OMP_NUM_THREADS` (or `torch.set_num_threads`) as many as cores may be used; with several ranks on a machine the
        cores divided by the ranks. `numactl --cpunodebind=0 --membind=0` keeps a process and its memory on one node.

    When it is wrong:
        Ops that wait for memory can gain from threads that outnumber cores a little.

    Needs:
        CPU ops. Captured facts (`perfdoctor run`) on threads and cores.

    References:
        PyTorch Performance Tuning Guide, "Utilize OpenMP" and "Utilize Non-Uniform Memory Access (NUMA) Controls".
    """

    rule = "PD512"
    name = "cpu-threads"
    needs = frozenset({"cpu"})
    # min_share: of the step in large ops, as in PD115.
    # min_excess: threads over cores; a quota of 3.5 cores with 4 threads is no fault.
    defaults = {"min_share": 0.1, "min_excess": 1.5}
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#utilize-openmp",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#utilize-non-uniform-memory-access-numa-controls",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding on threads that outnumber the cores, else one on NUMA nodes."""
        cpu, cores = rank.facts.cpu, rank.facts.cores
        threads, available = cpu.torch_threads, cores.available
        if rank.device_kind != "cpu" or threads is None or available is None:
            return
        own = max(available / (cores.local_ranks or 1), 1.0)
        large = find_parallel_ops(rank, threads)
        if not self.exceeds_min_share(rank, large.time_ns):
            return
        if threads >= self.settings["min_excess"] * own:
            yield self._report_threads(rank, cpu, cores, threads, own)
        elif self._spans_nodes(cpu, threads):
            yield self._report_nodes(rank, cpu, threads)

    def _report_threads(self, rank: Rank, cpu: CpuFacts, cores: CoreUse, threads: int, own: float) -> Finding:
        advised, omp = max(round(own), 1), cpu.omp_num_threads
        location = captured_location(cpu.threads_set)
        large = find_parallel_ops(rank, threads)
        stopped_share = _stopped_share(cpu, cores, threads)
        cost_ns = min(round(stopped_share * rank.mean_step_ns), large.time_ns)
        ranks = cores.local_ranks or 1
        shared = f", which {ranks} ranks share" if ranks > 1 else ""
        where = f" at {location.short}" if location else " (OMP_NUM_THREADS)" if omp else ""
        stopped = f"; a quota stops them for {stopped_share:.0%} of the time" if cost_ns else ""
        is_variable = location is None and omp is not None
        return self.finding(
            rank,
            title=f"{threads} threads{where} compute on {cores.available or own:.3g} cores{shared}{stopped}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded") if cost_ns else Saving(),
            advice=(
                f"Use {advised} {'thread' if advised == 1 else 'threads'}: an op ends with its last thread, and those "
                "that lack a core wait for another one's turn."
                + ("" if cost_ns else " What it costs is not known: perfdoctor try --only threads measures it.")
            ),
            fix=f"OMP_NUM_THREADS={advised}" if is_variable else f"torch.set_num_threads({advised})",
            actions=(Action("threads", advised),),
            claim=Claim(claim_share(large.time, cost_ns / max(large.time_ns, 1))),
            confidence=0.6,
            location=location,
            evidence=(
                Evidence("threads of PyTorch", threads, "count"),
                Evidence("cores that may be used", cores.available),
                Evidence("cores that the program used", cores.training),
                Evidence("stopped by a quota", round(100 * stopped_share, 1) if cost_ns else None, "%"),
                Evidence("OMP_NUM_THREADS", omp),
                Evidence("time in large ops per {unit}", large.time_ns, "ns"),
            ),
        )

    @staticmethod
    def _spans_nodes(cpu: CpuFacts, threads: int) -> bool:
        """Whether the machine has several nodes, the process may use all of them, and one has too few cores for it."""
        nodes, count = cpu.numa_nodes or 1, cpu.count
        return nodes > 1 and count is not None and cpu.affinity == count and threads > count / nodes

    def _report_nodes(self, rank: Rank, cpu: CpuFacts, threads: int) -> Finding:
        return self.finding(
            rank,
            title=f"{threads} threads may run on all {cpu.numa_nodes} NUMA nodes, and their memory lies on any",
            cost_ns=0,
            saving=Saving(),
            advice=(
                "Compare with a process that is kept on one node, with as many threads as a node has cores: memory of "
                "another node takes up to twice as long. Several ranks, one for each node, often use both best."
            ),
            fix="numactl --cpunodebind=0 --membind=0 python ...",
            claim=Claim(iv.EMPTY),
            confidence=0.3,
            evidence=(
                Evidence("NUMA nodes", cpu.numa_nodes, "count"),
                Evidence("threads of PyTorch", threads, "count"),
                Evidence("cores of the machine", cpu.count, "count"),
            ),
            subject="nodes",
            topics=("numa",),
        )


def _stopped_share(cpu: CpuFacts, cores: CoreUse, threads: int) -> float:
    """The share (0 to 1) of the time for which a quota stopped the cores on which threads ran; 0 where not captured."""
    ran_on = min(threads, cpu.affinity or threads)
    return min((cores.throttled or 0.0) / max(ran_on, 1), 1.0)
