"""The overhead of recording on a GPU: python -m benchmarks.capture.on_device [--device cpu] [--seconds S] ...

An MLP that keeps the GPU busy and one whose launches are the limit run plain and under `perfdoctor run`, in turns, each
run a process. Step times are wall times here, because the GPU is what is waited for; ratios are of the medians of a
window, against the same iterations of the plain program. On a CPU alone the form is tried; `benchmarks.capture`
measures there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.capture.__main__ import HERE, PHASES, QUIET, STEPS

SIZES = {"cuda": ("gpu-bound", "launch-bound", "launch-bound-adamw"), "cpu": ("2ms",)}


def run_pair(size: str, device: str, deadline: float) -> tuple[dict[str, float], dict[str, float]]:
    """Run a program plain and recorded; returns the median wall time of a step in each window, in ns, of both."""
    with tempfile.TemporaryDirectory() as folder:
        out, capture = Path(folder) / "clock.json", Path(folder) / "capture"
        program = [str(HERE / "program.py"), size, str(STEPS), str(out), device]
        recorded = [sys.executable, "-m", "perfdoctor", "run", "--no-report", "--out", str(capture), *program]
        medians = []
        for command in ([sys.executable, *program], recorded):
            subprocess.run(
                command, env=QUIET, check=True, capture_output=True, timeout=max(deadline - time.monotonic(), 1)
            )
            clock = json.loads(out.read_text())
            wall_ns = [after[0] - before[0] for before, after in pairwise(clock)]
            medians.append({phase: median(wall_ns[number] for number in numbers) for phase, numbers in PHASES.items()})
    return medians[0], medians[1]


def measure_sizes(device: str, pairs: int, seconds: float) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows so far, of size, plain step and ratios by window; sizes take turns, until the time is over."""
    deadline = time.monotonic() + seconds
    rows: dict[str, dict[str, Any]] = {}
    longest_s = 0.0
    for _ in range(pairs):
        for size in SIZES[device]:
            began = time.monotonic()
            if rows and began + longest_s > deadline:
                return
            row = rows.setdefault(size, {"size": size, "plain_ns": [], "ratios": {phase: [] for phase in PHASES}})
            try:
                plain, ours = run_pair(size, device, deadline)
            except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
                output = getattr(error, "stderr", None) or str(error).encode()
                row["error"] = (output.decode(errors="replace").strip().splitlines() or ["failed"])[-1][:200]
                yield list(rows.values())
                continue
            row["plain_ns"].append(plain["before"])
            for phase in PHASES:
                row["ratios"][phase].append(ours[phase] / plain[phase])
            longest_s = max(longest_s, time.monotonic() - began)
            yield list(rows.values())


def format_table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: the plain step, and the ratio in each window with its range."""
    lines = ["| program | plain step, ms | " + " | ".join(PHASES) + " | pairs |", "|---" * (len(PHASES) + 3) + "|"]
    for row in rows:
        if not row["plain_ns"]:
            lines.append(f"| {row['size']} | failed: {row.get('error', 'out of time')} |" + " |" * (len(PHASES) + 1))
            continue
        cells = [
            f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
            for found in (row["ratios"][phase] for phase in PHASES)
        ]
        plain = f"{median(row['plain_ns']) / 1e6:.2f}"
        lines.append(f"| {row['size']} | {plain} | {' | '.join(cells)} | {len(row['plain_ns'])} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print and write; returns 1 where nothing could be measured, 2 without the GPU that was asked for."""
    parser = argparse.ArgumentParser(description="The overhead of recording on a GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--small", action="store_true", help="one pair, to try the form")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write figures.json and report.md there")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu tries the form", file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    for rows in measure_sizes(options.device, 1 if options.small else options.pairs, options.seconds):
        if options.out:  # after each pair, because the time may end
            options.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"overhead": rows}, indent=1) + "\n"
            (options.out / "figures.json").write_text(text, encoding="utf-8")
            (options.out / "report.md").write_text(format_table(rows) + "\n", encoding="utf-8")
    print(format_table(rows))
    return 0 if any(row["plain_ns"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
