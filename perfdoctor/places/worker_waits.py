"""Waits for a worker of a DataLoader belong to what the worker does meanwhile: making items, or collating them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.facts.loaders import LoaderFacts
from perfdoctor.facts.part import CapturedLine
from perfdoctor.places.name_places import PHASES
from perfdoctor.places.place import PlaceName
from perfdoctor.places.placed_window import Cells, What, share_cells

Shares: TypeAlias = Mapping[tuple[str, int | None], tuple[tuple[PlaceName | None, int], ...]]
"""By the line that asks a loader for batches the places that its workers are at, with ns each; None for that line."""

_WAITING, _LOADING = DETAILS.index("idle_dataloader"), PHASES.index("loader")


def shares_of_workers(loaders: Iterable[LoaderFacts]) -> Shares:
    """What the workers of captured loaders spend a batch on.

    The time is a median of the run, measured in the workers, which no window records: of the user's `__getitem__` and
    collate function, and the rest, such as torch's own, at the line that waits. The sampler runs in the training
    process, where its lines are recorded.
    """
    shares = {}
    for each in loaders:
        fetch, asks = each.fetch, each.location
        if each.num_workers and fetch.where == "worker" and fetch.median_ns and asks.file:
            parts = [
                (_name(each.items_location), fetch.items_ns or 0),
                (_name(each.collate_location), fetch.collate_ns or 0),
            ]
            parts.append((None, max(fetch.median_ns - sum(ns for _, ns in parts), 0)))
            shares[asks.file, asks.line] = tuple(parts)
    return shares


def move_to_workers(cells: Cells, shares: Shares) -> Cells:
    """The cells with the waits for workers at the lines that these run; their time is kept to the nanosecond."""

    def shares_of(what: What, cause: int, place: PlaceName) -> Mapping[PlaceName, int]:
        parts = shares.get((place.file, place.line), ()) if place.file else ()
        weights = Counter[PlaceName]()
        if cause == _WAITING and what[0] == _LOADING:
            for at, ns in parts:
                weights[at or place] += ns
        return weights or {place: 1}

    return share_cells(cells, shares_of)


def _name(line: CapturedLine) -> PlaceName | None:
    return PlaceName("line", line.file, line.line, line.function) if line.file else None
