"""Promised against measured savings: the arithmetic, and the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

_HEAD = (
    "| fault, and the fix | rule | step, ms | fixed, ms | saved, ms (pairs) | promised, ms: low, expected, high "
    "| basis | verdict |"
)
_RULE = "|---|---|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Promise:
    """What the report promises for a fix, in ns a step: the sum over all findings of its rules.

    None where there is no finding (`rules` is empty then), or where one of them has no such figure.
    """

    rules: tuple[str, ...] = ()
    low_ns: int | None = None
    expected_ns: int | None = None
    high_ns: int | None = None
    basis: str = ""
    titles: tuple[str, ...] = ()


def promise_of(report: Mapping[str, Any], rules: Sequence[str]) -> Promise:
    """The promise of a report for the rules that should find a fault.

    Savings of several findings add up, because a report promises no nanosecond twice.
    """
    findings = [finding for finding in report["findings"] if finding["rule"] in rules]
    if not findings:
        return Promise()

    def total(figure: str) -> int | None:
        values = [finding["saving"][figure] for finding in findings]
        return None if None in values else sum(values)

    return Promise(
        rules=tuple(dict.fromkeys(finding["rule"] for finding in findings)),
        low_ns=total("low_ns"),
        expected_ns=total("expected_ns"),
        high_ns=total("high_ns"),
        basis=", ".join(dict.fromkeys(finding["saving"]["basis"] for finding in findings)),
        titles=tuple(finding["title"] for finding in findings),
    )


@dataclass(frozen=True)
class Row:
    """One fault: its promise, and the steps with and without it in pairs of runs.

    `note` says what the figures prove, or why there are none.
    """

    fault: str
    fix: str
    promise: Promise = Promise()
    faulty_ns: tuple[int, ...] = ()
    fixed_ns: tuple[int, ...] = ()
    note: str = ""

    @property
    def pairs_ns(self) -> tuple[int, ...]:
        """The saving of the fix in each pair of consecutive runs."""
        return tuple(a - b for a, b in zip(self.faulty_ns, self.fixed_ns, strict=True))

    @property
    def saved_ns(self) -> int | None:
        """The median saving of the pairs; both runs of a pair see the machine under the same load."""
        return round(median(self.pairs_ns)) if self.faulty_ns else None

    @property
    def verdict(self) -> str:
        """Whether the promise was kept. It is missed when no pair of runs agrees with it."""
        promise, saved = self.promise, self.saved_ns
        if saved is None:
            return self.note
        if not promise.rules:
            return _join("no finding", self.note)
        if promise.low_ns is None or promise.high_ns is None:
            return _join("found, nothing promised", self.note)
        if max(self.pairs_ns) < promise.low_ns:
            verdict = f"**missed**: {_format_ms(promise.low_ns - saved)} ms less than the low end"
        elif min(self.pairs_ns) > promise.high_ns:
            verdict = f"**missed**: {_format_ms(saved - promise.high_ns)} ms more than the high end"
        else:
            verdict = "kept"
        if promise.expected_ns is not None:
            verdict += f", expected {_format_signed_ms(promise.expected_ns - saved)} ms off"
        return _join(verdict, self.note)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        promise = self.promise
        return {
            "fault": self.fault,
            "fix": self.fix,
            "rules": list(promise.rules),
            "promised_ns": [promise.low_ns, promise.expected_ns, promise.high_ns],
            "basis": promise.basis,
            "titles": list(promise.titles),
            "faulty_ns": list(self.faulty_ns),
            "fixed_ns": list(self.fixed_ns),
            "saved_ns": self.saved_ns,
            "verdict": self.verdict,
        }


def format_table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    return "\n".join((_HEAD, _RULE, *map(_format_row, rows)))


def _format_row(row: Row) -> str:
    promise = row.promise
    promised_ns = promise.low_ns, promise.expected_ns, promise.high_ns
    cells = (
        f"{row.fault}: {row.fix}",
        ", ".join(promise.rules),
        _format_ms(round(median(row.faulty_ns))) if row.faulty_ns else "",
        _format_ms(round(median(row.fixed_ns))) if row.fixed_ns else "",
        _format_saved(row),
        ", ".join(map(_format_ms, promised_ns)) if promise.rules else "",
        promise.basis,
        row.verdict,
    )
    return f"| {' | '.join(cells)} |"


def _format_saved(row: Row) -> str:
    """The saving with the range of the pairs; empty when nothing was measured."""
    if not row.faulty_ns:
        return ""
    return f"**{_format_ms(row.saved_ns)}** ({_format_ms(min(row.pairs_ns))} to {_format_ms(max(row.pairs_ns))})"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _format_ms(value_ns: int | None) -> str:
    return "n/a" if value_ns is None else f"{value_ns / 1e6:.2f}"


def _format_signed_ms(value_ns: int) -> str:
    return f"{value_ns / 1e6:+.2f}"
