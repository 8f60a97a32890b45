"""The clinic's table: a CSV file that grows, Markdown for benchmarks/README.md, and the count against the goals."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clinic.verdicts import COLUMNS, INSIDE, WITHIN_NOISE, Row, from_cells, to_cells

_HEAD = (
    "| program (style) | finding | line | fix | promised: low, expected, high | saved (pairs), of step | in range "
    "| `try` saved | quiet when fixed | other findings |"
)


def read_rows(path: Path) -> list[Row]:
    """The rows that an earlier run wrote; none where there is no file.

    Raises:
        ValueError: it is no table of the clinic.
    """
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [from_cells(cells) for cells in csv.DictReader(file)]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows; the file is replaced at once, so that a run that is ended leaves a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    with draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*COLUMNS, "ratio", "inside"])
        writer.writeheader()
        writer.writerows(to_cells(row) for row in rows)
    draft.replace(path)


@dataclass(frozen=True)
class Score:
    """How many of how many programs, and the share that is the goal; a goal of None: none at all is the goal."""

    name: str
    count: int
    of: int
    goal: float | None

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None where there is nothing to count."""
        if not self.of:
            return None
        return self.count == 0 if self.goal is None else self.count >= self.goal * self.of

    def __str__(self) -> str:
        if not self.of:
            return f"{self.name}: n/a"
        goal = "none" if self.goal is None else f"{self.goal:.0%}"
        verdict = "reached" if self.reached else "missed"
        return f"{self.name}: {self.count} of {self.of} ({self.count / self.of:.0%}; goal {goal}, {verdict})"


def score_rows(rows: Sequence[Row]) -> list[Score]:
    """The counts of issue 15, with its goals.

    Of programs that ran, a fault whose rule does not exist counts as not found, and one that was not found has no
    position; silence after the fix is asked only of rules that spoke before it. Promises are judged where there are
    figures to judge. On healthy programs findings are counted, not programs.
    """
    faulty = [row for row in rows if row.found is not None]
    found = [row for row in faulty if row.found]
    healthy = [row for row in rows if row.healthy and row.ran]
    alarms = sum(len(row.alarms.split(", ")) for row in healthy if row.alarms)
    timed = [row for row in found if row.amounts.saved is not None]
    expected = [row for row in timed if row.amounts.expected is not None]
    ranged = [row for row in timed if row.inside]
    near = [row for row in expected if row.ratio is not None and 0.5 <= row.ratio <= 2.0]
    judged = [row for row in found if row.quiet is not None]
    return [
        Score("found", len(found), len(faulty), 0.9),
        Score("first or second", sum(row.position in (1, 2) for row in faulty), len(faulty), 0.8),
        Score("place right, of those found", sum(bool(row.place_right) for row in found), len(found), 0.9),
        Score("fix right, of those found", sum(bool(row.fix_right) for row in found), len(found), 0.9),
        Score("quiet when fixed, of those found", sum(bool(row.quiet) for row in judged), len(judged), 0.95),
        Score("medium or high findings on healthy programs", alarms, len(healthy), None),
        Score("expected within 0.5 to 2 times of measured", len(near), len(expected), 0.75),
        Score("measured inside the range", sum(row.inside == INSIDE for row in ranged), len(ranged), 0.8),
        Score(
            "the same, within 3 % of the step",
            sum(row.inside in (INSIDE, WITHIN_NOISE) for row in ranged),
            len(ranged),
            0.8,
        ),
    ]


def format_table(rows: Sequence[Row]) -> str:
    """The table in Markdown, times in ms and the peak in MB, with the scores below it."""
    lines = [_HEAD, "|" + "---|" * (_HEAD.count("|") - 1), *map(_format_row, rows), ""]
    lines += [f"* {score}" for score in score_rows(rows)]
    return "\n".join(lines)


def _format_row(row: Row) -> str:
    cells = [f"{row.name} ({row.style})"]
    if not row.ran:
        return f"| {' | '.join([*cells, f'not run: {row.note}', *[''] * 8])} |"
    if row.healthy:
        said = "quiet" if row.quiet else "**speaks**"
        return f"| {' | '.join([*cells, f'{said}; healthy', *[''] * 7, row.alarms])} |"
    if row.found:
        cells += [f"{row.rule} {row.severity}, no. {row.position}", _mark(row.place, row.place_right)]
        cells += [_mark(_clip(row.fix), row.fix_right), _format_promise(row)]
    else:
        cells += [f"**not found**{f'; {row.note}' if row.note else ''}", "", "", ""]
    cells += [_format_saved(row), row.inside, _format_tried(row)]
    cells += ["" if row.quiet is None or not row.found else "yes" if row.quiet else f"**no**: {row.after}", row.alarms]
    return f"| {' | '.join(cells)} |"


def _format_promise(row: Row) -> str:
    return ", ".join(_format_amount(row, amount) for amount in row.amounts[:3])


def _format_saved(row: Row) -> str:
    if row.amounts.saved is None:
        return "n/a"
    if row.of_peak:
        return f"{_format_amount(row, row.amounts.saved)} of {_format_amount(row, row.peak_bytes)}"
    return (
        f"{_format_ms(row.saved_ms)} ({_format_ms(row.min_ms)} to {_format_ms(row.max_ms)}) of "
        f"{_format_ms(row.step_ms)}"
    )


def _format_tried(row: Row) -> str:
    return row.tried if row.tried_ms is None else f"{_format_ms(row.tried_ms)} ({row.tried})"


def _format_amount(row: Row, amount: float | None) -> str:
    if not row.of_peak:
        return _format_ms(amount)
    return "n/a" if amount is None else f"{amount / 1e6:.1f} MB"


def _mark(text: str, right: bool | None) -> str:
    return f"{text} (**wrong**)" if right is False else text


def _clip(text: str, max_length: int = 60) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def _format_ms(ms: float | None) -> str:
    return "n/a" if ms is None else f"{ms:.2f}"
