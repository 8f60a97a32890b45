"""The manual page of a rule, from its docstring, thresholds and references; and the catalogue in a line each."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping

from perfdoctor.errors import UsageError

_LIST_ITEM = re.compile(r"[-*] |\d+[.)] ")
# Findings of the engine itself, by id: the name and the manual page.
_ENGINE_FINDINGS = {
    "PD901": (
        "analyzer-failed",
        "A rule crashed; the others ran.\n\n"
        "The engine reports it in place of the rule's findings. It is a fault of that rule, not of the trace: please "
        "report it, with the trace if you can share it.",
    )
}


def manual_page(rule: str) -> str:
    """The manual page of a rule, by its id or its name.

    Raises:
        UsageError: No rule is called so.
    """
    from perfdoctor.rules.registry import load_analyzers
    from perfdoctor.rules.reserved_rules import RESERVED_RULES

    wanted = rule.strip()
    why_none = RESERVED_RULES.get(wanted.upper())
    if why_none is not None:
        return reflow(f"There is no rule {wanted.upper()}, and no other takes its id. {why_none}") + "\n"
    if wanted.upper() in _ENGINE_FINDINGS:
        name, text = _ENGINE_FINDINGS[wanted.upper()]
        return f"{wanted.upper()} {name}\n\n{text}\n"
    analyzers = load_analyzers()
    for analyzer in analyzers:
        if wanted.upper() == analyzer.rule or wanted.lower() == analyzer.name:
            text = analyzer.read_manual()
            return _format_page(analyzer.rule, analyzer.name, text, analyzer.defaults, analyzer.references)
    raise UsageError(_unknown_rule_message(wanted, [(a.rule, a.name) for a in analyzers]))


def catalogue() -> str:
    """Every rule in a line: the id, the name, and what it finds."""
    from perfdoctor.rules.registry import load_analyzers

    lines = [f"{a.rule} {a.name}: {a.read_manual().partition(chr(10))[0]}" for a in load_analyzers()]
    return "\n".join(lines) + "\n"


def _format_page(rule: str, name: str, text: str, defaults: Mapping[str, float], references: Iterable[str]) -> str:
    """A manual page: the docstring, the thresholds with their defaults, and the references."""
    parts = [f"{rule} {name}", reflow(text)]
    thresholds = [f"    {key} = {value:g}    (--set {rule}.{key}={value:g})" for key, value in defaults.items()]
    if thresholds:
        parts.append("\n".join(["Thresholds:", *thresholds]))
    links = [f"    {reference}" for reference in references]
    if links:
        parts.append("\n".join(["See also:", *links]))
    return "\n\n".join(parts) + "\n"


def reflow(text: str, width: int = 80) -> str:
    """A docstring in lines of `width`: paragraphs and indented blocks are filled again, items of lists stay apart."""
    blocks: list[tuple[str, list[str]]] = []  # indentation, and the lines without it
    previous = ""
    for line in text.splitlines():
        words = line.strip()
        indent = line[: len(line) - len(line.lstrip())]
        continues = blocks and words and previous and blocks[-1][0] == indent and not previous.endswith(":")
        if continues and not _LIST_ITEM.match(words):
            blocks[-1][1].append(words)
        else:
            blocks.append((indent, [words]))
        previous = words
    return "\n".join(
        textwrap.fill(" ".join(lines), width, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
        for indent, lines in blocks
    )


def _unknown_rule_message(wanted: str, rules: list[tuple[str, str]]) -> str:
    from difflib import get_close_matches

    labels = {alias.upper(): f"{rule} ({name})" for rule, name in rules for alias in (rule, name)}
    digits = wanted.upper().translate(str.maketrans("OIL", "011"))  # PD1O1
    if digits in labels:
        near = [labels[digits]]
    else:
        matches = get_close_matches(wanted.upper(), labels, n=3, cutoff=0.6)
        near = list(dict.fromkeys(labels[match] for match in matches))
    hint = f"did you mean {', '.join(near)}?" if near else "perfdoctor rules lists them"
    return f"no rule is called '{wanted}'; {hint}"
