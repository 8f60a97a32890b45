"""How fast a trace is read: ours with one and two threads, orjson to dicts, and HTA, each in processes of their own.

python -m benchmarks.read SAMPLE [--megabytes 100] [--rounds 5] [--hta-python /path/to/python] [--folder /tmp/read]

Everybody takes turns, so that all see the same machine. HTA is asked where a Python is given that has
HolisticTraceAnalysis installed. Seconds of reading are measured within the process, after imports and with the code
loaded; those of `perfdoctor analyze` are the whole process.
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
from pathlib import Path
from typing import TypeAlias

from benchmarks.read.repeat import repeat

Result: TypeAlias = tuple[float, int, int]
"""Seconds, bytes, events."""

# Memory is what the process had at most while it read, less what it had before.
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
from perfdoctor.trace.scanner import scan
scan.warm()
reset(); before = status("VmRSS"); start = time.perf_counter()
trace = read(sys.argv[1], threads=int(sys.argv[2]))
seconds = time.perf_counter() - start
print(json.dumps([seconds, status("VmHWM") - before, trace.events]))
"""
_ORJSON = """
import gc, json, sys, time, orjson
reset(); before = status("VmRSS"); start = time.perf_counter()
with open(sys.argv[1], "rb") as file: whole = orjson.loads(file.read())
seconds = time.perf_counter() - start
events = whole["traceEvents"] if isinstance(whole, dict) else whole
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


def run(python: str, program: str, *arguments: object) -> Result:
    """Seconds, bytes and events that a program of its own process says."""
    command = [python, "-c", _MEMORY + program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, size, events = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds, size, events


def whole_process(*command: str) -> float:
    """Seconds that a command takes."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sample", type=Path, help="a trace, .json or .json.gz")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hta-python", default="", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs is compiled, too: 0.15 s of an analysis
    file, tenth = (given.folder / f"read-{name}.json" for name in ("whole", "tenth"))
    whole_rounds = repeat(given.sample, file, given.megabytes)
    tenth_rounds = repeat(given.sample, tenth, max(given.megabytes // 10, 1))
    print(f"{given.sample.name} {whole_rounds} times, and {tenth_rounds} times for the tenth\n")
    measure(given, file, tenth)


def measure(given: argparse.Namespace, file: Path, tenth: Path) -> None:
    """Measure in turns, and print the table."""
    script = str(Path(sys.executable).parent / "perfdoctor")
    contenders = {
        "ours, one thread": lambda: run(sys.executable, _OURS, file, 1),
        "ours, two threads": lambda: run(sys.executable, _OURS, file, 2),
        "ours, one thread, the tenth": lambda: run(sys.executable, _OURS, tenth, 1),
        "orjson to dicts": lambda: run(sys.executable, _ORJSON, file),
        "perfdoctor analyze": lambda: (whole_process(script, "analyze", "-q", str(file)), 0, 0),
    }
    if given.hta_python:
        contenders["HTA"] = lambda: run(given.hta_python, _HTA, file)
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    loads = []
    for number in range(given.rounds + 1):
        loads.append(os.getloadavg()[0])
        for name, contender in contenders.items():
            result = contender()
            if number:  # the first round fills caches
                results[name].append(result)
    show(results, file.stat().st_size, loads)


def show(results: dict[str, list[Result]], size: int, loads: list[float]) -> None:
    """Print the table."""
    print(f"{size / 1e6:.0f} MB, load {min(loads):.1f} to {max(loads):.1f}\n")
    print("| | seconds: median | least | peak memory / raw | events | times HTA | times orjson |")
    print("|---|---|---|---|---|---|---|")
    medians = {name: statistics.median(seconds for seconds, _, _ in rows) for name, rows in results.items()}
    for name, rows in results.items():
        least, peak, events = min(row[0] for row in rows), statistics.median(row[1] for row in rows), rows[0][2]
        ratios = [medians.get(other, 0) / medians[name] for other in ("HTA", "orjson to dicts")]
        memory = f"{peak / size:.2f}" if peak and "tenth" not in name else ""
        cells = [name, f"{medians[name]:.3f}", f"{least:.3f}", memory, str(events or "")]
        print(f"| {' | '.join(cells + [f'{ratio:.1f}' if ratio else '' for ratio in ratios])} |")


if __name__ == "__main__":
    main()
