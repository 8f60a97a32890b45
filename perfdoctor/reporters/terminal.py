"""The report for a terminal: the verdict, where the step's time went, the findings, and what nobody explained.

Rich lays it out. Everything is a Text built from pieces: no string is ever parsed as markup, so no name in a trace can
become any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters import report_facts, report_notes
from perfdoctor.reporters.clean_text import clean_block, clean_line, shorten, shorten_end, shorten_path, shorten_words
from perfdoctor.reporters.finding_texts import describe_cost, describe_info, describe_recurrence
from perfdoctor.reporters.format_values import format_evidence, format_place
from perfdoctor.reporters.once_only import once_text_of
from perfdoctor.reporters.pass_rows import pass_text_of
from perfdoctor.reporters.place_text import FEW_PLACES, PlaceText, findings_elsewhere, place_texts
from perfdoctor.reporters.rank_table import COLUMNS, rank_rows
from perfdoctor.reporters.render_blocks import render_each, strip_lines
from perfdoctor.reporters.report_facts import has_trials
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.terminal_text import (
    CLAUSE_END,
    MAX_WORD,
    NO_BREAK,
    SENTENCE_END,
    count_lines,
    first_parts,
    hanging,
    join_evidence,
    make_text,
    note_left_out,
    shorten_fix,
    unbroken,
)
from perfdoctor.reporters.time_split import TimeSlice, time_split_of
from perfdoctor.reporters.top_rows import top_tables
from perfdoctor.reporters.verdict import describe_ladder, describe_recorded_step, verdict_of
from perfdoctor.units import format_duration, format_share


class _BucketStyle(NamedTuple):
    """How a segment of the bar looks: a glyph for each, because the four must differ without colour as well."""

    colour: str
    glyph: str
    ascii_glyph: str


_SEVERITY_STYLES: Mapping[str, str] = {"high": "bold red", "medium": "bold yellow", "low": "bold cyan", "info": "dim"}
_BUCKET_STYLES: Mapping[str, _BucketStyle] = {
    "compute": _BucketStyle("green", "█", "#"),
    "bandwidth": _BucketStyle("blue", "▓", "="),
    "communication": _BucketStyle("magenta", "▒", "~"),
    "overhead": _BucketStyle("yellow", "░", "."),
}
# Lines of a finding unless more are asked for; what does not fit is in the long form.
_MAX_FINDING_LINES = 6
# A report with few findings fits a page of so many lines: what stands below the findings takes what they leave.
_PAGE_LINES = 40
_NOTE_LINES = 3  # a blank one, and two below everything else; two more where memory was recorded
_FEW_FINDINGS = 3
_MIN_FINDING_LINES = 4
# Lines that a report with more findings keeps for what stands below them.
_MIN_LINES_BELOW = 4
_MAX_DETAILS = 3
_MAX_NAMED_COVERED = 2
# Lines of what is said of one slice or one-off unless more are asked for.
_MAX_NOTE_LINES = 2
_INDENT = 4
# Width of the bar that says what the time of a place is.
_PLACE_CELLS = 16


class _Room(NamedTuple):
    """How much of a report stands above the sections.

    Attributes:
        finding_lines: How many lines a finding has at most.
        paragraphs: How many findings have a paragraph: the others take a line each.
        once_advice: Whether what happens once has its causes and advice, or its first cause alone.
        places: How many places have a paragraph at most.
    """

    finding_lines: int
    paragraphs: int
    once_advice: bool = True
    places: int = FEW_PLACES


class _Section(NamedTuple):
    """What stands below the findings under a heading: rows that may be left out from the end, the first ones last."""

    heading: str
    rows: list[str]


@frozen_dataclass
class Terminal(Reporter):
    """Text in `width` columns, with ANSI colours if `color`.

    `verbosity` -1 gives the verdict and one line for each finding, 0 at most six lines. 1 is the long form with all
    evidence and references, the kernels with the most time, the evidence for the context, and each rule's outcome.
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
        blocks = self._render(self._quiet_blocks(report)) if self.verbosity < 0 else self._blocks(report)
        return strip_lines("".join(blocks).replace(NO_BREAK, " "))

    def _render(self, blocks: Iterable[RenderableType]) -> list[str]:
        """The text of each block: laid out once, and counted as often as it takes to fill a page."""
        return list(render_each(blocks, self.width, color=self.color))

    def _quiet_blocks(self, report: Report) -> Iterator[RenderableType]:
        yield make_text(verdict_of(report))
        for finding in report.findings:
            yield self._finding_row(finding, report)

    def _finding_row(self, finding: Finding, report: Report, number: int | None = None) -> Text:
        """A finding in one line: its severity, rule, cost, place and title."""
        title, place = clean_line(finding.title), clean_line(finding.location.short) if finding.location else ""
        at = f"{place} " if place and place not in title else ""
        cost = f"{format_duration(finding.cost_ns):>7} {format_share(report_facts.share_of_step(report, finding)):>5}"
        if not finding.cost_ns:
            cost = "wrong results" if finding.makes_results_wrong else " " * len(cost)
        severity = (f"{finding.severity.upper():<6} ", _SEVERITY_STYLES[finding.severity])
        line = Text.assemble("" if number is None else f"{number}. ", severity, f"{finding.rule} {cost}  {at}{title}")
        line.truncate(self.width, overflow="ellipsis" if self.unicode else "crop")
        return line

    def _blocks(self, report: Report) -> Iterator[str]:
        findings = len(report_facts.main_findings(report))
        above = self._render(self._blocks_above(report, _Room(_MAX_FINDING_LINES, findings)))
        below = self._sections(report)
        if self.verbosity <= 0:
            reserved = _MIN_LINES_BELOW if findings > _FEW_FINDINGS and below else 0
            room = _PAGE_LINES - _NOTE_LINES - (_MAX_NOTE_LINES if report.memory else 0)
            for smaller in () if has_trials(report) else _smaller_rooms(findings):
                if _count_lines(above) > room - reserved:
                    above = self._render(self._blocks_above(report, smaller))
            below = _fit(below, max(room - _count_lines(above), _MIN_LINES_BELOW if has_trials(report) else 0))
        yield from above
        for section in below:
            yield from self._render(_heading(section.heading))
            yield from section.rows
        yield from self._render(self._notes(report))
        if self.verbosity > 0:
            yield from self._render([*self._context(report), Text(), self._outcomes(report)])

    def _sections(self, report: Report) -> list[_Section]:
        """What stands below the findings, in its order."""
        sections = [
            _Section("Not in every step", self._render(self._one_offs(report))),
            _Section("Also seen", self._render(self._info_findings(report))),
            *self._top_tables(report),
            _Section("Not explained by a finding", self._render(self._unexplained(report))),
        ]
        return [section for section in sections if section.rows]

    def _blocks_above(self, report: Report, room: _Room) -> Iterator[RenderableType]:
        """The verdict, where the time went, and the findings, in that many lines."""
        yield make_text(verdict_of(report), style="bold")
        if ladder := describe_ladder(report):
            yield make_text(ladder)
        if recorded := describe_recorded_step(report, always=self.verbosity > 0):
            yield make_text(f"({recorded})", style="dim")
        if report.run is not None:
            from perfdoctor.reporters.run_line import describe_run  # of captures alone

            yield make_text(describe_run(report.run, self.width, unicode=self.unicode), style="dim")
        if incomplete := report_notes.describe_incomplete_input(report):
            yield hanging("!", make_text(incomplete, style="yellow"))
        if has_trials(report):
            from perfdoctor.reporters.trial_reports import trial_lines  # of `perfdoctor try` alone

            yield from _heading("Trials")
            yield from (unbroken(line, "") for line in trial_lines(report, self.width))
        texts = place_texts(report, most=None if self.verbosity > 0 else room.places)
        yield from (block for text in texts for block in self._place(text, report, room))
        yield from self._time_split(report, with_rates=room.finding_lines > _MIN_FINDING_LINES)
        yield from self._once_only(report, with_advice=room.once_advice)
        yield from self._engine_passes(report)
        if len(report.account) > 1:
            yield Text()
            yield self._rank_table(report)
        yield from self._findings(findings_elsewhere(report, texts), report, room)

    def _findings(
        self, findings: Sequence[tuple[int, Finding]], report: Report, room: _Room
    ) -> Iterator[RenderableType]:
        """Findings with their numbers: those that have a paragraph, and the others in a line each."""
        for number, finding in findings:
            if number <= room.paragraphs:
                yield Text()
                yield from self._finding(number, finding, report, room.finding_lines)
        rows = [self._finding_row(finding, report, number) for number, finding in findings if number > room.paragraphs]
        if rows:
            yield from _heading("More findings (-v shows them in full)")
            yield from rows

    def _place(self, text: PlaceText, report: Report, room: _Room) -> Iterator[RenderableType]:
        """A place: its share, its source line, what its time is, what runs there, and the findings on it."""
        yield Text()
        yield Text.assemble((f"{text.share:>4}  {text.time:>7}  ", "bold"), (text.name, f"bold {self._underline}"))
        margin = max(len(text.line), _INDENT)
        if text.source:
            yield Text(shorten_end(f"  {text.line:>{margin}} | {text.source}", self.width))
        bar = Text(f"  {'':>{margin}} | ")
        for bucket, cells in zip(text.buckets, allocate_cells(list(text.buckets.values()), _PLACE_CELLS), strict=True):
            bar.append(self._glyph(bucket) * cells, style=_BUCKET_STYLES[bucket].colour)
        bar.append(f" {text.causes}")
        bar.truncate(self.width, overflow="ellipsis" if self.unicode else "crop")
        yield bar
        # The head says what runs at the first place: where there is room for one only that suffices.
        for line in (text.runs if room.places > 1 else "", *text.answers):
            if line:
                yield hanging(f"  {'':>{margin}} |", make_text(shorten_end(line, 2 * self.width - 4 * _INDENT)))
        for position, (number, finding) in enumerate(text.findings):
            if number > room.paragraphs or (position and self.verbosity <= 0):
                yield self._finding_row(finding, report, number)
            else:
                yield from self._finding(number, finding, report, room.finding_lines)

    def _time_split(self, report: Report, *, with_rates: bool) -> Iterator[RenderableType]:
        split = time_split_of(report)
        if split is None:
            return
        yield from _heading(split.title)
        bar = Text("  ")
        cells = allocate_cells([part.share for part in split.buckets], self.width - 4)
        for part, count in zip(split.buckets, cells, strict=True):
            bar.append(self._glyph(part.label) * count, style=_BUCKET_STYLES[part.label].colour)
        yield bar
        legend = Table.grid(padding=(0, 2, 0, 0))
        roofs = [f"({part.roof})" if part.roof else "" for part in split.buckets]
        has_roofs = any(roofs)
        for side in range(2):
            legend.add_column()
            legend.add_column(justify="right")
            legend.add_column(justify="right")
            if has_roofs and not side:
                legend.add_column()
        entries = [self._legend_entry(part) for part in split.buckets]
        for left, roof, right in zip(entries[:2], roofs[:2], entries[2:], strict=True):
            legend.add_row(*left, *([roof] if has_roofs else []), *right)
        yield Padding(legend, (0, 0, 0, 2))
        for part in split.details if self.verbosity > 0 else split.details[:_MAX_DETAILS]:
            figures = f"{format_duration(part.ns):>8}  {format_share(part.share):>7}"
            yield Text(f"      {figures}  {part.label}", style="dim")
        for line in (split.tensor_cores, split.rates if with_rates else None):
            if line:
                yield Padding(make_text(line), (0, 0, 0, 2))

    def _once_only(self, report: Report, *, with_advice: bool) -> Iterator[RenderableType]:
        once = once_text_of(report)
        if once is None:
            return
        yield from _heading(once.title)
        for row in once.rows if with_advice else once.rows[:1]:
            yield make_text(shorten_end(f"  {row.time:>8}  {row.share:>5}  {row.what}", self.width))
        if once.advice and with_advice:
            yield Padding(hanging("do:", make_text(once.advice)), (0, 0, 0, 2))

    def _engine_passes(self, report: Report) -> Iterator[RenderableType]:
        passes = pass_text_of(report)
        if passes is None:
            return
        yield from _heading(passes.title)
        yield from (hanging(f"  {row.time:>8}  {row.share:>5} ", make_text(row.what)) for row in passes.rows)

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
        table.add_column("step" if report_facts.has_steps(report) else "window", justify="right")
        for column in (*COLUMNS, "late by"):
            table.add_column(column, justify="right")
        for row in rows:
            shares = map(format_share, row.shares)
            table.add_row(row.rank, format_duration(row.step_ns), *shares, format_duration(row.late_ns))
        note = Padding(make_text(left_out, style="dim"), (0, 0, 0, 2))
        return Group(Padding(table, (0, 0, 0, 2)), note) if left_out else Padding(table, (0, 0, 0, 2))

    def _finding(
        self, number: int, finding: Finding, report: Report, max_lines: int = _MAX_FINDING_LINES
    ) -> Iterator[RenderableType]:
        head = Table.grid(expand=True, padding=(0, 1, 0, 0))
        head.add_column(width=2 if number < 10 else 3, justify="right")
        head.add_column(width=len("MEDIUM"))
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True)
        title = make_text(shorten_words(clean_line(finding.title), MAX_WORD), "bold")
        severity = Text(finding.severity.upper(), style=_SEVERITY_STYLES[finding.severity])
        head.add_row(Text(f"{number}.", style="bold"), severity, title, Text(finding.rule, style="dim"))
        yield head
        room = max_lines - count_lines(title, self.width - _INDENT - len("MEDIUM") - len(finding.rule) - 2)
        for line in self._finding_lines(finding, report, room):
            # A fix is there to be copied: it is printed as it stands, neither wrapped nor cropped.
            yield line if isinstance(line, Group) else Padding(line, (0, 0, 0, _INDENT))
        also_true = report_facts.covered_findings(report, finding)
        named = 1 if max_lines == _MIN_FINDING_LINES else _MAX_NAMED_COVERED
        for covered in also_true if self.verbosity > 0 else also_true[:named]:
            worth_ns = covered.saving.alone.expected_ns
            worth = f" (alone: {format_duration(worth_ns)})" if worth_ns else ""
            end = f"{worth}, {covered.rule}"
            also = shorten_words(clean_line(covered.title), MAX_WORD)
            if self.verbosity <= 0:
                also = shorten_end(also, self.width - _INDENT - len("also true: ") - len(end))
            yield Padding(hanging("also true:", make_text(f"{also}{end}", "dim")), (0, 0, 0, _INDENT))

    def _finding_lines(self, finding: Finding, report: Report, room: int) -> Iterator[RenderableType]:
        """What stands below the title of a finding, in at most `room` lines; in the long form all of it."""
        width = self.width - _INDENT
        if cost := self._cost_and_saving(finding, report):
            yield (text := make_text(cost))
            room -= count_lines(text, width)
        if finding.location:
            place = Text.assemble("at ", (format_place(finding, width), self._underline))
            yield place
            room -= count_lines(place, width)
        fix = clean_block(finding.fix).split("\n") if finding.fix else []
        advice = clean_line(finding.advice)
        if self.verbosity > 0:
            yield from self._evidence(finding)
            yield hanging("do:", make_text(shorten_words(advice, MAX_WORD)))
            yield from self._fix_lines(fix, "fix: ")
            yield from (unbroken(f"{' ' * _INDENT}see {clean_line(each)}", "dim") for each in finding.references)
            return
        label, fix = shorten_fix(fix, width)
        max_lines, advice_width = max(room - len(fix), 1), width - len("do: ")
        advice = first_parts(advice, SENTENCE_END, max_lines, advice_width)
        if finding.saving.promised is not None and count_lines(make_text(advice), advice_width) > max_lines:
            advice = shorten_end(advice, max_lines * advice_width)  # what was measured takes a line more
        room -= count_lines(make_text(advice), advice_width) + len(fix)
        if room > 0 and finding.evidence:
            yield make_text(shorten_end(f"seen: {join_evidence(finding)}", width), "dim")
        if room >= 0 or not fix:  # the line to change says most of it
            yield hanging("do:", make_text(shorten_words(advice, MAX_WORD)))
        yield from self._fix_lines(fix, label)

    def _fix_lines(self, fix: Sequence[str], label: str) -> Iterator[RenderableType]:
        for number, line in enumerate(fix):
            yield unbroken(f"{' ' * _INDENT}{' ' * len(label) if number else label}{line}", "green")

    @property
    def _underline(self) -> str:
        return "underline" if self.color else ""

    def _cost_and_saving(self, finding: Finding, report: Report) -> str:
        confidence = "" if finding.confidence >= 0.8 else f"confidence {format_share(finding.confidence)}"
        return ", ".join(filter(None, (describe_cost(report, finding), confidence)))

    def _evidence(self, finding: Finding) -> Iterator[RenderableType]:
        for evidence in finding.evidence:
            label = shorten(shorten_words(clean_line(evidence.label), MAX_WORD), self.width)
            yield hanging("-", make_text(f"{label}: {format_evidence(evidence)}", style="dim"))

    def _one_offs(self, report: Report) -> Iterator[RenderableType]:
        for finding in report_facts.one_off_findings(report):
            yield hanging(f"  {finding.rule}", make_text(self._describe_one_off(finding)))

    def _describe_one_off(self, finding: Finding) -> str:
        place = f", at {clean_line(str(finding.location))}" if finding.location else ""
        what = f"{clean_line(finding.title)} ({describe_recurrence(finding)})"
        line = shorten_words(f"{what}{place}. {clean_line(finding.advice)}", MAX_WORD)
        return line if self.verbosity > 0 else self._shorten_note(line, len("  PD103 "))

    def _info_findings(self, report: Report) -> Iterator[RenderableType]:
        for finding in report_facts.info_findings(report, in_full=self.verbosity > 0):
            place = f", at {clean_line(str(finding.location))}" if finding.location else ""
            cost = f" ({cost})" if (cost := describe_info(report, finding)) else ""
            end = f"{cost}{shorten_words(place, MAX_WORD)}"
            title = shorten_words(clean_line(finding.title), MAX_WORD)
            if self.verbosity <= 0:
                title = shorten_end(title, max(2 * self.width - 30 - len(end), MAX_WORD))
            line = f"{title}{end}"
            yield hanging(f"  {finding.rule}", make_text(line))

    def _top_tables(self, report: Report) -> Iterator[_Section]:
        for table in top_tables(report, in_full=self.verbosity > 0):
            rows: list[RenderableType] = []
            for row in table.rows:
                head = f"  {row.share:>5}  {row.time:>8}  {shorten_path(row.name, MAX_WORD)}"
                # The text of a line is there to be recognised: it takes what is left.
                rows.append(make_text(shorten_end(f"{head}  {row.what}".rstrip(), self.width)))
            yield _Section(table.title, self._render(rows))

    def _unexplained(self, report: Report) -> Iterator[RenderableType]:
        for share, sentence in report_notes.unexplained_lines(report, of_work=self.verbosity > 0):
            text = shorten_words(sentence, MAX_WORD)
            text = text if self.verbosity > 0 else self._shorten_note(text, len("  100% "))
            yield hanging(f"  {share:>4}", make_text(text))

    def _shorten_note(self, text: str, indent: int) -> str:
        """A text in a few lines: whole sentences, else whole clauses, as far as they fit."""
        width = self.width - indent
        for ends in (SENTENCE_END, CLAUSE_END):
            text = first_parts(text, ends, _MAX_NOTE_LINES, width)
        return shorten_end(text, _MAX_NOTE_LINES * (width - MAX_WORD // 4))  # room for words that break lines early

    def _context(self, report: Report) -> Iterator[RenderableType]:
        if report.context.evidence:
            yield from _heading("What program this is")
        for sentence in map(clean_line, report.context.evidence):
            yield hanging(" ", make_text(shorten_words(sentence, MAX_WORD), style="dim"))

    def _notes(self, report: Report) -> Iterator[RenderableType]:
        """Which rules could not judge, and what is odd about the trace: a line each unless all is asked for."""
        skipped, warnings = report_notes.skipped_rules(report), report_notes.group_trace_warnings(report)
        memory = report_notes.memory_lines(report)
        if self.verbosity > 0:
            rules = [f"{', '.join(each.rules)}: {shorten_words(each.why, MAX_WORD)}" for each in skipped]
            for heading, lines in (("Memory", memory), ("Not judged", rules), ("About the trace", warnings)):
                if lines:
                    yield from _heading(heading)
                yield from (hanging(" ", make_text(shorten_words(line, MAX_WORD), style="dim")) for line in lines)
            return
        not_judged = report_notes.describe_not_judged(report)
        memory = (
            memory[1:] if report_facts.is_snapshot(report) else memory[:1]
        )  # the verdict on a snapshot is the first sentence
        if memory or not_judged or warnings:
            yield Text()
        for sentence in memory:
            yield hanging("Memory:", make_text(self._shorten_note(sentence, len("Memory: ")), "dim"))
        if not_judged:
            yield self._note("Not judged: ", not_judged, "")
        if warnings:
            more = f" (and {len(warnings) - 1} more: -v)" if len(warnings) > 1 else ""
            yield self._note("About the trace: ", warnings[0], more)

    def _note(self, heading: str, text: str, end: str) -> Text:
        """A note in one line."""
        room = self.width - len(heading) - len(end)
        text = shorten_end(first_parts(text, CLAUSE_END, 1, room), room)
        return Text.assemble((heading, "bold"), make_text(f"{text}{end}", "dim"))

    def _outcomes(self, report: Report) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for _ in range(3):
            table.add_column(no_wrap=True)
        for outcome in report.outcomes:
            table.add_row(outcome.rule, outcome.status, f"{outcome.seconds:.3f} s")
        return Group(Text("Rules", style="bold"), Padding(table, (0, 0, 0, 2)))


def _heading(title: str) -> Iterator[Text]:
    yield Text()
    yield make_text(title, style="bold")


def _fit(sections: list[_Section], max_lines: int) -> list[_Section]:
    """The sections with as many rows as fit: the first rows of all come before the second ones of any."""
    left = max_lines
    shown = [0] * len(sections)
    # What no finding explains is part of the diagnosis; the tables are there to look things up.
    order = sorted(range(len(sections)), key=lambda i: -i if i == len(sections) - 1 else i)
    for row in range(max((len(section.rows) for section in sections), default=0)):
        for i in order:
            lines = _count_lines(sections[i].rows[row : row + 1])
            lines += 2 if lines and row == 0 else 0
            if lines and shown[i] == row and lines <= left:
                shown[i], left = row + 1, left - lines
    return [
        _Section(note_left_out(section.heading, count, len(section.rows)), section.rows[:count])
        for section, count in zip(sections, shown, strict=True)
        if count
    ]


def _count_lines(blocks: Iterable[str]) -> int:
    return sum(block.count("\n") for block in blocks)


def _smaller_rooms(findings: int) -> Iterator[_Room]:
    """Ways to say less above the sections, each less than the one before; the first finding is always a paragraph."""
    yield from (_Room(lines, findings) for lines in range(_MAX_FINDING_LINES - 1, _MIN_FINDING_LINES - 1, -1))
    yield from (_Room(_MIN_FINDING_LINES, count) for count in range(findings - 1, _FEW_FINDINGS - 1, -1))
    few = range(min(findings, _FEW_FINDINGS), 0, -1)
    yield from (_Room(_MIN_FINDING_LINES, count, once_advice=False) for count in few)
    yield from (_Room(_MIN_FINDING_LINES, 1, once_advice=False, places=count) for count in range(FEW_PLACES - 1, 0, -1))


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
