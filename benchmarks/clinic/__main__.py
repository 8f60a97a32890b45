"""The clinic: python -m benchmarks.clinic [--short] [--only NAME...] [--kind K...] [--device cuda] [--out FOLDER] ...

Each program is recorded with and without its planted fault by `perfdoctor run`, both run in turns without perfdoctor,
and `perfdoctor try` measures the change that does the same. Prints a Markdown table with the count against the goals.
With --csv or --out the table grows: a program that is in it is not run again, unless --again says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.clinic.cases import KINDS, Case, choose_cases
from benchmarks.clinic.run_case import run_case
from benchmarks.clinic.table import format_table, read_rows, write_rows
from benchmarks.clinic.verdicts import Row, start_row

OUT_OF_TIME = "out of time"


def run_cases(cases: Sequence[Case], options: argparse.Namespace) -> Iterator[Row]:
    """A row for each program; when no time is left, rows that only say so."""
    deadline = time.monotonic() + options.seconds
    for case in cases:
        if time.monotonic() > deadline:
            row = start_row(case, options.device)
            yield Row(row.name, row.kind, row.style, row.device, note=OUT_OF_TIME)
        else:
            keep = options.keep and options.keep.resolve()
            yield run_case(case, options.device, options.pairs, keep, with_try=not options.no_try)


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, tuple[Case, ...]]:
    """The options, and the programs that they choose."""
    parser = argparse.ArgumentParser(prog="benchmarks.clinic", description="Planted faults: found, placed, promised?")
    parser.add_argument("--short", action="store_true", help="the six programs of CI")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these programs")
    parser.add_argument("--kind", nargs="+", default=[], choices=KINDS, help="programs of these kinds")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=3, help="runs of the faulty and the fixed program, in turns")
    parser.add_argument("--no-try", action="store_true", help="leave `perfdoctor try` out")
    parser.add_argument(
        "--csv", type=Path, help="the table with all columns; programs that are in it are not run again"
    )
    parser.add_argument("--again", action="store_true", help="run programs again that are in the table")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write clinic.csv and clinic.md there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep captures and reports there")
    parser.add_argument("--seconds", type=float, default=7200, help="begin no other program after this time")
    options = parser.parse_args(arguments)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        options.csv = options.csv or options.out / "clinic.csv"
    try:
        return options, choose_cases(options.only, options.kind, short=options.short)
    except ValueError as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen programs and print the table; returns 2 when the GPU is missing."""
    options, cases = parse_arguments(arguments)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu measures what a CPU can show", file=sys.stderr)
        return 2
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPU cores"
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {device}, load {os.getloadavg()[0]:.1f}, "
        f"{options.pairs} pairs of runs\n"
    )
    kept = read_rows(options.csv) if options.csv else []
    # What had no time left is run now.
    rows = {(row.name, row.device): row for row in kept if row.note != OUT_OF_TIME}
    done = set() if options.again else set(rows)
    todo = [case for case in cases if (case.name, options.device) not in done]
    if options.device == "cuda":
        # Time on a GPU is short: first what only a GPU can show.
        todo.sort(key=lambda case: case.on_cpu)
    for row in run_cases(todo, options):
        rows[row.name, row.device] = row
        print(f"{row.name}: {summarize_row(row)}", file=sys.stderr, flush=True)
        if options.csv:
            write_rows(options.csv, list(rows.values()))
    names = {case.name for case in cases}
    table = format_table([row for row in rows.values() if row.name in names and row.device == options.device])
    if options.out:
        options.out.joinpath("clinic.md").write_text(table + "\n", encoding="utf-8")
    print(table)
    return 0


def summarize_row(row: Row) -> str:
    """A row in a line, to follow a run."""
    if not row.ran:
        return row.note
    if row.healthy:
        return f"healthy, {row.alarms or 'quiet'} ({row.seconds} s)"
    said = f"{row.rule} {row.place}{'' if row.place_right else ' (wrong place)'}" if row.found else "not found"
    quiet = "" if row.quiet else f", still {row.after}"
    alarms = f", also {row.alarms}" if row.alarms else ""
    unit, (*_, saved, whole) = "bytes" if row.of_peak else "ms", row.amounts
    return f"{said}{quiet}{alarms}, saved {saved} {unit} of {whole}, tried {row.tried} ({row.seconds} s)"


if __name__ == "__main__":
    raise SystemExit(main())
