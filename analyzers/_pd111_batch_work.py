"""What a batch takes to make, split into its items and putting them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perfdoctor.rules import SourceLocation, captured_location

DEFAULT_COLLATE = "default_collate"
# Samples of a dict or a tuple give a tensor for each of a few fields; more are the positions of a list.
_MANY_TENSORS = 12


class BatchWork(NamedTuple):
    """How long a batch takes to load, in ns, in the process that loads it.

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


def describe_batch_work(captured: Mapping[str, Any], min_collate: float) -> BatchWork | None:
    """What was captured of a loader's fetches; None where nothing was.

    Args:
        captured: The facts of the loader.
        min_collate: Share of a fetch in the collate function from which on that is where it goes.
    """
    fetch = captured.get("fetch")
    if not isinstance(fetch, dict):
        return None
    wall_ns, cpu_ns = fetch.get("median_ns"), fetch.get("cpu_ns")
    if not isinstance(wall_ns, int) or not isinstance(cpu_ns, int):
        return None
    items_ns, collate_ns = (each if isinstance(each := fetch.get(name), int) else None for name in _PARTS)
    known_ns = (items_ns or 0) + (collate_ns or 0)
    is_mainly_collate = collate_ns is not None and known_ns > 0 and collate_ns >= min_collate * known_ns
    name, tensors = captured.get("collate_fn"), captured.get("batch_tensors")
    is_default = name == DEFAULT_COLLATE
    return BatchWork(
        wall_ns,
        cpu_ns,
        items_ns,
        collate_ns,
        fetch.get("where") == "worker",
        is_mainly_collate,
        None if is_default or not isinstance(name, str) else name,
        is_mainly_collate and is_default and isinstance(tensors, int) and tensors >= _MANY_TENSORS,
        captured_location(
            captured.get("collate_location" if is_mainly_collate and not is_default else "items_location")
        ),
    )


_PARTS = ("items_ns", "collate_ns")
