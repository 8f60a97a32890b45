"""Confusion tables of the kernel classifier on names with known answers.

    python -m benchmarks.kernels ../shared/kernels/labelled_kernels.csv

The CSV has the columns kernel, tensor_core and category; `a|b` means that either is right.
"""

from __future__ import annotations

import csv
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perfdoctor.gpu import classify_kernel
from perfdoctor.gpu.classify_kernels import KernelClass, clear_kernel_cache

DEFAULT_CSV = Path(__file__).resolve().parents[3] / "shared" / "kernels" / "labelled_kernels.csv"


def main(arguments: Sequence[str]) -> int:
    """Print both tables, the mistakes, and the time per name; returns 2 if there is no such file."""
    path = Path(arguments[0]) if arguments else DEFAULT_CSV
    if not path.is_file():
        print(f"{path} is not there: name the CSV with the labelled kernels", file=sys.stderr)
        return 2
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        print(f"{path} holds no names", file=sys.stderr)
        return 2
    classes = [classify_kernel(row["kernel"]) for row in rows]
    for column in ("tensor_core", "category"):
        _print_column(rows, classes, column)
    names = [row["kernel"] for row in rows]
    print(f"time: {_microseconds_per_name(names):.1f} us a distinct name, best of 5")
    return 0


def _print_column(rows: list[dict[str, str]], classes: list[KernelClass], column: str) -> None:
    pairs = [
        (row[column], str(getattr(kernel, column)), row["kernel"], kernel.rule)
        for row, kernel in zip(rows, classes, strict=True)
    ]
    correct = sum(answer in label.split("|") for label, answer, _, _ in pairs)
    print(f"{column}: {correct} of {len(pairs)} right, {correct / len(pairs):.2%}")
    _print_table(Counter((label, answer) for label, answer, _, _ in pairs))
    for label, answer, name, rule in pairs:
        if answer not in label.split("|"):
            print(f"  {label} taken for {answer} by {rule}: {name[:100]}")
    print()


def _print_table(counts: Counter[tuple[str, str]]) -> None:
    labels = sorted({label for label, _ in counts})
    answers = sorted({answer for _, answer in counts})
    print(f"  {'label':20}" + "".join(f"{answer[:13]:>14}" for answer in answers))
    for label in labels:
        print(f"  {label:20}" + "".join(f"{counts[label, answer] or '':>14}" for answer in answers))


def _microseconds_per_name(names: list[str]) -> float:
    best = float("inf")
    for _ in range(5):
        clear_kernel_cache()
        start = time.perf_counter()
        for name in names:
            classify_kernel(name)
        best = min(best, time.perf_counter() - start)
    return best / len(names) * 1e6


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
