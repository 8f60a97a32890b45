"""A Guide as text, Markdown or JSON, to standard output or to a file."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

import orjson

from perfdoctor.field_guide.guide_answers import ANSWER_KINDS, Guide, GuideAnswer
from perfdoctor.field_guide.guide_table import ROWS
from perfdoctor.reporters.clean_text import clean_line, shorten_end
from perfdoctor.reporters.escape_markdown import escape
from perfdoctor.reporters.json_ import render_plain
from perfdoctor.reporters.output import find_suffix, save_text, write_stdout
from perfdoctor.reporters.write_report import terminal_for

GUIDE_SUFFIXES = (".json", ".md", ".txt")
guide_suffix_of = partial(find_suffix, suffixes=GUIDE_SUFFIXES, what="a guide's file")
_WIDTH = 80
_INDENT = " " * 5
_BOLD, _RESET = "\033[1m", "\033[0m"
_HEADINGS = {
    "applies": "Applies",
    "done already": "Done already",
    "does not apply": "Does not apply",
    "cannot tell": "Cannot tell from this recording",
}
_ROW_OF = {row.number: row for row in ROWS}


def save_guide(guide: Guide, path: str | os.PathLike[str], kinds: Sequence[str] = ()) -> None:
    """Write a guide; the suffix decides the format: .json, which has all answers, .md or .txt.

    The file appears whole or not at all. It has the answers of some kinds, of all where none is named.

    Raises:
        UsageError: The suffix is another one.
        InputError: The file cannot be written.
    """
    save_text(path, render_guide(guide, guide_suffix_of(path), kinds))


def print_guide(guide: Guide, *, color: bool | None = None, verbosity: int = 0, kinds: Sequence[str] = ()) -> None:
    """Print a guide to standard output; see `terminal_for` for the colour."""
    terminal = terminal_for(sys.stdout, color=color)
    lines = _text_lines(guide, kinds, terminal.width, verbosity, color=terminal.color)
    write_stdout("\n".join(lines) + "\n")


def render_guide(guide: Guide, suffix: str, kinds: Sequence[str] = (), verbosity: int = 0) -> str:
    """The guide as the text that belongs to one of GUIDE_SUFFIXES."""
    if suffix == ".json":
        return render_plain(guide.to_dict())
    if suffix == ".md":
        return "\n".join(_markdown_lines(guide, kinds)) + "\n"
    return "\n".join(_text_lines(guide, kinds, _WIDTH, verbosity)) + "\n"


def load_guide_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a guide, as plain data."""
    schema: dict[str, Any] = orjson.loads(files("perfdoctor.field_guide").joinpath("guide.schema.json").read_bytes())
    return schema


def _groups(guide: Guide, kinds: Sequence[str]) -> Iterator[tuple[str, list[GuideAnswer]]]:
    """The answers by kind, in the order of ANSWER_KINDS; kinds without an answer are left out."""
    for kind in ANSWER_KINDS:
        answers = [answer for answer in guide.select(*kinds) if answer.answer == kind]
        if answers:
            yield _HEADINGS[kind], answers


def _text_lines(
    guide: Guide, kinds: Sequence[str], width: int, verbosity: int = 0, *, color: bool = False
) -> Iterator[str]:
    yield from textwrap.wrap(clean_line(guide.program), width)
    yield ""
    yield from textwrap.wrap(f"The field guide: {guide.summary}", width)
    for heading, answers in _groups(guide, kinds):
        yield ""
        title = f"{heading} ({len(answers)})"
        yield f"{_BOLD}{title}{_RESET}" if color else title
        first_with: dict[str, int] = {}
        for answer in answers:
            first = first_with.setdefault(answer.why, answer.number)
            why = answer.why if first == answer.number or len(answer.why) < width else f"as in row {first}"
            yield from _answer_lines(answer, clean_line(why), width, verbosity)


def _answer_lines(answer: GuideAnswer, why: str, width: int, verbosity: int) -> Iterator[str]:
    number = f"{answer.number:>3}  "
    if verbosity < 0:
        yield f"{number}{shorten_end(why, width - len(number))}"
        return
    yield from textwrap.wrap(answer.advice, width, initial_indent=number, subsequent_indent=_INDENT)
    yield from textwrap.wrap(f"-> {why}", width, initial_indent=_INDENT, subsequent_indent=f"{_INDENT}   ")
    if verbosity > 0:
        for line in _details(answer):
            yield from textwrap.wrap(line, width, initial_indent=_INDENT, subsequent_indent=f"{_INDENT}  ")


def _details(answer: GuideAnswer) -> Iterator[str]:
    """Who says so, what checks it, and what has changed since."""
    row = _ROW_OF[answer.number]
    yield f"says: {'; '.join(answer.sources)}"
    yield f"checked by: {', '.join((*answer.rules, *filter(None, [row.checked_by])))}; needs {row.needs}"
    if row.since:
        yield f"since then: {row.since}"


def _markdown_lines(guide: Guide, kinds: Sequence[str]) -> Iterator[str]:
    yield "# Field guide\n"
    yield f"{escape(clean_line(guide.program))}\n"
    yield guide.summary
    for heading, answers in _groups(guide, kinds):
        yield f"\n## {heading} ({len(answers)})\n"
        yield "| row | advice | answer | rules |\n|---|---|---|---|"
        for answer in answers:
            cells = (str(answer.number), answer.advice, clean_line(answer.why), ", ".join(answer.rules))
            yield f"| {' | '.join(escape(cell) for cell in cells)} |"
