"""Whether the tests of rules notice a rule that is wrong: thresholds are removed and conditions negated, one at a time.

python -m tests.mutate_rules                     # every rule, an hour: at night
python -m tests.mutate_rules PD104 PD201         # some
python -m tests.mutate_rules --sample 60         # so many of all, chosen anew each day

A mutant is caught where a case of its rule fails, or else a test in a file that names the rule. What survives is
printed with its line: a test is missing there, or the line decides nothing. Each mutant is tried in a fork.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import datetime
import importlib
import os
import random
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "analyzers"
# A mutant may never end.
LIMIT_S = 300
# Room for findings is unlimited without a maximum, and every amount is enough without a minimum.
UNLIMITED = 10**18


class Mutant(NamedTuple):
    """A file of a rule with one change."""

    rule: str
    file: Path
    line: int
    change: str
    source: str


def find_files(rule: str) -> list[Path]:
    """The file of a rule, and those that help it alone."""
    return sorted([*RULES.glob(f"{rule.lower()}_*.py"), *RULES.glob(f"_{rule.lower()}_*.py")])


def make_mutants(rule: str) -> Iterator[Mutant]:
    """Yield every mutant of a rule."""
    for file in find_files(rule):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for number, node in enumerate(ast.walk(tree)):
            for old, new in _find_changes(node):
                mutated = copy.deepcopy(tree)
                target = next(each for index, each in enumerate(ast.walk(mutated)) if index == number)
                for name, value in vars(target).items():
                    if isinstance(value, ast.expr) and ast.dump(value) == ast.dump(old):
                        setattr(target, name, new)
                    elif isinstance(value, list):
                        value[:] = [
                            new if isinstance(each, ast.expr) and ast.dump(each) == ast.dump(old) else each
                            for each in value
                        ]
                text = f"{ast.unparse(old)} -> {ast.unparse(new)}"
                yield Mutant(rule, file, old.lineno, text, ast.unparse(ast.fix_missing_locations(mutated)))


def _find_changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the conditions and thresholds that are children of this node, each with what takes its place."""
    conditions: Sequence[ast.expr] = ()
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        conditions = (node.test,)
    elif isinstance(node, ast.comprehension):
        conditions = node.ifs
    for condition in conditions:
        yield condition, ast.UnaryOp(ast.Not(), condition)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant):
        name, value = node.targets[0].id, node.value.value
        if re.fullmatch(r"_?[A-Z][A-Z0-9_]+", name) and isinstance(value, int | float):
            for limit in {0, UNLIMITED} - ({UNLIMITED} if "MIN" in name else {0} if "MAX" in name else set()):
                yield node.value, ast.Constant(limit)


def is_caught(mutant: Mutant, tests: Sequence[str]) -> bool:
    """Whether a test fails with the mutant: the cases of its rule, then the tests in these files."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        code = 1
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            try:
                _install(mutant)
                code = int(_fails_its_cases(mutant.rule) or _fails_tests(tests))
            finally:
                os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def _install(mutant: Mutant) -> None:
    """Replace the code of the rule in this process."""
    for file in [mutant.file, *(file for file in find_files(mutant.rule) if not file.name.startswith("_"))]:
        name = f"perfdoctor.analyzers.{file.stem}"
        module = importlib.import_module(name)
        source = mutant.source if file == mutant.file else file.read_text(encoding="utf-8")
        exec(compile(source, str(file), "exec"), module.__dict__)


def _fails_its_cases(rule: str) -> bool:
    from all_cases import CASES

    from perfdoctor import pipeline
    from perfdoctor.rules import registry
    from perfdoctor.testing import check_case

    analyzer = next(each for each in registry.load_analyzers() if each.rule == rule)
    for case in CASES:
        if case.rule == rule and case.expected:
            check_case(analyzer, case)
        elif case.rule == rule:
            report = pipeline.diagnose_run(case.run(), [analyzer])
            if report.findings or any(outcome.status == "failed" for outcome in report.outcomes):
                return True
    return False


def _fails_tests(files: Sequence[str]) -> bool:
    import pytest

    return bool(files) and pytest.main(["-q", "-x", "-n0", "-m", "not process", *files]) == pytest.ExitCode.TESTS_FAILED


def find_tests(rule: str) -> list[str]:
    """The test files that name a rule, but those of the cases, which are tried before."""
    found = (path for path in (ROOT / "tests").rglob("test_*.py") if rule in path.read_text(encoding="utf-8"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants; 1 where fewer are caught than `--fail-under` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", help="ids, such as PD104; all rules without")
    parser.add_argument("--sample", type=int, help="try so many mutants only")
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal(), help="of the sample")
    parser.add_argument("--cases-alone", action="store_true", help="run the cases of a rule and no other test")
    parser.add_argument("--fail-under", type=float, default=0.0, help="percent of the mutants that must be caught")
    options = parser.parse_args(arguments)
    rules = options.rules or sorted({path.stem[:5].upper() for path in RULES.glob("pd[0-9]*.py")})
    mutants = [mutant for rule in rules for mutant in make_mutants(rule)]
    if options.sample is not None:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    os.chdir(ROOT)
    # As tests/conftest.py has it: what the tests share.
    sys.path[:0] = [str(ROOT / "tests" / "analyzers"), str(ROOT / "tests" / "strategies")]
    importlib.import_module("all_cases")
    for rule in {mutant.rule for mutant in mutants}:
        (file,) = (each for each in find_files(rule) if not each.name.startswith("_"))
        unchanged = Mutant(rule, file, 0, "", file.read_text(encoding="utf-8"))
        if is_caught(unchanged, []):
            parser.error(f"the cases of {rule} fail without any change")
    survivors = []
    for mutant in mutants:
        if not is_caught(mutant, [] if options.cases_alone else find_tests(mutant.rule)):
            survivors.append(mutant)
            print(f"{mutant.file.relative_to(ROOT)}:{mutant.line}: survives: {mutant.change}", flush=True)
    caught = 100 * (1 - len(survivors) / max(len(mutants), 1))
    print(f"{len(mutants)} mutants, {len(survivors)} survive, {caught:.1f} % are caught")
    return int(caught < options.fail_under)


if __name__ == "__main__":
    sys.exit(main())
