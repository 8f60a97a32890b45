"""What a batch takes to make, split into its items and putting them together."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.analyzers._pd101_loader_model import own_fetch_ns
from perfdoctor.analyzers._pd101_wait_parts import LoaderWait
from perfdoctor.rules import LoaderFacts, Rank, SourceLocation, captured_location

DEFAULT_COLLATE = "default_collate"
# Samples of a dict or a tuple give a tensor for each of a few fields; more are the positions of a list.
_MANY_TENSORS = 12


class BatchWork(NamedTuple):
    """How long a batch takes to load, in ns, in the process that loads it: in the loop's, as long as that waits for it.

    Attributes:
        wall_ns: The whole fetch.
        cpu_ns: CPU time of it.
        items_ns, collate_ns: Its parts; None where they were not captured.
        in_workers: Whether workers load.
        is_mainly_collate: Whether it goes into the collate function.
        collate_fn: Its name; None for PyTorch's own, or where it is not known.
        makes_many_tensors: Whether PyTorch's collate function builds a tensor for each position of lists.
        place: Where the function is written that takes most of it; None where that is torch's, or not known.
    """

    wall_ns: int
    cpu_ns: int
    items_ns: int | None
    collate_ns: int | None
    in_workers: bool
    is_mainly_collate: bool
    collate_fn: str | None
    makes_many_tensors: bool
    place: SourceLocation | None

    @property
    def is_split(self) -> bool:
        """Whether its parts are known."""
        return self.items_ns is not None and self.collate_ns is not None


def describe_batch_work(rank: Rank, captured: LoaderFacts, wait: LoaderWait, min_collate: float) -> BatchWork | None:
    """What was captured of a loader's fetches; None where nothing was.

    Args:
        rank: The rank.
        captured: The facts of the loader.
        wait: What the waits for batches cost.
        min_collate: Share of a fetch in the collate function from which on that is where it goes.
    """
    fetch, collate_fn = captured.fetch, captured.collate_fn
    items_ns, collate_ns = fetch.items_ns, fetch.collate_ns
    if fetch.median_ns is None or fetch.cpu_ns is None:
        return None
    known_ns = (items_ns or 0) + (collate_ns or 0)
    is_mainly_collate = collate_ns is not None and known_ns > 0 and collate_ns >= min_collate * known_ns
    is_default = collate_fn == DEFAULT_COLLATE
    own = (own_fetch_ns(fetch, rank.contention.left_out_share) or 0.0) / max(fetch.median_ns, 1)
    cpu_ns = fetch.cpu_ns
    if fetch.where == "main" and wait.batches:
        stretch = wait.own_ns / wait.batches / max(fetch.median_ns * own, 1)
        own, cpu_ns = own * stretch, round(cpu_ns * stretch)
    return BatchWork(
        round(fetch.median_ns * own),
        cpu_ns,
        None if items_ns is None else round(items_ns * own),
        None if collate_ns is None else round(collate_ns * own),
        fetch.where == "worker",
        is_mainly_collate,
        None if is_default else collate_fn,
        is_mainly_collate and is_default and (captured.batch_tensors or 0) >= _MANY_TENSORS,
        captured_location(
            captured.collate_location if is_mainly_collate and not is_default else captured.items_location
        ),
    )
