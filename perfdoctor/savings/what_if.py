"""What a fix could save: at most, by how long the CPU waits for the GPU, and by a replay where one can be trusted.

A kernel that gets faster shortens the step only as far as the CPU waits for the GPU. That ceiling holds whatever the
trace lacks; a replay says more, if it passes three gates first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfdoctor.analysis.captured_facts import captured_median_ns
from perfdoctor.analysis.timeline.idle_gaps import ON_DEVICE, blocking_calls
from perfdoctor.savings.edits import Edit, edited, set_durations
from perfdoctor.savings.graph_waits import FULL_QUEUE_NS, LEAST_QUEUE
from perfdoctor.savings.replay_graph import Graph, graph_of
from perfdoctor.savings.without_profiler import without_profiler
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.model import MEMCPY

if TYPE_CHECKING:
    from perfdoctor.rank import Rank
    from perfdoctor.trace.tables.intervals import Intervals
    from perfdoctor.trace.tables.model import Trace

# A copy from pageable memory that begins so long after its call may have waited for its stream.
_LATE_COPY_NS = 20_000


def cpu_wait_ns(run: Rank) -> int | None:
    """How long the CPU waited for the GPU in the window, in ns: the ceiling of all kernel-side savings together.

    Blocked time in synchronize and copy calls and before a full launch queue, plus the tail that the GPU worked on
    after the last CPU event of the window. With the CPU's own work unchanged no faster kernel can save more
    (Daydream, USENIX ATC'20, argues the same on a dependency graph). None when the trace has no calls: then nothing
    is known about the CPU.
    """
    if not len(run.trace.calls) or not len(run.window):
        return None
    return _waited_ns(run, run.window)


def cpu_waits(trace: Trace) -> Intervals:
    """When the CPU waited for the GPU: in synchronize and copy calls, and before a full launch queue."""
    calls = trace.calls
    waits = blocking_calls(trace) | _before_full_queue(trace)
    return iv.union_of((iv.union(calls.start_ns[waits], calls.end_ns[waits]), _before_copies(trace)))


def _waited_ns(run: Rank, window: Intervals) -> int:
    """How long the CPU waited for the GPU in some of the window."""
    return iv.total(iv.intersect(run.cpu_waits, window)) + _tail_ns(run, int(window[-1, 1]))


def _before_full_queue(trace: Trace) -> BoolArray:
    """For each call whether it is a launch that waited for room in the queue."""
    calls, gpu = trace.calls, trace.gpu
    waits = np.zeros(len(calls), bool)
    linked = np.flatnonzero(gpu.call >= 0)
    launches, first = np.unique(gpu.call[linked], return_index=True)
    long = np.flatnonzero(calls.end_ns[launches] - calls.start_ns[launches] > FULL_QUEUE_NS)
    begun = np.sort(gpu.start_ns[linked[first]], kind="stable")  # they are nearly in order
    depth = long + 1 - np.searchsorted(begun, calls.end_ns[launches[long]])
    waits[launches[long]] = depth >= LEAST_QUEUE
    return waits


def _before_copies(trace: Trace) -> Intervals:
    """The time in copy calls before their copies began, for those that return while it runs."""
    calls, gpu = trace.calls, trace.gpu
    copies = np.flatnonzero((gpu.kind == MEMCPY) & (gpu.call >= 0) & ~trace.match_rows(gpu, ON_DEVICE))
    called = calls.start_ns[gpu.call[copies]]
    late = (gpu.start_ns[copies] - called > _LATE_COPY_NS) & (gpu.start_ns[copies] < calls.end_ns[gpu.call[copies]])
    return iv.union(called[late], gpu.start_ns[copies[late]])


def _tail_ns(run: Rank, end: int) -> int:
    """From the end of the last CPU event before `end`, where the window ends, to that of the last GPU item in it."""
    last = max((_last_end(t.start_ns, t.end_ns, end) for t in (run.trace.ops, run.trace.calls)), default=end)
    gpu_end = _last_end(run.trace.gpu.start_ns, run.trace.gpu.end_ns, end)
    return max(0, gpu_end - last)


def _last_end(start: Int64Array, end: Int64Array, limit: int) -> int:
    inside = end[: np.searchsorted(start, limit)]
    return min(int(inside.max()), limit) if len(inside) else int(np.iinfo(np.int64).min)


# The gates, from what happened when they were missing (knowledge of 12 real traces): a replay that does not come out
# as the trace was has wrong edges; where launches are missing the CPU's lead is unknown; and one in which free kernels
# do not set free what the CPU had waited lacks edges that hold it back. Waits under 1 % of the window decide nothing.
MOST_ERROR = 0.02
LEAST_COVERAGE = 0.95
LEAST_RELEASED = 0.80
_NO_MATTER = 0.01

# A replay takes 0.1 us an event, and ranking some dozens of them: of long traces some steps in the middle will do.
MOST_EVENTS = 200_000


class Gates(NamedTuple):
    """How far a replay can be trusted.

    Attributes:
        error: Length of the replayed window over the recorded one, less 1.
        coverage: Share of the GPU items whose launch is known.
        explained_wait_share: Share of the CPU's waits that end when all kernels take no time; 1 where there are none.
        why: Why it cannot be trusted, in words; None where it can.
    """

    error: float
    coverage: float
    explained_wait_share: float
    why: str | None


class Replay(NamedTuple):
    """A rank that can be played again with edits.

    Attributes:
        graph: What waits for what.
        window_ns: How long the window of the graph takes when nothing is changed.
        now_ns: A step of the rank (its window without steps); the graph may hold only some of them.
        gates: Whether to believe it.
        profiled: Whether that is the recorded step; else it is the one that was timed without the profiler.
    """

    graph: Graph
    window_ns: int
    now_ns: int
    gates: Gates
    profiled: bool = True

    def step_ns(self, edits: Iterable[tuple[Edit, float]] = ()) -> float:
        """A step after some edits, each as far as its strength (0 to 1) says."""
        after = self.graph.span_ns(self.graph.replayed(edited(self.graph, edits)))
        return min(max(after, 0), self.window_ns) / self.window_ns * self.now_ns


def replay_of(run: Rank) -> Replay | None:
    """A rank's replay; None where there is nothing to play: no GPU items in the window, no calls, no window."""
    trace = run.trace
    if not len(trace.gpu) or not len(trace.calls) or not len(run.window):
        return None
    window = _replayed_window(run)
    graph = graph_of(trace, window)
    if not len(graph.events.launch):
        return None
    recorded_ns = iv.total(window)
    again_ns = graph.span_ns(graph.replayed())
    begun = np.flatnonzero(iv.contains(window, trace.gpu.start_ns))
    free = graph.span_ns(graph.replayed(edited(graph, [(set_durations(trace, begun, 0.0), 1.0)])))
    gates = _gates(run, graph, (recorded_ns, again_ns, free), window)
    step_ns, unprofiled_ns = run.per_step(run.window_ns), captured_median_ns(run.facts, "base")
    if gates.why is not None or unprofiled_ns is None or not run.steps.count or unprofiled_ns >= step_ns:
        return Replay(graph, recorded_ns, step_ns, gates)
    graph = without_profiler(trace, graph, unprofiled_ns / step_ns)
    return Replay(graph, graph.span_ns(graph.replayed()), unprofiled_ns, gates, profiled=False)


def _gates(run: Rank, graph: Graph, took: tuple[int, int, int], window: Intervals) -> Gates:
    """By how long the window took, takes again, and takes with free kernels."""
    recorded_ns, again_ns, free_ns = took
    error = again_ns / recorded_ns - 1
    coverage = float((graph.events.launch >= 0).mean())
    waited_ns = _waited_ns(run, window)
    held_ns = max(waited_ns - (again_ns - free_ns), 0)
    released = 1 - held_ns / waited_ns if waited_ns else 1.0
    why = None
    if abs(error) >= MOST_ERROR:
        why = f"played again unchanged, the trace takes {error:+.1%} of its time"
    elif coverage < LEAST_COVERAGE:
        why = f"the launches of {1 - coverage:.0%} of the GPU's work were not recorded"
    elif released < LEAST_RELEASED and held_ns > _NO_MATTER * recorded_ns:
        why = f"only {released:.0%} of the CPU's waits are explained by the GPU's work"
    return Gates(error, coverage, released, why)


def _replayed_window(run: Rank) -> Intervals:
    """The whole window; of a long trace as many steps in its middle as there is patience for."""
    count = run.steps.count
    events = len(run.trace.gpu) + len(run.trace.calls)
    if count < 2 or events <= MOST_EVENTS:
        return run.window
    most = max(round(count * MOST_EVENTS / events), 1)
    first = (count - most) // 2
    some = run.steps.intervals[first : first + most]
    return iv.union(some[:, 0], some[:, 1])
