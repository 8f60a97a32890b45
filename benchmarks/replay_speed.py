"""How fast a trace is replayed: python -m benchmarks.replay_speed [--sample TRACE] [--events N] [--repeat 5] [FOLDER].

With --prices TRACE it prices the findings of a trace, by itself and in pieces that are a hundred fixes.

A sample is lengthened to 42,000 runtime calls (as many as in one step of HTA's ResNet trace) and to 5 million events,
and each is measured in a process of its own. Times are CPU time, the least of `--repeat`. Memory is the peak of numpy's
allocations, relative to the columns of the trace. Given a folder of traces, it prints instead which of them can be
replayed, and why the others cannot.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path

import numpy as np

import perfdoctor
from benchmarks.lengthen_trace import parse_sample, write_repeated
from perfdoctor.pipeline import run_rule
from perfdoctor.rank import Rank
from perfdoctor.rules.analyzer import Run
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.savings.apply_edits import apply_edits
from perfdoctor.savings.edits import Edit, scale_durations
from perfdoctor.savings.fix_order import order_fixes_greedily
from perfdoctor.savings.replay_graph import graph_of
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables.rows import CallRows, GpuRows

SAMPLE = Path(__file__).resolve().parent.parent / "sample_traces" / "host-device-sync.json.gz"
_STEP_CALLS = 42_000


@dataclass(frozen=True, slots=True)
class ReplayTimes:
    """CPU time in seconds to make the graph, to replay it, and to edit and replay it."""

    graph_s: float
    replay_s: float
    edit_s: float


def measure(trace_path: Path, repeat: int) -> str:
    """A row of the table: events, calls, CPU ms for the graph, a replay, and an edit with its replay, memory."""
    rank = Rank(perfdoctor.read(trace_path))
    trace = rank.trace
    times = [_measure_once(rank) for _ in range(repeat)]
    graph_s, replay_s, edit_s = (min(getattr(each, field.name) for each in times) for field in fields(ReplayTimes))
    trace_bytes = sum(getattr(table, field.name).nbytes for table in trace.tables for field in fields(table))
    tracemalloc.start()
    graph_of(trace, rank.window).node_times()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (
        f"| {trace.events:,} | {len(trace.calls):,} | {1e3 * graph_s:,.1f} | {1e3 * replay_s:,.2f} | "
        f"{1e3 * edit_s:,.1f} | {1e3 * (graph_s + replay_s):,.1f} | {peak_bytes / trace_bytes:.2f} |"
    )


def _measure_once(rank: Rank) -> ReplayTimes:
    every_third = GpuRows(rank.trace.gpu, np.arange(0, len(rank.trace.gpu), 3))
    times = [time.process_time()]
    graph = graph_of(rank.trace, rank.window)
    times.append(time.process_time())
    graph.node_times()
    times.append(time.process_time())
    graph.node_times(apply_edits(graph, [(scale_durations(every_third, 0.5), 1.0)]))
    times.append(time.process_time())
    return ReplayTimes(*np.diff(times).tolist())


def print_gates(folder: Path) -> None:
    """Print for every trace of a folder whether it can be replayed."""
    print("| trace | calls | GPU items | window, ms | CPU waits, ms | error | launches known | explained | |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    for path in sorted(folder.rglob("*.json.gz")):
        rank = Rank(perfdoctor.read(path))
        replay = rank.replay
        if replay is None:
            continue
        nodes, gates = replay.graph.nodes, replay.gates
        name = path.relative_to(folder).as_posix().removesuffix(".json.gz")
        print(
            f"| {name} | {len(nodes.call):,} | {len(nodes.item):,} | {rank.window_ns / 1e6:,.1f} | "
            f"{(rank.cpu_wait_ns or 0) / 1e6:,.2f} | {gates.relative_error:.1%} | {gates.known_launch_share:.1%} | "
            f"{gates.explained_wait_share:.0%} | {gates.reason or 'replayed'} |"
        )


def print_prices(path: Path, repeat: int) -> None:
    """Print the CPU time in which the fixes of a trace are ordered, and as many pieces of them as make a hundred."""
    rank = Rank(perfdoctor.read(path))
    replay = rank.replay
    if replay is None or replay.gates.reason is not None:
        print(f"{path.name} cannot be replayed")
        return
    findings = chain.from_iterable(run_rule(rule, Run((rank,)))[0] for rule in load_analyzers())
    edits = [finding.edit for finding in findings if finding.edit is not None]
    random = np.random.default_rng(0)
    pieces = [_take_part(edits[number % len(edits)], random) for number in range(100)] if edits else []
    for fixes in (edits, pieces):
        seconds = [_time_prices(replay, fixes) for _ in range(repeat)]
        least_s, median_s = min(seconds), np.median(seconds)
        print(f"{len(replay.graph.nodes):,} nodes, {len(fixes)} fixes: {least_s:.3f} s, median {median_s:.3f}")


def _time_prices(replay: Replay, fixes: Sequence[Edit]) -> float:
    start_s = time.process_time()
    order_fixes_greedily(replay, dict(enumerate(fixes)))
    return time.process_time() - start_s


def _take_part(edit: Edit, random: np.random.Generator) -> Edit:
    """An edit of a third of what another one changes."""

    def some(length: int) -> BoolArray:
        return random.random(length) < 1 / 3

    def some_calls(rows: CallRows) -> CallRows:
        return CallRows(rows.table, rows.index[some(len(rows))])

    items = some(len(edit.items))
    removed = [replace(each, intervals=each.intervals[some(len(each.intervals))]) for each in edit.removed_cpu_time]
    return Edit(
        GpuRows(edit.items.table, edit.items.index[items]),
        edit.dur_ns[items],
        some_calls(edit.dropped_calls),
        some_calls(edit.unblocked_calls),
        removed_cpu_time=tuple(removed),
        is_upper_bound=edit.is_upper_bound,
    )


def print_speeds(sample_path: Path, max_events: int, repeat: int) -> None:
    """Print how fast the two long traces are replayed, each measured in another process."""
    trace, sample = perfdoctor.read(sample_path), parse_sample(gzip.decompress(sample_path.read_bytes()))
    print("| events | runtime calls | graph, ms | replay, ms | edit and replay | graph and replay | memory / trace |")
    print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for repeats in (_STEP_CALLS / len(trace.calls), max_events / trace.events):
        with tempfile.TemporaryDirectory() as folder:
            long = Path(folder) / "long.json"
            write_repeated(sample, long, max(round(repeats), 1))
            command = [sys.executable, "-m", "benchmarks.replay_speed", "--measure", str(long), "--repeat", str(repeat)]
            subprocess.run(command, check=True)


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="print which of these traces can be replayed")
    parser.add_argument("--sample", type=Path, default=SAMPLE, help="the trace to lengthen, .json.gz")
    parser.add_argument("--events", type=int, default=5_000_000, help="events of the larger trace")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--prices", type=Path, help="price the findings of this trace")
    parser.add_argument("--measure", type=Path, help="measure this trace, in this process")
    options = parser.parse_args(arguments)
    if options.folder is not None:
        print_gates(options.folder)
    elif options.prices is not None:
        print_prices(options.prices, options.repeat)
    elif options.measure is not None:
        print(measure(options.measure, options.repeat))
    else:
        print_speeds(options.sample, options.events, options.repeat)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
