"""What a batch takes to make, split into its items and putting them together, and what PD111 says of it."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from perfdoctor.analyzers._cpu_evidence import FoundWork
from perfdoctor.analyzers._loader_model import own_fetch_ns, share_of_sampler, split_batch
from perfdoctor.analyzers._loader_texts import (
    CHEAPER_BATCH,
    choose_sure_workers,
    count_workers,
    describe_loading_work,
    format_ms,
    say_own_part,
)
from perfdoctor.analyzers._loader_wait_parts import LoaderWait, LoadingWork, evidence_of_work
from perfdoctor.analyzers._shared_cores import SharedCores
from perfdoctor.rules import LoaderFacts, Rank, Saving, SourceLocation, captured_location, count_recurrence
from perfdoctor.rules import activity_kinds as kinds

DEFAULT_COLLATE = "default_collate"
# Samples of a dict or a tuple give a tensor for each of a few fields; more are the positions of a list.
_MANY_TENSORS = 12
_IN_GENERAL = "prepare once what does not change, and work on whole arrays or batches instead of Python loops"
_LISTS = "return tensors or arrays from the data set instead of lists"
_OF_A_LIBRARY = (
    "the data set is a library's: read it once into tensors before training (a TensorDataset), or leave its transform "
    "out and transform whole batches in collate_fn"
)
_ROWS = "take tensors of the columns once, as df.iloc makes a Series of each row"
_DATA_FRAME = r"pandas|\((frame|series|indexing|generic|managers)\.py\)|\b(iloc|DataFrame|Series)\b"
_SAMPLER = "choose the items of all batches at once, or from an index that is made once, before the loop"
# Work that can be done once before training, whatever the program is.
_DONE_ONCE = frozenset({kinds.TOKENIZING, kinds.LISTS_TO_TENSORS})
# A worker finds a core where the training leaves so much of one.
_FREE_CORES = 0.5
# What a batch of ready tensors still takes: an item and its place in the batch, measured for tensors of some kB.
_READY_BATCH_NS = 200_000


class BatchWork(NamedTuple):
    """How long a batch takes to load, in ns, in the process that loads it: in the loop's, as long as that waits for it.

    Attributes:
        wall_ns: The whole fetch.
        cpu_ns: CPU time of it.
        items_ns, collate_ns, sampler_ns, other_ns: Its parts, which add up to it; None where they were not captured. Of
            workers only the first two are: they have no sampler.
        in_workers: Whether workers load.
        mainly: What most of the wait for it goes into: the sampler only where it is at least half.
        collate_fn: Its name; None for PyTorch's own, or where it is not known.
        makes_many_tensors: Whether PyTorch's collate function builds a tensor for each position of lists.
        place: Where the function is written that takes most of it; None where that is torch's, or not known.
        sampler: The share (0 to 1) of the loop's wait that the sampler takes, see `share_of_sampler`.
    """

    wall_ns: int
    cpu_ns: int
    items_ns: int | None
    collate_ns: int | None
    sampler_ns: int | None
    other_ns: int | None
    in_workers: bool
    mainly: Literal["items", "collate", "sampler"]
    collate_fn: str | None
    makes_many_tensors: bool
    place: SourceLocation | None
    sampler: float

    @property
    def is_split(self) -> bool:
        """Whether its parts are known."""
        return self.items_ns is not None and self.collate_ns is not None

    @property
    def waits_for_sampler(self) -> bool:
        """Whether most of the wait is for the sampler, which the training process asks however many workers it has."""
        return self.mainly == "sampler"


def describe_batch_work(rank: Rank, captured: LoaderFacts, wait: LoaderWait, min_collate: float) -> BatchWork | None:
    """What was captured of a loader's fetches; None where nothing was.

    Args:
        rank: The rank.
        captured: The facts of the loader.
        wait: What the waits for batches cost.
        min_collate: Share of a fetch in the collate function from which on that is where it goes.
    """
    fetch, collate_fn = captured.fetch, captured.collate_fn
    if fetch.median_ns is None or fetch.cpu_ns is None:
        return None
    is_default = collate_fn == DEFAULT_COLLATE
    own = (own_fetch_ns(fetch, rank.contention.left_out_share) or 0.0) / max(fetch.median_ns, 1)
    cpu_ns = fetch.cpu_ns
    if fetch.where == "main" and wait.batches:
        stretch = wait.own_ns / wait.batches / max(fetch.median_ns * own, 1)
        own, cpu_ns = own * stretch, round(cpu_ns * stretch)
    wall_ns = round(fetch.median_ns * own)
    shares = split_batch(captured)
    parts = [None if ns is None else round(ns * own) for ns in (fetch.items_ns, fetch.collate_ns)] + [None, None]
    if shares is not None:
        parts = [round(share * wall_ns) for share in shares]
    items_ns, collate_ns, sampler_ns, other_ns = parts
    known_ns = (items_ns or 0) + (collate_ns or 0)
    mainly: Literal["items", "collate", "sampler"] = "items"
    place = captured.items_location
    sampler = share_of_sampler(captured)
    if 2 * sampler >= 1:
        mainly, place = "sampler", captured.sampler_location
    elif collate_ns is not None and known_ns > 0 and collate_ns >= min_collate * known_ns:
        mainly, place = "collate", captured.items_location if is_default else captured.collate_location
    return BatchWork(
        wall_ns,
        cpu_ns,
        items_ns,
        collate_ns,
        sampler_ns,
        other_ns,
        fetch.where == "worker",
        mainly,
        None if is_default else collate_fn,
        mainly == "collate" and is_default and (captured.batch_tensors or 0) >= _MANY_TENSORS,
        captured_location(place),
        sampler,
    )


def advise_cheaper_batch(
    rank: Rank,
    shared: SharedCores | None,
    batch: BatchWork,
    wait: LoaderWait,
    work: LoadingWork | None,
    created: SourceLocation | None,
    *,
    computes: bool,
) -> FoundWork | None:
    """What to change so that a batch takes less; None where workers that wait for a disk are the better answer.

    Args:
        rank: The rank.
        shared: The cores and the loading of a program without a GPU; None where that was not measured.
        batch: What a batch takes.
        wait: What the waits for batches cost.
        work: What the training process does to load; None where it is not known.
        created: Where the loader was made.
        computes: Whether loading computes, rather than waits for a disk or a network.
    """
    if shared is not None and not computes and choose_sure_workers(shared) is not None:
        return None
    written = (work.location if work is not None else None) or batch.place or created
    is_of_library = written is not None and written.is_in_library
    do, is_once = _what_to_do(rank, batch, work)
    is_transform = work is not None and work.kind == kinds.PREPROCESSING
    if is_of_library and (is_transform or do == _IN_GENERAL):
        do = _OF_A_LIBRARY
    own_ns = round(wait.own_ns * (batch.sampler if batch.waits_for_sampler else 1 - batch.sampler))
    if work is not None:  # what a profiler stretched is no longer than the part that it lies in
        work = work._replace(time_ns=min(work.time_ns, own_ns))
    # Items that are ready still have to be picked and put together.
    expected_ns = max(own_ns - _READY_BATCH_NS, 0) if is_once else None
    who = "GPU" if rank.device_kind == "gpu" else "training loop"
    waits = f"{format_ms(wait.cost_ns)} of each {format_ms(rank.mean_step_ns)} step{say_own_part(wait)}"
    title = f"The {who} waits {waits} for a batch: {_name_part(batch, wait, work, written)}"
    why = "" if shared is None else _why_no_workers(shared)
    if batch.waits_for_sampler:
        why = "The sampler stays in the training process, however many workers there are."
    return FoundWork(
        title,
        f"Make a batch cheaper: {do}. {why}{describe_loading_work(work, says_how=False)}".rstrip(),
        wait.idle,
        Saving(0, expected_ns, own_ns, "bounded"),
        created if is_of_library and created is not None else written,  # the line to change is the user's own
        evidence_of_work(work),
        recurrence=count_recurrence(wait.idle, rank.steps, rank.profiler_factor),
    )


def _what_to_do(rank: Rank, batch: BatchWork, work: LoadingWork | None) -> tuple[str, bool]:
    """The change, as a part of a sentence, and whether it can be done once before training for sure."""
    if batch.waits_for_sampler:
        return _SAMPLER, False
    if batch.makes_many_tensors:
        return _LISTS, True
    if work is None:
        return _IN_GENERAL, False
    if re.search(_DATA_FRAME, work.name):
        return _ROWS, True
    cheaper = CHEAPER_BATCH.get(work.kind or "")
    if cheaper is None:
        return _IN_GENERAL, False
    anywhere, on_gpu = cheaper
    return anywhere if rank.device_kind == "cpu" else anywhere + on_gpu, work.kind in _DONE_ONCE


def _name_part(batch: BatchWork, wait: LoaderWait, work: LoadingWork | None, location: SourceLocation | None) -> str:
    """What of the fetch takes the time, as the end of a sentence."""
    place = f" ({location.short})" if location is not None else ""

    def part_of(ns: int | None) -> str:
        """A part of a worker's time for a batch; without workers, of what the loop waits in a step."""
        if batch.in_workers:
            return f"{format_ms(ns or 0)} of the {format_ms(batch.wall_ns)} that a worker needs for one"
        return f"{format_ms(wait.own_ns * min((ns or 0) / max(batch.wall_ns, 1), 1))} of that"

    if batch.waits_for_sampler:
        name = location.function if location is not None and location.function else "the sampler"
        return f"choosing its items in {name}{place} takes {format_ms(batch.sampler * wait.own_ns)} of that"
    if not batch.is_split:
        name = "loading" if work is None else kinds.short_name(work.name)
        return f"{name}{place} has to get cheaper"
    if batch.makes_many_tensors:
        return f"samples are lists{place}, and default_collate takes {part_of(batch.collate_ns)}"
    if batch.mainly == "collate":
        name = f"the collate function {batch.collate_fn}" if batch.collate_fn else "putting its items together"
        return f"{name}{place} takes {part_of(batch.collate_ns)}"
    name = location.function if location is not None and location.function else "the data set"
    return f"making its items in {name}{place} takes {part_of(batch.items_ns)}"


def _why_no_workers(loader: SharedCores) -> str:
    """Why (more) workers do not make the step shorter, or why less work is better, as a sentence."""
    more = "More workers" if loader.workers else "Workers"
    if loader.others_have_cores and loader.computes:
        return f"{more} would not help while other programs have the cores."
    used = loader.used_cores
    if choose_sure_workers(loader) is not None:
        return f"{more} would hide it, too, but take cores: the program itself uses {used}."
    if loader.cores - loader.training_cores >= _FREE_CORES:
        handover = format_ms(loader.handover_ns / max(loader.batches, 1))
        fetch = format_ms(loader.fetch_ns / max(loader.batches, 1))
        return f"{more} would save little or nothing: handing a batch over takes {handover}, loading one {fetch}."
    sentence = f"More workers would not help: the program itself uses {used}"
    if loader.workers:
        sentence += f", {count_workers(loader.workers)} the others"
    return f"{sentence}, and a worker that computes takes its time from them."
