"""The page of advice: the table as the rules use it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from perfdoctor.remedies.advice import Row
from perfdoctor.remedies.read_causes import read_all_rows

_INTRODUCTION = """\
# Advice

What perfdoctor says to do about a finding depends on what program it looks at: its phase, frameworks and parallelism,
the share of its kernels that is compiled or in graphs, its release of PyTorch and the generation of its device
(`context` in the report). Of the rows of a situation the first is taken whose conditions hold; the last one holds for
any program, and is what a program gets of which nothing is known. What is unknown meets no condition. A fix names the
release that has it where the program's is older or unknown.

A wrong fix is one row to change: in the file of `perfdoctor/remedies/causes/` that is named like the heading, with the
page or source that says so. The rule replaces `{words}` in braces. What a rule says alike to every program stands in
the rule, not here.
"""


def describe_table() -> str:
    """The page as Markdown."""
    return "\n".join((_INTRODUCTION, *_describe_situations()))


def _describe_situations() -> Iterator[str]:
    for situation, rows in groupby(read_all_rows(), key=lambda row: row.situation):
        yield f"## {situation[0].upper()}{situation[1:]}\n"
        yield "| program | advice | code | needs | source |\n|---|---|---|---|---|"
        yield from map(_describe_row, rows)
        yield ""


def _describe_row(row: Row) -> str:
    code = "<br>".join(f"`{line}`" for line in (row.code or "").splitlines())
    cells = (row.when.describe(), row.sentence, code, row.since, f"[source]({row.source})")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
