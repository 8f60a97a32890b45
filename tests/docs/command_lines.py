"""Lines of a shell that call perfdoctor: what it gets of them, and whether its parser takes that."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer

from perfdoctor.cli.main import cli, load_command

SHELL_OPERATORS = (">", ">>", "<", "|", "&&")
# What the parser raises: the base of what Typer makes public.
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
_ASSIGNMENT = re.compile(r"\w+=\S*")


def typed_words(line: str) -> list[str]:
    """The words of the call: no comment, no variable in front of it, nothing of what the shell takes."""
    words = shlex.split(line, comments=True)
    while words and _ASSIGNMENT.fullmatch(words[0]):
        del words[0]
    return words[: min((words.index(each) for each in SHELL_OPERATORS if each in words), default=None)]


def parse_line(line: str) -> str:
    """The command that a line calls, once the parser has taken its arguments; nothing is run.

    Raises:
        USAGE_ERROR: The parser does not take them.
    """
    program, name, *arguments = typed_words(line)
    assert program == "perfdoctor", line
    load_command(name).make_context(name, arguments, parent=typer.Context(cli))
    return name
