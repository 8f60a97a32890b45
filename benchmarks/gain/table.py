"""Predicted against measured: the arithmetic, and the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

HEAD = (
    "| fault, and the fix | rule | step, ms | fixed, ms | saved, ms (pairs) | promised, ms: low, expected, high "
    "| basis | verdict |"
)
RULE = "|---|---|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Promise:
    """What the report promises for a fault, in ns a step, of all findings of its rules together.

    None where no finding spoke (`rules` is empty then), or where one of them gives no such figure.
    """

    rules: tuple[str, ...] = ()
    low_ns: int | None = None
    expected_ns: int | None = None
    high_ns: int | None = None
    basis: str = ""
    titles: tuple[str, ...] = ()


def promise_of(report: Mapping[str, Any], rules: Sequence[str]) -> Promise:
    """The promise for the rules that should find a fault.

    Savings of several findings add up: ranking promises no nanosecond twice.
    """
    found = [finding for finding in report["findings"] if finding["rule"] in rules]
    if not found:
        return Promise()

    def total(figure: str) -> int | None:
        values = [finding["saving"][figure] for finding in found]
        return None if None in values else sum(values)

    return Promise(
        rules=tuple(dict.fromkeys(finding["rule"] for finding in found)),
        low_ns=total("low_ns"),
        expected_ns=total("expected_ns"),
        high_ns=total("high_ns"),
        basis=", ".join(dict.fromkeys(finding["saving"]["basis"] for finding in found)),
        titles=tuple(finding["title"] for finding in found),
    )


@dataclass(frozen=True)
class Row:
    """One fault: steps in ns with and without it, run by run in pairs, and what was promised.

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
        """What the fix saved in each pair of runs that followed one another."""
        return tuple(a - b for a, b in zip(self.faulty_ns, self.fixed_ns, strict=True))

    @property
    def saved_ns(self) -> int | None:
        """The median of the pairs: what the machine does meanwhile is the same for both of a pair."""
        return round(median(self.pairs_ns)) if self.faulty_ns else None

    @property
    def verdict(self) -> str:
        """Whether the promise was kept; a figure is missed when no pair of runs agrees with it."""
        promise, saved = self.promise, self.saved_ns
        if saved is None:
            return self.note
        if not promise.rules:
            return _joined("no finding", self.note)
        if promise.low_ns is None or promise.high_ns is None:
            return _joined("found, nothing promised", self.note)
        if max(self.pairs_ns) < promise.low_ns:
            said = f"**missed**: {_ms(promise.low_ns - saved)} ms less than the low end"
        elif min(self.pairs_ns) > promise.high_ns:
            said = f"**missed**: {_ms(saved - promise.high_ns)} ms more than the high end"
        else:
            said = "kept"
        if promise.expected_ns is not None:
            said += f", expected {_signed(promise.expected_ns - saved)} ms off"
        return _joined(said, self.note)

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
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


def table(rows: Iterable[Row]) -> str:
    """The rows as Markdown."""
    return "\n".join((HEAD, RULE, *map(_line, rows)))


def _line(row: Row) -> str:
    promise = row.promise
    promised = ", ".join(map(_ms, (promise.low_ns, promise.expected_ns, promise.high_ns))) if promise.rules else ""
    cells = (
        f"{row.fault}: {row.fix}",
        ", ".join(promise.rules),
        _ms(round(median(row.faulty_ns))) if row.faulty_ns else "",
        _ms(round(median(row.fixed_ns))) if row.fixed_ns else "",
        f"**{_ms(row.saved_ns)}** ({_ms(min(row.pairs_ns))} to {_ms(max(row.pairs_ns))})" if row.faulty_ns else "",
        promised,
        promise.basis,
        row.verdict,
    )
    return f"| {' | '.join(cells)} |"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _ms(value_ns: int | None) -> str:
    return "n/a" if value_ns is None else f"{value_ns / 1e6:.2f}"


def _signed(value_ns: int) -> str:
    return f"{value_ns / 1e6:+.2f}"
