"""PD101: the GPU waits for the DataLoader."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from perfdoctor.diagnosis.analyzer import RankAnalyzer
from perfdoctor.diagnosis.edits import Edit, without_cpu_time
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving, SourceLocation
from perfdoctor.diagnosis.loading import SINGLE_PROCESS
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.diagnosis.source import place_of_range
from perfdoctor.trace import intervals as iv

# Batches are uneven: half as many workers again keep the queue filled through the slow ones.
_HEADROOM = 1.5
# Workers that sleep or read need no core, but memory: each is an interpreter with torch, about 0.3 GB.
_MOST_PER_CORE = 8


@dataclass(frozen=True, slots=True)
class Loading:
    """How a loader kept up: per step, all of it, the wait in `__next__`, the idle time that the wait caused.

    `cpu_share` is how much of the loading computes (0 to 1), the rest sleeps or waits for a disk or a network; None
    when nobody measured it.
    """

    workers: int | None
    step_ns: int
    wait_ns: int
    idle_ns: int
    cores: int | None
    cpu_share: float | None = None

    @property
    def rest_ns(self) -> int:
        """How long a step takes when nobody waits for batches.

        Not the step less the wait: while the loop waits, the GPU may still work on what was launched before.
        """
        return self.step_ns - self.idle_ns

    @property
    def batch_ns(self) -> int:
        """Time that one worker spends on a batch.

        The wait itself without workers; with workers that are all busy, workers x step.
        """
        return self.wait_ns if not self.workers else self.workers * self.step_ns

    @property
    def batch_cpu_ns(self) -> int:
        """CPU time of it; all of it when nobody measured."""
        return round(self.batch_ns * (1.0 if self.cpu_share is None else self.cpu_share))

    @property
    def useful(self) -> int | None:
        """The most workers that help: those that keep all cores busy. None when the cores are not known."""
        if self.cores is None:
            return None
        per_core = min(self.batch_ns / max(self.batch_cpu_ns, 1), _MOST_PER_CORE)
        return max(math.floor(self.cores * per_core), 1)

    def delivery_ns(self, workers: int) -> int:
        """How long after a batch the next one is there: workers share the batches, and cores share the computing."""
        return max(round(self.batch_ns / workers), round(self.batch_cpu_ns / (self.cores or workers)))

    @property
    def enough(self) -> int:
        """Workers that deliver a batch before a step without the wait is over, with room for slow batches."""
        return max((self.workers or 0) + 1, 2, math.ceil(_HEADROOM * self.batch_ns / max(self.rest_ns, 1)))


class DataLoaderStall(RankAnalyzer):
    """The GPU idles while the training loop waits for its next batch.

    What it finds:
        Idle GPU time during which the loop is inside a DataLoader's `__next__`. On a program without a GPU, the time
        that the loop itself waits there.

    Why it costs time:
        With `num_workers=0` the main process loads, decodes and collates each batch between two steps, and nothing
        else happens. With too few workers the loop drains the queue of prefetched batches and waits for the next one.

    How it is measured:
        The ranges `enumerate(DataLoader)#...__next__` that PyTorch records, intersected with the gaps between GPU
        items. The name of the iterator tells whether there are workers; captured facts tell how many. A batch takes
        `__next__`'s time without workers, and workers x step time when workers are all busy; that time divided by
        what the step takes without the wait (the GPU may be busy through a part of it) is the number of workers that
        hides it. The expected saving assumes that many workers, or as many as keep the CPU cores busy, whichever is
        less: cores bound only the part of loading that computes (captured without workers, as the training thread's
        CPU time in `__next__`), while workers that sleep or wait for a disk share a core. Where that part is not
        known, all of it is taken to compute. On a CPU-only program workers and training share the cores, which
        bounds it further.

    How to fix:
        Set `num_workers` (and `persistent_workers=True`, so that they survive an epoch; `pin_memory=True`, so that
        copies do not block);
        or make the batch cheaper: decode ahead of time, move the transform to the GPU.

    When it is wrong:
        The first batch of an epoch starts the workers: a trace of one such step shows a stall that does not recur.
        With workers already there, how much of their work is computing is not known: a data set whose items come
        over a network then gains from more workers than there are cores, and is not told so.

    Needs:
        CPU events. Captured facts (`perfdoctor run`) for the number of workers and of cores.

    References:
        PyTorch Performance Tuning Guide, "Enable asynchronous data loading and augmentation".
    """

    rule: ClassVar[str] = "PD101"
    name: ClassVar[str] = "dataloader-stall"
    needs: ClassVar[frozenset[str]] = frozenset({"cpu"})
    # 3 %: below it a change of workers is lost in the noise of the steps; the TensorBoard plugin spoke from 5 % on.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.03})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-asynchronous-data-loading-and-augmentation",
        "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding when the loader's share of the step reaches `min_share`."""
        if rank.device_kind == "unseen":
            return
        idle = rank.account.parts["idle_dataloader"]
        cost = rank.per_step(iv.total(idle))
        if (rank.share(cost) or 0) < self.settings["min_share"]:
            return
        loader = _busiest_loader(rank)
        loading = _loading(rank, cost, loader)
        place = _place(rank, loader)
        yield self.finding(
            rank,
            title=_title(rank, loading, place),
            cost_ns=cost,
            saving=_saving(rank, loading),
            advice=_advice(loading),
            fix=_fix(rank, loading, loader),
            claim=Claim(idle),
            edit=_edit(rank, loading),
            confidence=0.9 if rank.steps.count != 1 else 0.6,
            location=place,
            evidence=_evidence(rank, loading),
        )


