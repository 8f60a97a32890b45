"""Many ranks: one process against two, the memory of each, and how long summaries take to reduce.

python -m benchmarks.fleet [--ranks 64] [--megabytes 20] [--rounds 3] [--summaries 10000] [--folder /tmp/fleet]

The fleet is written first, ranks x megabytes of it. Everything is measured in processes of its own; one process and two
take turns, so that both see the same machine. "One thread" is one process on one core, which is what each of two does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.fleet.generate import write_fleet
from benchmarks.measure import perfdoctor_peak_bytes

_SCRIPT = Path(sys.executable).parent / "perfdoctor"
_RATE = """
import json, pickle, sys, time
from pathlib import Path
from perfdoctor.rules import registry
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import Plan, ranks_of, work
from perfdoctor.trace.scanner import scan
scan.warm()
file, plan = TraceFile(Path(sys.argv[1])), Plan(tuple(a.rule for a in registry.registered()), threads=1)
work(file, plan)
start = time.process_time(); ranks_of(file, plan); read = time.process_time() - start
start = time.process_time(); summaries = work(file, plan); whole = time.process_time() - start
print(json.dumps([read, whole, len(pickle.dumps(summaries))]))
"""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=int, default=20, help="of each rank's trace")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--summaries", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "perfdoctor-fleet")
    given = parser.parse_args()
    folder = given.folder / f"{given.ranks}x{given.megabytes}"
    write_fleet(folder, given.ranks, given.megabytes)
    _processes(folder, given.rounds)
    _one_rank(folder / "rank0.json")
    _reduction(given.summaries)


def _processes(folder: Path, rounds: int) -> None:
    """One process and two, in turns."""
    ways: dict[str, Callable[[], None]] = {
        "one process, one thread": lambda: _analyze(folder, 1, cores=1),
        "one process, two threads to read": lambda: _analyze(folder, 1),
        "two processes, one thread each": lambda: _analyze(folder, 2),
    }
    for way in ways.values():
        way()  # fills the file cache, and compiles
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(took) for name, took in seconds.items()}
    two = medians["two processes, one thread each"]
    for name, took in seconds.items():
        median = medians[name]
        spread = f"{min(took):.1f} to {max(took):.1f}"
        print(f"{name}: {median:.1f} s ({spread}); two processes are {median / two:.2f} times as fast")
    peak = perfdoctor_peak_bytes("analyze", folder, "--jobs", 2, "--json")
    print(f"most memory of any process, with two workers: {peak / 1e6:.0f} MB")


def _analyze(folder: Path, jobs: int, cores: int | None = None) -> None:
    """Analyse all ranks, on that many cores of those there are."""
    some = sorted(os.sched_getaffinity(0))[:cores] if cores else None
    subprocess.run(
        [_SCRIPT, "analyze", folder, "--jobs", str(jobs), "--json"],
        stdout=subprocess.DEVNULL,
        check=True,
        preexec_fn=(lambda: os.sched_setaffinity(0, some)) if some else None,
    )


def _one_rank(path: Path) -> None:
    """What one rank costs, as figures for larger ones."""
    measured = subprocess.run([sys.executable, "-c", _RATE, path], stdout=subprocess.PIPE, check=True)
    read, whole, size = json.loads(measured.stdout)
    megabytes = path.stat().st_size / 1e6
    print(
        f"a rank of {megabytes:.0f} MB: {read:.2f} s of CPU to read ({megabytes / read:.0f} MB/s), {whole:.2f} s with "
        f"all rules ({megabytes / whole:.0f} MB/s), summary {size / 1e3:.0f} kB"
    )


def _reduction(ranks: int) -> None:
    """The reduction of generated summaries."""
    command = [sys.executable, "-m", "benchmarks.fleet.reduce", str(ranks)]
    measured = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    figures = json.loads(measured.stdout)
    print(
        f"{ranks} summaries of {figures['summary_bytes'] / 1e3:.0f} kB: {figures['seconds']:.1f} s "
        f"({figures['cpu_seconds']:.1f} s of CPU), peak {figures['peak_bytes'] / 1e9:.2f} GB, "
        f"found {', '.join(figures['findings'])}"
    )


if __name__ == "__main__":
    main()
