"""Where a DataLoader is made and used, for the rules on loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfdoctor.rules import Evidence, Rank, SourceLocation, captured_location, vocabulary


def find_loader_place(rank: Rank, captured: Mapping[str, Any]) -> SourceLocation | None:
    """Where a loader was made, else where the loop takes its batches: from the facts, else from Python frames."""
    for name in ("created", "location"):
        place = captured_location(captured.get(name))
        if place is not None:
            return place
    return rank.locations.of_range(vocabulary.DATALOADER_NEXT)


def evidence_of_use(captured: Mapping[str, Any]) -> Evidence:
    """The line of the loop that asks for batches."""
    place = captured_location(captured.get("location"))
    return Evidence("used at", str(SourceLocation(place.file, place.line)) if place else None)
