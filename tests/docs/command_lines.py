"""Lines of a shell that call perfdoctor: what it gets of them, and whether its parser takes that."""

from __future__ import annotations

import re
import shlex

import click

from perfdoctor.cli.main import cli

SHELL_OPERATORS = (">", ">>", "<", "|", "&&")
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
        click.UsageError: The parser does not take them.
    """
    program, name, *arguments = typed_words(line)
    assert program == "perfdoctor", line
    find_command(name).make_context(name, arguments, parent=click.Context(cli))
    return name


def find_command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command
