"""Adds the text of the source line to findings with a location."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from os.path import isabs

from perfdoctor.report.finding import Evidence, Finding

# A Python frame has the line of the function's definition, which is not the line that ran.
_DEFINITION = re.compile(r"(async )?def |class |@")
# A cell of the notebook that made the recording.
_CELL = re.compile(r"In\[\d+\]")
_MAX_LENGTH = 160


def with_source_lines(findings: Iterable[Finding], text_of: Callable[[str, int], str]) -> tuple[Finding, ...]:
    """The findings, each with the text of its source line as first evidence.

    Args:
        findings: What the rules found.
        text_of: Returns the text of a line of a file, "" where it cannot be read. Rules and reports read no files
            themselves.
    """
    return tuple(_with_source_line(finding, text_of) for finding in findings)


def _with_source_line(finding: Finding, text_of: Callable[[str, int], str]) -> Finding:
    location = finding.location
    # A relative path would be opened in the current folder, where another file may have that name.
    if location is None or location.line is None:
        return finding
    is_script = isabs(location.file) and location.file.endswith(".py")
    if not (is_script or _CELL.fullmatch(location.file)):
        return finding
    text = text_of(location.file, location.line).strip()
    if not text or _DEFINITION.match(text):
        return finding
    return replace(finding, evidence=(Evidence("source line", text[:_MAX_LENGTH]), *finding.evidence))
