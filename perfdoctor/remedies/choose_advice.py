"""The choice of advice: the first row of a situation whose conditions the program meets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfdoctor.analysis.context.context import Context
from perfdoctor.remedies.advice import Advice, Row, is_older
from perfdoctor.remedies.read_causes import read_common_row, read_rows

_OF_PYTORCH = "PyTorch "


def advise(situation: str | Sequence[Row], context: Context, **known: object) -> Advice:
    """What to do in a situation in a program.

    Args:
        situation: As a file in `causes/` names it; or rows of your own, as `rows_of` makes them; the last must be for
            any program.
        context: What program it is.
        known: What the rule knows, which replaces `{name}` in the texts.

    Raises:
        KeyError: There is no such situation.
    """
    row = find_row(situation, context)
    advice = _fill_row(row, known)
    return advice._replace(sentence=advice.sentence + _name_release(row, context.torch_version))


def read_advice(name: str, **known: object) -> Advice:
    """What to do about a cause alike in every program: a row of `texts/advice.toml`.

    Args:
        name: Of the row.
        known: What the rule knows, which replaces `{name}` in the texts.

    Raises:
        KeyError: There is no such row.
    """
    return _fill_row(read_common_row(name), known)


def find_row(situation: str | Sequence[Row], context: Context) -> Row:
    """The row that is chosen; the last row of a situation holds for any program.

    Raises:
        KeyError: There is no such situation.
    """
    rows = read_rows(situation) if isinstance(situation, str) else situation
    return next((row for row in rows if row.when.holds(context)), rows[-1])


def _fill_row(row: Row, known: dict[str, object]) -> Advice:
    return Advice(
        _fill(row.sentence, known),
        None if row.code is None else _fill(row.code, known),
        row.source,
        tuple(replace(each, value=_known_value(each.value, known)) for each in row.actions),
    )


def _fill(text: str, known: dict[str, object]) -> str:
    for name, value in known.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _known_value(value: Any, known: dict[str, object]) -> Any:
    """The value of an action, or what the rule knows in place of "{name}"."""
    return known.get(value[1:-1], value) if isinstance(value, str) else value


def _name_release(row: Row, torch_version: str | None) -> str:
    """A sentence about the release that has the fix, where the program's is older or unknown."""
    if not row.since:
        return ""
    if row.since.startswith(_OF_PYTORCH) and torch_version is not None:
        if not is_older(torch_version, row.since.removeprefix(_OF_PYTORCH)):
            return ""
        return f" It needs {row.since}; this program has {torch_version}."
    return f" It needs {row.since}."
