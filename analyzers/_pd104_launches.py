"""How the CPU keeps the GPU supplied: launches a step, how far it runs ahead, where its time for a launch goes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.timeline.idle_gaps import match_blocking_calls
from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct, occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Calls, Ops


class Launching(NamedTuple):
    """Launches of what started in the window; times in ns of CPU for one launch.

    Attributes:
        launches: Calls that launched something; a graph is one.
        graphs: Those of them that launched a graph.
        depth: Median number of launches that had not started yet when the next came; 0 or 1 is a starved GPU.
        ahead_share: Share of launches (0 to 1) before which another was waiting already.
        runtime_ns: In calls of the CUDA or HIP runtime.
        dispatcher_ns: In PyTorch's ops outside those calls; None when the file has no ops.
        python_ns: Outside both, waits and the DataLoader left out; None when the file has no ops.
        steady: Whether every step launches equally often; None with fewer than two steps.
        compiled: Whether torch.compile made some of the code.
    """

    launches: int
    graphs: int
    depth: int
    ahead_share: float
    runtime_ns: int
    dispatcher_ns: int | None
    python_ns: int | None
    steady: bool | None
    compiled: bool

    @property
    def cpu_ns(self) -> int:
        """CPU time for one launch, as far as the file tells."""
        return self.runtime_ns + (self.dispatcher_ns or 0) + (self.python_ns or 0)


def launching(run: Rank) -> Launching | None:
    """How the window's launches came about; None without launches."""
    trace, calls = run.trace, run.trace.calls
    rows = occurring(trace.gpu.call[run.in_window])
    if not len(rows):
        return None
    used = occurring(trace.gpu.call)
    waiting = _waiting(run, used)[np.isin(used, rows)]
    threads = distinct(calls.thread[rows])
    runtime, dispatcher, python = _cpu_time(run, threads)
    count = len(rows)
    return Launching(
        launches=count,
        graphs=int(trace.match_rows(calls, vocabulary.GRAPH_LAUNCH_CALL)[rows].sum()),
        depth=int(np.median(waiting)),
        ahead_share=float((waiting > 0).mean()),
        runtime_ns=round(iv.total(runtime) / count),
        dispatcher_ns=round(iv.total(dispatcher) / count) if len(trace.ops) else None,
        python_ns=round(iv.total(python) / count) if len(trace.ops) else None,
        steady=_steady(run, calls.start_ns[rows]),
        compiled=any(trace.match_rows(t, vocabulary.COMPILED_CODE).any() for t in (trace.ranges, trace.ops)),
    )


def _waiting(run: Rank, rows: Int64Array) -> Int64Array:
    """For each launch, in order, how many before it had not started when it came."""
    gpu, calls = run.trace.gpu, run.trace.calls
    begun = np.full(len(calls), np.iinfo(np.int64).max)
    linked = gpu.call >= 0
    np.minimum.at(begun, gpu.call[linked], gpu.start_ns[linked])
    result: Int64Array = np.arange(len(rows)) - np.searchsorted(np.sort(begun[rows]), calls.start_ns[rows], "right")
    return np.maximum(result, 0)


def _cpu_time(run: Rank, threads: Int32Array) -> tuple[Intervals, Intervals, Intervals]:
    """The window of the launching threads, waits and loading left out: in runtime calls, in ops, in neither.

    Threads take turns (forward in one, backward in another): what none of them is in is Python.
    """
    trace, calls = run.trace, run.trace.calls
    waits = match_blocking_calls(trace)
    blocked = iv.union(calls.start_ns[waits], calls.end_ns[waits])
    awake = iv.subtract(iv.subtract(run.window, blocked), run.loader_waits.intervals)
    runtime, dispatcher, python = iv.partition(
        awake, (_of_threads(calls, threads, ~waits), _of_threads(trace.ops, threads))
    )
    return runtime, dispatcher, python


def _of_threads(table: Calls | Ops, threads: Int32Array, also: BoolArray | None = None) -> Intervals:
    keep = np.isin(table.thread, threads)
    if also is not None:
        keep &= also
    return iv.union(table.start_ns[keep], table.end_ns[keep])


def _steady(run: Rank, launched_ns: Int64Array) -> bool | None:
    """Whether all steps launch as often as each other."""
    steps = run.steps.intervals
    if len(steps) < 2:
        return None
    counts = np.searchsorted(launched_ns, steps[:, 1]) - np.searchsorted(launched_ns, steps[:, 0])
    return bool((counts == counts[0]).all())
