"""A comparison for a terminal: the verdict, the account side by side, what explains the difference, the findings."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfdoctor.comparison.comparison import Comparison
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.reporters import comparison_facts as facts
from perfdoctor.reporters.clean_text import shorten_end, shorten_words
from perfdoctor.reporters.device_comparison_text import device_lines
from perfdoctor.reporters.render_blocks import render_blocks, strip_lines
from perfdoctor.reporters.terminal_text import hanging

_MAX_WORD = 40
_VERDICT_STYLES = {"faster": "bold green", "slower": "bold red", "same": "bold", "unknown": "bold yellow"}
_STATUS_STYLES = {"fixed": "green", "smaller": "green", "new": "red", "still there": "dim"}
# Columns of times: "-37.9 ms", and blanks between them.
_TIME_WIDTH, _TIME_COLUMNS = 9, 3
# Lines of a row, for long names of kernels.
_MAX_LINES = 2


@frozen_dataclass
class ComparisonTerminal:
    """Text in `width` columns, with ANSI colours if `color`.

    `verbosity` -1 gives the verdict and what became of the findings, 1 all tables with more rows.
    """

    width: int = 80
    color: bool = False
    verbosity: int = 0

    def render(self, comparison: Comparison) -> str:
        """The comparison as text; lines have no trailing blanks."""
        return strip_lines(render_blocks(self._blocks(comparison), self.width, color=self.color))

    def _blocks(self, comparison: Comparison) -> Iterator[RenderableType]:
        verdict = "unknown" if comparison.reasons else comparison.step.verdict
        yield _text(facts.verdict_of(comparison), _VERDICT_STYLES[verdict])
        if comparison.devices is not None:
            for line in device_lines(comparison.devices):
                yield hanging("  ", Text(line[2:])) if line.startswith("  ") else _text(line, "bold")
        for reason in facts.reason_lines(comparison):
            yield hanging("!", _text(reason, "yellow"))
        if self.verbosity >= (0 if comparison.devices is None else 1):
            yield from self._figures(comparison)
        yield from self._findings(comparison)
        if self.verbosity >= 0:
            for note in facts.note_lines(comparison):
                yield hanging("-", _text(note, "dim"))

    def _figures(self, comparison: Comparison) -> Iterator[RenderableType]:
        if noise := facts.describe_noise(comparison):
            yield _text(noise)
        for line in facts.memory_lines(comparison):
            yield _text(line)
        for side in facts.describe_sides(comparison):
            yield _text(side, "dim")
        for table in facts.shown_tables(comparison, verbose=self.verbosity > 0):
            yield Text()
            yield Text(table.title, style="bold")
            yield self._table(table)

    def _table(self, shown: facts.ShownTable) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(_TIME_COLUMNS):
            table.add_column(justify="right", width=_TIME_WIDTH, no_wrap=True)
        table.add_column()
        room = self.width - _TIME_COLUMNS * (_TIME_WIDTH + 2) - 2
        table.add_row(*(Text(name, style="dim") for name in ("change", "before", "after", "")))
        for row in shown.rows:
            times = (Text(text) for text in (row.difference, row.before, row.after))
            table.add_row(*times, _text(shorten_end(row.what, _MAX_LINES * room - 1)))
        return Padding(table, (0, 0, 0, 2))

    def _findings(self, comparison: Comparison) -> Iterator[RenderableType]:
        lines = facts.finding_lines(comparison, verbose=self.verbosity > 0)
        if lines:
            yield Text()
            yield Text("Findings", style="bold")
        for status, line in lines:
            yield hanging(f"  {status:<11}", _text(line), _STATUS_STYLES[status])
        promises = facts.promise_lines(comparison)
        if promises:
            yield Text()
            yield Text("Promised, and what came", style="bold")
        for line in promises:
            yield hanging("  -", _text(line))
        if lines or promises:
            yield Text()


def _text(text: str, style: str = "") -> Text:
    return Text(shorten_words(text, _MAX_WORD), style=style)
