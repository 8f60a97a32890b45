"""Many ranks: one process against two, the memory of each, and how long the reduction of summaries takes.

python -m benchmarks.fleet [--ranks 64] [--megabytes 20 | 0.7] [--rounds 3] [--summaries 10000] [--folder /tmp/fleet]

The traces are written first, ranks x megabytes of them. Each measurement is a process of its own, and one process and
two take turns, so that both see the same machine. "One thread" is one process on one core, as each of two workers has.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fleet.generate import write_fleet
from benchmarks.measure import PERFDOCTOR, measure_peak_bytes

_MEASURE_RANK = """
import json, pickle, sys, time
from pathlib import Path
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import analyze_file, read_ranks
file = TraceFile(Path(sys.argv[1]))
options = AnalysisOptions(read_threads=1)
analyze_file(file, options)
start = time.process_time(); read_ranks(file, options); read_seconds = time.process_time() - start
start = time.process_time(); summaries = analyze_file(file, options); all_seconds = time.process_time() - start
print(json.dumps([read_seconds, all_seconds, len(pickle.dumps(summaries))]))
"""
# Name, processes and cores.
_TWO_PROCESSES = "two processes, one thread each"
_CONTENDERS = {
    "one process, one thread": (1, 1),
    "one process, two threads to read": (1, None),
    _TWO_PROCESSES: (2, None),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=20, help="of each rank's trace")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--summaries", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "perfdoctor-fleet")
    options = parser.parse_args()
    folder = options.folder / f"{options.ranks}x{options.megabytes:g}"
    write_fleet(folder, options.ranks, options.megabytes)
    _compare_processes(folder, options.rounds)
    _measure_rank(folder / "rank0.json")
    _measure_reduction(options.summaries)


def _compare_processes(folder: Path, rounds: int) -> None:
    """One process and two, in turns."""
    for jobs, cores in _CONTENDERS.values():
        _analyze(folder, jobs, cores)  # fills the file cache, and compiles
    seconds: dict[str, list[float]] = {name: [] for name in _CONTENDERS}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in _CONTENDERS}
    for _ in range(rounds):
        for name, (jobs, cores) in _CONTENDERS.items():
            start, cpu_start = time.perf_counter(), _children_cpu_seconds()
            _analyze(folder, jobs, cores)
            seconds[name].append(time.perf_counter() - start)
            cpu_seconds[name].append(_children_cpu_seconds() - cpu_start)
    medians = {name: statistics.median(measured) for name, measured in seconds.items()}
    for name, measured in seconds.items():
        spread = f"{min(measured):.2f} to {max(measured):.2f}"
        speedup = medians[name] / medians[_TWO_PROCESSES]
        cpu = f"{min(cpu_seconds[name]):.2f} s of CPU in all processes at least"
        print(f"{name}: {medians[name]:.2f} s ({spread}), {cpu}; two processes are {speedup:.2f} times as fast")
    peak_bytes = measure_peak_bytes("analyze", folder, "--jobs", 2, "--json")
    print(f"most memory of any process, with two workers: {peak_bytes / 1e6:.0f} MB")


def _children_cpu_seconds() -> float:
    """CPU time of all processes that were waited for, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _analyze(folder: Path, jobs: int, cores: int | None) -> None:
    """Analyse all ranks on that many cores; None for all."""
    allowed = sorted(os.sched_getaffinity(0))[:cores] if cores else None
    subprocess.run(
        [PERFDOCTOR, "analyze", folder, "--jobs", str(jobs), "--json"],
        stdout=subprocess.DEVNULL,
        check=True,
        preexec_fn=(lambda: os.sched_setaffinity(0, allowed)) if allowed else None,
    )


def _measure_rank(path: Path) -> None:
    """The time of one rank."""
    measured = subprocess.run([sys.executable, "-c", _MEASURE_RANK, path], stdout=subprocess.PIPE, check=True)
    read_seconds, all_seconds, summary_bytes = json.loads(measured.stdout)
    megabytes = path.stat().st_size / 1e6
    print(
        f"a rank of {megabytes:.0f} MB: {read_seconds:.2f} s of CPU to read ({megabytes / read_seconds:.0f} MB/s), "
        f"{all_seconds:.2f} s with all rules ({megabytes / all_seconds:.0f} MB/s), summary {summary_bytes / 1e3:.0f} kB"
    )


def _measure_reduction(summaries: int) -> None:
    """The reduction of generated summaries."""
    command = [sys.executable, "-m", "benchmarks.fleet.reduce", str(summaries)]
    measured = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    figures = json.loads(measured.stdout)
    print(
        f"{summaries} summaries of {figures['summary_bytes'] / 1e3:.0f} kB: {figures['seconds']:.1f} s "
        f"({figures['cpu_seconds']:.1f} s of CPU), peak {figures['peak_bytes'] / 1e9:.2f} GB, "
        f"found {', '.join(figures['findings'])}"
    )


if __name__ == "__main__":
    main()
