"""How the CPU launches the work of the GPU: how often, how far ahead, and where its time for a launch goes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._blocking_calls import PAGEABLE, PINNED, find_blocking_calls
from perfdoctor.rules import (
    CallRows,
    Int32Array,
    Int64Array,
    Intervals,
    Rank,
    distinct,
    match_blocking_calls,
    occurring,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Where a step is cut a few launches go to its neighbour: 1 of 1,509 in a recording whose steps run the same kernels.
_JITTER = 0.01
_CUT_STEPS = 3


class LaunchFacts(NamedTuple):
    """The launches of what started in the window; times in ns of CPU for one launch.

    Attributes:
        launches: Calls that launched something; a graph is one.
        graphs: Those of them that launched a graph.
        depth: Median number of launches that had not started yet when the next came; 0 or 1 is a starved GPU.
        ahead_share: Share of launches (0 to 1) before which another was waiting already.
        runtime_ns: In calls of the CUDA or HIP runtime.
        dispatcher_ns: In PyTorch's ops outside those calls; None when the file has no ops.
        python_ns: Outside both, waits, pauses and the DataLoader left out; None when the file has no ops.
        interval_ns: Median time from one launch to the next on their thread; None with fewer than two.
        steady: Whether every step launches the same, but for a few; None with fewer than two steps.
        syncs: The calls between the first and the last launch of a step, or of the window, in which the CPU waits: what
            a CUDA graph of the step cannot capture. Copies of input are not among them: they can stay outside of it.
        graphable_share: The share of the launches (0 to 1) in the longest parts of steps without such a call: what one
            graph can launch.
    """

    launches: int
    graphs: int
    depth: int
    ahead_share: float
    runtime_ns: int
    dispatcher_ns: int | None
    python_ns: int | None
    steady: bool | None
    syncs: CallRows
    interval_ns: int | None
    graphable_share: float

    @property
    def cpu_ns(self) -> int:
        """CPU time for one launch, as far as the file has it."""
        return self.runtime_ns + (self.dispatcher_ns or 0) + (self.python_ns or 0)


def launch_facts_of(rank: Rank) -> LaunchFacts | None:
    """How the work in the window was launched; None without launches."""
    trace, calls = rank.trace, rank.trace.calls
    rows = occurring(trace.gpu.call[rank.in_window])
    if not len(rows):
        return None
    all_rows = occurring(trace.gpu.call)
    queue_depth = _queue_depth(rank, all_rows)[np.isin(all_rows, rows)]
    runtime, dispatcher, python = _split_cpu_time(rank, distinct(calls.thread[rows]))
    count = len(rows)
    syncs = _find_syncs_between(rank, calls.start_ns[rows])
    return LaunchFacts(
        launches=count,
        graphs=int(trace.match_rows(calls, vocabulary.GRAPH_LAUNCH_CALL)[rows].sum()),
        depth=int(np.median(queue_depth)),
        ahead_share=float((queue_depth > 0).mean()),
        runtime_ns=round(iv.total(runtime) / count),
        dispatcher_ns=round(iv.total(dispatcher) / count) if len(trace.ops) else None,
        python_ns=round(iv.total(python) / count) if len(trace.ops) else None,
        steady=_launch_equally(rank, all_rows),
        syncs=syncs,
        interval_ns=_median_interval_ns(rank, rows),
        graphable_share=_share_without_syncs(rank, calls.start_ns[rows], calls.start_ns[syncs.index]),
    )


def _median_interval_ns(rank: Rank, launches: Int64Array) -> int | None:
    """The median time from the start of one launch to that of the next on the same thread; None with fewer than two."""
    calls = rank.trace.calls
    threads = distinct(calls.thread[launches]).tolist()
    apart_ns = np.concatenate(
        [np.diff(np.sort(calls.start_ns[launches[calls.thread[launches] == thread]])) for thread in threads]
    )
    return int(np.median(apart_ns)) if len(apart_ns) else None


def _share_without_syncs(rank: Rank, launch_ns: Int64Array, sync_ns: Int64Array) -> float:
    """The share of the launches in the longest parts of steps, or of the window, in which no sync is.

    For example, in one step 5 of 7::

        launches   | |   | | | | |
        syncs          s
    """
    step = np.searchsorted(rank.steps.intervals[:, 0], launch_ns, side="right")
    part = np.searchsorted(np.sort(sync_ns), launch_ns) + step * (len(sync_ns) + 1)
    parts, counts = np.unique(part, return_counts=True)
    longest = np.zeros(len(rank.steps.intervals) + 1, np.int64)
    np.maximum.at(longest, parts // (len(sync_ns) + 1), counts)
    return float(longest.sum() / max(len(launch_ns), 1))


def _queue_depth(rank: Rank, launches: Int64Array) -> Int64Array:
    """For each launch how many launches before it had not started when it came.

    For example::

        launch at  10  20  30    started at  25  40  55
        depth      0   1   1
    """
    gpu, calls = rank.trace.gpu, rank.trace.calls
    first_start_ns = np.full(len(calls), np.iinfo(np.int64).max)
    launched = gpu.call >= 0
    np.minimum.at(first_start_ns, gpu.call[launched], gpu.start_ns[launched])
    started = np.searchsorted(np.sort(first_start_ns[launches]), calls.start_ns[launches], "right")
    result: Int64Array = np.arange(len(launches)) - started
    return np.maximum(result, 0)


def _split_cpu_time(rank: Rank, threads: Int32Array) -> tuple[Intervals, Intervals, Intervals]:
    """When the launching threads were in runtime calls, in ops and in neither; waits, pauses and loading left out.

    Threads take turns (forward in one, backward in another): what none of them is in is Python.
    """
    blocking = match_blocking_calls(rank.trace)
    inactive = (rank.calls.where(blocking).time, rank.loader_waits.intervals, *(group.time for group in rank.pauses))
    active = iv.subtract(rank.window, iv.union_of(inactive))
    in_calls = rank.calls.where(np.isin(rank.trace.calls.thread, threads) & ~blocking).time
    in_ops = rank.ops.where(np.isin(rank.trace.ops.thread, threads)).time
    runtime, dispatcher, python = iv.partition(active, (in_calls, in_ops))
    return runtime, dispatcher, python


def _launch_equally(rank: Rank, launches: Int64Array) -> bool | None:
    """Whether all steps launch equally often, but for a few launches at their ends; None with fewer than two steps.

    The first and the last step do not count where there are others: the profiler cuts them. Of two or three steps the
    last does not count where the recording ends with it, and it launches what the one before it begins with; the first
    likewise at the beginning.

    Args:
        rank: The rank.
        launches: Rows of all calls of the trace that launch something, in order, not only of the window: what starts
            behind its end was launched in its last step nevertheless.
    """
    steps, trace = rank.steps.intervals, rank.trace
    if len(steps) < 2:
        return None
    launch_ns = trace.calls.start_ns[launches]
    first, end = np.searchsorted(launch_ns, steps[:, 0]), np.searchsorted(launch_ns, steps[:, 1])
    counts = end - first
    if len(counts) > _CUT_STEPS:
        counts = counts[1:-1]
    else:
        item = np.zeros(len(trace.calls), np.int64)
        item[trace.gpu.call[trace.gpu.call >= 0]] = np.flatnonzero(trace.gpu.call >= 0)
        names = trace.gpu.name[item[launches]]
        launched = [names[start:stop] for start, stop in zip(first, end, strict=True)]
        is_cut = end[-1] == len(launches) and _begins_alike(launched[-1], launched[-2])
        begins_cut = not first[0] and _begins_alike(launched[0][::-1], launched[1][::-1])
        counts = counts[1 if begins_cut and len(counts) > 1 + is_cut else 0 : len(counts) - is_cut]
    return bool(np.ptp(counts) <= _JITTER * np.median(counts))


def _begins_alike(some: Int32Array, others: Int32Array) -> bool:
    """Whether some kernels are those that others begin with, and not those that they end with: else it says nothing."""
    count = len(some)
    return count > 0 and np.array_equal(some, others[:count]) and not np.array_equal(some, others[-count:])


def _find_syncs_between(rank: Rank, launch_ns: Int64Array) -> CallRows:
    """The blocking calls that begin after the first and before the last launch of a step, or of the window."""
    calls, blocking = rank.trace.calls, find_blocking_calls(rank)
    copies_input = np.isin(np.array(blocking.cause, object), (PAGEABLE, PINNED))
    rows = blocking.call[~copies_input]
    parts = rank.steps.intervals if rank.steps.count else rank.window
    first, last = np.searchsorted(launch_ns, parts[:, 0]), np.searchsorted(launch_ns, parts[:, 1]) - 1
    some = first < last
    between = iv.union(launch_ns[first[some]], launch_ns[last[some]])
    return CallRows(calls, rows[iv.contains(between, calls.start_ns[rows])])
