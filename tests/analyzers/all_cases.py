"""The cases of all rules: rows in `cases_*.toml`, whose scenes and facts are made by the file of Python of that name.

A case stays quiet, and its row is its scene, or it fires, and its row tells what the finding says; "n/a" is None there.
Cases that only differ in a number are lists in Python, named after their rule, such as `PD103`.

A rule may have its cases in a test file of its own instead, as `perfdoctor new-rule` writes it, or in rows beside
that; `check_rule` runs them there.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from perfdoctor.report.finding import SEVERITIES
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

HERE = Path(__file__).parent


def cases_of(file: ModuleType) -> Iterator[RuleCase]:
    """Those of a file of Python, and of the rows beside it."""
    for name, cases in vars(file).items():
        if re.fullmatch(r"PD\d{3}", name):
            yield from cases
    rows = Path(str(file.__file__)).with_suffix(".toml")
    for rule, each in tomllib.loads(rows.read_text(encoding="utf-8")).items() if rows.exists() else ():
        for name, row in chain(*map(dict.items, each.values())):
            row = dict(row) if isinstance(row, Mapping) else {"scene": row}
            build = partial(eval, row.pop("scene"), vars(file))
            facts = eval(row.pop("facts", "None"), vars(file))
            via_file = row.pop("via_file", False)
            found = row.pop("finds", [row] if row else [])
            yield RuleCase(rule, name, build, tuple(map(_expected, found)), facts, via_file)


def _expected(row: Mapping[str, Any]) -> ExpectedFinding:
    fields = {name: _as_python(value) for name, value in row.items()}
    (severity,) = fields.keys() & set(SEVERITIES)
    return ExpectedFinding(severity, fields.pop(severity), **fields)


def _as_python(value: Any) -> Any:
    """A value of a row as findings have it."""
    if isinstance(value, list):
        return tuple(map(_as_python, value))
    if isinstance(value, dict):
        return {name: _as_python(each) for name, each in value.items()}
    return None if value == "n/a" else value


_FILES = [importlib.import_module(path.stem) for path in sorted(HERE.glob("cases_*.py"))]
CASES: list[RuleCase] = [case for file in _FILES for case in cases_of(file)]

RULES_WITH_OWN_TEST = {path.stem[5:10].upper() for path in HERE.glob("test_pd[0-9][0-9][0-9]_*.py")}