def _busiest_loader(rank: RankRun) -> Mapping[str, Any]:
    """The captured facts of the loader that was waited for longest; empty without facts."""
    loaders = [f for f in (rank.facts or {}).get("loaders") or [] if isinstance(f, dict)]
    return max(loaders, key=lambda f: f.get("wait_ns") or 0, default={})


def _loading(rank: RankRun, idle_ns: int, loader: Mapping[str, Any]) -> Loading:
    waits = rank.loader_waits
    waited = rank.per_step(iv.total(iv.intersect(waits.intervals, rank.window)))
    workers = loader.get("num_workers")
    if workers is None and any(SINGLE_PROCESS in rank.trace.strings[code] for code in set(waits.name.tolist())):
        workers = 0
    step = rank.per_step(rank.window_ns)
    return Loading(workers, step, waited, idle_ns, _cores(rank), _cpu_share(loader) if workers == 0 else None)


def _cpu_share(loader: Mapping[str, Any]) -> float | None:
    """How much of the wait the training thread itself computed, over the whole run; None when not captured."""
    wait, cpu = loader.get("wait_ns"), loader.get("wait_cpu_ns")
    return min(cpu / wait, 1.0) if isinstance(wait, int) and isinstance(cpu, int) and wait > 0 else None


def _cores(rank: RankRun) -> int | None:
    """The cores that the process may use, as captured; None without facts."""
    cpu = (rank.facts or {}).get("cpu")
    cores = cpu.get("affinity") if isinstance(cpu, dict) else None
    return cores if isinstance(cores, int) and cores > 0 else None


def _saving(rank: RankRun, loading: Loading) -> Saving:
    """The step takes the longer of its own work and of the time between two batches."""
    if loading.workers is None:
        return Saving(0, None, loading.idle_ns, "bounded")
    reach = max(loading.rest_ns, loading.delivery_ns(_workers(loading)))
    if rank.device_kind == "cpu":
        # Training takes all cores in the rest of the step: work is only spread, never removed.
        computed = round(loading.wait_ns * (1.0 if loading.cpu_share is None else loading.cpu_share))
        cores = loading.cores or loading.enough
        reach = max(reach, round((computed + cores * loading.rest_ns) / cores))
    return Saving(0, min(max(loading.step_ns - reach, 0), loading.idle_ns), loading.idle_ns, "bounded")


