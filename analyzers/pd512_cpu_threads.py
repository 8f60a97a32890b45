"""PD512: more threads compute than there are cores, or their memory is on another NUMA node."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._cpu_parallel_ops import find_parallel_ops, stopped_by_quota_ns
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
    cores_without_others,
    read_advice,
    step_times_of,
    uses_threads,
)
from perfdoctor.rules import intervals as iv

# What is left of large ops with as many threads as cores: at best, in the median, at worst (see below).
_REMAINS, _REMAINS_OF_RANKS = (0.13, 0.42, 1.0), (0.07, 0.58, 1.0)


class CpuThreads(RankAnalyzer):
    """Each op is divided among more threads than cores may be used, or among the cores of several NUMA nodes."""

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
        """One finding on threads that outnumber the cores, else one on a quota that is used up, or on NUMA nodes."""
        available = rank.facts.cores.available
        if rank.device_kind != "cpu" or available is None:
            return
        found, stopped_ns = [*self._check_threads(rank, available)], stopped_by_quota_ns(rank)
        if not any(each.cost_ns for each in found) and self.exceeds_min_share(rank, stopped_ns):
            found = [self._report_quota(rank, available, stopped_ns)]
        yield from found

    def _check_threads(self, rank: Rank, available: float) -> Iterator[Finding]:
        cpu, cores = rank.facts.cpu, rank.facts.cores
        threads = cpu.torch_threads
        if threads is None:
            return
        ranks = cores.local_ranks or 1
        own = max(available / ranks, 1.0)
        large = find_parallel_ops(rank, threads)
        if not self.exceeds_min_share(rank, large.time_ns):
            return
        lacks_cores = threads * ranks >= self.settings["min_excess"] * (cpu.affinity or available)
        if threads >= self.settings["min_excess"] * own:
            if _uses_threads(rank) and (lacks_cores or cores.throttled != 0):
                yield self._report_threads(rank, cpu, cores, threads, own, lacks_cores=lacks_cores)
        elif self._is_crowded(rank, available, threads):
            yield self._report_crowd(rank, available, threads)
        elif self._spans_nodes(cpu, threads):
            yield self._report_nodes(rank, cpu, threads)

    def _report_threads(
        self, rank: Rank, cpu: CpuFacts, cores: CoreUse, threads: int, own: float, *, lacks_cores: bool
    ) -> Finding:
        advised, omp = max(round(own), 1), cpu.omp_num_threads
        location = captured_location(cpu.threads_set)
        large = find_parallel_ops(rank, threads)
        stopped_share = _stopped_share(cpu, cores, threads)
        ranks = cores.local_ranks or 1
        cost_ns, saving, why = 0, Saving(), " What it costs is not known: perfdoctor try --only threads measures it."
        if stopped_share:
            cost_ns, why = min(round(stopped_share * rank.mean_step_ns), large.time_ns), ""
            saving = Saving(0, None, cost_ns, "bounded")
        elif lacks_cores:
            remains = _REMAINS if ranks == 1 else _REMAINS_OF_RANKS
            cost_ns, expected_ns, low_ns = (round((1 - each) * large.time_ns) for each in remains)
            saving = Saving(low_ns, expected_ns, cost_ns, "bounded")
            why = (
                " The figures are what other programs lost, as no trace shows it: perfdoctor try --only threads "
                "measures what this one loses."
            )
        shared = f", which {ranks} ranks share" if ranks > 1 else ""
        where = f" at {location.short}" if location else " (OMP_NUM_THREADS)" if omp else ""
        stopped = f"; a quota stops them for {stopped_share:.0%} of the time" if stopped_share else ""
        is_variable = location is None and omp is not None
        return self.finding(
            rank,
            title=f"{threads} threads{where} compute on {cores.available or own:.3g} cores{shared}{stopped}",
            cost_ns=cost_ns,
            saving=saving,
            advice=(
                f"Use {advised} {'thread' if advised == 1 else 'threads'}: an op ends with its last thread, and those "
                f"that lack a core wait for another one's turn.{why}"
            ),
            fix=f"OMP_NUM_THREADS={advised}" if is_variable else f"torch.set_num_threads({advised})",
            actions=(Action("threads", advised),),
            claim=Claim(iv.shorten(large.time, rank.in_window_ns(cost_ns))),
            confidence=0.6,
            location=location,
            evidence=(
                Evidence("threads of PyTorch", threads, "count"),
                Evidence("cores that may be used", cores.available),
                Evidence("cores that the program used", cores.training),
                Evidence("stopped by a quota", round(100 * stopped_share, 1) or None, "%"),
                Evidence("OMP_NUM_THREADS", omp),
                Evidence("time in large ops per {unit}", large.time_ns, "ns"),
            ),
        )

    def _report_quota(self, rank: Rank, available: float, stopped_ns: int) -> Finding:
        cpu, cores = rank.facts.cpu, rank.facts.cores
        limit = "a quota of CPU time"
        if cpu.affinity is None or available < cpu.affinity:
            limit = f"a quota of {available:.3g} {'core' if available == 1 else 'cores'}"
        own = 1 + sum(each.num_workers or 0 for each in rank.facts.loaders)
        return self.finding(
            rank,
            title=f"The training thread stands still for {rank.share(stopped_ns):.0%} of the time: {limit} is used up",
            cost_ns=stopped_ns,
            saving=Saving(0, None, stopped_ns, "bounded"),
            advice=read_advice("quota of CPU time"),
            claim=Claim(iv.shorten(rank.window, rank.in_window_ns(stopped_ns))),
            confidence=0.7,
            evidence=(
                Evidence("cores that may be used", available),
                Evidence("cores that the program used", cores.training),
                Evidence("cores that its workers used", cores.workers),
                Evidence("cores on which the quota stopped it", cores.throttled),
                Evidence("threads of PyTorch", cpu.torch_threads, "count"),
                Evidence("the training loop and its workers", own, "count"),
            ),
            subject="quota",
        )

    def _is_crowded(self, rank: Rank, available: float, threads: int) -> bool:
        """Whether other programs leave the threads that compute too few cores."""
        left = cores_without_others(rank.facts, available)
        return rank.contention.is_severe and threads >= self.settings["min_excess"] * left and _uses_threads(rank)

    def _report_crowd(self, rank: Rank, available: float, threads: int) -> Finding:
        advised = int(cores_without_others(rank.facts, available))
        return self.finding(
            rank,
            title=f"{threads} threads compute on {available:.3g} cores, of which other programs use "
            f"{rank.facts.cores.others or 0:.2g}",
            advice=(
                f"Use {advised} {'thread' if advised == 1 else 'threads'} for as long as others have the cores: those "
                "of an op wait busily for one that has none, and programs beside a full machine took 1.1 to 25 times "
                "as long with two threads as with one. What it costs here perfdoctor try --only threads measures."
            ),
            fix=f"torch.set_num_threads({advised})",
            actions=(Action("threads", advised),),
            claim=Claim(iv.EMPTY),
            confidence=0.5,
            location=captured_location(rank.facts.cpu.threads_set),
            evidence=(
                Evidence("threads of PyTorch", threads, "count"),
                Evidence("cores that may be used", available),
                Evidence("cores that other programs used", rank.facts.cores.others),
            ),
            subject="crowd",
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
            advice=read_advice("threads on several nodes"),
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


def _uses_threads(rank: Rank) -> bool:
    """Whether other threads than the training thread compute in its steps; true where that was not captured."""
    base = step_times_of(rank.facts.base)
    if base is None or base.cpu_ns is None or base.process_cpu_ns is None:
        return True
    return uses_threads(base.cpu_ns, base.process_cpu_ns)


def _stopped_share(cpu: CpuFacts, cores: CoreUse, threads: int) -> float:
    """The share (0 to 1) of the time for which a quota stopped the cores on which threads ran; 0 where not captured."""
    ran_on = min(threads, cpu.affinity or threads)
    return min((cores.throttled or 0.0) / max(ran_on, 1), 1.0)
