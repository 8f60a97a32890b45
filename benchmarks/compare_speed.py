"""How long `compare` takes: python -m benchmarks.compare_speed BEFORE AFTER [--megabytes 100] [--rounds 7].

Both traces are lengthened. `analyze` of the first and `compare` of both take turns, each a whole process, so that they
see the same load. The goal is a ratio below 2.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.lengthen_trace import parse_sample, write_repeated
from benchmarks.measure import run_perfdoctor


class ProcessTime(NamedTuple):
    """Wall and CPU time of a process with its children, in seconds."""

    wall_s: float
    cpu_s: float


def measure_command(*arguments: object) -> ProcessTime:
    """The time that a command of perfdoctor takes."""
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run_perfdoctor(*arguments)
    wall_s, ended = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return ProcessTime(wall_s, ended.ru_utime + ended.ru_stime - used.ru_utime - used.ru_stime)


def measure(before: Path, after: Path, rounds: int) -> str:
    """A row of the table: both in seconds, wall (CPU), medians of the rounds, and the ratio."""
    analyze, compare = [], []
    for number in range(rounds + 1):
        one, both = measure_command("analyze", "-q", before), measure_command("compare", "-q", before, after)
        if number:  # the first round compiles and fills caches
            analyze.append(one)
            compare.append(both)
    medians = [
        ProcessTime(median(each.wall_s for each in times), median(each.cpu_s for each in times))
        for times in (analyze, compare)
    ]
    (one_wall, one_cpu), (both_wall, both_cpu) = medians
    return (
        f"| {one_wall:.2f} ({one_cpu:.2f}) | {both_wall:.2f} ({both_cpu:.2f}) | "
        f"{both_wall / one_wall:.2f} ({both_cpu / one_cpu:.2f}) |"
    )


def lengthen(trace: Path, out: Path, megabytes: float) -> None:
    """Write a trace of about this size to `out`."""
    text = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    sample = parse_sample(text)
    write_repeated(sample, out, sample.repeats_for(round(megabytes * 1e6)))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a short trace, as .json or .json.gz")
    parser.add_argument("after", type=Path, help="another one of the same program")
    parser.add_argument("--megabytes", type=float, default=100.0, help="size of each trace that is compared")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each; the medians are printed")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("before.json", "after.json")]
        for trace, path in zip((options.before, options.after), paths, strict=True):
            lengthen(trace, path, options.megabytes)
        print("| analyze, s (CPU) | compare of two, s (CPU) | ratio |")
        print("|---|---|---|")
        print(measure(*paths, options.rounds), flush=True)


if __name__ == "__main__":
    main()
