"""The cases of all rules in `cases_*.py`: lists that are named after their rule, such as `PD101`.

A rule may have its cases in a test file of its own instead, as `perfdoctor new-rule` writes it; `check_rule` runs
them there.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from perfdoctor.testing.rule_cases import RuleCase

HERE = Path(__file__).parent

_FILES = [importlib.import_module(path.stem) for path in sorted(HERE.glob("cases_*.py"))]
CASES: list[RuleCase] = [
    case for file in _FILES for name, cases in vars(file).items() if re.fullmatch(r"PD\d{3}", name) for case in cases
]

RULES_WITH_OWN_TEST = {path.stem[5:10].upper() for path in HERE.glob("test_pd[0-9][0-9][0-9]_*.py")}
