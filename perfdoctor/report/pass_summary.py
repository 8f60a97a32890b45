"""What a report says of the passes of an engine or a loop: an account for each kind, as prefill and decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.timeline.engine_passes import EnginePasses
from perfdoctor.analysis.timeline.padded_rows import count_rows_of_passes
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.kernel_bounds import KernelBounds
from perfdoctor.trace import vocabulary
from perfdoctor.trace.activity_kinds import BETWEEN_PASSES, ENGINE_MODEL, ENGINE_WORK
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.value_limits import Amount, Share

# With less of the products' time known, the bytes of the weights are not.
_MIN_KNOWN_SHARE = 0.8


@frozen_dataclass
class PassSummary:
    """The passes of one kind on a rank: times are recorded, the mean of a pass, and without what happens once.

    Attributes:
        passes: How many passes.
        requests: How many requests a pass works on, in the median; null where their names do not say.
        tokens: How many tokens a pass computes, in the median; null where their names do not say.
        rows: How many rows its kernels compute, in the median: more than `tokens` where a graph is captured for more;
            null where no kernel shows it.
        time_ns: From the first GPU item of a pass to the first of the next.
        busy_ns: Time of the GPU's work in it; it and `idle_ns` add up to `time_ns`.
        idle_ns: Idle time by what the engine's thread did: waiting for requests, preparing inputs, scheduling,
            sampling, speculating (drafts, and which to accept), tokenizing, detokenizing, messages to other processes,
            running the model, or anything between.
        graph_share: Share of the GPU items that a graph launched; null without items.
        collectives: How many collectives a pass has.
        communication_ns: Time of the collectives.
        cache_ns: Time of kernels that write into the cache of keys and values, or move its blocks.
        cache_writes: How many such kernels a pass has: one for each layer with attention.
        floor_ns: Of decode passes, the time in which the memory gives what the products and the attention read and
            write: weights, and the cache where its size is known; null where too few shapes are recorded.
    """

    rank: int | None
    kind: vocabulary.EnginePassKind
    passes: int
    requests: Amount | None
    tokens: Amount | None
    rows: Amount | None
    time_ns: int
    busy_ns: int
    idle_ns: Annotated[Mapping[str, int], ("required", (*ENGINE_WORK, ENGINE_MODEL, BETWEEN_PASSES))]
    graph_share: Share | None
    collectives: Amount
    communication_ns: int
    cache_ns: int
    cache_writes: Amount
    floor_ns: int | None


def summarize_passes(
    rank: int | None, passes: EnginePasses, classes: KernelClasses, bounds: KernelBounds, window: Intervals
) -> tuple[PassSummary, ...]:
    """A row for each kind of pass in the window, that with the most time first."""
    kinds = np.array([each.kind for each in passes.passes])
    inside = iv.overlap(passes.windows[:, 0], passes.windows[:, 1], window) > 0
    found = (
        _summarize_kind(rank, passes, (kinds == kind) & inside, classes, bounds, window)
        for kind in dict.fromkeys(kinds[inside].tolist())
    )
    return tuple(sorted(found, key=lambda row: -row.time_ns * row.passes))


def _summarize_kind(
    rank: int | None,
    passes: EnginePasses,
    mine: BoolArray,
    classes: KernelClasses,
    bounds: KernelBounds,
    window: Intervals,
) -> PassSummary:
    trace, count = classes.trace, int(mine.sum())
    gpu = trace.gpu
    items = passes.match_items(mine)
    spans = iv.intersect(iv.union(passes.windows[mine, 0], passes.windows[mine, 1]), window)
    graphed = np.append(trace.match_rows(trace.calls, vocabulary.GRAPH_LAUNCH_CALL), False)[gpu.call]
    collectives = classes.match_rows(lambda each: each.category == "communication") & items
    caching = trace.match_rows(gpu, vocabulary.KV_CACHE_KERNEL) & items

    def mean_ns(time: Intervals) -> int:
        return iv.total(iv.intersect(time, spans)) // count  # rounded down, so that idle parts never exceed the whole

    kind: vocabulary.EnginePassKind = passes.passes[int(mine.argmax())].kind
    idle = {name: mean_ns(time) for name, time in passes.idle.items()}
    return PassSummary(
        rank=rank,
        kind=kind,
        passes=count,
        requests=_median_said(passes, mine, "requests"),
        tokens=_median_said(passes, mine, "tokens"),
        rows=_median_known(count_rows_of_passes(trace, passes)[mine]),
        time_ns=mean_ns(spans),
        busy_ns=mean_ns(spans) - sum(idle.values()),
        idle_ns=idle,
        graph_share=float(graphed[items].mean()) if items.any() else None,
        collectives=int(collectives.sum()) / count,
        communication_ns=mean_ns(iv.union(gpu.start_ns[collectives], gpu.end_ns[collectives])),
        cache_ns=mean_ns(iv.union(gpu.start_ns[caching], gpu.end_ns[caching])),
        cache_writes=int(caching.sum()) / count,
        floor_ns=_floor_ns(items, classes, bounds, count) if kind == "decode" else None,
    )


def _median_said(passes: EnginePasses, mine: BoolArray, member: str) -> float | None:
    """The median of what the names of some passes say; None where most do not say it."""
    known = [value for at in np.flatnonzero(mine) if (value := getattr(passes.passes[at], member)) is not None]
    return float(np.median(known)) if 2 * len(known) > mine.sum() else None


def _median_known(rows: Int64Array) -> float | None:
    """The median of those that are known; None where most are not."""
    known = rows[rows > 0]
    return float(np.median(known)) if 2 * len(known) > len(rows) else None


def _floor_ns(items: BoolArray, classes: KernelClasses, bounds: KernelBounds, count: int) -> int | None:
    """The time of a pass in which the memory gives what its products and its attention move; None where unknown."""
    matrix = items & classes.match_rows(lambda each: each.category in MATRIX_CATEGORIES)
    _, memory_ns = bounds.times_at_roofs
    known, dur_ns = matrix & ~np.isnan(memory_ns), classes.trace.gpu.dur_ns
    if not known.any() or dur_ns[known].sum() < _MIN_KNOWN_SHARE * dur_ns[matrix].sum():
        return None
    return round(float(memory_ns[known].sum()) / count)
