"""The data behind the charts of the page: small columns of numpy, made in `perfdoctor.charts` from a rank.

A chart whose data the trace lacks is None, and not on the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.places.place import PlaceName
from perfdoctor.report.finding import Finding
from perfdoctor.report.memory_summary import MemorySummary
from perfdoctor.report.table import Table
from perfdoctor.run_watch.run_series import RunMark
from perfdoctor.trace.arrays import FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables.intervals import Intervals

ClaimKey: TypeAlias = tuple[str, str, int | None]


def claim_key(finding: Finding) -> ClaimKey:
    """What a finding is found by in the charts, wherever its paths are shown from."""
    return finding.rule, finding.subject, None if finding.location is None else finding.location.line


@frozen_dataclass(eq=False)
class Track:
    """One row of the timeline: what happened on a stream, on a thread, or in a sequence such as the phases.

    Attributes:
        name: What people read: "stream 7", "thread 4711, which launches", "phases", "idle gaps", "steps of the CPU".
        kind: "stream", "thread", "gaps", or "phases" for any other sequence.
        start_ns: When each item starts, from the start of the timeline; ascending.
        dur_ns: How long it takes.
        name_id: Its name, as an index into `StepTimeline.names`.
        category: Its colour, as an index into `StepTimeline.categories`.
        depth: How deep it is nested on its track; 0 for what is not nested.
        merged: How many items this one stands for: 1, or more where items too short to see were joined.
    """

    name: str
    kind: str
    start_ns: Int64Array
    dur_ns: Int64Array
    name_id: Int32Array
    category: Int8Array
    depth: Int8Array
    merged: Int32Array


@frozen_dataclass(eq=False)
class Link:
    """An arrow of the timeline from a launching call to its kernel: (track, item) each."""

    from_track: Int32Array
    from_item: Int32Array
    to_track: Int32Array
    to_item: Int32Array


@frozen_dataclass(eq=False)
class StepTimeline:
    """The timeline of the step with the median length; of the window where there are no steps.

    Attributes:
        step: The number of the step among those analysed, counted from 1; None without steps.
        start_ns: When it starts, as in the trace file.
        span_ns: Its length as recorded.
        tracks: From top to bottom.
        names: The names of items.
        categories: The names of colours: kernel categories, causes of gaps, phases, "op", "call", "annotation".
        links: Arrows from launches to kernels, of items that are not merged.
        left_out: How many items of the step are too short to be shown by themselves, see `Track.merged`.
    """

    step: int | None
    start_ns: int
    span_ns: int
    tracks: tuple[Track, ...]
    names: tuple[str, ...]
    categories: tuple[str, ...]
    links: Link | None = None
    left_out: int = 0


@frozen_dataclass(eq=False)
class FlameGraph:
    """A step as a tree with the time of each node: parts of the loop, places, what these call, the innermost ops.

    Attributes:
        names: The names.
        name_id: Of each node its name; the nodes are in the order of depth first.
        parent: Of each node the index of its parent, before it; -1 for roots, which are parts of the loop.
        time_ns: Its time per step without the profiler; roots add up to the step.
        category: "phase", "place", "function" or "op" as an index into `categories`.
        categories: See there.
        places: The nodes that are places.
    """

    names: tuple[str, ...]
    name_id: Int32Array
    parent: Int32Array
    time_ns: Int64Array
    category: Int8Array
    categories: tuple[str, ...]
    places: Mapping[int, PlaceName] = field(default_factory=dict)


@frozen_dataclass
class Roof:
    """A roof of the roofline: a peak of computing or of memory. `kind` is "flops" or "bytes", `per_s` its rate."""

    name: str
    kind: str
    per_s: float


@frozen_dataclass(eq=False)
class Roofline:
    """Kernels by name and shape, each with its work over its time.

    Attributes:
        names: The name of each point.
        category: Its category, as in `KernelClass.category`.
        flops: FLOPs of all its launches in the window.
        bytes: Bytes that they must move at least.
        time_ns: Their time in the window, recorded.
        tensor_core: "yes", "no", "unknown" or "na".
        roofs: The roofs of the device; empty where it is not known.
    """

    names: tuple[str, ...]
    category: tuple[str, ...]
    flops: FloatArray
    bytes: FloatArray
    time_ns: Int64Array
    tensor_core: tuple[str, ...]
    roofs: tuple[Roof, ...] = ()


@frozen_dataclass(eq=False)
class StepSeries:
    """The lengths of steps in order: those recorded, and those that a capture timed without the profiler.

    Attributes:
        recorded_ns: Of the recorded steps.
        first: The number of the first recorded step in the run; 0 where that is not known.
        unprofiled_ns: Of the steps of the whole run without the profiler; empty without a capture.
        unprofiled_number: Their numbers in the run.
        marks: What happened where in the run.
    """

    recorded_ns: Int64Array
    first: int = 0
    unprofiled_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    unprofiled_number: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    marks: tuple[RunMark, ...] = ()


@frozen_dataclass(eq=False)
class MemoryTimeline:
    """What is allocated on a device after each of some of its events, and at the peak.

    Attributes:
        summary: What a report says of the device.
        categories: What memory is for, as in `perfdoctor.memory.categories`; only those that occur, from below.
        bytes: For each category a row of what is allocated for it after each event; a column adds up to all that is.
        event: The number of each event that is shown, counted from 0; ascending.
        time_ns: When each is, from the first event of the device on; None where the recording does not say.
        reserved_bytes: What the allocator holds of the device after each; None where there is no such allocator.
        peak: Which of them is the peak.
        findings: The findings on the memory of the device, see `claim_key`.
    """

    summary: MemorySummary
    categories: tuple[str, ...]
    bytes: Int64Array
    event: Int64Array
    time_ns: Int64Array | None
    reserved_bytes: Int64Array | None
    peak: int
    findings: frozenset[ClaimKey] = frozenset()


@frozen_dataclass(eq=False)
class RankHeatMap:
    """The recorded length of each step on each rank.

    Attributes:
        ranks: The numbers of the ranks; None where they are not known.
        step_ns: For each rank its steps in order, -1 where it has fewer than others; without steps the window.
        steps_per_cell: How many steps in a row each figure is the mean of: 1 unless there are very many.
        late_ns: How much later than the second-latest each rank comes to the collectives of a step; None where nobody
            waits, or that is not known.
    """

    ranks: tuple[int | None, ...]
    step_ns: Int64Array
    steps_per_cell: int = 1
    late_ns: tuple[int | None, ...] | None = None


@frozen_dataclass(eq=False)
class RankCharts:
    """The charts and tables of one rank: up to some megabytes, so of many ranks only one keeps them.

    Attributes:
        rank: The number of the rank; None where the trace does not name it.
        timeline: See there; None where nothing was recorded.
        flames: See `FlameGraph`; None where no time was recorded.
        roofline: See there; None where no kernel has a known amount of work.
        steps: Their lengths; None without steps.
        memory: That of its devices, the highest peak first; empty where no peak of memory is known.
        tables: The largest rows of the tables of `perfdoctor show`, as far as they have rows.
        claims: Where the findings on this rank claim time of the timeline, from its start on; of each the longest
            intervals. By rule, subject and line of the finding, which it keeps when findings of ranks are merged.
        notes: What could not be made because of a fault of ours, a sentence each.
    """

    rank: int | None
    timeline: StepTimeline | None = None
    flames: FlameGraph | None = None
    roofline: Roofline | None = None
    steps: StepSeries | None = None
    memory: tuple[MemoryTimeline, ...] = ()
    tables: tuple[Table, ...] = ()
    claims: Mapping[ClaimKey, Intervals] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
