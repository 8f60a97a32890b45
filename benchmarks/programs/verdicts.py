"""A row of the table: what a report said of a program, what following it gave, and whether that was right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import median
from typing import Any

from benchmarks.programs.truths import Edit, Program
from benchmarks.promises import TimedPairs, asking_findings, promise_alone


@dataclass(frozen=True)
class Said:
    """The first finding of a report that asks for something: it is worth 3 % of a step, or brings a fix.

    Times are in ms of a step; None is unknown.
    """

    rule: str
    title: str
    severity: str
    file: str
    line: int | None
    fix: str
    advice: str
    low_ms: float | None
    expected_ms: float | None
    high_ms: float | None
    cost_ms: float

    @property
    def promise(self) -> str:
        """Low, expected and high."""
        return ", ".join("n/a" if ms is None else f"{ms:.3g}" for ms in (self.low_ms, self.expected_ms, self.high_ms))

    @property
    def place(self) -> str:
        """File name and line."""
        return f"{PurePath(self.file).name}:{self.line}" if self.file else "nowhere"


def first_said(report: Mapping[str, Any]) -> Said | None:
    """The first finding that asks for something; None where the report is quiet."""
    return next((_read_said(finding) for finding in asking_findings(report)), None)


def _read_said(finding: Mapping[str, Any]) -> Said:
    location, promise = finding["location"] or {}, promise_alone(finding)
    low_ms, expected_ms, high_ms = (
        None if ns is None else ns / 1e6 for ns in (promise.low_ns, promise.expected_ns, promise.high_ns)
    )
    return Said(
        rule=finding["rule"],
        title=finding["title"],
        severity=finding["severity"],
        file=location.get("file") or "",
        line=location.get("line"),
        fix=finding["fix"] or "",
        advice=finding["advice"],
        low_ms=low_ms,
        expected_ms=expected_ms,
        high_ms=high_ms,
        cost_ms=finding["cost_ns"] / 1e6,
    )


@dataclass(frozen=True)
class Row:
    """One program.

    Attributes:
        program: What is true of it.
        said: The first finding that asks for something; None where the report is quiet.
        line_right: Whether it names a line to change.
        edit: The change that was timed: the one that the report asks for, or of a quiet report the right one.
        followed: Whether that change is what the report asks for.
        plain_ms, fixed_ms: Median steps of runs without perfdoctor, in turns.
        after: Rules that ask for something in the report on the changed program; None where it was not recorded.
        note: Why something is missing.
    """

    program: Program
    said: Said | None = None
    line_right: bool = False
    edit: Edit | None = None
    followed: bool = False
    plain_ms: tuple[float, ...] = ()
    fixed_ms: tuple[float, ...] = ()
    after: tuple[str, ...] | None = None
    note: str = ""
    ran: bool = field(default=True)

    @property
    def cause_right(self) -> bool:
        """Whether the first finding names the cause; of a healthy program, whether the report is quiet."""
        if self.program.healthy:
            return self.said is None
        return self.said is not None and self.said.rule in self.program.rules

    @property
    def fix_right(self) -> bool:
        """Whether following the report is what a performance engineer would do, and made nothing slower."""
        if self.program.healthy:
            return self.said is None
        return self.followed and self.edit is not None and self.edit.right and not self.is_slower

    @property
    def right(self) -> bool:
        """Whether cause, line and fix are right."""
        return self.ran and self.cause_right and self.fix_right and (self.program.healthy or self.line_right)

    @property
    def noise_ms(self) -> float:
        """How much runs of one version differ: half of their range, and no less than what a quiet machine shows."""
        return TimedPairs(self.plain_ms, self.fixed_ms).noise

    @property
    def came_ms(self) -> float | None:
        """What the change saved: the median over pairs of runs in turns."""
        return TimedPairs(self.plain_ms, self.fixed_ms).saved if self.fixed_ms else None

    @property
    def is_slower(self) -> bool:
        """Whether the change made the program slower by more than the noise."""
        return self.came_ms is not None and self.came_ms < -self.noise_ms

    @property
    def promise_kept(self) -> bool | None:
        """Whether what came lies in the promised range, within the noise; None where nothing was promised or timed."""
        if self.said is None or not self.followed or self.came_ms is None or self.said.high_ms is None:
            return None
        return (self.said.low_ms or 0.0) - self.noise_ms <= self.came_ms <= self.said.high_ms + self.noise_ms

    @property
    def quiet_after(self) -> bool | None:
        """Whether the report on the changed program asks for nothing."""
        return None if self.after is None else not self.after


COLUMNS = (
    *("program", "field", "truth", "rule", "finding", "line", "fix", "cause right", "line right", "fix right"),
    *("promised ms", "change timed", "followed", "plain ms", "fixed ms", "came ms", "noise ms", "promise kept"),
    *("slower than noise", "quiet after", "right", "note"),
)


def list_cells(row: Row) -> list[str]:
    """The cells of a row of the CSV, in the order of COLUMNS."""
    said, program = row.said, row.program
    if not row.ran:
        return [program.name, program.field, program.truth, *[""] * (len(COLUMNS) - 5), "not run", row.note]
    timed = bool(row.plain_ms and row.fixed_ms)
    return [
        *(program.name, program.field, program.truth),
        *((said.rule, said.title, said.place, said.fix or said.advice) if said else ("", "nothing to do", "", "")),
        *map(_yes, (row.cause_right, None if program.healthy else row.line_right, row.fix_right)),
        said.promise if said else "",
        row.edit.name if row.edit and row.fixed_ms else "",
        _yes(row.followed if row.fixed_ms else None),
        _ms(median(row.plain_ms) if row.plain_ms else None),
        _ms(median(row.fixed_ms) if row.fixed_ms else None),
        *(_ms(row.came_ms), _ms(row.noise_ms if timed else None), _yes(row.promise_kept)),
        *(_yes(row.is_slower if timed else None), _yes(row.quiet_after) + _after(row)),
        *(_yes(row.right), row.note),
    ]


def _after(row: Row) -> str:
    return f" ({', '.join(row.after)})" if row.after else ""


_HEAD = (
    "| program: truth | first finding | line | fix | promised: low, expected, high, ms | came, of step (noise), ms "
    "| quiet after | right |"
)


def format_table(rows: Sequence[Row]) -> str:
    """The table in Markdown, with a line below it that counts."""
    lines = [_HEAD, "|" + "---|" * (_HEAD.count("|") - 1)]
    for row in rows:
        cells = dict(zip(COLUMNS, list_cells(row), strict=True))
        if not row.ran:
            lines.append(f"| {row.program.name}: {row.program.truth} | not run: {row.note} | | | | | | |")
            continue
        came = f"{cells['came ms']} of {cells['plain ms']} ({cells['noise ms']})" if row.fixed_ms else ""
        if came and not row.followed:
            came = f"not asked for: {row.edit.name if row.edit else ''}: {came}"
        lines.append(
            f"| {row.program.name}: {row.program.truth} | {cells['rule'] or 'quiet'} {_mark(row.cause_right)} "
            f"| {cells['line']} {_mark(row.line_right) if row.said and not row.program.healthy else ''} "
            f"| {_clip(cells['fix'])} {_mark(row.fix_right)} | {cells['promised ms']} | {came} "
            f"| {cells['quiet after']} | {'yes' if row.right else '**no**'} |"
        )
    ran = [row for row in rows if row.ran]
    slower = sum(row.followed and row.is_slower for row in ran)
    lines.append("")
    lines.append(
        f"{sum(row.right for row in ran)} of {len(ran)} first findings are right (cause, line and fix); "
        f"{slower} {'fix makes its' if slower == 1 else 'fixes make their'} program slower by more than the noise."
    )
    return "\n".join(lines)


def _mark(right: bool) -> str:
    return "(right)" if right else "(**wrong**)"


def _clip(text: str, max_length: int = 90) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
