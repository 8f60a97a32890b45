"""PD114: DataLoader workers and the training have more threads than there are cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfdoctor.analyzers._cpu_parallel_ops import find_parallel_ops
from perfdoctor.analyzers._loader_texts import count_workers, format_ms
from perfdoctor.analyzers._loader_wait_parts import measure_loader_wait
from perfdoctor.analyzers._shared_cores import SharedCores, measure_shared_cores
from perfdoctor.rules import (
    USED_AT,
    Action,
    Advice,
    Claim,
    Evidence,
    Finding,
    Intervals,
    LoaderFacts,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    captured_location,
)
from perfdoctor.rules import intervals as iv


class _Remedy(NamedTuple):
    """A setting and what it saves of a step without the profiler, in ns: at least, as expected, at most.

    `time` is when the recorded steps lose it.
    """

    advice: Advice
    low_ns: float
    expected_ns: float
    high_ns: float
    time: Intervals


class WorkerOversubscription(RankAnalyzer):
    """Workers that compute take the cores on which the training computes."""

    rule = "PD114"
    name = "worker-oversubscription"
    needs = frozenset({"cpu"})
    # min_share: as in PD101: below 3 % of the step a change of workers is lost in the noise of the steps.
    # min_busy_share: of the cores; below it workers find a core that idles.
    # min_computing: share of its time for which a worker computes or waits for a core; below it, it waits for a disk.
    defaults = {"min_share": 0.03, "min_busy_share": 0.85, "min_computing": 0.5}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html",
        "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where the workers compute, no core idles, and another setting saves `min_share` of the step."""
        captured = rank.facts.main_loader
        loader = measure_shared_cores(rank, captured, measure_loader_wait(rank))
        if loader is None or not loader.workers or not loader.workers_keep_up:
            return
        worker_cores, queued_ns = rank.facts.cores.workers or 0.0, captured.fetch.queued_ns
        worker_threads = max(round(loader.fetch_process_cpu_ns / max(loader.fetch_cpu_ns, 1)), 1)
        threads = loader.threads + loader.workers * worker_threads
        busy = loader.training_cores + worker_cores
        computing_ns = loader.fetch_cpu_ns + loader.batches * (queued_ns or 0)
        is_computing = computing_ns >= self.settings["min_computing"] * loader.fetch_ns
        if threads <= loader.cores or not is_computing or busy < self.settings["min_busy_share"] * loader.cores:
            return
        remedy = _find_remedy(rank, loader)
        if remedy is None or remedy.expected_ns < self.settings["min_share"] * loader.step_ns:
            return
        yield self._report(rank, captured, loader, remedy, threads, busy)

    def _report(
        self, rank: Rank, captured: LoaderFacts, loader: SharedCores, remedy: _Remedy, threads: int, busy: float
    ) -> Finding:
        cost_ns = rank.per_step(iv.total(remedy.time))
        low_ns, expected_ns, high_ns = (
            min(max(round(each), 0), cost_ns) for each in (remedy.low_ns, remedy.expected_ns, remedy.high_ns)
        )
        fetch, used = captured.fetch, captured_location(captured.location)
        return self.finding(
            rank,
            title=(
                f"{count_workers(loader.workers)} and {loader.threads} threads of the program share "
                f"{loader.cores:.3g} cores: workers take from the program what they load, and handing a batch over "
                f"costs {format_ms(loader.wait_ns)} of each {format_ms(loader.step_ns)} step"
            ),
            cost_ns=cost_ns,
            saving=Saving(low_ns, expected_ns, high_ns, "bounded"),
            advice=remedy.advice,
            claim=Claim(remedy.time),
            confidence=0.7,
            location=captured_location(captured.created) or used,
            evidence=(
                Evidence("used at", str(used) if used else None, id=USED_AT),
                Evidence("num_workers", loader.workers, "count"),
                Evidence("threads of PyTorch", loader.threads, "count"),
                Evidence("threads together", threads, "count"),
                Evidence("CPU cores", round(loader.cores, 2)),
                Evidence("cores that training and workers use", round(busy, 2)),
                Evidence("time to load a batch in a worker", fetch.median_ns, "ns"),
                Evidence("CPU time of it", fetch.cpu_ns, "ns"),
                Evidence("wait for a core in it", fetch.queued_ns, "ns"),
                Evidence("wait in DataLoader.__next__ per {unit}", round(loader.wait_ns), "ns"),
            ),
        )


def _find_remedy(rank: Rank, loader: SharedCores) -> _Remedy | None:
    """The setting that saves most; None where the training has one thread, beside which workers pay."""
    if loader.threads < 2:
        return None
    here = _Remedy(
        advise("loader takes the program's cores", rank.context),
        0.0,
        loader.wait_ns,
        1.5 * loader.wait_ns,
        iv.intersect(rank.loader_waits.intervals, rank.window),
    )
    # As if loading were done between the steps, so that the training is as long as it would be undisturbed.
    without = loader._replace(workers=0, step_ns=max(loader.step_ns - loader.wait_ns, 1.0), wait_ns=loader.fetch_cpu_ns)
    step = without.predict_step(loader.workers, 1)
    one_thread = _Remedy(
        Advice(
            f"Compute with one thread beside {count_workers(loader.workers)}: the program's ops are too small to gain "
            f"much from {loader.threads}, and threads that share an op wait for the one whose core a worker uses.",
            "torch.set_num_threads(1)",
            actions=(Action("threads", 1),),
        ),
        loader.step_ns - step.slow_ns,
        loader.step_ns - step.expected_ns,
        loader.step_ns - step.fast_ns,
        iv.subtract(rank.window, find_parallel_ops(rank, loader.threads).time),
    )
    return one_thread if one_thread.low_ns > 0 and one_thread.expected_ns > here.expected_ns else here
