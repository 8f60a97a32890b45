"""PD101: the GPU waits for the DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from perfdoctor.analysis.captured_facts import captured_list, captured_part
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analyzers._pd101_loader_model import Loading, WaitParts, wait_parts, worker_startups
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.edits import Edit, remove_cpu_time
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals

# A part of the wait is worth a sentence from here on.
_MUCH = 0.15


class DataLoaderStall(RankAnalyzer):
    """The GPU idles while the training loop waits for its next batch.

    What it finds:
        Idle GPU time during which the loop is inside a DataLoader's `__next__`. On a program without a GPU, the time
        that the loop itself waits there.

    Why it costs time:
        With `num_workers=0` the main process loads, decodes and collates each batch between two steps, and nothing
        else happens. With too few workers the loop drains the queue of prefetched batches and waits for the next one.

    How it is measured:
        The ranges `enumerate(DataLoader)#...__next__` that PyTorch records (or Python frames of `__next__`),
        intersected with the gaps between GPU items. A first wait of an epoch that is five times as long as the others
        is the start of the workers, and a finding of its own. The rest of the waiting is split into copying to the
        GPU, pinning, collating (putting samples together) and fetching items, by ops, calls and frames of the waiting
        thread. The name of the iterator tells whether there are workers; captured facts tell how many. A batch takes
        `__next__`'s time without workers, and workers x step time when workers are all busy; that time divided by
        what the step takes without the wait (the GPU may be busy through a part of it) is the number of workers that
        hides it. The expected saving assumes that many workers, or as many as keep the CPU cores busy, whichever is
        less: cores bound only the part of loading that computes (captured without workers, as the training thread's
        CPU time in `__next__`), while workers that sleep or wait for a disk share a core. Where that part is not
        known, all of it is taken to compute. On a CPU-only program workers and training share the cores, which
        bounds it further, and taking a batch over from a worker keeps 0.3 ms of the wait (measured for two tensors):
        a wait that is no longer is no finding there.

    How to fix:
        Set `num_workers` (and `persistent_workers=True`, so that they survive an epoch; `pin_memory=True`, so that
        copies do not block); or make the batch cheaper: decode ahead of time, move the transform to the GPU.

    When it is wrong:
        A trace of one step that begins an epoch shows a stall that does not recur. Workers take cores and memory
        bandwidth from the training process: of the 46.9 and 47.9 ms a step that two real recordings without workers
        promised, 35.5 and 47.1 came true with four. With workers already there, how much of their work is computing
        is not known: a data set whose items come over a network then gains from more workers than there are cores,
        and is not told so.

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

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding about waits for batches and one about starting workers, each from `min_share` of the step on."""
        if rank.device_kind == "gpu_not_recorded":
            return
        loader, waits = _busiest_loader(rank), rank.loader_waits
        rows = worker_startups(rank)
        starts = iv.union(waits.start_ns[rows], waits.end_ns[rows])
        idle = iv.subtract(rank.account.parts["idle_dataloader"], starts)
        if self.exceeds_min_share(rank, rank.per_step(iv.total(idle))):
            yield from self._stall(rank, idle, loader)
        starting = iv.intersect(rank.account.parts["idle_dataloader"], starts)
        if self.exceeds_min_share(rank, rank.per_step(iv.total(starting))) and _starts_again(loader):
            yield self._startup(rank, starting, loader, int(rows.sum()))

    def _stall(self, rank: Rank, idle: Intervals, loader: Mapping[str, Any]) -> Iterator[Finding]:
        parts = wait_parts(rank)
        cost = rank.per_step(iv.total(idle))
        loading = _loading(rank, cost, loader, parts)
        place, saving = _place(rank, loader), _saving(rank, loading)
        if not saving.high_ns:
            return
        yield self.finding(
            rank,
            title=_title(rank, loading, place, saving),
            cost_ns=cost,
            saving=saving,
            advice=_advice(loading, parts),
            fix=_fix(rank, loading, loader),
            claim=Claim(idle),
            edit=_edit(rank, loading),
            confidence=0.9 if rank.steps.count != 1 else 0.6,
            location=place,
            evidence=_evidence(rank, loading, parts),
        )

    def _startup(self, rank: Rank, idle: Intervals, loader: Mapping[str, Any], epochs: int) -> Finding:
        place = _place(rank, loader)
        cost = rank.per_step(iv.total(idle))
        return self.finding(
            rank,
            title=f"{_who(rank)} {_ms(iv.total(idle) // max(epochs, 1))} at the start of an epoch"
            f"{f' at {place.short}' if place else ''}, while the DataLoader starts its workers",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice="Keep the workers from one epoch to the next. How much it saves depends on how long an epoch is: "
            "here its cost is spread over the recorded steps.",
            fix="DataLoader(..., persistent_workers=True)",
            claim=Claim(idle),
            edit=_without(rank, worker_startups(rank), bound=True),
            confidence=0.5,
            location=place,
            evidence=(Evidence("epochs that began", epochs, "count"), Evidence("iterations", loader.get("iterations"))),
            subject="start-up",
        )


def _starts_again(loader: Mapping[str, Any]) -> bool:
    """Whether workers may start anew: not where they are kept, or where there was one epoch."""
    return loader.get("persistent_workers") is not True and loader.get("iterations") != 1


def _busiest_loader(rank: Rank) -> Mapping[str, Any]:
    """The captured facts of the loader that was waited for longest; empty without facts."""
    return max(captured_list(rank.facts, "loaders"), key=lambda f: f.get("wait_ns") or 0, default={})


def _loading(rank: Rank, idle_ns: int, loader: Mapping[str, Any], parts: WaitParts) -> Loading:
    waits = rank.loader_waits
    waited = rank.per_step(iv.total(iv.intersect(waits.intervals, rank.window))) - parts.startup_ns
    workers = loader.get("num_workers")
    if workers is None and any(
        vocabulary.SINGLE_PROCESS_LOADER in rank.trace.strings[code] for code in set(waits.name.tolist())
    ):
        workers = 0
    step = rank.per_step(rank.window_ns) - parts.startup_ns
    batches = int(np.count_nonzero(waits.within(rank.window))) / max(rank.steps.count, 1)
    return Loading(workers, step, waited, idle_ns, _cores(rank), _cpu_share(loader) if workers == 0 else None, batches)


def _cpu_share(loader: Mapping[str, Any]) -> float | None:
    """How much of the wait the training thread itself computed, over the whole run; None when not captured."""
    wait, cpu = loader.get("wait_ns"), loader.get("wait_cpu_ns")
    return min(cpu / wait, 1.0) if isinstance(wait, int) and isinstance(cpu, int) and wait > 0 else None


def _cores(rank: Rank) -> int | None:
    """The cores that the process may use, as captured; None without facts."""
    cores = captured_part(rank.facts, "cpu").get("affinity")
    return cores if isinstance(cores, int) and cores > 0 else None


def _saving(rank: Rank, loading: Loading) -> Saving:
    """The step takes the longer of its own work and of the time between two batches."""
    # Beside a GPU the loop takes batches over while the GPU works; on a CPU that time is the step's.
    kept = loading.taking_over_ns if rank.device_kind == "cpu" else 0
    most = max(loading.idle_ns - kept, 0)
    if loading.workers is None:
        return Saving(0, None, most, "bounded")
    reach = max(loading.rest_ns, loading.delivery_ns(_workers(loading)))
    if rank.device_kind == "cpu":
        # Training takes all cores in the rest of the step: work is only spread, never removed.
        computed = round(loading.wait_ns * (1.0 if loading.cpu_share is None else loading.cpu_share))
        cores = loading.cores or loading.enough
        reach = max(reach, round((computed + cores * loading.rest_ns) / cores))
    return Saving(0, min(max(loading.step_ns - reach - kept, 0), most), most, "bounded")


def _edit(rank: Rank, loading: Loading) -> Edit:
    """The wait goes, but for what enough workers still cannot deliver in time."""
    late_ns = 0 if loading.workers is None else max(loading.delivery_ns(_workers(loading)) - loading.rest_ns, 0)
    kept = min(late_ns / max(loading.wait_ns, 1), 1.0)
    return _without(rank, ~worker_startups(rank), kept, bound=loading.workers is None)


def _without(rank: Rank, rows: BoolArray, kept: float = 0.0, *, bound: bool) -> Edit:
    """Some of the waits vanish but for a share."""
    waits = rank.loader_waits
    spans = waits.start_ns[rows], waits.end_ns[rows]
    return remove_cpu_time(waits.thread[rows], spans, rank.window, kept, is_upper_bound=bound)


def _workers(loading: Loading) -> int:
    """How many workers to use."""
    return loading.enough if loading.useful is None else min(loading.enough, loading.useful)


def _who(rank: Rank) -> str:
    return "The GPU waits" if rank.device_kind == "gpu" else "The training loop waits"


def _title(rank: Rank, loading: Loading, place: SourceLocation | None, saving: Saving) -> str:
    whole = f"each {_ms(loading.step_ns)} step" if rank.steps.count else f"the trace's {_ms(loading.step_ns)}"
    where = f"{place.short}, whose DataLoader" if place else "the DataLoader, which"
    if loading.workers is None:
        return f"{_who(rank)} {_ms(loading.idle_ns)} of {whole} for {place.short if place else 'the DataLoader'}"
    keep = "does not keep up" if loading.workers == 1 else "do not keep up"
    keeps_up = "has no workers" if loading.workers == 0 else f"has {_workers_of(loading.workers)} that {keep}"
    title = f"{_who(rank)} {_ms(loading.idle_ns)} of {whole} for {where} {keeps_up}"
    if not saving.expected_ns:
        return title
    return f"{title}; with {_workers_of(_workers(loading))} at best {_ms(loading.step_ns - saving.expected_ns)}"


def _workers_of(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"


def _ms(ns: int) -> str:
    if ns < 100e3:
        return f"{ns / 1e3:.3g} us"
    return f"{ns / 1e6:.0f} ms" if ns >= 100e6 else f"{ns / 1e6:.3g} ms"


def _advice(loading: Loading, parts: WaitParts) -> str:
    if loading.workers is None:
        advice = "Raise num_workers of this DataLoader until the wait is gone, or make a batch cheaper to load."
    elif loading.useful is not None and loading.enough > loading.useful and loading.mostly_waits:
        advice = (
            f"Loading a batch takes {_ms(loading.batch_ns)} and computes for {loading.cpu_share or 0:.0%} of it: "
            f"{loading.enough} workers would hide it, each a process with a memory of its own. Use {loading.useful}, "
            "and let the data set wait less: keep its files near, and read them in larger pieces."
        )
    elif loading.useful is not None and loading.enough > loading.useful:
        advice = (
            f"Loading a batch takes {loading.batch_cpu_ns / 1e6:.1f} ms of CPU time: {loading.enough} workers would "
            f"hide it, but there are {loading.cores} cores. Use {loading.useful} and make the batch cheaper: "
            "decode ahead of time, or transform on the GPU."
        )
    else:
        advice = _more_workers(loading)
    return f"{advice}{_main_process(loading, parts)}"


def _more_workers(loading: Loading) -> str:
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


def _main_process(loading: Loading, parts: WaitParts) -> str:
    """What the main process does in the wait, where it is much of it."""
    on_device = parts.copy_ns + parts.pin_ns
    if on_device > _MUCH * loading.wait_ns:
        return (
            f" {_ms(on_device)} of the wait is copying or pinning inside the loader, which workers do not take over: "
            "return CPU tensors, set pin_memory=True, and copy in the loop without blocking."
        )
    if parts.collate_ns > _MUCH * loading.wait_ns:
        into = "it moves to the workers, too" if loading.workers == 0 else "the main process does it: leave it to them"
        return f" {_ms(parts.collate_ns)} of the wait is collating the samples; {into}."
    return ""


def _fix(rank: Rank, loading: Loading, loader: Mapping[str, Any]) -> str:
    workers = _workers(loading) if loading.workers is not None else "..."
    pin = ", pin_memory=True" if rank.device_kind == "gpu" and not loader.get("pin_memory") else ""
    return f"DataLoader(..., num_workers={workers}, persistent_workers=True{pin})"


def _place(rank: Rank, loader: Mapping[str, Any]) -> SourceLocation | None:
    """Where the loop takes its batches: from the facts, else from Python frames."""
    known = loader.get("location")
    if isinstance(known, dict) and known.get("file"):
        return SourceLocation(str(known["file"]), known.get("line"), known.get("function"))
    return rank.locations.of_range(vocabulary.DATALOADER_NEXT)


def _evidence(rank: Rank, loading: Loading, parts: WaitParts) -> tuple[Evidence, ...]:
    calls = rank.loader_waits
    inside = calls.within(rank.window)
    waits = (calls.end_ns - calls.start_ns)[inside]
    split = {
        "of it starting workers": parts.startup_ns,
        "of it fetching items": parts.fetch_ns,
        "of it collating": parts.collate_ns,
        "of it pinning": parts.pin_ns,
        "of it copying to the GPU": parts.copy_ns,
    }
    return (
        Evidence("wait in DataLoader.__next__ per step", loading.wait_ns, "ns"),
        Evidence("step without the wait", loading.rest_ns, "ns"),
        Evidence("longest single wait", int(waits.max()) if len(waits) else None, "ns"),
        Evidence("batches", int(np.count_nonzero(inside)), "count"),
        Evidence("num_workers", loading.workers, "count"),
        Evidence("CPU cores", loading.cores, "count"),
        Evidence("share of loading that computes", _percent(loading.cpu_share), "%"),
        *(Evidence(label, ns, "ns") for label, ns in split.items() if ns),
    )


def _percent(part: float | None) -> float | None:
    return None if part is None else round(100 * part, 1)
