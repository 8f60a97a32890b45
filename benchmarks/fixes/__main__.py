"""`python -m benchmarks.fixes [NAME...] [--programs] [--measure] [--keep FOLDER]`: edits for the programs here.

Each program is recorded as a user would, in a git repository of its own. Counted are findings with a line of it that
are worth 1 % of the step or more, and those of them with an edit. With --measure `perfdoctor fix` measures the edits
as well, git applies its patch, and the patched program runs once more by itself.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.clinic.cases import choose_cases
from benchmarks.clinic.run_case import STEP
from benchmarks.programs.__main__ import STEP as STEP_MS
from benchmarks.programs.truths import read_programs
from benchmarks.run_python import ProgramFailedError, run_python
from perfdoctor.fixes.propose_patch import find_project
from perfdoctor.trials.program_run import ProgramRun
from perfdoctor.trials.run_log import read_state

BUDGET_S = 240
PAIRS = 8
# On a machine that others use as well a recording takes this long.
RUN_SECONDS = 600
NOISE = 0.03
COUNTED = ("high", "medium", "low")


class Fixed(NamedTuple):
    """What became of one program.

    Attributes:
        name: The program.
        edited: Findings with a line that have an edit, as "PD101 workers".
        refused: Those that have none, with the reason.
        measured: What `perfdoctor fix` measured of each edit, with its promise.
        patched: The step of the patched program over that of the plain one, each run once by itself.
    """

    name: str
    edited: tuple[str, ...]
    refused: tuple[str, ...]
    measured: tuple[str, ...] = ()
    patched: float | None = None


class Script(NamedTuple):
    """A program as its user has it.

    Attributes:
        path: Where it is from.
        text: What it says.
        arguments: What follows it on the command line.
    """

    path: Path
    text: str
    arguments: tuple[str, ...] = ()


def list_scripts(names: Sequence[str], *, programs: bool) -> list[Script]:
    """The programs of the clinic that are slow for a reason and run on a CPU, or those of benchmarks/programs."""
    if programs:
        chosen = [each for each in read_programs() if not names or each.name in names]
        return [
            Script(each.path, each.path.read_text())
            for each in chosen
            if each.path.suffix == ".py" and not each.healthy and not each.ranks and not each.missing_libraries
        ]
    return [
        Script(case.path, take_switch_out(case.path.read_text()), ("--device", "cpu"))
        for case in choose_cases(names)
        if not (case.healthy or case.of_peak or case.ranks or case.fails or case.why_not_on("cpu"))
    ]


def fix_script(program: Script, folder: Path, *, measures: bool) -> Fixed:
    """Record a program where its folder has no recording, look for edits, and measure them."""
    script, capture = folder / program.path.name, folder / "perfdoctor-capture"
    command = [script.name, *program.arguments]
    if not capture.exists():
        folder.mkdir(parents=True, exist_ok=True)
        script.write_text(program.text)
        for words in (
            ["init", "-q"],
            ["add", script.name],
            ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
        ):
            subprocess.run(["git", "-C", str(folder), *words], check=True)
        run_python(["-m", "perfdoctor", "run", "-q", "--out", str(capture), *command], folder, RUN_SECONDS)
    plain = run_python(["-m", "perfdoctor", "analyze", "--json", str(capture)], folder, RUN_SECONDS)
    findings = [each for each in json.loads(plain)["findings"] if is_counted(each)]
    edited, refused = look_for_edits(capture, findings)
    if not measures or not edited:
        return Fixed(script.stem, edited, refused)
    out = folder / "perfdoctor-fix"
    options = ["--allow-changes", "--pairs", str(PAIRS), "--budget", f"{BUDGET_S}s", "--wait", "0", "--out", str(out)]
    run_python(["-m", "perfdoctor", "fix", "-q", *options, *command], folder, RUN_SECONDS + 4 * BUDGET_S)
    report, runs = json.loads((out / "report.json").read_text()), read_state(out)["runs"]
    measured = [each for each in report["trials"] if each["pairs"]]
    lines = [describe(each, runs) for each in measured]
    lines += filter(None, map(judge_promise, report["findings"]))
    patched = None
    if (out / "perfdoctor.patch").exists():
        before = step_of(run_python(command, folder, RUN_SECONDS))
        run_python(["-m", "perfdoctor", "fix", "--apply", str(out / "perfdoctor.patch")], folder)
        patched = step_of(run_python(command, folder, RUN_SECONDS)) / before
    return Fixed(script.stem, edited, refused, tuple(lines), patched)


def take_switch_out(text: str) -> str:
    """A clinic's program as if it never had a switch `--fixed`: conditions on it are decided, as off."""
    return ast.unparse(ast.fix_missing_locations(_WithoutSwitch().visit(ast.parse(text)))) + "\n"


def is_empty(value: ast.expr) -> bool:
    """Whether an expression is {}."""
    return isinstance(value, ast.Dict) and not value.keys


