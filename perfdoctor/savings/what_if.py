"""What a step would take after some edits: a replay of the trace, with gates that say whether to believe it.

A kernel that gets faster shortens the step only as far as the CPU waits for the GPU. That ceiling holds whatever the
trace lacks (`analysis.timeline.cpu_waits`). A replay says more, but only if it passes three gates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from perfdoctor.analysis.timeline.cpu_waits import cpu_wait_ns
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.apply_edits import LagChanges, apply_edits
from perfdoctor.savings.edits import Edit, busiest_ns, set_durations
from perfdoctor.savings.remove_profiler_overhead import remove_profiler_overhead
from perfdoctor.savings.replay_graph import Graph, graph_of
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.rows import GpuRows
from perfdoctor.trace.tables.steps import Steps

# The gates, chosen by the replays of 12 real traces. A replay of the unchanged trace that takes another time has wrong
# edges. Where launches are missing, nobody knows how far the CPU runs ahead. Where kernels of no length do not end the
# CPU's waits, edges are missing; waits under 1 % of the window decide nothing.
MAX_ERROR = 0.02
MIN_KNOWN_LAUNCHES = 0.95
MIN_EXPLAINED_WAIT = 0.80
_NEGLIGIBLE_SHARE = 0.01

# A replay takes 0.1 us an event, and ordering fixes takes dozens of replays. Of a longer trace only some steps in the
# middle are replayed.
MAX_EVENTS = 200_000


@frozen_dataclass
class Gates:
    """How far a replay can be trusted.

    Attributes:
        relative_error: Length of the replay of the unchanged window over the recorded length, less 1.
        known_launch_share: Share of the GPU items whose launch is known.
        explained_wait_share: Share of the CPU's waits that end when all kernels take no time; 1 where there are none.
        reason: Why the replay cannot be trusted, in words; None where it can.
    """

    relative_error: float
    known_launch_share: float
    explained_wait_share: float
    reason: str | None


@frozen_dataclass(eq=False)
class Replay:
    """A rank that can be replayed with edits.

    Attributes:
        graph: The nodes and edges; of a long trace those of some steps.
        baseline_window_ns: How long the window of the graph takes without edits.
        baseline_step_ns: How long a step of the rank takes without edits; the whole window where there are no steps.
        gates: Whether the replay can be trusted.
        includes_profiler: Whether the graph has the profiler's overhead in it.
    """

    graph: Graph
    baseline_window_ns: int
    baseline_step_ns: int
    gates: Gates
    includes_profiler: bool = True

    def step_ns(self, edits: Iterable[tuple[Edit, float]] = ()) -> float:
        """How long a step takes after some edits, each applied as far as its strength (0 to 1) says.

        Threads and streams keep their busy time in the graph, and what edits move elsewhere keeps its own beside it.
        """
        edits = tuple(edits)
        return EditedReplay(self, edits).step_ns(range(len(edits)))


class EditedReplay:
    """Replays of a rank after any set of some edits: each edit is worked out once, and no set is replayed twice.

    Args:
        replay: The rank.
        edits: The edits, and how far each is applied, 0 to 1.
    """

    def __init__(self, replay: Replay, edits: Sequence[tuple[Edit, float]]) -> None:
        self._replay, self._edits = replay, edits
        self._changes = LagChanges(replay.graph, edits)
        self._steps_ns: dict[frozenset[int], float] = {}

    def step_ns(self, numbers: Collection[int]) -> float:
        """How long a step takes after some of the edits, by their numbers; see `Replay.step_ns`."""
        key = frozenset(numbers)
        if key not in self._steps_ns:
            self._steps_ns[key] = self._replay_edits(tuple(numbers))
        return self._steps_ns[key]

    def _replay_edits(self, numbers: tuple[int, ...]) -> float:
        replay, graph = self._replay, self._replay.graph
        after_ns = graph.span_ns(graph.node_times(self._changes.lag_ns(numbers)))
        step_ns = min(max(after_ns, 0), replay.baseline_window_ns) / replay.baseline_window_ns * replay.baseline_step_ns
        return max(step_ns, min(busiest_ns(self._edits[number] for number in numbers), replay.baseline_step_ns))


def replay_of(
    trace: Trace,
    steps: Steps,
    window: Intervals,
    cpu_waits: Intervals,
    unprofiled_step_ns: int | None = None,
    *,
    once: Intervals = iv.EMPTY,
) -> Replay | None:
    """The replay of a rank; None where nothing can be replayed: no window, no calls, or no GPU items in the window.

    Args:
        trace: The trace, with the clocks of CPU and GPU aligned.
        steps: The analysed steps.
        window: The analysed time.
        cpu_waits: When the CPU waited for the GPU.
        unprofiled_step_ns: The mean step without the profiler, where a capture timed it.
        once: What happens once and is left out of the window. The gates are of the window with it, as it was recorded;
            all that is replayed with edits is without it.
    """
    if not len(trace.gpu) or not len(trace.calls) or not len(window):
        return None
    between = iv.clip(once, int(window[0, 0]), int(window[-1, 1]))
    replayed_window = _select_middle_steps(trace, steps, iv.union_of((window, between)))
    graph = graph_of(trace, replayed_window)
    if not len(graph.nodes.item):
        return None
    recorded_ns = iv.total(replayed_window)
    replayed_ns = graph.span_ns(graph.node_times())
    begun = GpuRows(trace.gpu, iv.contains(replayed_window, trace.gpu.start_ns))
    without_gpu_ns = graph.span_ns(graph.node_times(apply_edits(graph, [(set_durations(begun, 0.0), 1.0)])))
    wait_ns = cpu_wait_ns(trace, cpu_waits, replayed_window)
    gates = _check_gates(graph, recorded_ns, replayed_ns, without_gpu_ns, wait_ns)
    if len(once):
        graph = graph.without(between)
    recorded_ns = iv.total(iv.subtract(replayed_window, between))
    step_ns = round(iv.total(window) / steps.count) if steps.count else iv.total(window)
    if unprofiled_step_ns is None or not steps.count:
        return Replay(graph, recorded_ns, step_ns, gates)
    if gates.reason is not None or unprofiled_step_ns >= step_ns:
        return Replay(graph, recorded_ns, unprofiled_step_ns, gates)
    graph = remove_profiler_overhead(trace, graph, unprofiled_step_ns / step_ns)
    return Replay(graph, graph.span_ns(graph.node_times()), unprofiled_step_ns, gates, includes_profiler=False)


def _check_gates(graph: Graph, recorded_ns: int, replayed_ns: int, without_gpu_ns: int, wait_ns: int) -> Gates:
    """The gates of a replay.

    Args:
        graph: The graph.
        recorded_ns: How long the window took.
        replayed_ns: How long its replay takes without edits.
        without_gpu_ns: How long its replay takes when all kernels take no time.
        wait_ns: How long the CPU waited for the GPU in the window.
    """
    error = replayed_ns / recorded_ns - 1
    known = float((graph.nodes.launch >= 0).mean())
    unexplained_ns = max(wait_ns - (replayed_ns - without_gpu_ns), 0)
    explained = 1 - unexplained_ns / wait_ns if wait_ns else 1.0
    reason = None
    if abs(error) >= MAX_ERROR:
        reason = f"played again unchanged, the trace takes {error:+.1%} of its time"
    elif known < MIN_KNOWN_LAUNCHES:
        reason = f"the launches of {1 - known:.0%} of the GPU's work were not recorded"
    elif explained < MIN_EXPLAINED_WAIT and unexplained_ns > _NEGLIGIBLE_SHARE * recorded_ns:
        reason = f"only {explained:.0%} of the CPU's waits are explained by the GPU's work"
    return Gates(error, known, explained, reason)


def _select_middle_steps(trace: Trace, steps: Steps, window: Intervals) -> Intervals:
    """The whole window; of a long trace as many steps in its middle as MAX_EVENTS allows."""
    events = len(trace.gpu) + len(trace.calls)
    if steps.count < 2 or events <= MAX_EVENTS:
        return window
    count = max(round(steps.count * MAX_EVENTS / events), 1)
    first = (steps.count - count) // 2
    middle = steps.intervals[first : first + count]
    return iv.union(middle[:, 0], middle[:, 1])
