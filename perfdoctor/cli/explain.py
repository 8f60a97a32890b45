"""`perfdoctor explain`: the manual page of one rule."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping

import click

from perfdoctor.cli import parameters
from perfdoctor.cli.shell_values import complete_rule
from perfdoctor.errors import UsageError
from perfdoctor.reporters.output import write_stdout

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


@click.command(
    short_help="Explain one rule in full.",
    epilog=parameters.format_examples(
        "perfdoctor explain PD101",
        "perfdoctor explain host-device-sync",
    ),
)
@click.argument("rule", metavar="RULE", shell_complete=complete_rule)
def explain(rule: str) -> None:
    """Explain one rule in full: what it finds, how it is measured, how to fix it, when it is wrong.

    RULE is the id or the name of a rule, such as PD201.
    """
    from perfdoctor.rules.registry import load_analyzers

    wanted = rule.strip()
    if wanted.upper() in _ENGINE_FINDINGS:
        name, text = _ENGINE_FINDINGS[wanted.upper()]
        write_stdout(f"{wanted.upper()} {name}\n\n{text}\n")
        return
    analyzers = load_analyzers()
    for analyzer in analyzers:
        if wanted.upper() == analyzer.rule or wanted.lower() == analyzer.name:
            text = inspect.getdoc(analyzer) or ""
            write_stdout(format_page(analyzer.rule, analyzer.name, text, analyzer.defaults, analyzer.references))
            return
    raise UsageError(_unknown_rule_message(wanted, [(a.rule, a.name) for a in analyzers]))


def format_page(rule: str, name: str, text: str, defaults: Mapping[str, float], references: Iterable[str]) -> str:
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
    near = list(dict.fromkeys(labels[match] for match in get_close_matches(wanted.upper(), labels, n=3, cutoff=0.6)))
    hint = f"did you mean {', '.join(near)}?" if near else "perfdoctor rules lists them"
    return f"no rule is called '{wanted}'; {hint}"
