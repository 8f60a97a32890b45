"""What perfdoctor promises against what fixes give: python -m benchmarks.gain [--device cuda] [--rounds 5] [NAME...].

Each faulty program is recorded once with `perfdoctor run`; its report says what the fix would save. Then the program
runs without the profiler, faulty and fixed in turns, each in a process of its own. Prints a Markdown table for
benchmarks/README.md; --json keeps all figures.
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

from benchmarks.gain.faults import FAULTS, Fault
from benchmarks.gain.program import TIMED_STEPS
from benchmarks.gain.table import Promise, Row, promise_of, table

ROOT = Path(__file__).resolve().parents[2]
# Steps that a recording needs with the usual windows, and some more: perfdoctor run skips 5 and records 24.
RECORDED_STEPS = 40


def rows(faults: Sequence[Fault], device: str, rounds: int, scale: float, seconds: float) -> Iterator[Row]:
    """One row a fault; those that this device cannot show, and those for which no time is left, have only a note."""
    until = time.monotonic() + seconds
    for fault in faults:
        if device == "cpu" and fault.on_cpu is None:
            yield Row(fault.name, fault.fix, note="needs a GPU")
        elif time.monotonic() > until:
            yield Row(fault.name, fault.fix, note="out of time")
        else:
            yield measured(fault, device, rounds, scale)


def measured(fault: Fault, device: str, rounds: int, scale: float) -> Row:
    """Record the fault, then run it without and with the fix in turns."""
    rules = fault.rules if device == "cuda" else fault.on_cpu or ()
    note = "" if rules else "a CPU: no rule speaks there, no proof"
    program = [fault.name, "--device", device, "--scale", str(scale)]
    try:
        promise = promised(program, rules)
        pairs = [(timed(program), timed([*program, "--fixed"])) for _ in range(rounds)]
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr or "").strip().splitlines()
        return Row(fault.name, fault.fix, note=f"failed: {lines[-1][:150] if lines else error.returncode}")
    faulty, fixed = zip(*pairs, strict=True)
    return Row(fault.name, fault.fix, promise, faulty, fixed, note)


def promised(program: Sequence[str], rules: Sequence[str]) -> Promise:
    """What the report on a recording of the program promises for fixing it."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture"
        run = ["-m", "perfdoctor", "run", "--out", str(capture), "-m", "benchmarks.gain.program"]
        python([*run, *program, "--steps", str(RECORDED_STEPS)])
        report: dict[str, Any] = json.loads((capture / "report.json").read_text())
    return promise_of(report, rules)


def timed(program: Sequence[str]) -> int:
    """Mean step in ns of one run without a profiler."""
    said = python(["-m", "benchmarks.gain.program", *program, "--steps", str(TIMED_STEPS)])
    return int(said.split()[-1])


def python(arguments: Sequence[str]) -> str:
    """Run Python from the repository's root and return what it printed.

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
    """Measure what the arguments say and print the table; 2 for a GPU that is not there."""
    parser = argparse.ArgumentParser(description="Promised savings against measured ones.")
    parser.add_argument("names", nargs="*", help="faults; all when left out")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the programs; tests take less than 1")
    parser.add_argument("--seconds", type=float, default=3600, help="start no fault after this time")
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    given = parser.parse_args()
    known = {fault.name: fault for fault in FAULTS}
    unknown = sorted(set(given.names) - set(known))
    if unknown:
        parser.error(f"no fault is called {unknown[0]}; there are: {', '.join(known)}")
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu measures what a CPU can show", file=sys.stderr)
        return 2
    place = torch.cuda.get_device_name() if given.device == "cuda" else f"{os.cpu_count()} CPU cores"
    print(f"torch {torch.__version__}, {place}, load {os.getloadavg()[0]:.1f}, {given.rounds} pairs of runs\n")
    done = []
    chosen = [known[name] for name in given.names] or list(FAULTS)
    for row in rows(chosen, given.device, given.rounds, given.scale, given.seconds):
        done.append(row)
        print(f"{row.fault}: {row.verdict}", file=sys.stderr, flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps([each.to_dict() for each in done], indent=1) + "\n", encoding="utf-8")
    print(table(done))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
