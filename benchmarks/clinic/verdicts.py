"""A row of the clinic's table: what a report says of a planted fault, and what its fix gave."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from statistics import median
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from benchmarks.clinic.cases import PEAK, Case
from benchmarks.promises import MIN_NOISE, TimedPairs, asking_findings, location_of, promise_together

SPEAKS = ("high", "medium", "low")
"""Severities that a report shows as something to do."""
INSIDE, WITHIN_NOISE, OUTSIDE = "yes", "within noise", "no"


class Amounts(NamedTuple):
    """What is promised and what came, and the step or the peak that it was taken off; None is unknown."""

    low: float | None
    expected: float | None
    high: float | None
    saved: float | None
    whole: float | None


@dataclass(frozen=True)
class Row:
    """One program, in the types of a CSV file; times are ms of a step, None and "" are unknown or not asked.

    Attributes:
        name, kind, style, device: The program and where it ran.
        note: Why it did not run, or why something of it is missing.
        found: Whether a rule of clinic.toml spoke.
        rule, severity: Which, and how severe.
        place: File and line of the finding; `place_right`: whether that line is marked as planted.
        position: Rank of the finding in the report, from 1.
        fix: What it asks for; `fix_right`: whether that is the fix.
        quiet: Whether those rules are silent in the report on the fixed program; `after`: what they say there.
        alarms: Other findings of medium or more; of a healthy program all of them.
        low_ms, expected_ms, high_ms, basis: What the report promises for the fix.
        step_ms, fixed_ms: Medians of the steps of the faulty and the fixed program, without perfdoctor, in turns.
        saved_ms, min_ms, max_ms: What the fix saved: the median over pairs of runs, and their range.
        tried: The verdict of `perfdoctor try` on the change that does the same; tried_*_ms: what it measured.
        seconds: How long the row took.
        low_bytes, expected_bytes, high_bytes: Of the kind "peak": what the report promises, if only its fix is made.
        peak_bytes, fixed_bytes: Of that kind: the peaks of the faulty and the fixed program, without perfdoctor.
    """

    name: str
    kind: str
    style: str
    device: str
    note: str = ""
    found: bool | None = None
    rule: str = ""
    severity: str = ""
    place: str = ""
    place_right: bool | None = None
    position: int | None = None
    fix: str = ""
    fix_right: bool | None = None
    quiet: bool | None = None
    after: str = ""
    alarms: str = ""
    low_ms: float | None = None
    expected_ms: float | None = None
    high_ms: float | None = None
    basis: str = ""
    step_ms: float | None = None
    fixed_ms: float | None = None
    saved_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    tried: str = ""
    tried_ms: float | None = None
    tried_min_ms: float | None = None
    tried_max_ms: float | None = None
    seconds: float | None = None
    low_bytes: int | None = None
    expected_bytes: int | None = None
    high_bytes: int | None = None
    peak_bytes: int | None = None
    fixed_bytes: int | None = None

    @property
    def ran(self) -> bool:
        """Whether there is a report on it."""
        return bool(self.alarms) or self.found is not None or self.quiet is not None

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with the program."""
        return self.kind == "healthy"

    @property
    def of_peak(self) -> bool:
        """Whether its amounts are bytes of the peak."""
        return self.kind == PEAK

    @property
    def amounts(self) -> Amounts:
        """What is promised and what came, in ms of a step, or in bytes of the peak."""
        if not self.of_peak:
            return Amounts(self.low_ms, self.expected_ms, self.high_ms, self.saved_ms, self.step_ms)
        peak, fixed = self.peak_bytes, self.fixed_bytes
        saved_bytes = None if peak is None or fixed is None else peak - fixed
        return Amounts(self.low_bytes, self.expected_bytes, self.high_bytes, saved_bytes, peak)

    @property
    def ratio(self) -> float | None:
        """The expected saving over the measured one; None where one of them is missing or nothing was saved."""
        amounts = self.amounts
        return None if amounts.expected is None or not amounts.saved else amounts.expected / amounts.saved

    @property
    def inside(self) -> str:
        """Whether the measured saving lies in the promised range; empty where one of them is missing."""
        low, _, high, saved, whole = self.amounts
        if saved is None or whole is None or high is None:
            return ""
        if (low or 0) <= saved <= high:
            return INSIDE
        noise = MIN_NOISE * whole
        return WITHIN_NOISE if (low or 0) - noise <= saved <= high + noise else OUTSIDE


def start_row(case: Case, device: str) -> Row:
    """A row that only names the program."""
    return Row(
        case.name, case.kind, case.style, device, note=f"{case.no_rule} does not exist yet" if case.no_rule else ""
    )


