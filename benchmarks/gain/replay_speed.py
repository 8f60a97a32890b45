"""How fast a trace is played again: python -m benchmarks.gain.replay_speed [--events N] [--repeat 5] [FOLDER].

A made trace of one training step (42,000 runtime calls, as many as HTA's ResNet trace) and one of many such steps
(5 million events), as columns; each measured in a process of its own. Times are CPU time, the least of `--repeat`;
memory is what numpy allocates at the peak, beside the columns of the trace. With a folder of traces it prints the
gates of each instead.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

import perfdoctor
from perfdoctor.analysis.timeline.cpu_waits import cpu_wait_ns
from perfdoctor.rank import Rank
from perfdoctor.savings.apply_edits import apply_edits
from perfdoctor.savings.edits import scale_durations
from perfdoctor.savings.longest_path import compiled
from perfdoctor.savings.replay_graph import graph_of
from perfdoctor.savings.what_if import replay_of
from perfdoctor.trace import Trace
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.model import Calls, GpuItems, Ops

# Of 100 events of V100 ResNet traces 17 are runtime calls, 16 GPU items and 67 ops.
_CALLS, _ITEMS = 0.17, 0.16
_STEP_CALLS = 42_000
_STRINGS = ("cudaLaunchKernel", "cudaStreamSynchronize", "kernel", "aten::add_")


def made(calls: int, seed: int = 0) -> Trace:
    """A trace of `calls` runtime calls on two threads in turns, with a wait every 500, and the ops around them."""
    dice = np.random.default_rng(seed)
    items, ops = round(calls * _ITEMS / _CALLS), round(calls * (1 - _CALLS - _ITEMS) / _CALLS)
    gap, took = dice.integers(1_000, 9_000, calls), dice.integers(2_000, 6_000, calls)
    start = np.cumsum(gap + took)
    waits = np.arange(calls) % 500 == 499
    launches = np.flatnonzero(~waits)[:items]
    dur = dice.integers(1_500, 14_000, len(launches))
    # On one stream an item starts when it is launched and the one before it is done.
    ready, done = start[launches] + 4_000, np.cumsum(dur)
    end = done + np.maximum.accumulate(ready - (done - dur))
    sync = np.flatnonzero(waits)
    held = np.searchsorted(launches, sync) - 1
    returned = start + took
    returned[sync] = np.maximum(
        returned[sync], np.where(held < len(end), end[np.minimum(held, len(end) - 1)] + 3_000, 0)
    )
    # What follows a wait comes after it.
    late = np.maximum.accumulate(returned) - returned
    start, returned = start + late, returned + late
    thread = (np.arange(calls) // (_STEP_CALLS // 2) % 2).astype(np.int32)
    op_start = np.sort(dice.integers(0, int(returned[-1]), ops))
    shift = late[launches]
    return Trace(
        path="made",
        strings=_STRINGS,
        threads=("1/1", "1/2"),
        calls=Calls(start, returned, waits.astype(np.int32), thread, np.arange(calls), np.full(calls, -1, np.int32)),
        gpu=_items(end - dur + shift, end + shift, launches),
        ops=Ops(
            op_start, op_start + 2_000, np.full(ops, 3, np.int32), *(np.zeros(ops, t) for t in ("i4", "i8")),
            *(np.full(ops, -1, np.int32) for _ in range(5)),
        ),
        vendor="nvidia",
    )  # fmt: skip


def _items(start: Int64Array, end: Int64Array, call: Int64Array) -> GpuItems:
    count = len(start)
    return GpuItems(
        start, end, np.full(count, 2, np.int32),
        kind=np.zeros(count, np.int8), device=np.zeros(count, np.int32), stream=np.full(count, 7),
        correlation=call, call=call.astype(np.int32), op=np.full(count, -1, np.int32), bytes=np.full(count, -1),
        blocks=np.full(count, -1), process=np.zeros(count, np.int32),
    )  # fmt: skip


def measure(calls: int, repeat: int) -> str:
    """A row of the table: events, calls, ms of CPU to make the graph, for a replay and for one with an edit, memory."""
    trace = made(calls)
    run = Rank(trace)
    window = run.window
    compiled.load()
    built_s, played_s, edited_s = (min(times) for times in zip(*(_once(run) for _ in range(repeat)), strict=True))
    trace_bytes = sum(getattr(t, f.name).nbytes for t in trace.tables for f in fields(t))
    tracemalloc.start()
    graph_of(trace, window).node_times()
    peak = tracemalloc.get_traced_memory()[1]
    return (
        f"| {trace.events:,} | {calls:,} | {1e3 * built_s:,.1f} | {1e3 * played_s:,.1f} | {1e3 * edited_s:,.1f} | "
        f"{1e3 * (built_s + played_s):,.1f} | {peak / trace_bytes:.2f} |"
    )


def _once(run: Rank) -> tuple[float, float, float]:
    """CPU seconds to make the graph, to play it again, and to edit it and play that."""
    items = np.arange(0, len(run.trace.gpu), 3)
    marks = [time.process_time()]
    graph = graph_of(run.trace, run.window)
    marks.append(time.process_time())
    graph.node_times()
    marks.append(time.process_time())
    graph.node_times(apply_edits(graph, [(scale_durations(run.trace, items, 0.5), 1.0)]))
    marks.append(time.process_time())
    built, played, changed = np.diff(marks).tolist()
    return built, played, changed


def gates(folder: Path) -> None:
    """The gates of every trace of a folder."""
    print("| trace | calls | GPU items | window, ms | CPU waits, ms | error | launches known | released | |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    for path in sorted(folder.rglob("*.json.gz")):
        run = Rank(perfdoctor.read(path))
        replay = replay_of(run)
        if replay is None:
            continue
        events, found = replay.graph.events, replay.gates
        print(
            f"| {path.relative_to(folder).as_posix().removesuffix('.json.gz')} | {len(events.call):,} | "
            f"{len(events.item):,} | {run.window_ns / 1e6:,.1f} | {(cpu_wait_ns(run) or 0) / 1e6:,.2f} | "
            f"{found.error:.1%} | {found.coverage:.1%} | {found.explained_wait_share:.0%} | {found.why or 'replayed'} |"
        )


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--calls", type=int, help="measure one trace of so many calls, in this process")
    options = parser.parse_args(arguments)
    if options.folder is not None:
        gates(options.folder)
        return 0
    if options.calls is not None:
        print(measure(options.calls, options.repeat))
        return 0
    print("| events | runtime calls | graph, ms | replay, ms | edit and replay | graph and replay | memory / trace |")
    print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for calls in (_STEP_CALLS, round(options.events * _CALLS)):
        own = ["--calls", str(calls), "--repeat", str(options.repeat)]
        subprocess.run([sys.executable, "-m", "benchmarks.gain.replay_speed", *own], check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
