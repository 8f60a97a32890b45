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
from typing import ClassVar, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters import report_notes
from perfdoctor.reporters.clean_text import clean_block, clean_line, shorten, shorten_words
from perfdoctor.reporters.format_values import (
    format_duration,
    format_evidence,
    format_location,
    format_saving,
    format_share,
)
from perfdoctor.reporters.rank_table import COLUMNS, format_finding_ranks, rank_rows
from perfdoctor.reporters.report_facts import has_steps, info_findings, main_findings, per_step_suffix
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.stacked_bar import allocate_cells
from perfdoctor.reporters.time_split import TimeSlice, time_split_of
from perfdoctor.reporters.verdict import describe_fix_chain, verdict_of


class _BucketStyle(NamedTuple):
    """How a segment of the bar looks: a glyph for each, because the four must differ without colour as well."""

    colour: str
    glyph: str
    ascii_glyph: str


_SEVERITY_STYLES: Mapping[str, str] = MappingProxyType(
    {"high": "bold red", "medium": "bold yellow", "low": "bold cyan", "info": "dim"}
)
_BUCKET_STYLES: Mapping[str, _BucketStyle] = MappingProxyType(
    {
        "compute": _BucketStyle("green", "█", "#"),
        "bandwidth": _BucketStyle("blue", "▓", "="),
        "communication": _BucketStyle("magenta", "▒", "~"),
        "overhead": _BucketStyle("yellow", "░", "."),
    }
)
# Replaces the blank between a number and its unit while lines are broken, so that "21 ms" stays on one line.
_NO_BREAK = "\ue000"
_NUMBER_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]B|bytes|[mun]?s)(?!\w))")
_MAX_EVIDENCE = 3
_MAX_LINES = 3
_MAX_WORD = 48
_INDENT = 3


