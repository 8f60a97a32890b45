"""Where the time goes by kernel and op: the first rows of tables, whatever was found. Values only, no layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from perfdoctor.gpu.kernel_names import name_kernels, short_kernel_name
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_line, shorten
from perfdoctor.reporters.place_text import describe_calls
from perfdoctor.reporters.report_facts import has_gpu, per_step_suffix
from perfdoctor.units import format_duration, format_share

FEW_ROWS, MAX_ROWS = 3, 10
_KERNEL_WIDTH = 36
# A smaller share of the step is not shown: the same 1 % from which a finding counts as low.
_MIN_SHARE = 0.01


class TopRow(NamedTuple):
    """A kernel or an op: its share of the step and its time as text, its name, and what it does."""

    share: str
    time: str
    name: str
    what: str


class TopTable(NamedTuple):
    """The heading of a table, and its rows, the longest first."""

    title: str
    rows: tuple[TopRow, ...]


def top_tables(report: Report, *, in_full: bool) -> list[TopTable]:
    """The ops with the most own time, in full the kernels, too; without those that were not recorded."""
    device = "GPU time" if has_gpu(report) else "own time"
    step = "a step" if per_step_suffix(report) else "the trace"
    tables = [
        TopTable(f"Kernels with the most time in {step}", _kernel_rows(report) if in_full else ()),
        TopTable(f"Ops with the most {device} in {step}", _rows(report, "ops", _describe_op)),
    ]
    rows = MAX_ROWS if in_full else FEW_ROWS
    return [table._replace(rows=table.rows[:rows]) for table in tables if table.rows]


def _rows(report: Report, name: str, describe: Callable[[Mapping[str, Any]], tuple[str, str]]) -> tuple[TopRow, ...]:
    rows = [row for row in report.tables.get(name, ()) if (row["share"] or 0) >= _MIN_SHARE]
    return tuple(TopRow(format_share(row["share"]), format_duration(row["step_ns"]), *describe(row)) for row in rows)


def _kernel_rows(report: Report) -> tuple[TopRow, ...]:
    names = name_kernels([str(row["name"]) for row in report.tables.get("kernels", ())])
    return _rows(report, "kernels", partial(_describe_kernel, name_of=names))


def _describe_kernel(row: Mapping[str, Any], *, name_of: Mapping[str, str]) -> tuple[str, str]:
    of_peak = row["peak_share"]
    what = str(row["category"]) if of_peak is None else f"{format_share(of_peak)} of peak"
    count = describe_calls(row["count"]).strip()
    return shorten(clean_line(name_of[str(row["name"])]), _KERNEL_WIDTH), f"{count}, {what}" if count else what


def _describe_op(row: Mapping[str, Any]) -> tuple[str, str]:
    return clean_line(short_kernel_name(str(row["name"]))), describe_calls(row["count"]).strip()
