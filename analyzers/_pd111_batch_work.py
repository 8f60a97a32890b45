"""What a batch takes to make, split into its items and putting them together."""

from __future__ import annotations

from typing import Literal, NamedTuple

from perfdoctor.analyzers._loader_model import own_fetch_ns, share_of_sampler, split_batch
from perfdoctor.analyzers._loader_wait_parts import LoaderWait
from perfdoctor.rules import LoaderFacts, Rank, SourceLocation, captured_location

DEFAULT_COLLATE = "default_collate"
# Samples of a dict or a tuple give a tensor for each of a few fields; more are the positions of a list.
_MANY_TENSORS = 12


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
