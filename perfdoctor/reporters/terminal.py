"""The report for a terminal: the verdict, where the step's time went, the findings, and what nobody explained.

Rich lays it out. Everything is a Text built from pieces: no string is ever parsed as markup, so no name in a trace can
become any.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import USED_AT, Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters import report_notes
from perfdoctor.reporters.clean_text import clean_block, clean_line, shorten, shorten_end, shorten_path, shorten_words
from perfdoctor.reporters.finding_texts import describe_cost, describe_recurrence
from perfdoctor.reporters.format_values import format_evidence, format_place
from perfdoctor.reporters.rank_table import COLUMNS, rank_rows
from perfdoctor.reporters.render_blocks import render_blocks
from perfdoctor.reporters.report_facts import (
    covered_findings,
    has_steps,
    info_findings,
    main_findings,
    one_off_findings,
    per_step_suffix,
)
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.time_split import TimeSlice, time_split_of
from perfdoctor.reporters.top_rows import top_tables
from perfdoctor.reporters.trial_reports import trial_lines
from perfdoctor.reporters.trial_table import has_trials
from perfdoctor.reporters.verdict import describe_ladder, describe_recorded_step, verdict_of
from perfdoctor.units import format_duration, format_share


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
# Lines of a finding unless more are asked for; what does not fit is in the long form.
_MAX_FINDING_LINES = 6
_MAX_LINES = 3
_MAX_WORD = 48
_INDENT = 4
_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z])")
_MEASURE = Console(file=io.StringIO(), width=1000, _environ={})


@frozen_dataclass
class Terminal(Reporter):
    """Text in `width` columns, with ANSI colours if `color`.

    `verbosity` -1 gives the verdict and one line for each finding, 0 at most six lines. 1 is the long form with all
    evidence and references, the kernels with most time, the evidence for the context, and the outcome of every rule.
    `unicode` False draws the bar in ASCII, for terminals that cannot show blocks.
    """

    suffix = ".txt"
    shortens_paths = True

    width: int = 80
    color: bool = False
    verbosity: int = 0
    unicode: bool = True

    def render_prepared(self, report: Report) -> str:
        """The report as text; lines have no trailing blanks."""
        blocks = self._quiet_blocks(report) if self.verbosity < 0 else self._blocks(report)
        lines = render_blocks(blocks, self.width, color=self.color).replace(_NO_BREAK, " ").rstrip("\n").split("\n")
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _quiet_blocks(self, report: Report) -> Iterator[RenderableType]:
        yield _text(verdict_of(report))
        for finding in report.findings:
            title, place = clean_line(finding.title), clean_line(finding.location.short) if finding.location else ""
            at = f"{place} " if place and place not in title else ""
            cost = f"{format_duration(finding.cost_ns):>7} {format_share(finding.share_of_step):>5}"
            if finding.makes_results_wrong and not finding.cost_ns:
                cost = "wrong results"
            severity = (f"{finding.severity.upper():<6} ", _SEVERITY_STYLES[finding.severity])
            line = Text.assemble(severity, f"{finding.rule} {cost}  {at}{title}")
            line.truncate(self.width, overflow="ellipsis" if self.unicode else "crop")
            yield line

    def _blocks(self, report: Report) -> Iterator[RenderableType]:
        yield _text(verdict_of(report), style="bold")
        ladder = describe_ladder(report)
        if ladder:
            yield _text(ladder)
        recorded = describe_recorded_step(report, always=self.verbosity > 0)
        if recorded:
            yield _text(f"({recorded})", style="dim")
        incomplete = report_notes.describe_incomplete_input(report)
        if incomplete:
            yield _hanging("!", _text(incomplete, style="yellow"))
        if has_trials(report):
            yield Text()
            yield Text("Trials", style="bold")
            yield from (_unbroken(line, "") for line in trial_lines(report, self.width))
        yield from self._time_split(report)
        if len(report.account) > 1:
            yield Text()
            yield self._rank_table(report)
        for number, finding in enumerate(main_findings(report), 1):
            yield Text()
            yield from self._finding(number, finding, report)
        yield from self._one_offs(report)
        yield from self._info_findings(report)
        yield from self._top_tables(report)
        yield from self._unexplained(report)
        yield from self._skipped_rules(report)
        yield from self._trace_warnings(report)
        if self.verbosity > 0:
            yield from self._context(report)
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
        head = Table.grid(expand=True, padding=(0, 1, 0, 0))
        head.add_column(width=2, justify="right")
        head.add_column(width=len("MEDIUM"))
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True)
        title = _text(shorten_words(clean_line(finding.title), _MAX_WORD), "bold")
        severity = Text(finding.severity.upper(), style=_SEVERITY_STYLES[finding.severity])
        head.add_row(Text(f"{number}.", style="bold"), severity, title, Text(finding.rule, style="dim"))
        yield head
        room = _MAX_FINDING_LINES - _count_lines(title, self.width - _INDENT - len("MEDIUM") - len(finding.rule) - 2)
        for line in self._finding_lines(finding, report, room):
            # A fix is there to be copied: it is printed as it stands, neither wrapped nor cropped.
            yield line if isinstance(line, Group) else Padding(line, (0, 0, 0, _INDENT))
        for covered in covered_findings(report, finding):
            worth_ns = covered.saving.alone.expected_ns
            worth = f" (alone: {format_duration(worth_ns)})" if worth_ns else ""
            also = f"{shorten_words(clean_line(covered.title), _MAX_WORD)}{worth}, {covered.rule}"
            yield Padding(_hanging("also true:", _text(also, "dim")), (0, 0, 0, _INDENT))

    def _finding_lines(self, finding: Finding, report: Report, room: int) -> Iterator[RenderableType]:
        """What stands below the title of a finding, in at most `room` lines; in the long form all of it."""
        width = self.width - _INDENT
        cost = _text(self._cost_and_saving(finding, report))
        yield cost
        room -= _count_lines(cost, width)
        if finding.location:
            place = Text.assemble("at ", (format_place(finding, width), self._underline))
            yield place
            room -= _count_lines(place, width)
        fix = clean_block(finding.fix).split("\n") if finding.fix else []
        label, advice = "fix: ", clean_line(finding.advice)
        if self.verbosity > 0:
            yield from self._evidence(finding)
        else:
            label, fix = (f"fix (1 of {len(fix)} lines): " if len(fix) > 1 else label), fix[:1]
            max_lines, advice_width = max(room - len(fix), 1), width - len("do: ")
            advice = _first_sentences(advice, max_lines, advice_width)
            if finding.saving.promised is not None and _count_lines(_text(advice), advice_width) > max_lines:
                advice = shorten_end(advice, max_lines * advice_width)  # what was measured takes a line more
            room -= _count_lines(_text(advice), width - len("do: ")) + len(fix)
            if room > 0 and finding.evidence:
                yield _text(shorten_end(f"seen: {_join_evidence(finding)}", width), "dim")
        yield _hanging("do:", _text(shorten_words(advice, _MAX_WORD)))
        for number, line in enumerate(fix):
            yield _unbroken(f"{' ' * _INDENT}{' ' * len(label) if number else label}{line}", "green")
        if self.verbosity > 0:
            for reference in finding.references:
                yield _unbroken(f"{' ' * _INDENT}see {clean_line(reference)}", "dim")

    @property
    def _underline(self) -> str:
        return "underline" if self.color else ""

    def _cost_and_saving(self, finding: Finding, report: Report) -> str:
        confidence = "" if finding.confidence >= 0.8 else f", confidence {format_share(finding.confidence)}"
        return f"{describe_cost(report, finding)}{confidence}"

    def _evidence(self, finding: Finding) -> Iterator[RenderableType]:
        for evidence in finding.evidence:
            label = shorten(shorten_words(clean_line(evidence.label), _MAX_WORD), self.width)
            yield _hanging("-", _text(f"{label}: {format_evidence(evidence)}", style="dim"))

    def _one_offs(self, report: Report) -> Iterator[RenderableType]:
        findings = one_off_findings(report)
        if findings:
            yield Text()
            yield Text("Not in every step", style="bold")
        for finding in findings:
            yield _hanging(f"  {finding.rule}", _text(self._describe_one_off(finding)))

    def _describe_one_off(self, finding: Finding) -> str:
        place = f", at {clean_line(str(finding.location))}" if finding.location else ""
        what = f"{clean_line(finding.title)} ({describe_recurrence(finding)})"
        line = f"{what}{place}. {clean_line(finding.advice)}"
        return shorten_words(line, _MAX_WORD)

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

    def _top_tables(self, report: Report) -> Iterator[RenderableType]:
        for table in top_tables(report, in_full=self.verbosity > 0):
            yield Text()
            yield Text(table.title, style="bold")
            for row in table.rows:
                head = f"  {row.share:>5}  {row.time:>8}  {shorten_path(row.name, _MAX_WORD)}"
                # The text of a line is there to be recognised: it takes what is left.
                yield _text(shorten_end(f"{head}  {row.what}".rstrip(), self.width))

    def _unexplained(self, report: Report) -> Iterator[RenderableType]:
        shares = report_notes.unexplained_lines(report, of_work=self.verbosity > 0)
        if shares:
            yield Text()
            yield Text("Not explained by a finding", style="bold")
        shown = shares if self.verbosity > 0 else shares[:_MAX_LINES]
        for share, sentence in shown:
            yield _hanging(f"  {share:>4}", _text(shorten_words(sentence, _MAX_WORD)))
        if len(shown) < len(shares):
            yield Text(f"  and {len(shares) - len(shown)} more (-v shows them)", style="dim")

    def _context(self, report: Report) -> Iterator[RenderableType]:
        if report.context.evidence:
            yield Text()
            yield Text("What program this is", style="bold")
        for sentence in map(clean_line, report.context.evidence):
            yield _hanging(" ", _text(shorten_words(sentence, _MAX_WORD), style="dim"))

    def _skipped_rules(self, report: Report) -> Iterator[RenderableType]:
        skipped = report_notes.skipped_rules(report)
        if not skipped:
            return
        yield Text()
        if self.verbosity <= 0 and len(skipped) == 1 and skipped[0].needs_gpu:
            yield Text.assemble(("Not judged", "bold"), f": {report_notes.describe_gpu_rules(skipped[0])}")
            return
        yield Text("Not judged", style="bold")
        shown = skipped if self.verbosity > 0 else skipped[:_MAX_LINES]
        for group in shown:
            line = f"{', '.join(group.rules)}: {shorten_words(group.why, _MAX_WORD)}"
            if self.verbosity <= 0 and group.needs_gpu:
                line = report_notes.describe_gpu_rules(group)
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


def _count_lines(text: Text, width: int) -> int:
    """How many lines a text takes in `width` columns."""
    return len(text.wrap(_MEASURE, max(width, 1)))


def _first_sentences(text: str, max_lines: int, width: int) -> str:
    """As many whole sentences from the start of a text as fit into some lines, at least one."""
    sentences = _SENTENCE_END.split(text)
    for count in range(len(sentences), 1, -1):
        first = " ".join(sentences[:count])
        if _count_lines(_text(first), width) <= max_lines:
            return first
    return sentences[0]


def _join_evidence(finding: Finding) -> str:
    shown = [each for each in finding.evidence if each.id != USED_AT and each.value is not None]
    return "; ".join(f"{clean_line(e.label)}: {_shorten_value(format_evidence(e))}" for e in shown)


def _shorten_value(value: str) -> str:
    return shorten_path(value, _MAX_WORD) if ".py" in value else shorten(value, _MAX_WORD)


def _unbroken(line: str, style: str) -> Group:
    return Group(Text(line, style=style, no_wrap=True, overflow="ignore"))


def _hanging(mark: str, text: Text) -> Table:
    """`text` after a mark, with its further lines indented beneath its first."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(Text(mark, style="bold"), text)
    return grid


def allocate_cells(shares: Sequence[float], width: int) -> list[int]:
    """The number of cells for each share of a bar; they add up to `width`, and a share above zero gets at least one.

    The largest remainders are rounded up, so that no segment is more than one cell off. Without any share above zero
    there are no cells::

        shares 0.70 0.29 0.01, width 10  ->  7 2 1
    """
    whole = sum(shares)
    if whole <= 0:
        return [0] * len(shares)
    exact = [width * share / whole for share in shares]
    cells = [max(int(e), 1) if share > 0 else 0 for e, share in zip(exact, shares, strict=True)]
    while sum(cells) < width:
        cells[max(range(len(cells)), key=lambda i: exact[i] - cells[i])] += 1
    while sum(cells) > width and max(cells) > 1:
        cells[min((i for i in range(len(cells)) if cells[i] > 1), key=lambda i: exact[i] - cells[i])] -= 1
    return cells
