"""Where a DataLoader is made and used, for the rules on loaders."""

from __future__ import annotations

from perfdoctor.rules import USED_AT, Evidence, LoaderFacts, Rank, SourceLocation, captured_location, vocabulary


def find_loader_place(rank: Rank, captured: LoaderFacts) -> SourceLocation | None:
    """Where a loader was made, else where the loop takes its batches: from the facts, else from Python frames."""
    for line in (captured.created, captured.location):
        place = captured_location(line)
        if place is not None:
            return place
    return rank.places.line_of_named(vocabulary.DATALOADER_NEXT)


def evidence_of_use(captured: LoaderFacts) -> Evidence:
    """The line of the loop that asks for batches."""
    place = captured_location(captured.location)
    return Evidence("used at", str(place) if place else None, id=USED_AT)
