"""Pages of the commands: each from what Typer knows of it, which is what --help prints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import typer
from make_rule_pages import escape, own_changes
from typer.core import TyperCommand

from perfdoctor.cli.main import COMMANDS, cli, load_command
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
    rows = (f"| [{name}]({name}.md) | {escape(does)} |" for name, does in COMMANDS.items())
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
    command = load_command(name)
    context = typer.Context(command, info_name=name, parent=_CONTEXT)
    usage = f"perfdoctor {name} {' '.join(command.collect_usage_pieces(context))}"
    parts = [f"# perfdoctor {name}", f"```text\n{usage}\n```", escape(command.help or "")]
    parts += ["## Examples", f"```sh\n{inspect.cleandoc(_examples(command))}\n```", "## Arguments and options"]
    records = filter(None, (each.get_help_record(context) for each in command.get_params(context)))
    rows = [f"| `{left.strip()}` | {escape(right)} |" for left, right in records]
    return "\n\n".join((*parts, "| option | does |\n|---|---|\n" + "\n".join(rows))) + "\n"


def _examples(command: TyperCommand) -> str:
    """The lines of the epilog below its heading."""
    return (command.epilog or "").split("\n", 2)[-1]
