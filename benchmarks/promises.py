"""Promised against measured savings: the arithmetic that the benchmarks share. All times are in ns of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

MIN_NOISE = 0.03
"""What runs of one program differ by on a quiet machine, as a share of the step: 0.5 to 3 % in benchmarks/programs."""
WORTH = ("high", "medium")
"""Severities that ask a user to do something: worth 3 % of the step and more."""


@dataclass(frozen=True)
class Promise:
    """What a report promises for a fix; None is unknown."""

    low_ns: int | None = None
    expected_ns: int | None = None
    high_ns: int | None = None
    basis: str = ""

    def includes(self, saved_ns: float, noise_ns: float = 0.0) -> bool | None:
        """Whether a measured saving lies in the range, within so much noise; None where no range is promised."""
        if self.high_ns is None:
            return None
        return (self.low_ns or 0) - noise_ns <= saved_ns <= self.high_ns + noise_ns


def promise_alone(finding: Mapping[str, Any]) -> Promise:
    """What a finding promises if only its fix is made."""
    saving = finding["saving"]
    return _read_promise(saving.get("alone") or saving, saving["basis"])


def promise_together(findings: Sequence[Mapping[str, Any]]) -> Promise:
    """What findings promise if all their fixes are made; what one of them leaves unknown is unknown.

    Of several findings the savings in turn add up, because a report promises no nanosecond twice.
    """
    if len(findings) == 1:
        return promise_alone(findings[0])
    promises = [_read_promise(finding["saving"], finding["saving"]["basis"]) for finding in findings]
    return Promise(
        *(_add([getattr(promise, figure) for promise in promises]) for figure in ("low_ns", "expected_ns", "high_ns")),
        basis=", ".join(dict.fromkeys(promise.basis for promise in promises)),
    )


def _read_promise(figures: Mapping[str, Any], basis: str) -> Promise:
    return Promise(figures["low_ns"], figures["expected_ns"], figures["high_ns"], basis)


def _add(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class TimedPairs:
    """Steps of a program before and after a change, of runs in turns: both of a pair see the same load."""

    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()

    @property
    def savings(self) -> tuple[float, ...]:
        """What the change saved in each pair."""
        return tuple(a - b for a, b in zip(self.before, self.after, strict=True))

    @property
    def saved(self) -> float | None:
        """The median saving of the pairs; None where nothing was timed."""
        return median(self.savings) if self.savings else None

    @property
    def noise(self) -> float:
        """How much runs of one version differ: half of their range, and no less than what a quiet machine shows."""
        if not self.before:
            return 0.0
        ranges = [max(times) - min(times) for times in (self.before, self.after) if times]
        return max(max(ranges) / 2, MIN_NOISE * median(self.before))


def location_of(finding: Mapping[str, Any]) -> str:
    """File name and line of a finding; "nowhere" where it names none."""
    location = finding["location"] or {}
    return f"{PurePath(location['file']).name}:{location['line']}" if location.get("file") else "nowhere"


def asking_findings(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The findings that ask a user for something: medium or high, and not pointless after the fix of another one."""
    return [
        finding for finding in report["findings"] if finding["severity"] in WORTH and finding.get("covered_by") is None
    ]
