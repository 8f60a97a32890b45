"""HTA's loader against the bridge to it: python -m benchmarks.hta_bridge SAMPLE... [--megabytes 100] [--rounds 5].

Each sample is lengthened. Both load it in turns, each in a process of its own, so that they see the same load. Measured
is the time from the path to the TraceAnalysis, after the imports, and once more with them, as a notebook's first cell.
The goal is a ratio above 10. HTA must be installed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.compare_speed import lengthen
from benchmarks.run_python import run_python

SECONDS = 600
_LOADERS = {
    "hta": ("from hta.trace_analysis import TraceAnalysis", "TraceAnalysis(trace_files={0: path})"),
    "bridge": (
        "from hta.trace_analysis import TraceAnalysis; from perfdoctor.integrations.hta import to_trace_analysis",
        "to_trace_analysis(path)",
    ),
}
_PROGRAM = """
import logging, sys, time
logging.disable(logging.CRITICAL)
path, began = sys.argv[1], time.perf_counter()
{imports}
imported, cpu = time.perf_counter(), time.process_time()
analysis = {load}
done = time.perf_counter()
print(done - imported, time.process_time() - cpu, done - began, sum(map(len, analysis.t.traces.values())))
"""


class Load(NamedTuple):
    """One load of a trace: wall and CPU time after the imports, wall time with them, and the rows of the frames."""

    wall_s: float
    cpu_s: float
    with_imports_s: float
    rows: int


def measure_load(loader: str, path: Path) -> Load:
    """One load in a new process."""
    imports, load = _LOADERS[loader]
    program = _PROGRAM.format(imports=imports, load=load)
    wall, cpu, whole, rows = run_python(["-c", program, str(path)], path.parent, SECONDS).split()
    return Load(float(wall), float(cpu), float(whole), int(rows))


def measure(path: Path, rounds: int) -> str:
    """A row of the table: medians of the rounds in seconds, and their ratios."""
    loads: dict[str, list[Load]] = {loader: [] for loader in _LOADERS}
    for number in range(rounds + 1):
        for loader, measured in loads.items():
            load = measure_load(loader, path)
            if number:  # the first round compiles and fills caches
                measured.append(load)
    hta, bridge = ([median(column) for column in zip(*measured, strict=True)] for measured in loads.values())
    size = f"{path.stat().st_size / 1e6:.0f} MB, {hta[3]:,.0f} and {bridge[3]:,.0f} rows"
    return (
        f"| {size} | {hta[0]:.2f} ({hta[1]:.2f}) | {bridge[0]:.2f} ({bridge[1]:.2f}) | "
        f"{hta[0] / bridge[0]:.1f} ({hta[1] / bridge[1]:.1f}) | {hta[2] / bridge[2]:.1f} |"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sample", type=Path, nargs="+", help="a short trace, as .json or .json.gz")
    parser.add_argument("--megabytes", type=float, default=100.0, help="size of the trace that is loaded")
    parser.add_argument("--rounds", type=int, default=5, help="loads of each; the medians are printed")
    options = parser.parse_args(argv)
    print("| trace | HTA, s (CPU) | bridge, s (CPU) | ratio | ratio with imports |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for sample in options.sample:
            path = Path(folder, "long.json")
            lengthen(sample, path, options.megabytes)
            print(measure(path, options.rounds), flush=True)


if __name__ == "__main__":
    main()
