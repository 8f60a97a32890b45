"""The first rows of the tables that stand in every report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

from perfdoctor.rank import Rank
from perfdoctor.report.report import TABLES
from perfdoctor.report.table import Table
from perfdoctor.tables.collectives_table import collectives_table
from perfdoctor.tables.kernels import kernels_table
from perfdoctor.tables.modules import modules_table
from perfdoctor.tables.ops import ops_table

ReportTables: TypeAlias = dict[str, tuple[Mapping[str, Any], ...]]

MAX_ROWS = 10
"""Rows of each in the JSON report: the largest; `perfdoctor show` has them all."""

_COLUMNS = {
    "kernels": (
        *("name", "count", "step_ns", "share", "mean_ns", "category", "op", "peak_share", "bound", "tensor_core"),
        *("flops_per_s", "bytes_per_s"),
    ),
    "ops": ("name", "count", "step_ns", "share", "category"),
    "modules": ("name", "path", "count", "step_ns", "share", "own_ns", "forward_ns", "backward_ns", "idle_ns", "flops"),
    "collectives": (
        *("name", "count", "step_ns", "share", "mean_ns", "exposed_ns", "group", "ranks", "dtype", "bytes"),
        *("algorithm_bytes_per_s", "bus_bytes_per_s"),
    ),
}


def report_tables(rank: Rank, names: Collection[str] = TABLES) -> ReportTables:
    """The kernels, ops, modules, collectives and lines that take most of a step: those of the tables that are named.

    Modules are those with most own time: those around them take as long. A line has the share of a step that it has in
    the evidence window.
    """
    return {name: _lines(rank) if name == "lines" else _rows_of(_MAKERS[name](rank)) for name in names}


def _modules(rank: Rank) -> Table:
    modules = modules_table(rank, "module")
    return modules.sort("own_ns") if len(modules) else modules


_MAKERS: Mapping[str, Callable[[Rank], Table]] = {
    "kernels": partial(kernels_table, by="name"),
    "ops": partial(ops_table, by="name"),
    "modules": _modules,
    "collectives": partial(collectives_table, by="kind"),
}


def _rows_of(table: Table) -> tuple[Mapping[str, Any], ...]:
    """The first rows with the columns that stand in a report, without those that take no time."""
    columns = _COLUMNS[table.name]
    return tuple({name: row[name] for name in columns} for row in table.top(MAX_ROWS).rows if row["step_ns"])


def _lines(rank: Rank) -> tuple[Mapping[str, Any], ...]:
    """The lines with most time, among those of some instants: a table of all of them takes longer."""
    step_ns = rank.mean_step_ns
    return tuple(
        {
            "file": each.location.file,
            "line": each.location.line,
            "function": each.location.function,
            "part": each.name or None,
            "source": None,
            "step_ns": round(each.share * step_ns),
            "share": each.share,
        }
        for each in rank.top_lines
    )
