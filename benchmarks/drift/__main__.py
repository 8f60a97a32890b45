"""`python -m benchmarks.drift [NAME...]`: planted drifts by `perfdoctor run`, each against its twin without.

For each program: whether PD010 tells the planted cause, at the planted line (or in the function that begins there),
since which step and by how much; that the twin is quiet; and that the program prints the same with and without
perfdoctor. Exit code 1 where a drift is missed or misplaced, a twin is not quiet, or a result differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.drift.programs import PROGRAMS, Planted

RULE = "PD010"
LIMIT_S = 600


class Outcome(NamedTuple):
    """What came of one program.

    Attributes:
        name: The program.
        cause: What the report says grew; "" where it has no finding.
        line: The line that it names.
        growth: From which step, and by how much.
        title: What the finding says; "" without one.
        is_right: Whether cause and line are the planted ones.
        twin_is_quiet: Whether the report on the twin has no such finding.
        is_same: Whether the program prints the same as without perfdoctor.
    """

    name: str
    cause: str
    line: int | None
    growth: str
    title: str
    is_right: bool
    twin_is_quiet: bool
    is_same: bool


def run(command: list[str], folder: Path) -> str:
    """The output of a program that has to end well."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def diagnose(script: Path, variant: str, steps: int) -> tuple[dict[str, Any] | None, str]:
    """PD010's finding on a run of a program, None without one, and what the program printed."""
    capture = script.parent / f"capture-{script.stem}-{variant}"
    recorder = [sys.executable, "-m", "perfdoctor", "run", "--out", str(capture), "--no-report"]
    printed = run([*recorder, script.name, variant, str(steps)], script.parent)
    report = json.loads(run([sys.executable, "-m", "perfdoctor", "analyze", "--json", str(capture)], script.parent))
    return next((each for each in report["findings"] if each["rule"] == RULE), None), printed


def check(name: str, planted: Planted, folder: Path) -> Outcome:
    """Run a program and its twin by perfdoctor, and the program by itself."""
    script = folder / f"{name}.py"
    script.write_text(planted.text, encoding="utf-8")
    found, printed = diagnose(script, "drift", planted.steps)
    in_twin, _ = diagnose(script, "steady", planted.steps)
    plain = run([sys.executable, script.name, "drift", str(planted.steps)], folder)
    location = (found or {}).get("location") or {}
    cause, line = (found["subject"], location.get("line")) if found else ("", None)
    evidence = {} if found is None else {each["label"]: each["value"] for each in found["evidence"]}
    growth = title = ""
    if found is not None:
        title = found["title"]
        before, after = (evidence[label] / 1e6 for label in ("step before it", "step at the end of the run"))
        growth = f"{before:.3g} to {after:.3g} ms from step {evidence['first slower step']}"
    is_right = cause == planted.cause and (planted.line is None or line in (planted.line, planted.function_line))
    return Outcome(name, cause, line, growth, title, is_right, in_twin is None, plain == printed)


def main() -> int:
    """Run the named programs, or all, and print a table."""
    print("| program | planted | found | right | since when and by how much | twin quiet | same results |")
    print("|---|---|---|---|---|---|---|", flush=True)
    all_right = True
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or PROGRAMS:
            planted = PROGRAMS[name]
            outcome = check(name, planted, Path(folder))
            words = ("no", "yes")
            checks = (outcome.is_right, outcome.twin_is_quiet, outcome.is_same)
            right, quiet, same = (words[each] for each in checks)
            at = f"{planted.cause}, line {planted.line}"
            seen = f"{outcome.cause}, line {outcome.line}"
            print(f"| {name} | {at} | {seen} | {right} | {outcome.growth} | {quiet} | {same} |", flush=True)
            all_right &= all(checks)
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
