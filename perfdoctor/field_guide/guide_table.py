"""All rows of the field guide, in the order of their numbers: guide_rows.toml has their words."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from perfdoctor.errors import PerfdoctorError
from perfdoctor.field_guide import guide_row, overhead_questions, precision_questions, subjects, training_questions
from perfdoctor.field_guide.guide_row import GuideRow

_FILE = Path(__file__).parent / "guide_rows.toml"
_MODULES = (guide_row, subjects, precision_questions, training_questions, overhead_questions)
_FUNCTIONS: dict[str, Any] = {name: value for module in _MODULES for name, value in vars(module).items()}


def make_row(row: dict[str, Any]) -> GuideRow:
    """A row of the file, with its functions in the place of their names.

    Raises:
        PerfdoctorError: A key or a function does not exist, or a key is missing; the message is one sentence.
    """
    asked = {"evidence": "no_evidence", "concerns": "any_finding"} | row
    topic = asked.pop("topic", None)
    try:
        concerns = _FUNCTIONS[asked["concerns"]]
        tests = [_FUNCTIONS[name] for name in asked["subject"]]
        asked |= {
            "rules": tuple(asked["rules"]),
            "memory_rules": tuple(asked.get("memory_rules", ())),
            "subject": tests[0] if len(tests) == 1 else subjects.all_of(*tests),
            "evidence": _FUNCTIONS[asked["evidence"]],
            "concerns": concerns if topic is None else concerns(topic),
        }
        return GuideRow(**asked)
    except (KeyError, TypeError) as error:
        why = f"{error} is missing, or no function" if isinstance(error, KeyError) else str(error)
        place = f"{_FILE}, row {row.get('number')}"
        raise PerfdoctorError(f"{place}: {why}; compare it with the rows beside it.") from None


ROWS = tuple(map(make_row, tomllib.loads(_FILE.read_text(encoding="utf-8"))["row"]))
