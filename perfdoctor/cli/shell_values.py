"""What a shell fills in for the values of arguments and options: files, rules, changes, tables.

It asks at each press of a key, so that no rule is loaded: entry points have the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# The variable in which a shell asks what can follow; `perfdoctor completion` prints the function that sets it.
COMPLETION_REQUEST = "_PERFDOCTOR_COMPLETE"
_FAMILY_LENGTH = 3  # "PD1" of "PD101"


def complete_files(ctx: click.Context, param: click.Parameter | None, incomplete: str) -> list[CompletionItem[str]]:
    """Files and folders: the shell looks for them itself."""
    del ctx, param
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_rule(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Rules by the beginning of their ids, in either case."""
    del ctx, param
    return _match(_read_names("perfdoctor.analyzers"), incomplete.upper())


def complete_rules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Rules and families, where those before the last comma stand already."""
    del ctx, param
    before, comma, last = incomplete.rpartition(",")
    rules = _read_names("perfdoctor.analyzers")
    families = {(rule[:_FAMILY_LENGTH], "all rules that start so") for rule, _ in rules}
    return _match(sorted({*families, *rules}), last.upper(), before + comma)


def complete_changes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Changes of `perfdoctor try`, where those before the last comma stand already."""
    del ctx, param
    before, comma, last = incomplete.rpartition(",")
    return _match(_read_names("perfdoctor.changes"), last, before + comma)


def complete_tables(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Tables of `perfdoctor show`."""
    del ctx, param
    from perfdoctor.tables.catalog import TABLES

    return _match(((name, table.title) for name, table in TABLES.items()), incomplete)


def _read_names(group: str) -> list[tuple[str, str]]:
    """The names of entry points, and what their classes are called."""
    from importlib.metadata import entry_points

    return sorted((point.name, point.attr) for point in entry_points(group=group))


def _match(values: Iterable[tuple[str, str]], start: str, prefix: str = "") -> list[CompletionItem[str]]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(prefix + value, help=note) for value, note in values if value.startswith(start)]
