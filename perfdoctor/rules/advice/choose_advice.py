"""The choice of advice: the first row of the table for a situation whose conditions the program meets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from perfdoctor.analysis.context.context import Context
from perfdoctor.rules.advice.advice_row import Advice, AdviceRow, is_older

_OF_PYTORCH = "PyTorch "


def advise(situation: str | Sequence[AdviceRow], context: Context, **known: object) -> Advice:
    """What to do in a situation in a program.

    Args:
        situation: As in the table; or rows of your own, as `rows_of` makes them; the last must be for any program.
        context: What program it is.
        known: What the rule knows, which replaces `{name}` in the texts.

    Raises:
        KeyError: The table has no such situation.
    """
    row = find_row(situation, context)
    return Advice(
        _fill(row.sentence, known) + _name_release(row, context.torch_version),
        None if row.code is None else _fill(row.code, known),
        row.source,
        tuple(replace(each, value=_known_value(each.value, known)) for each in row.actions),
    )


def find_row(situation: str | Sequence[AdviceRow], context: Context) -> AdviceRow:
    """The row that is chosen; the last row of a situation holds for any program.

    Raises:
        KeyError: The table has no such situation.
    """
    rows = _rows_by_situation()[situation] if isinstance(situation, str) else situation
    return next((row for row in rows if row.when.holds(context)), rows[-1])


@cache
def _rows_by_situation() -> dict[str, tuple[AdviceRow, ...]]:
    from perfdoctor.rules.advice.advice_table import TABLE  # its rows take 4 ms, which help and errors do without

    rows: dict[str, list[AdviceRow]] = {}
    for row in TABLE:
        rows.setdefault(row.situation, []).append(row)
    return {situation: tuple(found) for situation, found in rows.items()}


def _fill(text: str, known: dict[str, object]) -> str:
    for name, value in known.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _known_value(value: Any, known: dict[str, object]) -> Any:
    """The value of an action, or what the rule knows in place of "{name}"."""
    return known.get(value[1:-1], value) if isinstance(value, str) else value


def _name_release(row: AdviceRow, torch_version: str | None) -> str:
    """A sentence about the release that has the fix, where the program's is older or unknown."""
    if not row.since:
        return ""
    if row.since.startswith(_OF_PYTORCH) and torch_version is not None:
        if not is_older(torch_version, row.since.removeprefix(_OF_PYTORCH)):
            return ""
        return f" It needs {row.since}; this program has {torch_version}."
    return f" It needs {row.since}."
