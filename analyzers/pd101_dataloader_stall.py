"""PD101: the GPU waits for the DataLoader."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._cpu_evidence import report_work
from perfdoctor.analyzers._loader_model import HANDOVER_NS, LoaderModel, model_loader, share_of_sampler
from perfdoctor.analyzers._loader_texts import (
    advise_workers,
    evidence_of_use,
    find_loader_place,
    stall_advice,
    stall_title,
)
from perfdoctor.analyzers._loader_wait_parts import (
    LoaderWait,
    LoadingWork,
    WaitParts,
    evidence_of_work,
    find_loading_work,
    find_unhidden,
    measure_loader_wait,
    split_waits,
)
from perfdoctor.analyzers._shared_cores import SharedCores, measure_shared_cores
from perfdoctor.rules import (
    BoolArray,
    Claim,
    Edit,
    Evidence,
    Finding,
    Intervals,
    LoaderFacts,
    Rank,
    RankAnalyzer,
    count_recurrence,
    move_work,
    remove_cpu_time,
)
from perfdoctor.rules import intervals as iv


class DataLoaderStall(RankAnalyzer):
    """The GPU idles while the training loop waits for its next batch."""

    rule = "PD101"
    name = "dataloader-stall"
    needs = frozenset({"cpu"})
    # min_share: below 3 % of the step a change of workers is lost in the noise of the steps; the TensorBoard plugin
    # reports waits from 5 % on.
    defaults = {"min_share": 0.03}
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-asynchronous-data-loading-and-augmentation",
        "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding about waits for batches, from `min_share` of the step on; starting workers is PD112's."""
        if rank.device_kind == "gpu_not_recorded":
            return
        captured, wait = rank.facts.main_loader, measure_loader_wait(rank)
        # The sampler stays in the training process: only what workers take over is theirs to save.
        if not self.exceeds_min_share(rank, round((1 - share_of_sampler(captured)) * wait.cost_ns)):
            return
        shared = measure_shared_cores(rank, captured, wait)
        if shared is None:
            yield from self._report_stall(rank, wait, captured)
        else:
            yield from self._report_shared_cores(rank, wait, captured, shared)

    def _report_stall(self, rank: Rank, wait: LoaderWait, captured: LoaderFacts) -> Iterator[Finding]:
        idle, cost_ns = wait.idle, wait.cost_ns
        parts = split_waits(rank, wait.startups, share_of_sampler(captured))
        is_made_anew, unhidden = find_unhidden(rank, idle)
        unhidden_ns = rank.per_step(iv.total(iv.intersect(unhidden, idle)))
        loader = model_loader(rank, captured, cost_ns, parts.startup_ns, unhidden_ns, is_made_anew=is_made_anew)
        location, saving = find_loader_place(rank, captured), loader.saving(on_cpu=rank.device_kind == "cpu")
        if not saving.high_ns or loader.keeps_up:
            return
        work = find_loading_work(rank, wait) if loader.workers == 0 else None
        yield self.finding(
            rank,
            title=stall_title(rank, loader.workers, wait, location, is_made_anew=is_made_anew),
            cost_ns=cost_ns,
            saving=saving,
            advice=stall_advice(rank, loader, captured, parts, work),
            claim=Claim(idle),
            edit=_remove_waits(rank, ~wait.startups, loader, unhidden),
            confidence=0.9 if rank.steps.count != 1 else 0.6,
            location=location,
            evidence=(*_evidence(rank, loader, parts, work), evidence_of_use(captured)),
            recurrence=count_recurrence(idle, rank.steps, rank.profiler_factor),
        )

    def _report_shared_cores(
        self, rank: Rank, wait: LoaderWait, captured: LoaderFacts, shared: SharedCores
    ) -> Iterator[Finding]:
        """A finding on a program without a GPU whose cores and loading were measured, where a change pays."""
        work = None if shared.workers else find_loading_work(rank, wait)
        found = advise_workers(rank, shared, wait, work, find_loader_place(rank, captured))
        if found is not None:
            evidence = (*_evidence_of_shared_cores(shared), evidence_of_use(captured), *evidence_of_work(work))
            yield from report_work(self, rank, found._replace(evidence=evidence))


def _evidence_of_shared_cores(shared: SharedCores) -> tuple[Evidence, ...]:
    """What was measured, without the profiler."""
    batches = max(shared.batches, 1)
    return (
        Evidence("wait in DataLoader.__next__ per {unit}", round(shared.wait_ns), "ns"),
        Evidence("of it choosing items, in the training process", round(shared.sampler_ns), "ns"),
        Evidence("step without the rest of it", round(shared.training_ns), "ns"),
        Evidence("num_workers", shared.workers, "count"),
        Evidence("time to load a batch", round(shared.fetch_ns / batches), "ns"),
        Evidence("CPU time of it", round(shared.fetch_cpu_ns / batches), "ns"),
        Evidence("batches per {unit}", round(shared.batches, 2), "count"),
        Evidence("bytes of a batch", shared.batch_bytes or None, "bytes"),
        Evidence("CPU cores", round(shared.cores, 2)),
        Evidence("cores that training uses", round(shared.training_cores, 2)),
        Evidence("threads of PyTorch", shared.threads, "count"),
    )


def _remove_waits(rank: Rank, rows: BoolArray, loader: LoaderModel, unhidden: Intervals) -> Edit:
    """The edit in which some of the waits vanish, while the recommended workers take their time for the batches.

    What no worker hides, the sampler and handing a batch over stay.
    """
    waits = rank.loader_waits
    start_ns, end_ns = waits.start_ns[rows], waits.end_ns[rows]
    stays_ns = HANDOVER_NS + (loader.sampler * (end_ns - start_ns)).astype(np.int64)
    spans = start_ns, np.maximum(end_ns - stays_ns, start_ns)
    hidden = iv.subtract(rank.window, unhidden)
    adds_workers = bool(loader.recommended_workers) and loader.workers is not None
    is_upper_bound = loader.is_made_anew or not adds_workers
    edit = remove_cpu_time(waits.thread[rows], spans, hidden, is_upper_bound=is_upper_bound)
    return edit if not adds_workers else move_work(edit, "loader", loader.batch_interval_ns)


def _evidence(rank: Rank, loader: LoaderModel, parts: WaitParts, work: LoadingWork | None) -> tuple[Evidence, ...]:
    waits = rank.loader_waits
    inside = waits.within(rank.window)
    dur_ns = (waits.end_ns - waits.start_ns)[inside]
    labelled_parts = {
        "of it starting workers": parts.startup_ns,
        "of it fetching items": parts.fetch_ns,
        "of it choosing items, in the training process": parts.sampler_ns,
        "of it collating": parts.collate_ns,
        "of it pinning": parts.pin_ns,
        "of it copying to the GPU": parts.copy_ns,
        "idle meanwhile that no worker hides": loader.unhidden_ns,
    }
    cpu_percent = None if loader.cpu_share is None else round(100 * loader.cpu_share, 1)
    return (
        Evidence("wait in DataLoader.__next__ per {unit}", loader.wait_ns, "ns"),
        Evidence("step without the wait", loader.unstalled_step_ns, "ns"),
        Evidence("longest single wait", int(dur_ns.max()) if len(dur_ns) else None, "ns"),
        Evidence("batches", len(dur_ns), "count"),
        Evidence("num_workers", loader.workers, "count"),
        Evidence("CPU cores", loader.cores, "count"),
        Evidence("share of loading that computes", cpu_percent, "%"),
        *(Evidence(label, ns, "ns") for label, ns in labelled_parts.items() if ns),
        *evidence_of_work(work),
    )
