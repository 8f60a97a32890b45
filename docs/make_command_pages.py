"""Pages of the commands: each from what click knows of it, which is what --help prints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from make_rule_pages import escape, own_changes

from perfdoctor.cli.main import COMMANDS, cli
from perfdoctor.tables.catalog import TABLES

_NEEDS = {"": "", "cuda": "a GPU", "ranks": "several ranks"}
_CONTEXT = cli.make_context("perfdoctor", [], resilient_parsing=True)


def make_pages() -> Iterator[tuple[str, str]]:
    """Yield the address and the Markdown of each command's page."""
    for name in COMMANDS:
        yield f"commands/{name}.md", describe_command(name)


def make_menu() -> list[object]:
    """The menu of the commands."""
    return [{name: f"commands/{name}.md"} for name in COMMANDS]


def describe_commands() -> str:
    """All commands as a table."""
    rows = (
        f"| [{name}]({name}.md) | {escape(find_command(name).get_short_help_str(limit=200))} |" for name in COMMANDS
    )
    return "\n".join(("| command | does |\n|---|---|", *rows))


def describe_changes() -> str:
    """What `perfdoctor try` can try, as a table."""
    rows = []
    for each in own_changes():
        rules = ", ".join(f"[{rule}](rules/{rule}.md)" for rule in each.rules)
        effect = f"numerics: {each.effect_on_results}" if each.alters_numerics else each.effect_on_results
        rows.append(f"| `{each.name}` | {escape(each.summary)} | {rules} | {_NEEDS[each.needs]} | {escape(effect)} |")
    return "\n".join(("| change | does | advised by | needs | may change in results |\n|---|---|---|---|---|", *rows))


def describe_tables() -> str:
    """What `perfdoctor show` can show, as the rows of a table."""
    rows = (f"| `{name}` | {escape(table.title)} | {', '.join(table.by)} |" for name, table in TABLES.items())
    return "\n".join(rows)


def describe_command(name: str) -> str:
    """The page of one command: its usage, its text, its examples, its options."""
    command = find_command(name)
    context = click.Context(command, info_name=name, parent=_CONTEXT)
    usage = f"perfdoctor {name} {' '.join(command.collect_usage_pieces(context))}"
    parts = [f"# perfdoctor {name}", f"```text\n{usage}\n```", _describe_text(command.help or "")]
    parts += ["## Examples", f"```sh\n{inspect.cleandoc(_examples(command))}\n```", "## Options"]
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    records = filter(None, (option.get_help_record(context) for option in options))
    rows = [f"| `{left}` | {escape(right)} |" for left, right in records]
    return "\n\n".join((*parts, "| option | does |\n|---|---|\n" + "\n".join(rows))) + "\n"


def find_command(name: str) -> click.Command:
    """The command of a name."""
    command = cli.get_command(_CONTEXT, name)
    assert command is not None, name
    return command


def _examples(command: click.Command) -> str:
    """The lines of the epilog below its mark and its heading."""
    return (command.epilog or "").split("\n", 2)[-1]


def _describe_text(text: str) -> str:
    """The text of --help as Markdown: a paragraph after click's mark keeps its lines."""
    blocks = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        f"```text\n{inspect.cleandoc(block[1:])}\n```" if block.startswith("\b") else escape(block) for block in blocks
    )
