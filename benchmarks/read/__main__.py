"""How fast a trace is read: by us with one thread and with two, by orjson to dicts, and by HTA.

python -m benchmarks.read SAMPLE [--megabytes 100] [--rounds 5] [--hta-python /path/to/python] [--folder /tmp/read]

Each reading is a process of its own, and all take turns, so that all see the same machine. HTA takes part where a
Python is named that has HolisticTraceAnalysis installed. Seconds of reading are measured within the process, after
imports; those of `perfdoctor analyze` are the whole process.
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
from typing import NamedTuple

from benchmarks.lengthen_trace import lengthen_trace
from benchmarks.measure import PERFDOCTOR


class Reading(NamedTuple):
    """One reading. Memory is the peak while reading, less what the process had before; 0 where not measured."""

    seconds: float
    peak_bytes: int = 0
    events: int = 0


_MEMORY = """
import re
def status(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
def reset():
    open("/proc/self/clear_refs", "w").write("5")
"""
_OURS = """
import json, sys, time
from perfdoctor.trace import read
reset(); before = status("VmRSS"); start = time.perf_counter()
trace = read(sys.argv[1], threads=int(sys.argv[2]))
seconds = time.perf_counter() - start
print(json.dumps([seconds, status("VmHWM") - before, trace.events]))
"""
_ORJSON = """
import gc, json, sys, time, orjson
reset(); before = status("VmRSS"); start = time.perf_counter()
with open(sys.argv[1], "rb") as file: trace = orjson.loads(file.read())
seconds = time.perf_counter() - start
events = trace["traceEvents"] if isinstance(trace, dict) else trace
print(json.dumps([seconds, status("VmHWM") - before, len(events)]))
"""
_HTA = """
import json, logging, sys, time
logging.disable(logging.CRITICAL)
from hta.common.trace import parse_trace_file
reset(); before = status("VmRSS"); start = time.perf_counter()
_, frame, _ = parse_trace_file(sys.argv[1])
seconds = time.perf_counter() - start
print(json.dumps([seconds, status("VmHWM") - before, len(frame)]))
"""


def read_in_process(python: str, program: str, *arguments: object) -> Reading:
    """Run one of the programs above and return what it measured."""
    command = [python, "-c", _MEMORY + program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Reading(*json.loads(done.stdout.strip().splitlines()[-1]))


def time_command(*command: object) -> Reading:
    """Time a whole process."""
    start = time.perf_counter()
    subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return Reading(time.perf_counter() - start)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sample", type=Path, help="a trace, .json or .json.gz")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hta-python", default="", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled: 0.15 s of an analysis
    whole, tenth = (options.folder / f"read-{name}.json" for name in ("whole", "tenth"))
    size_bytes = options.megabytes * 1_000_000
    repeats = [
        lengthen_trace(options.sample, whole, size_bytes),
        lengthen_trace(options.sample, tenth, size_bytes // 10),
    ]
    print(f"{options.sample.name} {repeats[0]} times, and {repeats[1]} times for the tenth\n")
    compare_readers(whole, tenth, options.rounds, options.hta_python)


def compare_readers(whole: Path, tenth: Path, rounds: int, hta_python: str) -> None:
    """Measure all readers in turns, and print the table."""
    contenders: dict[str, Callable[[], Reading]] = {
        "ours, one thread": lambda: read_in_process(sys.executable, _OURS, whole, 1),
        "ours, two threads": lambda: read_in_process(sys.executable, _OURS, whole, 2),
        "ours, one thread, the tenth": lambda: read_in_process(sys.executable, _OURS, tenth, 1),
        "orjson to dicts": lambda: read_in_process(sys.executable, _ORJSON, whole),
        "perfdoctor analyze": lambda: time_command(PERFDOCTOR, "analyze", "-q", whole),
    }
    if hta_python:
        contenders["HTA"] = lambda: read_in_process(hta_python, _HTA, whole)
    readings: dict[str, list[Reading]] = {name: [] for name in contenders}
    loads = []
    for number in range(rounds + 1):
        loads.append(os.getloadavg()[0])
        for name, contender in contenders.items():
            reading = contender()
            if number:  # the first round fills caches
                readings[name].append(reading)
    print_table(readings, whole.stat().st_size, loads)


def print_table(readings: dict[str, list[Reading]], size_bytes: int, loads: list[float]) -> None:
    """Print the table as Markdown."""
    print(f"{size_bytes / 1e6:.0f} MB, load {min(loads):.1f} to {max(loads):.1f}\n")
    print("| | seconds: median | least | peak memory / raw | events | times HTA | times orjson |")
    print("|---|---|---|---|---|---|---|")
    medians = {name: statistics.median(row.seconds for row in rows) for name, rows in readings.items()}
    for name, rows in readings.items():
        fastest, peak_bytes = min(row.seconds for row in rows), statistics.median(row.peak_bytes for row in rows)
        ratios = [medians.get(other, 0) / medians[name] for other in ("HTA", "orjson to dicts")]
        memory = f"{peak_bytes / size_bytes:.2f}" if peak_bytes and "tenth" not in name else ""
        cells = [name, f"{medians[name]:.3f}", f"{fastest:.3f}", memory, str(rows[0].events or "")]
        print(f"| {' | '.join(cells + [f'{ratio:.1f}' if ratio else '' for ratio in ratios])} |")


if __name__ == "__main__":
    main()
