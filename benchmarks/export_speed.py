"""How fast `export` writes: python -m benchmarks.export_speed TRACE [--megabytes 100] [--rounds 5].

The trace is lengthened. `analyze`, `export` to .json and `export` to .json.gz take turns, each a whole process, so that
they see the same load; what `export` takes longer than `analyze` is its own. The goal is 80 MB of text a second.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.compare_speed import ProcessTime, lengthen, measure_command
from benchmarks.measure import measure_peak_bytes


def measure(trace: Path, folder: Path, rounds: int) -> list[str]:
    """The rows of the table: seconds, wall (CPU), as medians of the rounds, and what `export` does in its own."""
    commands: dict[str, tuple[object, ...]] = {"analyze": ("analyze", "-q", trace)}
    for suffix in (".json", ".json.gz"):
        commands[f"export to {suffix}"] = ("export", trace, "-o", folder / f"out{suffix}")
    times: dict[str, list[ProcessTime]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            taken = measure_command(*command)
            if number:  # the first round compiles and fills caches
                times[name].append(taken)
    wall = {name: median(each.wall_s for each in taken) for name, taken in times.items()}
    cpu = {name: median(each.cpu_s for each in taken) for name, taken in times.items()}
    megabytes = trace.stat().st_size / 1e6
    rows = []
    for name, command in commands.items():
        own = [megabytes / max(of[name] - of["analyze"], 1e-3) for of in (wall, cpu)]
        speed = (
            "| | |" if name == "analyze" else f"| {wall[name] / wall['analyze']:.2f} | {own[0]:.0f} ({own[1]:.0f}) |"
        )
        memory = measure_peak_bytes(*command) / 1e6
        rows.append(f"| {name} | {wall[name]:.2f} ({cpu[name]:.2f}) | {memory:.0f} {speed}")
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="a short trace, as .json or .json.gz")
    parser.add_argument("--megabytes", type=float, default=100.0, help="size of the trace that is exported")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each; the medians are printed")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        long = Path(folder, "long.json")
        lengthen(options.trace, long, options.megabytes)
        print("| | s (CPU) | peak, MB | of analyze | MB of text a second beyond it (CPU) |")
        print("|---|---|---|---|---|")
        for row in measure(long, Path(folder), options.rounds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
