"""The rows of the table of devices: those that come with perfdoctor, and those of a user's own file, which come first.

The user's file is the one that PERFDOCTOR_DEVICES names, else `devices.csv` in the user's data folder, beside the
calibrations. It has the columns of `data/devices.csv`, in any order; `name`, `vendor` and `source` must be there.
"""

from __future__ import annotations

import csv
import functools
import math
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from perfdoctor.data_rows import read_rows
from perfdoctor.errors import UsageError

FILE_VARIABLE = "PERFDOCTOR_DEVICES"

Row: TypeAlias = Mapping[str, str]

_TEXTS = ("match", "name", "vendor", "compute_capability", "gfx_arch", "checked", "source")
_REQUIRED = ("name", "vendor", "source")
_VENDORS = ("nvidia", "amd")
_FRACTIONS = ("achievable_gemm_fraction", "achievable_bandwidth_fraction")
_MAY_BE_ZERO = ("link_gb_per_s",)  # there are none


class NamedRow(NamedTuple):
    """A row, by one of the texts in lower case that a device's name holds."""

    match: str
    row: Row


def user_devices_path() -> Path:
    """Return the user's own file of devices, whether it is there or not."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_data_path  # takes a few ms to import and is needed here only

    return user_data_path("perfdoctor") / "devices.csv"


def read_table() -> tuple[NamedRow, ...]:
    """Return the rows, longest match first; the user's rows replace those of the same match.

    Raises:
        UsageError: The user's file cannot be used.
    """
    path = user_devices_path()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        if os.environ.get(FILE_VARIABLE):
            raise UsageError(f"{path}: there is no such file of devices, which {FILE_VARIABLE} names") from None
        return _read_own_table()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a table of devices: {error}") from None
    return _add_user_rows(path, text)


@functools.lru_cache(maxsize=4)
def _add_user_rows(path: Path, text: str) -> tuple[NamedRow, ...]:
    own = _read_own_table()
    users = tuple(_read_user_rows(path, text, own[0].row.keys()))
    replaced = {named.match for named in users}
    return _sort_rows((*users, *(named for named in own if named.match not in replaced)))


@functools.cache
def _read_own_table() -> tuple[NamedRow, ...]:
    """The rows that come with perfdoctor; read on first use, not on import."""
    rows = read_rows("gpu/data/devices.csv")
    return _sort_rows(tuple(NamedRow(match.lower(), row) for row in rows for match in row["match"].split("|")))


def _sort_rows(rows: tuple[NamedRow, ...]) -> tuple[NamedRow, ...]:
    return tuple(sorted(rows, key=lambda named: -len(named.match)))


def _read_user_rows(path: Path, text: str, columns: Collection[str]) -> Iterator[NamedRow]:
    """The rows of the user's file, with all the columns."""
    lines = csv.reader(text.splitlines(), strict=True)
    try:
        header = [title.strip() for title in next(lines, [])]
        _check_header(path, header, columns)
        for values in lines:
            if any(value.strip() for value in values):
                row = dict.fromkeys(columns, "") | _parse_values(f"{path}, line {lines.line_num}", header, values)
                matches = (match.strip().lower() for match in (row["match"] or row["name"]).split("|"))
                yield from (NamedRow(match, row) for match in matches if match)
    except csv.Error as error:
        raise UsageError(f"{path}, line {lines.line_num}: {error}") from None


def _check_header(path: Path, header: list[str], columns: Collection[str]) -> None:
    unknown = [title for title in header if title not in columns]
    missing = [title for title in _REQUIRED if title not in header]
    if missing:
        raise UsageError(f"{path}: the first line has no column '{missing[0]}'; a table of devices begins with one")
    if unknown:
        raise UsageError(f"{path}: devices have no column '{unknown[0]}'; they have {', '.join(columns)}")


def _parse_values(place: str, header: list[str], values: list[str]) -> dict[str, str]:
    """The values of one line by their column, checked."""
    if len(values) != len(header):
        raise UsageError(f"{place}: {len(values)} values for {len(header)} columns")
    row = {title: value.strip() for title, value in zip(header, values, strict=True)}
    for title, value in row.items():
        if not value and title in _REQUIRED:
            raise UsageError(f"{place}: {title} is empty")
        if value and not _is_valid(title, value):
            raise UsageError(f"{place}: {title} cannot be '{value}'; it must be {_describe_values(title)}")
    return row


def _is_valid(title: str, value: str) -> bool:
    if title == "vendor":
        return value in _VENDORS
    if title == "compute_capability":
        major, _, minor = value.partition(".")
        return major.isdecimal() and minor.isdecimal()
    if title in _TEXTS:
        return True
    try:
        number = float(value)
    except ValueError:
        return False
    maximum = 1.0 if title in _FRACTIONS else math.inf
    return (number > 0 or (number == 0 and title in _MAY_BE_ZERO)) and number <= maximum and number != math.inf


def _describe_values(title: str) -> str:
    if title == "vendor":
        return " or ".join(_VENDORS)
    if title == "compute_capability":
        return "two numbers, such as 9.0"
    return "above 0 and at most 1" if title in _FRACTIONS else "a positive number, or empty where it is unknown"