@dataclass(frozen=True, slots=True)
class Terminal(Reporter):
    """Text in `width` columns, with ANSI colours if `color`.

    `verbosity` -1 gives the verdict and one line for each finding; 1 adds all evidence, references and the outcome of
    every rule. `unicode` False draws the bar in ASCII, for terminals that cannot show blocks.
    """

    suffix: ClassVar[str] = ".txt"

    width: int = 80
    color: bool = False
    verbosity: int = 0
    unicode: bool = True

    def render_printable(self, report: Report) -> str:
        """The report as text; lines have no trailing blanks."""
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
            for block in self._quiet_blocks(report) if self.verbosity < 0 else self._blocks(report):
                console.print(block, crop=False)
        lines = captured.get().replace(_NO_BREAK, " ").rstrip("\n").split("\n")
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _quiet_blocks(self, report: Report) -> Iterator[RenderableType]:
        yield _text(verdict_of(report))
        for finding in report.findings:
            title, place = clean_line(finding.title), clean_line(finding.location.short) if finding.location else ""
            at = f"{place} " if place and place not in title else ""
            cost = f"{format_duration(finding.cost_ns):>7} {format_share(finding.share_of_step):>5}"
            severity = (f"{finding.severity.upper():<6} ", _SEVERITY_STYLES[finding.severity])
            line = Text.assemble(severity, f"{finding.rule} {cost}  {at}{title}")
            line.truncate(self.width, overflow="ellipsis" if self.unicode else "crop")
            yield line

    def _blocks(self, report: Report) -> Iterator[RenderableType]:
        yield _text(verdict_of(report), style="bold")
        incomplete = report_notes.describe_incomplete_input(report)
        if incomplete:
            yield _hanging("!", _text(incomplete, style="yellow"))
        yield from self._time_split(report)
        if len(report.account) > 1:
            yield Text()
            yield self._rank_table(report)
        fix_chain = describe_fix_chain(report)
        if fix_chain:
            yield Text()
            yield _text(fix_chain, style="bold")
        for number, finding in enumerate(main_findings(report), 1):
            yield Text()
            yield from self._finding(number, finding, report)
        yield from self._info_findings(report)
        yield from self._skipped_rules(report)
        yield from self._trace_warnings(report)
        if self.verbosity > 0:
            yield Text()
            yield self._outcomes(report)

    def _time_split(self, report: Report) -> Iterator[RenderableType]:
        split = time_split_of(report)
        if split is None:
            return
        yield Text()
        yield _text(split.title, style="bold")
        bar = Text("  ")
        cells = allocate_cells([part.share for part in split.buckets], self.width - 4)
        for part, count in zip(split.buckets, cells, strict=True):
            bar.append(self._glyph(part.label) * count, style=_BUCKET_STYLES[part.label].colour)
        yield bar
        legend = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(2):
            legend.add_column()
            legend.add_column(justify="right")
            legend.add_column(justify="right")
        entries = [self._legend_entry(part) for part in split.buckets]
        for left, right in zip(entries[:2], entries[2:], strict=True):
            legend.add_row(*left, *right)
        yield Padding(legend, (0, 0, 0, 2))
        for part in split.details:
            figures = f"{format_duration(part.ns):>8}  {format_share(part.share):>7}"
            yield Text(f"      {figures}  {part.label}", style="dim")
        for line in (split.tensor_cores, split.rates):
            if line:
                yield Padding(_text(line), (0, 0, 0, 2))

    def _glyph(self, bucket: str) -> str:
        style = _BUCKET_STYLES[bucket]
        if not self.unicode:
            return style.ascii_glyph
        return "█" if self.color else style.glyph

    def _legend_entry(self, part: TimeSlice) -> tuple[Text, str, str]:
        label = Text.assemble((self._glyph(part.label), _BUCKET_STYLES[part.label].colour), f" {part.label}")
        return label, format_duration(part.ns), format_share(part.share)

    def _rank_table(self, report: Report) -> RenderableType:
        rows, left_out = rank_rows(report)
        table = Table(
            box=box.SIMPLE_HEAD if self.unicode else box.ASCII2, pad_edge=False, show_edge=False, header_style="bold"
        )
        table.add_column("rank", justify="right")
        table.add_column("step" if has_steps(report) else "window", justify="right")
        for column in (*COLUMNS, "late by"):
            table.add_column(column, justify="right")
        for row in rows:
            shares = map(format_share, row.shares)
            table.add_row(row.rank, format_duration(row.step_ns), *shares, format_duration(row.late_ns))
        note = Padding(_text(left_out, style="dim"), (0, 0, 0, 2))
        return Group(Padding(table, (0, 0, 0, 2)), note) if left_out else Padding(table, (0, 0, 0, 2))

    def _finding(self, number: int, finding: Finding, report: Report) -> Iterator[RenderableType]:
        head = Table.grid(expand=True, padding=(0, 2, 0, 0))
        head.add_column(width=2, justify="right")
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True)
        style = _SEVERITY_STYLES[finding.severity]
        title = shorten_words(clean_line(finding.title), _MAX_WORD)
        head.add_row(
            Text(f"{number}.", style="bold"),
            Text.assemble((finding.severity.upper(), style), (f"  {title}", "bold")),
            Text(finding.rule, style="dim"),
        )
        yield head
        for part in (*self._cost_and_evidence(finding, report), *self._advice(finding)):
            # Fixes and addresses are there to be copied: they are printed as they stand, neither wrapped nor cropped.
            yield part if isinstance(part, Group) else Padding(part, (0, 0, 0, _INDENT + 1))

    def _cost_and_evidence(self, finding: Finding, report: Report) -> Iterator[RenderableType]:
        per_step = per_step_suffix(report)
        confidence = "" if finding.confidence >= 0.8 else f", confidence {format_share(finding.confidence)}"
        amount = f"{format_duration(finding.cost_ns)}{per_step} ({format_share(finding.share_of_step)})"
        yield _text(f"costs {amount}{format_finding_ranks(report, finding)}{confidence}")
        yield _text(format_saving(finding.saving, per_step))
        if finding.location:
            place = shorten_words(format_location(finding.location), self.width - 8)
            yield Text.assemble("at ", (place, "underline" if self.color else ""))
        shown = finding.evidence if self.verbosity > 0 else finding.evidence[:_MAX_EVIDENCE]
        for evidence in shown:
            label = shorten(shorten_words(clean_line(evidence.label), _MAX_WORD), self.width)
            room = 10_000 if self.verbosity > 0 else max(self.width - len(label) - _INDENT - 6, 16)
            yield _hanging("-", _text(f"{label}: {shorten(format_evidence(evidence), room)}", style="dim"))
        if len(shown) < len(finding.evidence):
            yield Text(f"  and {len(finding.evidence) - len(shown)} more (-v shows them)", style="dim")

    def _advice(self, finding: Finding) -> Iterator[RenderableType]:
        yield _hanging("do:", _text(shorten_words(clean_line(finding.advice), _MAX_WORD)))
        if finding.fix:
            yield Text("fix:", style="bold")
            code = textwrap.indent(clean_block(finding.fix), " " * (_INDENT + 3))
            yield Group(Text(code, style="green", no_wrap=True, overflow="ignore"))
        if self.verbosity > 0:
            for reference in finding.references:
                line = f"{' ' * (_INDENT + 1)}see {clean_line(reference)}"
                yield Group(Text(line, style="dim", no_wrap=True, overflow="ignore"))

    def _info_findings(self, report: Report) -> Iterator[RenderableType]:
        findings = info_findings(report)
        if findings:
            yield Text()
            yield Text("Also seen", style="bold")
        for finding in findings:
            place = f", at {clean_line(str(finding.location))}" if finding.location else ""
            cost = f" ({format_duration(finding.cost_ns)}{per_step_suffix(report)})" if finding.cost_ns else ""
            line = f"{shorten_words(clean_line(finding.title), _MAX_WORD)}{cost}{shorten_words(place, _MAX_WORD)}"
            yield _hanging(f"  {finding.rule}", _text(line))

    def _skipped_rules(self, report: Report) -> Iterator[RenderableType]:
        skipped = report_notes.skipped_rules(report)
        if not skipped:
            return
        yield Text()
        yield Text("Not judged", style="bold")
        shown = skipped if self.verbosity > 0 else skipped[:_MAX_LINES]
        for group in shown:
            line = f"{', '.join(group.rules)}: {shorten_words(group.why, _MAX_WORD)}"
            yield _hanging(" ", _text(line, style="dim"))
        if len(shown) < len(skipped):
            rest = sum(len(group.rules) for group in skipped[len(shown) :])
            yield Text(f"  and {rest} more (-v shows them)", style="dim")

    def _trace_warnings(self, report: Report) -> Iterator[RenderableType]:
        warnings = report_notes.group_trace_warnings(report)
        if not warnings:
            return
        yield Text()
        yield Text("About the trace", style="bold")
        shown = warnings if self.verbosity > 0 else warnings[:_MAX_LINES]
        for warning in shown:
            yield _hanging(" ", _text(shorten_words(warning, _MAX_WORD), style="dim"))
        if len(shown) < len(warnings):
            yield Text(f"  and {len(warnings) - len(shown)} more (-v shows them)", style="dim")

    def _outcomes(self, report: Report) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for _ in range(3):
            table.add_column(no_wrap=True)
        for outcome in report.outcomes:
            table.add_row(outcome.rule, outcome.status, f"{outcome.seconds:.3f} s")
        return Group(Text("Rules", style="bold"), Padding(table, (0, 0, 0, 2)))


def _text(text: str, style: str = "") -> Text:
    return Text(_NUMBER_UNIT.sub(_NO_BREAK, text), style=style)


def _hanging(mark: str, text: Text) -> Table:
    """`text` after a mark, with its further lines indented beneath its first."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(Text(mark, style="bold"), text)
    return grid
