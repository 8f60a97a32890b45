"""PD111: making the items of a batch, or putting them together, takes too long."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._cpu_evidence import FoundWork, report_work
from perfdoctor.analyzers._loader_model import model_loader, share_of_sampler
from perfdoctor.analyzers._loader_texts import evidence_of_use, find_loader_place
from perfdoctor.analyzers._loader_wait_parts import LoaderWait, find_loading_work, measure_loader_wait, split_waits
from perfdoctor.analyzers._pd111_batches import BatchWork, advise_cheaper_batch, describe_batch_work
from perfdoctor.analyzers._pd111_step_preparation import find_preparation
from perfdoctor.analyzers._shared_cores import measure_shared_cores
from perfdoctor.rules import Action, Advice, Evidence, Finding, LoaderFacts, Rank, RankAnalyzer

# What a process may keep of items, each of which takes so many times its tensors as lists of Python's numbers.
_REMEMBERED_BYTES, _PYTHON_FACTOR = 1_000_000_000, 8
_MAX_ITEMS = 65_536


class SlowCollate(RankAnalyzer):
    """Each batch is made by work that could be done once, or for many items at a time."""

    rule = "PD111"
    name = "slow-collate"
    needs = frozenset({"cpu"})
    # min_share: of the step. The TensorBoard plugin reports waits from 5 % on; a wait of 6 %, half of it promised, is a
    # finding of low severity.
    # min_computing: share of its time for which loading computes; below it, it waits for a disk or a network.
    # min_collate: share of a fetch in the collate function from which on that is where it goes.
    # min_prepared: share of a step before the model; below it are the casts and masks that any program makes.
    # min_large: of the step. A shorter wait may be what the loader itself takes for small batches.
    defaults = {"min_share": 0.06, "min_computing": 0.5, "min_collate": 0.5, "min_prepared": 0.15, "min_large": 0.15}
    references = ("https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """Findings about the loader that the loop waits for longest, and about what the loop does to a batch itself."""
        yield from self._check_loader(rank)
        yield from report_work(self, rank, find_preparation(rank), self.settings["min_prepared"])

    def _check_loader(self, rank: Rank) -> Iterator[Finding]:
        captured = rank.facts.main_loader
        if rank.device_kind == "gpu_not_recorded" or not captured.fetch:
            return
        wait = measure_loader_wait(rank)
        if not self.exceeds_min_share(rank, wait.cost_ns):
            return
        batch = describe_batch_work(rank, captured, wait, self.settings["min_collate"])
        cheaper = None if batch is None else self._advise(rank, captured, batch, wait)
        is_large = self.exceeds_min_share(rank, wait.cost_ns, self.settings["min_large"])
        if batch is not None and cheaper is not None:
            remembers = not batch.makes_many_tensors and not batch.waits_for_sampler
            found = cheaper._replace(
                advice=Advice(str(cheaper.advice), actions=_remember_items(captured) if remembers else ()),
                confidence=(0.7 if batch.is_split else 0.5) * (1.0 if is_large else 0.5),
                evidence=(evidence_of_use(captured), *_evidence(batch, captured), *cheaper.evidence),
            )
            yield from report_work(self, rank, found)

    def _advise(self, rank: Rank, captured: LoaderFacts, batch: BatchWork, wait: LoaderWait) -> FoundWork | None:
        """What to say where a cheaper batch helps; None where workers hide the wait, or where nobody waits."""
        computes = batch.cpu_ns >= self.settings["min_computing"] * batch.wall_ns
        shared = measure_shared_cores(rank, captured, wait)
        place = find_loader_place(rank, captured)
        if batch.waits_for_sampler:
            pass  # workers leave it where it is
        elif shared is not None:
            if shared.workers_keep_up or shared.wait_ns < self.settings["min_share"] * shared.step_ns:
                return None
        else:
            startup_ns = split_waits(rank, wait.startups, share_of_sampler(captured)).startup_ns
            loader = model_loader(rank, captured, wait.cost_ns, startup_ns)
            if loader.keeps_up or not loader.lacks_cores or not computes or loader.max_workers is not None:
                return None
        work = find_loading_work(rank, wait) if batch.waits_for_sampler or not batch.in_workers else None
        return advise_cheaper_batch(rank, shared, batch, wait, work, place, computes=computes)


def _remember_items(captured: LoaderFacts) -> tuple[Action, ...]:
    """To remember as many items as `_REMEMBERED_BYTES` hold; nothing where their size is not known."""
    if not captured.batch_bytes or not captured.batch_size:
        return ()
    items = _REMEMBERED_BYTES * captured.batch_size // (_PYTHON_FACTOR * captured.batch_bytes)
    return (Action("remember", 1 << min(items, _MAX_ITEMS).bit_length() - 1),) if items else ()


def _evidence(batch: BatchWork, captured: LoaderFacts) -> tuple[Evidence, ...]:
    return (
        Evidence("num_workers", captured.num_workers, "count"),
        Evidence("time to load a batch", batch.wall_ns, "ns"),
        Evidence("CPU time of it", batch.cpu_ns, "ns"),
        Evidence("making its items", batch.items_ns, "ns"),
        Evidence("putting them together", batch.collate_ns, "ns"),
        Evidence("choosing them, in the training process", batch.sampler_ns, "ns"),
        Evidence("the rest of it", batch.other_ns, "ns"),
        Evidence("collate function", captured.collate_fn),
        Evidence("tensors of a batch", captured.batch_tensors, "count"),
    )
