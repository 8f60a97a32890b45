"""The catalogue of tables: what `perfdoctor show` and `Report.table` can show, and how each is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from perfdoctor.data_rows import read_rows
from perfdoctor.errors import UsageError

if TYPE_CHECKING:
    from perfdoctor.analysis.communication.collectives import CollectiveTable
    from perfdoctor.rank import Rank
    from perfdoctor.report.table import Table


class TableSpec(NamedTuple):
    """One kind of table.

    Attributes:
        title: What its rows are, in a line.
        by: What they can be grouped by; the first one unless another is asked for.
        builder: The function that makes it of a rank and a `by`, as "module:function": it is imported when it is used.
    """

    title: str
    by: tuple[str, ...]
    builder: str


TABLES: Mapping[str, TableSpec] = {
    row["name"]: TableSpec(row["title"], tuple(row["by"].split()), f"{__package__}.{row['module']}:{row['builder']}")
    for row in read_rows("tables/tables.csv")
}
"""Every table by its name, in the order in which they are listed."""
COMPARING_RANKS = frozenset({"collectives"})
"""The tables that say more where the other ranks are known, too."""


def check_table(name: str, by: str | None = None) -> str:
    """What the rows of a table are grouped by: `by`, or its default.

    Raises:
        UsageError: There is no such table, or it cannot be grouped so.
    """
    if name not in TABLES:
        from difflib import get_close_matches

        near = get_close_matches(name, TABLES, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UsageError(f"there is no table '{name}'; {hint}the tables are {', '.join(TABLES)}")
    choices = TABLES[name].by
    if by is None:
        return choices[0]
    if by not in choices:
        ways = f"it can be grouped by {', '.join(choices)}" if len(choices) > 1 else f"its rows are by {choices[0]}"
        raise UsageError(f"the table of {name} cannot be grouped by '{by}'; {ways}")
    return by


def build_table(rank: Rank, name: str, by: str | None = None, peers: Sequence[CollectiveTable] = ()) -> Table:
    """A table of a rank, sorted as suits it.

    Args:
        rank: The rank.
        name: One of `TABLES`.
        by: What to group by; None for what is usual.
        peers: The collectives of all ranks, its own among them, where several are known: for what compares ranks.

    Raises:
        UsageError: There is no such table, or it cannot be grouped so.
    """
    by = check_table(name, by)
    module, _, function = TABLES[name].builder.partition(":")
    build = getattr(import_module(module), function)
    table: Table = build(rank, by, peers) if name in COMPARING_RANKS else build(rank, by)
    return table