class _WithoutSwitch(ast.NodeTransformer):
    """Decides what depends on names such as `fixed`, `args.fixed` and `self.flash` that only the switch sets."""

    NAMES = ("fixed", "flash", "once", "unscale")

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        is_switch = node.attr in self.NAMES and isinstance(node.ctx, ast.Load)
        return ast.Constant(False) if is_switch else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(False) if node.id in self.NAMES and isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node = self.generic_visit(node)
        node.keywords = [each for each in node.keywords if each.arg or not is_empty(each.value)]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        node = self.generic_visit(node)
        is_decided = isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant)
        return ast.Constant(not node.operand.value) if is_decided else node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node = self.generic_visit(node)
        stops = isinstance(node.op, ast.Or)
        decided = [each.value for each in node.values if isinstance(each, ast.Constant)]
        if stops in decided:
            return ast.Constant(stops)
        left = [each for each in node.values if not isinstance(each, ast.Constant)]
        return node if len(left) > 1 and not decided else left[0] if left else ast.Constant(not stops)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node = self.generic_visit(node)
        return (node.body if node.test.value else node.orelse) if isinstance(node.test, ast.Constant) else node

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        node = self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            return node
        return (node.body if node.test.value else node.orelse) or ast.Pass()


def is_counted(finding: dict[str, Any]) -> bool:
    """Whether a finding has a line and is worth an edit."""
    return bool(finding["location"]) and finding["severity"] in COUNTED and finding["covered_by"] is None


def look_for_edits(capture: Path, findings: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The findings that have an edit, and those that have none with the reason."""
    from perfdoctor.fixes.choose_edits import choose_edits

    project, edited, refused = find_project(capture), [], []
    for finding in findings:
        found, without = choose_edits([finding], project)
        what = f"{finding['rule']} {finding['title'][:50]}"
        if found:
            edited.append(f"{finding['rule']} {', '.join(each.edit.action for each in found)}")
        else:
            refused.append(f"{what}: {without[0].label + ': ' + without[0].why if without else 'no action'}")
    return tuple(edited), tuple(refused)


def step_of(output: str) -> float:
    """The step that a program prints, in ns, or in ms."""
    return float((STEP.findall(output) or STEP_MS.findall(output))[-1])


def describe(trial: dict[str, Any], runs: Mapping[str, ProgramRun]) -> str:
    """A trial in a line: the step, its range, the pairs, the CPU time of the process by pairs, and the losses."""
    name = f"{trial['change']}={trial['setting']}" if trial["setting"] and trial["change"] != "all" else trial["change"]
    before_ns = trial["before_ns"]
    low, median, high = (1 - trial[key] / before_ns for key in ("high_ns", "saved_ns", "low_ns"))
    cpu = [
        run.cpu_ns / plain.cpu_ns
        for key, run in runs.items()
        if key.endswith(f"-{name}") and (plain := runs.get(key.replace(f"-{name}", "-plain"))) is not None
        if run.cpu_ns and plain.cpu_ns
    ]
    said = f"; CPU time {statistics.median(cpu):.2f}" if cpu else ""
    loss = trial["loss_difference"]
    losses = "not comparable" if loss is None else "same" if loss == 0 else f"{loss:.0e}"
    return f"{name} {median:.2f} ({low:.2f} to {high:.2f}, {trial['pairs']}) {trial['verdict']}{said}; losses {losses}"


def judge_promise(finding: dict[str, Any]) -> str:
    """Whether what an edit gave alone lies in the promise of its finding, within 3 % of the step; "" for no promise."""
    saving = finding["saving"]
    promised, given = saving.get("promised"), saving["alone"]["expected_ns"]
    if not promised or promised["high_ns"] is None or given is None:
        return ""
    noise_ns = NOISE * finding["cost_ns"] / (finding["share_of_step"] or 1)
    low_ms, given_ms, high_ms = (each / 1e6 for each in (promised["low_ns"], given, promised["high_ns"]))
    holds = promised["low_ns"] - noise_ns <= given <= promised["high_ns"] + noise_ns
    verdict = "holds" if holds else "does not hold"
    return f"{finding['rule']} promised {low_ms:.3g} to {high_ms:.3g} ms, gave {given_ms:.3g}: {verdict}"


def main() -> int:
    """Fix the programs that are named, else all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--programs", action="store_true", help="those of benchmarks/programs, not of the clinic")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep programs and recordings here, and take those that are there")
    options = parser.parse_args()
    rows = []
    for program in list_scripts(options.names, programs=options.programs):
        name = program.path.stem
        with tempfile.TemporaryDirectory(prefix="fixes-") as scratch:
            try:
                row = fix_script(program, (options.keep or Path(scratch)) / name, measures=options.measure)
            except ProgramFailedError as error:
                print(f"{name}: failed: {str(error).strip().splitlines()[-1]}", flush=True)
                continue
        rows.append(row)
        print(
            f"{row.name}: {'; '.join(row.edited) or 'no edit'}",
            *row.measured,
            row.patched or "",
            sep="\n    ",
            flush=True,
        )
        for why in row.refused:
            print(f"    without: {why}", flush=True)
    edited, all_of_them = (
        sum(len(each.edited) for each in rows),
        sum(len(each.edited) + len(each.refused) for each in rows),
    )
    print(f"{edited} of {all_of_them} findings with a line have an edit, in {len(rows)} programs")
    print(dict(Counter(each.partition(" ")[0] for row in rows for each in row.refused)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
