"""The cost of `perfdoctor run --memory`: python -m benchmarks.capture.memory [RUNS]. Both kinds of run take turns.

CPU seconds of the whole program, its children included, on the steps outside of the evidence window: no frames.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
STEPS = 300
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}
PLAIN = ["-m", "perfdoctor", "run", "--no-report", "--evidence", "0"]


def main() -> None:
    """Measure steps of 10 and 70 ms, and print the CPU time of both kinds of run."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for size in ("10ms", "70ms"):
        seconds: dict[str, list[float]] = {"without": [], "with": []}
        sampler_s: list[float] = []
        for _ in range(runs):
            for name, options in (("without", []), ("with", ["--memory"])):
                with tempfile.TemporaryDirectory() as folder:
                    capture = Path(folder) / "capture"
                    program = [str(HERE / "program.py"), size, str(STEPS), f"{folder}/clock.json"]
                    command = [sys.executable, *PLAIN, *options, "--out", str(capture), *program]
                    before = children_cpu_s()
                    subprocess.run(command, env=QUIET, check=True, stderr=subprocess.DEVNULL)
                    seconds[name].append(children_cpu_s() - before)
                    if options:
                        facts = json.loads((capture / "rank0" / "facts.json").read_text())
                        sampler_s.append(facts["memory"]["host"]["cpu_ns"] / 1e9)
        without, with_it = median(seconds["without"]), median(seconds["with"])
        least = min(seconds["with"]) / min(seconds["without"]) - 1
        print(
            f"{size}: {without:.2f} s without, {with_it:.2f} s with: {100 * (with_it / without - 1):+.1f} % "
            f"(least against least {100 * least:+.1f} %), of it the thread {median(sampler_s):.3f} s"
        )


def children_cpu_s() -> float:
    """CPU time of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
