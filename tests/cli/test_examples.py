"""Every command's --help ends in examples, and each of them can be typed: the parser takes it."""

from __future__ import annotations

import pytest
from command_lines import USAGE_ERROR, parse_line, typed_words
from typer.core import TyperCommand, TyperGroup

from perfdoctor.cli.main import COMMANDS, cli, load_command

WIDTH = 80


def examples_of(command: TyperCommand | TyperGroup) -> list[str]:
    """The lines below "Examples:" in the epilog."""
    lines = (command.epilog or "").split("\n")
    assert lines[:2] == ["", "Examples:"], f"{command.name} has no epilog of parameters.format_examples"
    return [line.strip() for line in lines[2:]]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_example_is_one_that_the_parser_takes(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = examples_of(load_command(name))
    assert lines
    assert [parse_line(line) for line in lines] == [name] * len(lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_stand_in_the_help_as_they_are_written(perfdoctor, name: str) -> None:
    printed = [line.rstrip() for line in perfdoctor(name, "--help").out.rstrip().splitlines()]
    assert [line.strip() for line in printed[printed.index(" Examples:") + 1 :]] == examples_of(load_command(name))
    assert max(map(len, printed)) <= WIDTH


def test_the_examples_of_all_commands_call_what_there_is() -> None:
    assert {parse_line(line) for line in examples_of(cli)} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("perfdoctor check  # once", ["perfdoctor", "check"]),
        ("perfdoctor analyze - < trace.json", ["perfdoctor", "analyze", "-"]),
        ("perfdoctor rules | grep 'needs facts' > x", ["perfdoctor", "rules"]),
        ("NO_COLOR=1 perfdoctor rules", ["perfdoctor", "rules"]),
    ],
)
def test_what_the_shell_takes_is_no_argument(line: str, words: list[str]) -> None:
    assert typed_words(line) == words


def test_an_example_that_cannot_be_typed_would_be_noticed() -> None:
    with pytest.raises(USAGE_ERROR, match="No such option"):
        parse_line("perfdoctor analyze trace.json --fial-on high")
