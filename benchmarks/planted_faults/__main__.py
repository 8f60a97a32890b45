"""Promised savings against measured ones: python -m benchmarks.planted_faults [--device cuda] [--rounds 5] [NAME...].

Each faulty program is recorded once with `perfdoctor run`; its report promises a saving. Then the program runs without
the profiler, faulty and fixed in turns, each in a process of its own. Prints a Markdown table for benchmarks/README.md;
--json writes all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.planted_faults.faults import FAULTS, Fault
from benchmarks.planted_faults.program import TIMED_STEPS
from benchmarks.planted_faults.table import Promise, Row, format_table, promise_of

ROOT = Path(__file__).resolve().parents[2]
# perfdoctor run skips 5 steps and records 24 with its usual windows.
RECORDED_STEPS = 40


def measure_faults(faults: Sequence[Fault], device: str, rounds: int, scale: float, seconds: float) -> Iterator[Row]:
    """A row for each fault; for a fault that this device cannot show, or when no time is left, only with a note."""
    deadline = time.monotonic() + seconds
    for fault in faults:
        if device == "cpu" and fault.on_cpu is None:
            yield Row(fault.name, fault.fix, note="needs a GPU")
        elif time.monotonic() > deadline:
            yield Row(fault.name, fault.fix, note="out of time")
        else:
            yield measure_fault(fault, device, rounds, scale)


def measure_fault(fault: Fault, device: str, rounds: int, scale: float) -> Row:
    """Record the fault, then run it with and without the fix in turns."""
    rules = fault.rules if device == "cuda" else fault.on_cpu or ()
    note = "" if rules else "a CPU: no rule speaks there, no proof"
    program = [fault.name, "--device", device, "--scale", str(scale)]
    try:
        promise = record_promise(program, rules)
        pairs = [(time_steps(program), time_steps([*program, "--fixed"])) for _ in range(rounds)]
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr or "").strip().splitlines()
        return Row(fault.name, fault.fix, note=f"failed: {lines[-1][:150] if lines else error.returncode}")
    faulty, fixed = zip(*pairs, strict=True)
    return Row(fault.name, fault.fix, promise, faulty, fixed, note)


def record_promise(program: Sequence[str], rules: Sequence[str]) -> Promise:
    """Record a program; returns what the report promises for the fix."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture"
        run = ["-m", "perfdoctor", "run", "--out", str(capture), "-m", "benchmarks.planted_faults.program"]
        run_python([*run, *program, "--steps", str(RECORDED_STEPS)])
        report: dict[str, Any] = json.loads((capture / "report.json").read_text())
    return promise_of(report, rules)


def time_steps(program: Sequence[str]) -> int:
    """Run a program without a profiler; returns its mean step in ns."""
    output = run_python(["-m", "benchmarks.planted_faults.program", *program, "--steps", str(TIMED_STEPS)])
    return int(output.split()[-1])


def run_python(arguments: Sequence[str]) -> str:
    """Run Python from the repository's root and return its output.

    Raises:
        CalledProcessError: it failed; `stderr` says why.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def main() -> int:
    """Measure the chosen faults and print the table; returns 2 when the GPU is missing."""
    parser = argparse.ArgumentParser(description="Promised savings against measured ones.")
    parser.add_argument("names", nargs="*", help="faults; all when left out")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the programs; tests take less than 1")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no other fault after this time")
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    options = parser.parse_args()
    faults = {fault.name: fault for fault in FAULTS}
    unknown = sorted(set(options.names) - set(faults))
    if unknown:
        parser.error(f"no fault is called {unknown[0]}; there are: {', '.join(faults)}")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu measures what a CPU can show", file=sys.stderr)
        return 2
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPU cores"
    print(f"torch {torch.__version__}, {device}, load {os.getloadavg()[0]:.1f}, {options.rounds} pairs of runs\n")
    rows = []
    chosen = [faults[name] for name in options.names] or list(FAULTS)
    for row in measure_faults(chosen, options.device, options.rounds, options.scale, options.seconds):
        rows.append(row)
        print(f"{row.fault}: {row.verdict}", file=sys.stderr, flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([each.to_dict() for each in rows], indent=1) + "\n", encoding="utf-8")
    print(format_table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
