"""How many samples a step has, and where that is said."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import numpy as np
import orjson

from perfdoctor.rules import NONE, LoaderFacts, Rank, SourceLocation, captured_location

# The layers that a batch meets first, and the argument that it is.
_LAYERS = r"^aten::(conv[123]d|linear|addmm|embedding|lstm|gru)$"
_BATCH_IS_SECOND = ("aten::embedding", "aten::addmm")  # behind the table, and behind the bias


class Samples(NamedTuple):
    """The samples of a step.

    Attributes:
        per_step: Their median number; None where not known.
        batch_size: Of the DataLoader; None where there is none, or it makes no batches.
        accumulates: Whether a step has several backward passes.
        location: The line that makes the DataLoader.
    """

    per_step: int | None
    batch_size: int | None
    accumulates: bool
    location: SourceLocation | None


def find_samples(rank: Rank) -> Samples:
    """By the batches of loaders, else by the first dimension of what the first layer gets."""
    base = rank.facts.base
    counted, backwards = ([each for each in counts if each] for counts in (base.samples, base.backwards))
    loader = max(rank.facts.loaders, key=lambda each: each.batches or 0, default=LoaderFacts())
    return Samples(
        per_step=round(median(counted)) if counted else _first_dimension(rank),
        batch_size=loader.batch_size or None,
        accumulates=bool(backwards) and median(backwards) >= 2,
        location=captured_location(loader.created or loader.location),
    )


def _first_dimension(rank: Rank) -> int | None:
    trace = rank.trace if "shapes" in rank.available_data else rank.evidence_trace
    if trace is None:
        return None
    rows = np.flatnonzero(trace.match_rows(trace.ops, _LAYERS) & (trace.ops.dims != NONE))
    if not len(rows):
        return None
    first = int(rows[0])
    argument = 1 if trace.strings[trace.ops.name[first]] in _BATCH_IS_SECOND else 0
    try:
        sizes = orjson.loads(trace.text(int(trace.ops.dims[first])) or "")[argument]
        return int(sizes[0]) if isinstance(sizes, list) and len(sizes) > 1 and isinstance(sizes[0], int) else None
    except (orjson.JSONDecodeError, IndexError, TypeError):
        return None
