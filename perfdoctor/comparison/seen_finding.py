"""A finding as a comparison sees it: the same from a Report and from its JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import SOURCE_LINE, Finding
from perfdoctor.report.to_plain import to_plain
from perfdoctor.savings.saving import BASES

_NUMBERS = re.compile(r"[\d.,]+")


@frozen_dataclass
class Promised:
    """What a fix was said to save in a step, in ns; None where not known. `basis` is that of the saving."""

    low_ns: int | None
    expected_ns: int | None
    high_ns: int | None
    basis: Annotated[str, ("enum", (*BASES, "sum"))]

    @property
    def is_known(self) -> bool:
        """Whether there is any figure."""
        return self.expected_ns is not None or self.high_ns is not None


@frozen_dataclass
class SeenFinding:
    """A finding of one recording.

    Attributes:
        rule, name, title, severity, cost_ns: As in `Finding`.
        subject: What it is about; None where the report.json is of a release that did not say so yet.
        file, line, function: Its location; None where it has none.
        source: The text of that line; None where it is not known.
        promised: What its fix saves in its turn.
        promised_alone: What its fix saves by itself.
        covered_by: The position of the finding whose fix makes this one pointless; None for the others.
        is_one_off: Whether it is not in the median step.
    """

    rule: str
    name: str
    title: str
    severity: str
    cost_ns: int
    subject: str | None
    file: str | None
    line: int | None
    function: str | None
    promised: Promised
    promised_alone: Promised
    covered_by: int | None
    is_one_off: bool
    source: str | None = None

    @property
    def file_name(self) -> str | None:
        """The last part of the file's path: a program is compared with itself in another folder, too."""
        return None if self.file is None else PurePosixPath(self.file.replace("\\", "/")).name

    @property
    def kind(self) -> str:
        """What it is about, without figures; where that is not known the title."""
        return _NUMBERS.sub("#", self.title if self.subject is None else self.subject)

    @property
    def identity(self) -> tuple[str, ...]:
        """What stays of it when its figures change and its line moves: the rule, what it is about, and where."""
        place = () if self.file_name is None else (self.file_name, self.source or self.function or "")
        return self.rule, self.kind, *place


def finding_of_report(finding: Finding) -> SeenFinding:
    """The finding of a Report."""
    return finding_of_json(to_plain(finding))


def finding_of_json(finding: Mapping[str, Any]) -> SeenFinding:
    """The finding of a report.json.

    Raises:
        KeyError, TypeError: It lacks something.
    """
    saving, recurrence = finding["saving"], finding["recurrence"]
    place: Mapping[str, Any] = finding["location"] or {}
    alone = saving["alone"]
    return SeenFinding(
        **{name: finding[name] for name in ("rule", "name", "title", "severity", "cost_ns", "covered_by")},
        file=place.get("file"),
        line=place.get("line"),
        function=place.get("function"),
        subject=finding.get("subject"),
        promised=Promised(saving["low_ns"], saving["expected_ns"], saving["high_ns"], saving["basis"]),
        promised_alone=Promised(alone["low_ns"], alone["expected_ns"], alone["high_ns"], saving["basis"]),
        is_one_off=recurrence is not None and 2 * recurrence["steps"] < recurrence["of"],
        source=next((str(each["value"]) for each in finding["evidence"] if _is_source_line(each)), None),
    )


def _is_source_line(evidence: Mapping[str, Any]) -> bool:
    """Whether evidence is the text of the line; before it had ids its label said so."""
    return bool(evidence["id"] == SOURCE_LINE if "id" in evidence else evidence["label"] == "source line")