def _edit(rank: RankRun, loading: Loading) -> Edit:
    """The wait goes, but for what enough workers still cannot deliver in time."""
    late_ns = 0 if loading.workers is None else max(loading.delivery_ns(_workers(loading)) - loading.rest_ns, 0)
    kept = min(late_ns / max(loading.wait_ns, 1), 1.0)
    waits, known = rank.loader_waits, loading.workers is not None
    return without_cpu_time(waits.thread, (waits.start_ns, waits.end_ns), rank.window, kept, bound=not known)


def _workers(loading: Loading) -> int:
    """How many workers to use."""
    return loading.enough if loading.useful is None else min(loading.enough, loading.useful)


def _title(rank: RankRun, loading: Loading, place: SourceLocation | None) -> str:
    who = "The GPU waits" if rank.device_kind == "gpu" else "The training loop waits"
    where = f" at {place.short}" if place else ""
    how = {None: "", 0: ", which has no workers"}.get(
        loading.workers, f", whose {loading.workers} workers do not keep up"
    )
    return f"{who} for the DataLoader{where}{how}"


def _advice(loading: Loading) -> str:
    if loading.workers is None:
        return "Raise num_workers of this DataLoader until the wait is gone, or make a batch cheaper to load."
    if loading.useful is not None and loading.enough > loading.useful:
        return (
            f"Loading a batch takes {loading.batch_cpu_ns / 1e6:.1f} ms of CPU time: {loading.enough} workers would "
            f"hide it, but there are {loading.cores} cores. Use {loading.useful} and make the batch cheaper: "
            "decode ahead of time, or transform on the GPU."
        )
    advice = (
        f"Load batches in {loading.enough} worker processes: together they finish one in the "
        f"{loading.rest_ns / 1e6:.1f} ms that a step takes without the wait."
    )
    if loading.cores is not None and loading.enough > loading.cores:
        advice += (
            f" They are more than the {loading.cores} cores, which PyTorch warns about; but loading computes for only "
            f"{loading.cpu_share or 0:.0%} of its time and waits for the rest."
        )
    return advice


def _fix(rank: RankRun, loading: Loading, loader: Mapping[str, Any]) -> str:
    workers = _workers(loading) if loading.workers is not None else "..."
    pin = ", pin_memory=True" if rank.device_kind == "gpu" and not loader.get("pin_memory") else ""
    return f"DataLoader(..., num_workers={workers}, persistent_workers=True{pin})"


def _place(rank: RankRun, loader: Mapping[str, Any]) -> SourceLocation | None:
    """Where the loop takes its batches: from the facts, else from Python frames."""
    known = loader.get("location")
    if isinstance(known, dict) and known.get("file"):
        return SourceLocation(str(known["file"]), known.get("line"), known.get("function"))
    return place_of_range(rank, r"^enumerate\(DataLoader\)#")


def _evidence(rank: RankRun, loading: Loading) -> tuple[Evidence, ...]:
    calls = rank.loader_waits
    inside = calls.within(rank.window)
    waits = (calls.end_ns - calls.start_ns)[inside]
    return (
        Evidence("wait in DataLoader.__next__ per step", loading.wait_ns, "ns"),
        Evidence("step without the wait", loading.rest_ns, "ns"),
        Evidence("longest single wait", int(waits.max()) if len(waits) else None, "ns"),
        Evidence("batches", int(np.count_nonzero(inside)), "count"),
        Evidence("num_workers", loading.workers, "count"),
        Evidence("CPU cores", loading.cores, "count"),
        Evidence("share of loading that computes", _percent(loading.cpu_share), "%"),
    )


def _percent(part: float | None) -> float | None:
    return None if part is None else round(100 * part, 1)