def judge_report(row: Row, case: Case, report: Mapping[str, Any]) -> Row:
    """Fill in what the report on the faulty program, or on a healthy one, says."""
    alarms = [finding for finding in asking_findings(report) if finding["rule"] not in case.rules]
    row = replace(row, alarms=_list_findings(alarms))
    if case.healthy:
        return replace(row, quiet=not alarms)
    spoken = _findings_of(report, case)
    if not spoken:
        return replace(row, found=False)
    planted = [finding for finding in spoken if _is_planted(finding, case)] or spoken[:1]
    first, promise = planted[0], promise_together(planted)
    saved = first["saved_bytes"] if case.of_peak and first["saved_bytes"] else {}
    asked = " ".join(f"{first['rule']} {first['fix'] or ''} {first['advice']}".split())
    return replace(
        row,
        found=True,
        rule=first["rule"],
        severity=first["severity"],
        place=location_of(first),
        place_right=_is_planted(first, case),
        position=1 + [each for each in report["findings"] if _speaks(each, case)].index(first),
        fix=first["fix"] or first["advice"],
        fix_right=re.search(case.follows, asked) is not None if case.follows else None,
        low_ms=_to_ms(promise.low_ns),
        expected_ms=_to_ms(promise.expected_ns),
        high_ms=_to_ms(promise.high_ns),
        basis=promise.basis,
        low_bytes=saved.get("low"),
        expected_bytes=saved.get("expected"),
        high_bytes=saved.get("high"),
    )


def judge_fixed_report(row: Row, case: Case, report: Mapping[str, Any]) -> Row:
    """Fill in whether the report on the fixed program is silent about the fault."""
    spoken = _findings_of(report, case)
    return replace(row, quiet=not spoken, after=_list_findings(spoken))


def judge_pairs(row: Row, pairs: TimedPairs) -> Row:
    """Fill in what the fix saved; `pairs` are in ns."""
    if not pairs.savings:
        return row
    figures = median(pairs.before), median(pairs.after), pairs.saved, min(pairs.savings), max(pairs.savings)
    names = ("step_ms", "fixed_ms", "saved_ms", "min_ms", "max_ms")
    return replace(row, **dict(zip(names, map(_to_ms, figures), strict=True)))


def judge_trials(row: Row, case: Case, trials: Sequence[Mapping[str, Any]]) -> Row:
    """Fill in what `perfdoctor try` measured: of several settings the one of clinic.toml, or the best one."""
    of_change = [trial for trial in trials if trial["change"] == case.change]
    chosen = [trial for trial in of_change if trial["setting"] == case.setting] or of_change
    if not chosen:
        return replace(row, tried="no trial")
    best = max(chosen, key=lambda trial: -1 if trial["saved_ns"] is None else trial["saved_ns"])
    return replace(
        row,
        tried=best["verdict"],
        tried_ms=_to_ms(best["saved_ns"]),
        tried_min_ms=_to_ms(best["low_ns"]),
        tried_max_ms=_to_ms(best["high_ns"]),
    )


def _findings_of(report: Mapping[str, Any], case: Case) -> list[Mapping[str, Any]]:
    """The findings of the case's rules that a report shows as something to do."""
    return [finding for finding in report["findings"] if finding["rule"] in case.rules and _speaks(finding, case)]


def _speaks(finding: Mapping[str, Any], case: Case) -> bool:
    """Whether a report shows it as something to do: memory is for information where it is not short."""
    return case.of_peak or finding["severity"] in SPEAKS


def _is_planted(finding: Mapping[str, Any], case: Case) -> bool:
    """Whether a finding names a line that is marked as planted."""
    location = finding["location"] or {}
    own_file = PurePath(location.get("file") or "").name == case.path.name
    return own_file and location["line"] in case.planted_lines


def _list_findings(findings: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{finding['rule']} {finding['severity']} {location_of(finding)}" for finding in findings)


def _to_ms(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1e6, 4)


COLUMNS = tuple(field.name for field in fields(Row))


def to_cells(row: Row) -> dict[str, str]:
    """The row as text, for a CSV file; unknown is empty. `ratio` and `inside` are written as well."""
    cells = {name: _to_text(getattr(row, name)) for name in COLUMNS}
    return {**cells, "ratio": "" if row.ratio is None else f"{row.ratio:.2f}", "inside": row.inside}


def from_cells(cells: Mapping[str, str]) -> Row:
    """The row that `to_cells` wrote.

    Raises:
        ValueError: a column is missing, or a cell is no number.
    """
    missing = [name for name in COLUMNS if name not in cells]
    if missing:
        raise ValueError(f"the table has no column {missing[0]}")
    types = get_type_hints(Row)
    return Row(**{name: _from_text(cells[name], types[name]) for name in COLUMNS})


def _to_text(value: str | float | None) -> str:
    return "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _from_text(text: str, kind: Any) -> Any:
    if kind is str:
        return text
    if not text:
        return None
    (plain,) = (each for each in get_args(kind) if each is not NoneType)
    return text == "yes" if plain is bool else plain(text)
