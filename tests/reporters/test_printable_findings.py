"""A finding whose values cannot be printed costs that finding, and never the report."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import report_samples as samples

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.chrome_trace.annotate_trace import export_chrome_trace
from perfdoctor.reporters.json_ import Json, load_schema
from perfdoctor.reporters.markdown import Markdown
from perfdoctor.reporters.printable_findings import with_printable_findings
from perfdoctor.reporters.terminal import Terminal
from perfdoctor.savings.saving import Claim, Saving, SavingAlone
from perfdoctor.testing import TraceBuilder


class Hostile:
    """Raises whatever is asked of it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __format__ = __str__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute")


class HostileText(str):
    """A text that raises when it is used as one."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    replace = split = strip = encode = upper = __format__ = __str__  # type: ignore[assignment]


class HostileNumber(int):
    """A number that raises when it is used as one."""

    def __int__(self) -> int:
        raise RuntimeError("no number")

    __float__ = __index__ = __round__ = __truediv__ = __format__ = __ge__ = __int__  # type: ignore[assignment]


class HostileLocation(SourceLocation):
    """A location that raises when it is printed."""

    def __str__(self) -> str:
        raise RuntimeError("no place")

    short = property(__str__)  # type: ignore[assignment]


class HostileFinding(Finding):
    """A finding that says something else each time that it is asked."""

    __slots__ = ()


class Raising:
    """Evidence whose value raises."""

    @property
    def value(self) -> str:
        raise RuntimeError


def with_field(field: str, value: object) -> Callable[[Finding], Finding]:
    """Gives a finding a value that the check of its constructor might refuse."""

    def change(finding: Finding) -> Finding:
        copied = copy.copy(finding)
        object.__setattr__(copied, field, value)
        return copied

    return change


def unchecked(cls: type, *values: object) -> Any:
    """A value of a dataclass whose constructor might refuse these fields."""
    made = object.__new__(cls)
    for field, value in zip(fields(cls), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made


# What cannot be printed: the finding is replaced.
REPLACED: dict[str, Callable[[Finding], Any]] = {
    "a rule of any kind": with_field("rule", Hostile()),
    "a name of any kind": with_field("name", Hostile()),
    "a title of any kind": with_field("title", Hostile()),
    "no title": with_field("title", None),
    "bytes as advice": with_field("advice", b"do it"),
    "a cost that is a text": with_field("cost_ns", "1"),
    "a cost of a thousand bits": with_field("cost_ns", 1 << 1000),
    "a share of any kind": with_field("share_of_step", Hostile()),
    "an unknown severity": with_field("severity", "fatal"),
    "no saving": with_field("saving", None),
    "no confidence": with_field("confidence", None),
    "a rank of any kind": with_field("rank", Hostile()),
    "a location of any kind": with_field("location", Hostile()),
    "evidence of any kind": with_field("evidence", (Hostile(),)),
    "evidence that raises": with_field("evidence", (Raising(),)),
    "no tuple of evidence": with_field("evidence", 3),
    "an evidence value of any kind": with_field("evidence", (unchecked(Evidence, "x", Hostile(), ""),)),
    "a list as evidence value": with_field("evidence", (unchecked(Evidence, "x", [], ""),)),
    "a time that is no number": with_field("evidence", (unchecked(Evidence, "x", math.nan, "ns"),)),
    "an infinite time": with_field("evidence", (unchecked(Evidence, "x", math.inf, "ns"),)),
    "a fix of any kind": with_field("fix", Hostile()),
    "a reference of any kind": with_field("references", (Hostile(),)),
    "a claim of any kind": with_field("claim", Hostile()),
    "intervals of any kind": with_field("claim", unchecked(Claim, Hostile(), False, None, 0)),
    "intervals with a fraction": with_field("claim", unchecked(Claim, np.zeros((3, 2)), False, None, 0)),
    "intervals in one row": with_field("claim", unchecked(Claim, np.zeros(4, np.int64), False, None, 0)),
    "a title that raises when it is used": with_field("title", HostileText("The GPU waits for the DataLoader")),
    "a rule that raises when it is used": with_field("rule", HostileText("PD101")),
    "a cost that raises when it is used": with_field("cost_ns", HostileNumber(19 * samples.MS)),
    "a saving that raises when it is used": with_field(
        "saving", unchecked(Saving, HostileNumber(0), None, HostileNumber(5), "bounded", SavingAlone(), None)
    ),
    "a location that raises when it is printed": with_field("location", HostileLocation("train.py", 41, "main")),
    "evidence that raises when it is used": with_field(
        "evidence", (unchecked(Evidence, "label", HostileNumber(3), "count"),)
    ),
    "a finding with fields of its own making": lambda f: HostileFinding(
        **{field.name: getattr(f, field.name) for field in fields(Finding)}
    ),
    "no finding": lambda _: Hostile(),
}
NAMELESS_RULES = ("a rule of any kind", "a rule that raises when it is used", "no finding")
RENDERERS = {
    "terminal": Terminal().render,
    "quiet": Terminal(verbosity=-1).render,
    "verbose": Terminal(verbosity=1).render,
    "markdown": Markdown().render,
    "json": Json().render,
}


def report_with(spoil: Callable[[Finding], Finding]) -> Report:
    """A report of three findings, of which the second is spoilt."""
    report = samples.kernel()
    first, second, third = report.findings
    return replace(report, findings=(first, spoil(second), third))


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("fault", REPLACED)
def test_a_finding_that_cannot_be_printed_is_replaced_and_the_rest_is_rendered(renderer: str, fault: str) -> None:
    report = report_with(REPLACED[fault])
    text = RENDERERS[renderer](report)
    first, _, third = samples.kernel().findings
    assert first.title in " ".join(text.split())
    assert third.title in text
    assert "PD901" in text
    named = "a rule" if fault in NAMELESS_RULES else "PD102"
    name = "without a name" if fault in ("a name of any kind", "no finding") else "host-device-sync"
    assert f"{named} {name} failed: " in text


@pytest.mark.parametrize("fault", REPLACED)
def test_every_trace_can_be_annotated(fault: str, tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 1000).kernel("ampere_sgemm_128x64_nn", 50, 900, launch_us=10)
    path = trace.write(tmp_path / "trace.json")
    report = report_with(REPLACED[fault])
    report = replace(report, traces=(replace(report.traces[0], path=str(path)),))
    export_chrome_trace(report, tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"1. PD201 gemm-without-tensor-cores", "steps"} <= tracks


@pytest.mark.parametrize("fault", REPLACED)
def test_the_report_of_a_replaced_finding_fits_the_schema(fault: str) -> None:
    jsonschema.validate(json.loads(Json().render(report_with(REPLACED[fault]))), load_schema())


def test_the_rule_of_a_replaced_finding_has_failed() -> None:
    report = with_printable_findings(report_with(with_field("location", Hostile())))
    assert [finding.rule for finding in report.findings] == ["PD201", "PD103", "PD901"]
    outcome = next(outcome for outcome in report.outcomes if outcome.rule == "PD102")
    why = "TypeError: location of a finding must be SourceLocation or None, not Hostile"
    assert (outcome.status, outcome.why) == ("failed", why)
    assert report.findings[-1].title == f"PD102 host-device-sync failed: {why}"


@pytest.mark.parametrize("name", samples.ALL)
def test_a_report_whose_findings_pass_the_check_is_returned_as_it_is(name: str) -> None:
    report = samples.ALL[name]()
    assert with_printable_findings(report) is report
