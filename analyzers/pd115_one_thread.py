"""PD115: one thread computes while other cores idle."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._cpu_parallel_ops import (
    ParallelOps,
    find_parallel_ops,
    speedup_of_threads,
    stopped_by_quota_ns,
)
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
    count_free_cores,
)


class OneThread(RankAnalyzer):
    """The training computes with one thread, and the machine has more cores that nobody uses."""

    rule = "PD115"
    name = "one-thread"
    needs = frozenset({"cpu"})
    # min_share: of the step in large ops. Below a tenth more threads give less than a medium finding (3 %).
    # min_idle_cores: on half a core a second thread would make the first one wait for it.
    defaults = {"min_share": 0.1, "min_idle_cores": 0.6}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#utilize-openmp",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where large ops take at least `min_share` of the step and at least one core idles."""
        cpu, cores = rank.facts.cpu, rank.facts.cores
        if rank.device_kind != "cpu" or cpu.torch_threads != 1:
            return
        idle = count_free_cores(rank.facts)
        if idle is None or idle < self.settings["min_idle_cores"]:
            return
        large = find_parallel_ops(rank)
        # A core that a quota leaves idle is none to be used: PD512 says what stops the program.
        stopped = self.exceeds_min_share(rank, stopped_by_quota_ns(rank))
        if not stopped and self.exceeds_min_share(rank, large.time_ns):
            yield self._report(rank, large, idle, cpu, cores)

    def _report(self, rank: Rank, large: ParallelOps, idle: float, cpu: CpuFacts, cores: CoreUse) -> Finding:
        threads = 1 + max(math.floor(idle + 0.25), 1)
        speedup = speedup_of_threads(min(1 + idle, threads))
        low_ns, expected_ns, high_ns = (large.time_ns - round(large.time_ns / each) for each in speedup)
        location, omp = captured_location(cpu.threads_set), cpu.omp_num_threads
        available = cores.available or threads
        why, fix = f"torch.set_num_threads at {location.short}" if location else "", f"torch.set_num_threads({threads})"
        advice = f"Let PyTorch use {threads} threads: large ops, {large.top} above all, divide their work among them."
        if location is not None:
            advice += f" This line sets one: remove it, or set {threads}."
        elif omp == "1":
            why, fix = "OMP_NUM_THREADS=1", f"OMP_NUM_THREADS={threads}"
            advice += " The environment variable OMP_NUM_THREADS set one thread (some launchers and clusters set it)."
        finding = self.finding(
            rank,
            title=f"One thread computes, and {_say_idle(idle, available)}{': ' + why if why else ''}",
            cost_ns=large.time_ns,
            saving=Saving(low_ns, expected_ns, high_ns, "bounded"),
            advice=advice,
            fix=fix,
            actions=(Action("threads", threads),),
            claim=Claim(large.time),
            confidence=0.9,
            location=location,
            evidence=(
                Evidence("threads of PyTorch", 1, "count"),
                Evidence("cores that may be used", available),
                Evidence("cores that the program used", cores.training),
                Evidence("cores that its workers used", cores.workers),
                Evidence("cores that other programs used", cores.others),
                Evidence("time in large ops per {unit}", large.time_ns, "ns"),
                Evidence("largest of them", large.top),
                Evidence("OMP_NUM_THREADS", omp),
            ),
        )
        # A setting of the whole program is at no place, and only `perfdoctor try` tells what another one gives.
        return replace(finding, severity="low")


def _say_idle(idle: float, available: float) -> str:
    one = 0.75 <= idle < 1.25
    return f"one core of {available:.3g} idles" if one else f"{idle:.2g} cores of {available:.3g} idle"
