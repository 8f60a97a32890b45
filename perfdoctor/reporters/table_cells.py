"""The values of tables in words, by their units: the same on a terminal, in Markdown, in a notebook and on the page."""

from __future__ import annotations

from collections.abc import Mapping

from perfdoctor import units
from perfdoctor.gpu.kernel_names import name_kernels
from perfdoctor.report.table import Cell, Column, Unit
from perfdoctor.reporters.clean_text import clean_line

# Rates stand in one unit in a column.
_RATES: Mapping[Unit, tuple[str, float]] = {"flops_per_s": ("TFLOP/s", 1e12), "bytes_per_s": ("GB/s", 1e9)}
_OF_KERNELS = ("kernel", "op")


def format_cell(unit: Unit, value: Cell) -> str:
    """One value of a column of that unit as people read it: "43.1 ms", "44%", "312 TFLOP/s"; "n/a" for None."""
    if value is None:
        return units.UNKNOWN
    if isinstance(value, str):
        return clean_line(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _FORMATS.get(unit, units.format_number)(value)


_FORMATS = {
    "ns": units.format_duration,
    "bytes": units.format_size,
    "bytes_per_s": lambda value: f"{units.format_size(value)}/s",
    "flops": units.format_flops,
    "flops_per_s": units.format_flops_rate,
    "share": units.format_share,
}


def heading_of(column: Column) -> str:
    """What stands above a column: its title, with the unit of a rate, which then stands once: "bus GB/s"."""
    if column.unit not in _RATES:
        return column.title
    unit = _RATES[column.unit][0]
    return unit if column.title in unit else f"{column.title} {unit}"


def format_column(column: Column, *, below_unit: bool = False) -> list[str]:
    """The values of a column as people read them: kernels by their short names.

    With `below_unit` the heading above them (`heading_of`) has the unit of rates.
    """
    if below_unit and column.unit in _RATES:
        factor = _RATES[column.unit][1]
        return [
            units.UNKNOWN if value is None else units.three_digits(float(value) / factor) for value in column.values
        ]
    if column.unit == "text" and (column.name in _OF_KERNELS or column.title in _OF_KERNELS):
        names = name_kernels([value for value in column.values if isinstance(value, str)])
        return [clean_line(names[value]) if isinstance(value, str) else units.UNKNOWN for value in column.values]
    return [format_cell(column.unit, value) for value in column.values]


def is_number(column: Column) -> bool:
    """Whether the values of a column are numbers, which stand below each other by their last digit."""
    return column.unit not in ("text", "bool")
