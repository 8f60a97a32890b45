"""Outside-style programs: is the first finding right, and does its fix pay? python -m benchmarks.programs [--only X].

Each program runs under `perfdoctor run`. The first finding that asks for something is compared with programs.toml, its
fix is applied as a user would apply it, plain and fixed program run in turns without perfdoctor, and the fixed one is
recorded again. Prints a Markdown table; --csv and --markdown write it to files.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.programs.truths import Edit, Program, read_programs
from benchmarks.programs.verdicts import COLUMNS, Row, Said, first_said, format_table, list_cells
from benchmarks.promises import WORTH
from benchmarks.run_python import ProgramFailedError, run_python

# The mean where batches come in bursts, as from workers that wait at the same time.
STEP = re.compile(r"(?:median|mean) step ([\d.]+) ms")


def measure_program(program: Program, pairs: int, keep: Path | None = None) -> Row:
    """Record a program, follow its report, time both, and record the changed one."""
    if program.missing_libraries:
        return Row(program, ran=False, note=f"{', '.join(program.missing_libraries)} is missing")
    source = program.path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if keep is None else keep / program.name
        try:
            said = first_said(record_program(program, write_script(folder / "plain", program, source)))
            edit, followed = choose_edit(program, said)
            row = Row(program, said, is_line_right(program, said, source), edit, followed)
            if edit is None:
                return row
            return measure_edit(row, edit, folder, source, pairs)
        except ProgramFailedError as error:
            return Row(program, ran=False, note=f"failed: {str(error)[-200:]}")


def choose_edit(program: Program, said: Said | None) -> tuple[Edit | None, bool]:
    """The change to time, and whether the report asks for it."""
    asked = program.edit_for(said.rule, said.fix, said.advice) if said else None
    return (asked, True) if asked else (program.right_edit, False)


def is_line_right(program: Program, said: Said | None, source: str) -> bool:
    """Whether the first finding names a line to change."""
    if said is None:
        return False
    is_own_file = Path(said.file).name == program.path.name
    return said.place in program.places or (is_own_file and said.line in program.line_numbers(source))


def measure_edit(row: Row, edit: Edit, folder: Path, source: str, pairs: int) -> Row:
    """Run the program with and without a change in turns, then record it with the change."""
    program = row.program
    plain = write_script(folder / "plain", program, source)
    fixed = write_script(folder / "fixed", program, edit.apply(source))
    times = [(time_program(program, plain), time_program(program, fixed)) for _ in range(pairs)]
    report = record_program(program, fixed)
    asked = [finding for finding in report["findings"] if finding["severity"] in WORTH]
    return Row(
        program,
        row.said,
        row.line_right,
        edit,
        row.followed,
        tuple(a for a, _ in times),
        tuple(b for _, b in times),
        tuple(dict.fromkeys(finding["rule"] for finding in asked)),
        note="" if row.followed or row.said is None else f"no edit is prepared for what {row.said.rule} asks for",
    )


def write_script(folder: Path, program: Program, source: str) -> Path:
    """Write a version of a program under its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / program.path.name
    path.write_text(source, encoding="utf-8")
    return path


def record_program(program: Program, script: Path) -> dict[str, Any]:
    """Run a program under perfdoctor; returns its report as JSON."""
    capture = script.parent / "capture"
    run_python(["-m", "perfdoctor", "run", "--force", "--out", str(capture), *_target(program, script)], script.parent)
    try:
        report: dict[str, Any] = json.loads((capture / "report.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ProgramFailedError(f"no report: {error}") from error
    return report


def time_program(program: Program, script: Path) -> float:
    """Run a program without perfdoctor; returns the step in ms that it prints."""
    output = run_python(_target(program, script)[2:] if program.ranks else [str(script)], script.parent)
    found = STEP.findall(output)
    if not found:
        raise ProgramFailedError(f"{program.name} printed no step time: {output[-300:]}")
    return float(found[-1])


def _target(program: Program, script: Path) -> list[str]:
    """The program as `perfdoctor run` takes it."""
    if not program.ranks:
        return [str(script)]
    return ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(program.ranks), str(script)]


def measure_programs(programs: Sequence[Program], pairs: int, keep: Path | None) -> Iterator[Row]:
    """Yield a row for each program."""
    for program in programs:
        with take_core(program.busy):
            yield measure_program(program, pairs, keep)


@contextmanager
def take_core(busy: bool) -> Iterator[None]:
    """Keep one core busy meanwhile, or none."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if loop is not None:
            loop.kill()
            loop.wait()


def main() -> int:
    """Measure the chosen programs and print the table."""
    parser = argparse.ArgumentParser(description="Is the first finding right, and does its fix pay?")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this program; repeatable")
    parser.add_argument("--pairs", type=int, default=3, help="runs of the plain and the fixed program, in turns")
    parser.add_argument("--csv", type=Path, help="write the table here as well, with all columns")
    parser.add_argument("--markdown", type=Path, help="write the Markdown table here as well")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep scripts, captures and reports there")
    options = parser.parse_args()
    programs = {program.name: program for program in read_programs()}
    unknown = sorted(set(options.only) - set(programs))
    if unknown:
        parser.error(f"no program is called {unknown[0]}; there are: {', '.join(programs)}")
    chosen = [program for name, program in programs.items() if not options.only or name in options.only]
    rows = []
    for row in measure_programs(chosen, options.pairs, options.keep and options.keep.resolve()):
        rows.append(row)
        said = f"{row.said.rule} at {row.said.place}" if row.said else "quiet"
        print(f"{row.program.name}: {said if row.ran else row.note}", file=sys.stderr, flush=True)
        if options.csv:
            with options.csv.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([COLUMNS, *map(list_cells, rows)])
        if options.markdown:
            options.markdown.write_text(format_table(rows) + "\n", encoding="utf-8")
    print(format_table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
