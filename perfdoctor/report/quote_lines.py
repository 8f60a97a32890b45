"""Adds the text of the source line to findings with a location."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os.path import isabs
from typing import Any

from perfdoctor.places.place import Place
from perfdoctor.report.finding import SOURCE_LINE, Evidence, Finding
from perfdoctor.report.table import Table

# A Python frame has the line of the function's definition, which is not the line that ran.
_DEFINITION = re.compile(r"(async )?def |class |@")
# A cell of the notebook that made the recording.
_CELL = re.compile(r"In\[\d+\]")
_MAX_LENGTH = 160


def with_source_lines(findings: Iterable[Finding], text_of: Callable[[str, int], str]) -> tuple[Finding, ...]:
    """The findings, each with the text of its source line as first evidence.

    `text_of` returns the text of a line of a file, "" where it cannot be read: rules and reports read no files.
    """
    return tuple(_with_source_line(finding, text_of) for finding in findings)


def with_quoted_places(places: Iterable[Place], text_of: Callable[[str, int], str]) -> tuple[Place, ...]:
    """The places, each with the text of its line; see `with_source_lines`."""
    return tuple(
        replace(place, source=_text_of(place.file, place.line, text_of)) if place.file else place for place in places
    )


def with_quoted_rows(
    tables: Mapping[str, tuple[Mapping[str, Any], ...]], text_of: Callable[[str, int], str]
) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """The tables of a report, each row of "lines" with the text of its line; see `with_source_lines`."""
    lines = tuple({**row, "source": _text_of(row["file"], row["line"], text_of)} for row in tables.get("lines", ()))
    return {**tables, "lines": lines}


def with_quoted_table(table: Table, text_of: Callable[[str, int], str]) -> Table:
    """The table, its column "source" with the text of each line; see `with_source_lines`."""
    columns = {column.name: column for column in table.columns}
    if "source" not in columns:
        return table
    places = zip(columns["file"].values, columns["line"].values, strict=True)
    texts = [
        _text_of(file, line, text_of) if isinstance(file, str) and isinstance(line, int) else None
        for file, line in places
    ]
    columns["source"] = replace(columns["source"], values=tuple(texts))
    return replace(table, columns=tuple(columns.values()))


def _text_of(file: str, line: int | None, text_of: Callable[[str, int], str]) -> str | None:
    """The text of a line that ran; None where it cannot be read, or is a definition."""
    # A relative path would be opened in the current folder, where another file may have that name.
    if line is None or not ((isabs(file) and file.endswith(".py")) or _CELL.fullmatch(file)):
        return None
    text = text_of(file, line).strip()
    return None if not text or _DEFINITION.match(text) else text[:_MAX_LENGTH]


def _with_source_line(finding: Finding, text_of: Callable[[str, int], str]) -> Finding:
    location = finding.location
    text = None if location is None else _text_of(location.file, location.line, text_of)
    return (
        finding
        if text is None
        else replace(finding, evidence=(Evidence("source line", text, id=SOURCE_LINE), *finding.evidence))
    )
