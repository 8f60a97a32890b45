"""`perfdoctor explain`: one rule's manual page."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Annotated

import typer

from perfdoctor.errors import UsageError
from perfdoctor.reporters.output import emit

_ITEM = re.compile(r"[-*] |\d+[.)] ")
_OWN = {
    "PD901": (
        "analyzer-failed",
        "A rule crashed; the others ran.\n\n"
        "The engine reports it in place of the rule's findings. It is a fault of that rule, not of the trace: please "
        "report it, with the trace if you can share it.",
    )
}


def explain(rule: Annotated[str, typer.Argument(metavar="RULE", help="A rule's id or name, such as PD201.")]) -> None:
    """Tell one rule in full: what it finds, how it is measured, how to fix it, when it is wrong."""
    from perfdoctor.rules.registry import registered

    wanted = rule.strip()
    if wanted.upper() in _OWN:
        name, text = _OWN[wanted.upper()]
        emit(f"{wanted.upper()} {name}\n\n{text}\n")
        return
    known = registered()
    for analyzer in known:
        if wanted.upper() == analyzer.rule or wanted.lower() == analyzer.name:
            emit(
                page(
                    analyzer.rule, analyzer.name, inspect.getdoc(analyzer) or "", analyzer.defaults, analyzer.references
                )
            )
            return
    raise UsageError(_unknown(wanted, [(a.rule, a.name) for a in known]))


def page(rule: str, name: str, text: str, defaults: object, references: Iterable[str]) -> str:
    """A manual page: the docstring, the thresholds with their defaults, and the references."""
    parts = [f"{rule} {name}", reflowed(text)]
    if isinstance(defaults, dict) or hasattr(defaults, "items"):
        lines = [f"    {key} = {value:g}    (--set {rule}.{key}={value:g})" for key, value in defaults.items()]
        if lines:
            parts.append("\n".join(["Thresholds:", *lines]))
    links = [f"    {reference}" for reference in references]
    if links:
        parts.append("\n".join(["See also:", *links]))
    return "\n\n".join(parts) + "\n"


def reflowed(text: str, width: int = 80) -> str:
    """A docstring for a terminal: lines of one paragraph and indentation are filled anew, items of lists stay apart."""
    blocks: list[tuple[str, list[str]]] = []
    previous = ""
    for line in text.splitlines():
        words = line.strip()
        indent = line[: len(line) - len(line.lstrip())]
        goes_on = blocks and words and previous and blocks[-1][0] == indent and not previous.endswith(":")
        if goes_on and not _ITEM.match(words):
            blocks[-1][1].append(words)
        else:
            blocks.append((indent, [words]))
        previous = words
    return "\n".join(
        textwrap.fill(" ".join(lines), width, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
        for indent, lines in blocks
    )


def _unknown(wanted: str, known: list[tuple[str, str]]) -> str:
    from difflib import get_close_matches

    names = {alias.upper(): f"{rule} ({name})" for rule, name in known for alias in (rule, name)}
    near = list(dict.fromkeys(names[match] for match in get_close_matches(wanted.upper(), names, n=3, cutoff=0.6)))
    hint = f"did you mean {', '.join(near)}?" if near else "perfdoctor rules lists them"
    return f"no rule is called '{wanted}'; {hint}"
