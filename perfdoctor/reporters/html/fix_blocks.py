"""The fix of a finding as the page shows it: a command, or a diff against the source line."""

from __future__ import annotations

import re
from typing import NamedTuple

from perfdoctor.report.finding import SOURCE_LINE, Finding
from perfdoctor.reporters.clean_text import clean_block, clean_line

# What a command line starts with: a setting of the environment, or a program that one calls by name.
_COMMAND = re.compile(
    r"(?:[A-Z][A-Z0-9_]*=\S* )|(?:env|export|python3?|torchrun|perfdoctor|pip|nsys|vllm|sudo|numactl) "
)
_CALLED = re.compile(r"([A-Za-z_]\w*)\(")


class FixLine(NamedTuple):
    """A line of a fix: "-" goes, "+" comes, " " stays, "$" is typed in a shell."""

    mark: str
    text: str


class FixBlock(NamedTuple):
    """A fix.

    Attributes:
        kind: "command" or "diff".
        place: The line that the diff is about; "" where it is not known.
        lines: What is shown.
        text: What the button copies.
    """

    kind: str
    place: str
    lines: tuple[FixLine, ...]
    text: str


def fix_block(finding: Finding) -> FixBlock | None:
    """The fix of a finding; None where it has none.

    The source line goes (-) where the fix calls the same function, and stays where it stands for what is to be added.
    """
    if not finding.fix:
        return None
    text = clean_block(finding.fix)
    lines = text.split("\n")
    if _COMMAND.match(text):
        return FixBlock("command", "", tuple(FixLine("$", line) for line in lines), text)
    place = clean_line(str(finding.location)) if finding.location else ""
    source = source_line(finding)
    before = (FixLine("-" if _calls_same(source, text) else " ", source),) if source else ()
    return FixBlock("diff", place, (*before, *(FixLine("+", line) for line in lines)), text)


def source_line(finding: Finding) -> str | None:
    """The text of the finding's source line; None where it could not be read."""
    found = finding.find_evidence(SOURCE_LINE)
    return clean_line(found) if isinstance(found, str) else None


def _calls_same(source: str, fix: str) -> bool:
    """Whether the first function that the fix calls is one that the source line calls: then it takes its place."""
    called = _CALLED.search(fix)
    return called is not None and called.group(1) in _CALLED.findall(source)
