"""What a step would take after some edits: a replay of the trace, with gates that say whether to believe it.

A kernel that gets faster shortens the step only as far as the CPU waits for the GPU. That ceiling holds whatever the
trace lacks (`analysis.timeline.cpu_waits`); a replay says more, if it passes three gates first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfdoctor.analysis.timeline.cpu_waits import cpu_wait_ns
from perfdoctor.savings.apply_edits import apply_edits
from perfdoctor.savings.edits import Edit, set_durations
from perfdoctor.savings.replay_graph import Graph, graph_of
from perfdoctor.savings.without_profiler import without_profiler
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.rows import GpuRows
from perfdoctor.trace.tables.steps import Steps

# The gates, from what happened without them on 12 real traces. A replay that does not come out as the trace was has
# wrong edges. Where launches are missing the CPU's lead is unknown. A replay in which free kernels do not end the CPU's
# waits lacks the edges that hold the CPU back; waits under 1 % of the window decide nothing.
MOST_ERROR = 0.02
LEAST_COVERAGE = 0.95
LEAST_EXPLAINED_WAIT = 0.80
_NEGLIGIBLE_SHARE = 0.01

# A replay takes 0.1 us an event, and ordering fixes takes some dozens of them: of a long trace some steps in the middle
# are replayed.
MOST_EVENTS = 200_000


@dataclass(frozen=True, slots=True)
class Gates:
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


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A rank that can be replayed with edits.

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
        """A step after some edits, each applied as far as its strength (0 to 1) says."""
        after = self.graph.span_ns(self.graph.node_times(apply_edits(self.graph, edits)))
        return min(max(after, 0), self.window_ns) / self.window_ns * self.now_ns


def replay_of(
    trace: Trace, steps: Steps, window: Intervals, cpu_waits: Intervals, unprofiled_step_ns: int | None = None
) -> Replay | None:
    """The replay of a rank; None where there is nothing to replay: no GPU items in the window, no calls, no window.

    Args:
        trace: The trace, its clocks aligned.
        steps: The analysed steps.
        window: The analysed time.
        cpu_waits: When the CPU waited for the GPU.
        unprofiled_step_ns: The median step without the profiler, where a capture timed it.
    """
    if not len(trace.gpu) or not len(trace.calls) or not len(window):
        return None
    replayed_window = _replayed_window(trace, steps, window)
    graph = graph_of(trace, replayed_window)
    if not len(graph.events.launch):
        return None
    recorded_ns = iv.total(replayed_window)
    replayed_ns = graph.span_ns(graph.node_times())
    begun = GpuRows(trace.gpu, iv.contains(replayed_window, trace.gpu.start_ns))
    free_ns = graph.span_ns(graph.node_times(apply_edits(graph, [(set_durations(begun, 0.0), 1.0)])))
    waited_ns = cpu_wait_ns(trace, cpu_waits, replayed_window)
    gates = _judge(graph, recorded_ns, replayed_ns, free_ns, waited_ns)
    step_ns = round(iv.total(window) / steps.count) if steps.count else iv.total(window)
    if gates.why is not None or unprofiled_step_ns is None or not steps.count or unprofiled_step_ns >= step_ns:
        return Replay(graph, recorded_ns, step_ns, gates)
    graph = without_profiler(trace, graph, unprofiled_step_ns / step_ns)
    return Replay(graph, graph.span_ns(graph.node_times()), unprofiled_step_ns, gates, profiled=False)


def _judge(graph: Graph, recorded_ns: int, replayed_ns: int, free_ns: int, waited_ns: int) -> Gates:
    """The gates of a replay.

    Args:
        graph: What waits for what.
        recorded_ns: How long the window took.
        replayed_ns: How long its replay takes unchanged.
        free_ns: How long it takes when all kernels take no time.
        waited_ns: How long the CPU waited for the GPU in the window.
    """
    error = replayed_ns / recorded_ns - 1
    coverage = float((graph.events.launch >= 0).mean())
    unexplained_ns = max(waited_ns - (replayed_ns - free_ns), 0)
    explained = 1 - unexplained_ns / waited_ns if waited_ns else 1.0
    why = None
    if abs(error) >= MOST_ERROR:
        why = f"played again unchanged, the trace takes {error:+.1%} of its time"
    elif coverage < LEAST_COVERAGE:
        why = f"the launches of {1 - coverage:.0%} of the GPU's work were not recorded"
    elif explained < LEAST_EXPLAINED_WAIT and unexplained_ns > _NEGLIGIBLE_SHARE * recorded_ns:
        why = f"only {explained:.0%} of the CPU's waits are explained by the GPU's work"
    return Gates(error, coverage, explained, why)


def _replayed_window(trace: Trace, steps: Steps, window: Intervals) -> Intervals:
    """The whole window; of a long trace as many steps in its middle as MOST_EVENTS allows."""
    events = len(trace.gpu) + len(trace.calls)
    if steps.count < 2 or events <= MOST_EVENTS:
        return window
    most = max(round(steps.count * MOST_EVENTS / events), 1)
    first = (steps.count - most) // 2
    middle = steps.intervals[first : first + most]
    return iv.union(middle[:, 0], middle[:, 1])
