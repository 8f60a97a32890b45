"""Where the time goes by kernel, op and line: the first rows of tables, whatever was found. Values only, no layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.gpu.kernel_names import name_kernels, short_kernel_name
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_line, shorten
from perfdoctor.reporters.report_facts import has_gpu, per_step_suffix
from perfdoctor.units import format_duration, format_share

FEW_ROWS, MAX_ROWS = 3, 10
_KERNEL_WIDTH = 36
# A smaller share of the step is not shown: the same 1 % from which a finding counts as low.
_MIN_SHARE = 0.01


class TopRow(NamedTuple):
    """A kernel, an op or a line: its share of the step and its time as text, its name, and what it does."""

    share: str
    time: str
    name: str
    what: str


class TopTable(NamedTuple):
    """The heading of a table, and its rows, the longest first."""

    title: str
    rows: tuple[TopRow, ...]


def top_tables(report: Report, *, in_full: bool) -> list[TopTable]:
    """The ops and the lines with the most own time, in full the kernels, too; without those that were not recorded."""
    device = "GPU time" if has_gpu(report) else "own time"
    step = "a step" if per_step_suffix(report) else "the trace"
    lines = f"Lines with the most {'GPU ' if has_gpu(report) else ''}time in {step}"
    tables = [
        TopTable(f"Kernels with the most time in {step}", _kernel_rows(report) if in_full else ()),
        TopTable(f"Ops with the most {device} in {step}", _rows(report, "ops", _describe_op)),
        TopTable(lines, _rows(report, "lines", partial(_describe_line, name_of=_short_names(report)))),
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
    count = _describe_count(row["count"])
    return shorten(clean_line(name_of[str(row["name"])]), _KERNEL_WIDTH), f"{count}, {what}" if count else what


def _describe_op(row: Mapping[str, Any]) -> tuple[str, str]:
    return clean_line(short_kernel_name(str(row["name"]))), _describe_count(row["count"])


def _describe_count(count: float | None) -> str:
    if count is None:
        return ""
    if count < 0.95:
        return f"once in {1 / count:.0f} steps" if count else ""
    return f"{count:,.0f} times" if count >= 1.5 else "once"


def _short_names(report: Report) -> Mapping[str, str]:
    """The files of the lines by names without folders, which leaves room for the text; two of one name stay long."""
    files = {str(row["file"]) for row in report.tables.get("lines", ())}
    names = Counter(SourceLocation(file).file_name for file in files)
    return {file: name if names[name] == 1 else file for file in files for name in (SourceLocation(file).file_name,)}


def _describe_line(row: Mapping[str, Any], *, name_of: Mapping[str, str]) -> tuple[str, str]:
    place = str(SourceLocation(name_of[str(row["file"])], row["line"]))
    text = row["source"] or (f"in {row['function']}" if row["function"] and row["function"] != "<module>" else "")
    part = str(row["part"] or "")
    return clean_line(place), clean_line(text if text else part)


def largest_op(report: Report) -> tuple[str, float] | None:
    """The op with the most own time and its share of the step; None where no op was recorded."""
    row = next(iter(report.tables.get("ops", ())), None)
    return None if row is None else (clean_line(short_kernel_name(str(row["name"]))), float(row["share"]))
