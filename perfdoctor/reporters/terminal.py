"""The report for a terminal: the verdict, where the step's time went, the findings, and what was not judged.

Rich lays it out. Everything is a Text built from pieces: no string is ever parsed as markup, so no name in a trace can
become any.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters import rank_table as ranks
from perfdoctor.reporters import report_text as summary
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.stacked_bar import cells
from perfdoctor.reporters.wording import (
    clean,
    clean_block,
    duration,
    place,
    quantity,
    saving,
    share,
    shorten,
    shorten_words,
)

_SEVERITY_STYLE: Mapping[str, str] = MappingProxyType(
    {"high": "bold red", "medium": "bold yellow", "low": "bold cyan", "info": "dim"}
)
# Without colour the four segments must still be told apart, hence a glyph each.
_BUCKET_LOOK: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "compute": ("green", "█", "#"),
        "bandwidth": ("blue", "▓", "="),
        "communication": ("magenta", "▒", "~"),
        "overhead": ("yellow", "░", "."),
    }
)
# Stands for the blank between a number and its unit while lines are broken, so that "21 %" stays on one line.
_GLUE = "\ue000"
_NUMBER_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]B|bytes|[mun]?s)(?!\w))")
_EVIDENCE_SHOWN = 3
_LINES_SHOWN = 3
_LONGEST_WORD = 48
_INDENT = 3


@dataclass(frozen=True, slots=True)
class Terminal(Reporter):
    """Text in `width` columns, with ANSI colours when `color`.

    `verbosity` -1 gives the verdict and a line a finding, 1 adds all evidence, references and what became of every
    rule. `unicode` False draws the bar in ASCII, for terminals that cannot show blocks.
    """

    suffix: ClassVar[str] = ".txt"

    width: int = 80
    color: bool = False
    verbosity: int = 0
    unicode: bool = True

    def render(self, report: Report) -> str:
        """The report as text; lines carry no trailing blanks."""
        console = Console(
            file=io.StringIO(),
            width=self.width,
            force_terminal=self.color,
            no_color=not self.color,
            color_system="standard" if self.color else None,
            legacy_windows=False,
            markup=False,
            emoji=False,
            highlight=False,
            _environ={},
        )
        with console.capture() as captured:
            for block in self._quiet(report) if self.verbosity < 0 else self._blocks(report):
                console.print(block, crop=False)
        lines = captured.get().replace(_GLUE, " ").rstrip("\n").split("\n")
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _quiet(self, report: Report) -> Iterator[RenderableType]:
        yield _text(summary.verdict(report))
        for finding in report.findings:
            short = clean(finding.location.short) if finding.location else ""
            where = f"{short} " if short and short not in clean(finding.title) else ""
            cost = f"{duration(finding.cost_ns):>7} {share(finding.share_of_step):>5}"
            line = f"{finding.rule} {cost}  {where}{clean(finding.title)}"
            text = Text.assemble((f"{finding.severity.upper():<6} ", _SEVERITY_STYLE[finding.severity]), line)
            text.truncate(self.width, overflow="ellipsis" if self.unicode else "crop")
            yield text

    def _blocks(self, report: Report) -> Iterator[RenderableType]:
        yield _text(summary.verdict(report), style="bold")
        cut = summary.cut_short(report)
        if cut:
            yield _hanging("!", _text(cut, style="yellow"))
        yield from self._split(report)
        if len(report.account) > 1:
            yield Text()
            yield self._ranks(report)
        together = summary.together(report)
        if together:
            yield Text()
            yield _text(together, style="bold")
        for number, finding in enumerate(summary.advised(report), 1):
            yield Text()
            yield from self._finding(number, finding, report)
        yield from self._notes(report)
        yield from self._skipped(report)
        yield from self._oddities(report)
        if self.verbosity > 0:
            yield Text()
            yield self._outcomes(report)

    def _split(self, report: Report) -> Iterator[RenderableType]:
        split = summary.split(report)
        if split is None:
            return
        yield Text()
        yield _text(split.title, style="bold")
        bar = Text("  ")
        for part, count in zip(split.buckets, cells([p.share for p in split.buckets], self.width - 4), strict=True):
            bar.append(self._glyph(part.words) * count, style=_BUCKET_LOOK[part.words][0])
        yield bar
        legend = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(2):
            legend.add_column()
            legend.add_column(justify="right")
            legend.add_column(justify="right")
        shown = [self._legend(part) for part in split.buckets]
        for left, right in zip(shown[:2], shown[2:], strict=True):
            legend.add_row(*left, *right)
        yield Padding(legend, (0, 0, 0, 2))
        for part in split.details:
            yield Text(f"      {duration(part.ns):>8}  {share(part.share):>7}  {part.words}", style="dim")
        for line in (split.tensor_cores, split.rates):
            if line:
                yield Padding(_text(line), (0, 0, 0, 2))

    def _glyph(self, bucket: str) -> str:
        _, block, ascii_glyph = _BUCKET_LOOK[bucket]
        if not self.unicode:
            return ascii_glyph
        return "█" if self.color else block

    def _legend(self, part: summary.Part) -> tuple[Text, str, str]:
        label = Text.assemble((self._glyph(part.words), _BUCKET_LOOK[part.words][0]), f" {part.words}")
        return label, duration(part.ns), share(part.share)

    def _ranks(self, report: Report) -> RenderableType:
        rows, left_out = summary.rank_rows(report)
        table = Table(
            box=box.SIMPLE_HEAD if self.unicode else box.ASCII2, pad_edge=False, show_edge=False, header_style="bold"
        )
        table.add_column("rank", justify="right")
        table.add_column("step" if summary.has_steps(report) else "window", justify="right")
        for column in (*ranks.COLUMNS, "late by"):
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(row.rank, duration(row.step_ns), *map(share, row.shares), duration(row.late_ns))
        note = Padding(_text(left_out, style="dim"), (0, 0, 0, 2))
        return Group(Padding(table, (0, 0, 0, 2)), note) if left_out else Padding(table, (0, 0, 0, 2))

    def _finding(self, number: int, finding: Finding, report: Report) -> Iterator[RenderableType]:
        head = Table.grid(expand=True, padding=(0, 2, 0, 0))
        head.add_column(width=2, justify="right")
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True)
        style = _SEVERITY_STYLE[finding.severity]
        title = shorten_words(clean(finding.title), _LONGEST_WORD)
        head.add_row(
            Text(f"{number}.", style="bold"),
            Text.assemble((finding.severity.upper(), style), (f"  {title}", "bold")),
            Text(finding.rule, style="dim"),
        )
        yield head
        for part in (*self._body(finding, report), *self._remedy(finding)):
            # Fixes and addresses are there to be copied: they are printed as they stand, neither wrapped nor cropped.
            yield part if isinstance(part, Group) else Padding(part, (0, 0, 0, _INDENT + 1))

    def _body(self, finding: Finding, report: Report) -> Iterator[RenderableType]:
        per = summary.per_step(report)
        unsure = "" if finding.confidence >= 0.8 else f", confidence {share(finding.confidence)}"
        cost = f"{duration(finding.cost_ns)}{per} ({share(finding.share_of_step)}){ranks.whose(report, finding)}"
        yield _text(f"costs {cost}{unsure}")
        yield _text(saving(finding.saving, per))
        if finding.location:
            yield Text.assemble(
                "at ", (shorten_words(place(finding.location), self.width - 8), "underline" if self.color else "")
            )
        shown = finding.evidence if self.verbosity > 0 else finding.evidence[:_EVIDENCE_SHOWN]
        for evidence in shown:
            label = shorten(shorten_words(clean(evidence.label), _LONGEST_WORD), self.width)
            room = 10_000 if self.verbosity > 0 else max(self.width - len(label) - _INDENT - 6, 16)
            yield _hanging("-", _text(f"{label}: {shorten(quantity(evidence), room)}", style="dim"))
        if len(shown) < len(finding.evidence):
            yield Text(f"  and {len(finding.evidence) - len(shown)} more (-v shows them)", style="dim")

    def _remedy(self, finding: Finding) -> Iterator[RenderableType]:
        yield _hanging("do:", _text(shorten_words(clean(finding.advice), _LONGEST_WORD)))
        if finding.fix:
            yield Text("fix:", style="bold")
            code = textwrap.indent(clean_block(finding.fix), " " * (_INDENT + 3))
            yield Group(Text(code, style="green", no_wrap=True, overflow="ignore"))
        if self.verbosity > 0:
            for reference in finding.references:
                line = f"{' ' * (_INDENT + 1)}see {clean(reference)}"
                yield Group(Text(line, style="dim", no_wrap=True, overflow="ignore"))

    def _notes(self, report: Report) -> Iterator[RenderableType]:
        notes = summary.noted(report)
        if notes:
            yield Text()
            yield Text("Also seen", style="bold")
        for finding in notes:
            where = f", at {clean(str(finding.location))}" if finding.location else ""
            cost = f" ({duration(finding.cost_ns)}{summary.per_step(report)})" if finding.cost_ns else ""
            line = f"{shorten_words(clean(finding.title), _LONGEST_WORD)}{cost}{shorten_words(where, _LONGEST_WORD)}"
            yield _hanging(f"  {finding.rule}", _text(line))

    def _skipped(self, report: Report) -> Iterator[RenderableType]:
        skipped = summary.skipped(report)
        if not skipped:
            return
        yield Text()
        yield Text("Not judged", style="bold")
        shown = skipped if self.verbosity > 0 else skipped[:_LINES_SHOWN]
        for group in shown:
            line = f"{', '.join(group.rules)}: {shorten_words(group.why, _LONGEST_WORD)}"
            yield _hanging(" ", _text(line, style="dim"))
        if len(shown) < len(skipped):
            rest = sum(len(group.rules) for group in skipped[len(shown) :])
            yield Text(f"  and {rest} more (-v shows them)", style="dim")

    def _oddities(self, report: Report) -> Iterator[RenderableType]:
        oddities = summary.oddities(report)
        if not oddities:
            return
        yield Text()
        yield Text("About the trace", style="bold")
        shown = oddities if self.verbosity > 0 else oddities[:_LINES_SHOWN]
        for oddity in shown:
            yield _hanging(" ", _text(shorten_words(oddity, _LONGEST_WORD), style="dim"))
        if len(shown) < len(oddities):
            yield Text(f"  and {len(oddities) - len(shown)} more (-v shows them)", style="dim")

    def _outcomes(self, report: Report) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for _ in range(3):
            table.add_column(no_wrap=True)
        for outcome in report.outcomes:
            table.add_row(outcome.rule, outcome.status, f"{outcome.seconds:.3f} s")
        return Group(Text("Rules", style="bold"), Padding(table, (0, 0, 0, 2)))


def _text(text: str, style: str = "") -> Text:
    return Text(_NUMBER_UNIT.sub(_GLUE, text), style=style)


def _hanging(mark: str, text: Text) -> Table:
    """`text` behind a mark, its further lines beneath its first."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(Text(mark, style="bold"), text)
    return grid
