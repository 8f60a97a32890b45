"""The first rows of the tables that stand in every report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from perfdoctor.analysis.timeline.own_time import LOADER, ZERO_GRAD
from perfdoctor.rank import Rank
from perfdoctor.report.report import TABLES
from perfdoctor.report.table import Table
from perfdoctor.report.table_rows import MAX_ROWS, CollectiveRow, KernelRow, ModuleRow, OpRow
from perfdoctor.tables.catalog import build_table

ReportRows: TypeAlias = dict[str, tuple[Mapping[str, Any], ...]]


def report_tables(rank: Rank, names: Collection[str] = TABLES) -> ReportRows:
    """The kernels, ops, modules, collectives and lines that take most of a step: those of the tables that are named.

    Modules are those with the most own time: those around them take as long. Lines are the first places.
    """
    return {name: _lines(rank) if name == "lines" else _rows_of(_build(rank, name)) for name in names}


def _build(rank: Rank, name: str) -> Table:
    table = build_table(rank, name)
    return table.sort("own_ns") if name == "modules" and len(table) else table


_ROW = {"kernels": KernelRow, "ops": OpRow, "modules": ModuleRow, "collectives": CollectiveRow}


def _rows_of(table: Table) -> tuple[Mapping[str, Any], ...]:
    """The first rows with the columns that stand in a report, without those that take no time."""
    columns = _ROW[table.name].__annotations__
    return tuple({name: row[name] for name in columns} for row in table.top(MAX_ROWS).rows if row["step_ns"])


def _lines(rank: Rank) -> tuple[Mapping[str, Any], ...]:
    places = rank.places
    lines = [row for row in places.rows() if row.kind == "line" and row.ns][:MAX_ROWS]
    return tuple(
        {
            "file": each.file,
            "line": each.line,
            "function": each.function,
            "part": _PARTS.get(places.main_phase_of(each.name)),
            "source": None,
            "step_ns": each.ns,
            "share": each.share,
        }
        for each in lines
    )


_PARTS = {"loader": LOADER, "zero_grad": ZERO_GRAD, **{name: name for name in ("optimizer", "backward", "forward")}}
