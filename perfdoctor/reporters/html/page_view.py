"""What the template of the page is filled with: the words and facts of all reporters, and the positions of bars."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from perfdoctor.analysis.timeline.account import BUCKETS
from perfdoctor.report.finding import SOURCE_LINE, USED_AT, Finding
from perfdoctor.report.report import Outcome, Report, TraceSummary
from perfdoctor.reporters import report_facts, report_notes, trial_table
from perfdoctor.reporters.clean_text import clean_block, clean_line, shorten_words
from perfdoctor.reporters.finding_texts import describe_cost, describe_covered, describe_info, describe_recurrence
from perfdoctor.reporters.format_values import format_evidence, format_place
from perfdoctor.reporters.html.bars import range_bar, rungs_of, segments_of, segments_of_shares
from perfdoctor.reporters.once_only import once_text_of
from perfdoctor.reporters.pass_rows import pass_text_of
from perfdoctor.reporters.place_text import PLACES_TITLE, place_texts
from perfdoctor.reporters.rank_table import COLUMNS, rank_rows
from perfdoctor.reporters.time_split import TimeSlice, TimeSplit, time_split_of
from perfdoctor.reporters.verdict import describe_ladder, describe_recorded_step, ladder_of, verdict_of
from perfdoctor.units import UNKNOWN, format_count, format_duration, format_share

_MAX_PATHS = 8
_MAX_WORD = 120
_LIKELY = 0.8
# A label and a value of more characters do not fit into a third of a line.
_MAX_EVIDENCE = 48
_URL = re.compile(r"https://[\w./#?=&%~+-]+")


def page_view(report: Report) -> dict[str, Any]:
    """The values of the template, by name; every text is cleaned, and none is markup.

    The template refuses a name that is not there, also of a row.
    """
    split, ladder = time_split_of(report), ladder_of(report)
    outcomes = [_outcome_row(outcome, Counter(f.rule for f in report.findings)) for outcome in report.outcomes]
    return {
        "version": report.version,
        "paths": [clean_line(trace.path) for trace in report.traces[:_MAX_PATHS]],
        "more_paths": max(len(report.traces) - _MAX_PATHS, 0),
        "verdict": words(verdict_of(report)),
        "context_evidence": [words(sentence) for sentence in report.context.evidence],
        "ladder": describe_ladder(report),
        "rungs": rungs_of(ladder) if ladder else [],
        "recorded": describe_recorded_step(report, always=True),
        "incomplete": report_notes.describe_incomplete_input(report),
        "facts": list(_facts(report)),
        "places_title": PLACES_TITLE,
        "places": list(_places(report)),
        "trials": _trials(report),
        "split": split,
        "segments": segments_of(split) if split else [],
        "drawn": {each.name for each in segments_of(split)} if split else set(),
        "bucket_rows": list(_bucket_rows(split)) if split else [],
        "once": once_text_of(report),
        "passes": pass_text_of(report),
        "rank_columns": COLUMNS,
        "ranks": _rank_lines(report) if len(report.account) > 1 else [],
        "ranks_left_out": rank_rows(report)[1],
        "has_steps": report_facts.has_steps(report),
        "findings": list(_shown_findings(report)),
        "one_offs": [_in_a_line(each, describe_recurrence(each)) for each in report_facts.one_off_findings(report)],
        "infos": [_in_a_line(each, describe_info(report, each)) for each in report_facts.info_findings(report)],
        "unexplained": [(share, words(sentence)) for share, sentence in report_notes.unexplained_lines(report)],
        "memory": [words(sentence) for sentence in report_notes.memory_lines(report)],
        "skipped": [(", ".join(group.rules), words(group.why)) for group in report_notes.skipped_rules(report)],
        "warnings": [words(warning) for warning in report_notes.group_trace_warnings(report)],
        "outcomes": outcomes,
        "traces": [_trace_row(trace) for trace in report.traces],
        "limit_basis": clean_line(report.limit.basis),
        "bases": sorted({finding.saving.basis for finding in report_facts.main_findings(report)}),
    }


def words(text: str) -> str:
    """A text with what it quotes shortened, so that no word is wider than a phone's screen by far."""
    return shorten_words(clean_line(text), _MAX_WORD)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """What was recorded, as pairs of a word and a value."""
    devices = Counter(clean_line(trace.device) for trace in report.traces if trace.device)
    if devices:
        yield "device", ", ".join(f"{count} x {name}" if count > 1 else name for name, count in devices.items())
    if report_facts.has_steps(report):
        yield "steps", f"{report.steps.count:,}, {report.steps.source}"
    if len(report.account) > 1:
        yield "ranks", f"{len(report.account):,}"
    if report.context.torch_version:
        yield "PyTorch", clean_line(report.context.torch_version)
    yield "events", f"{sum(trace.events for trace in report.traces):,}"
    yield "findings", f"{len(report.findings)}"


def _places(report: Report) -> Iterator[dict[str, Any]]:
    """The main places, each with links to the findings whose time lies there."""
    for text in place_texts(report, most=None):
        yield {
            "share": text.share,
            "time": text.time,
            "name": words(text.name),
            "line": text.line,
            "source": words(text.source),
            "segments": segments_of_shares(text.buckets),
            "causes": text.causes,
            "lines": [words(line) for line in (text.runs, *text.answers) if line],
            "findings": [(number, words(finding.title)) for number, finding in text.findings],
        }


def _shown_findings(report: Report) -> Iterator[dict[str, Any]]:
    """The findings that are shown in full."""
    step_ns = report_facts.step_length_ns(report)
    positions = {id(finding): position for position, finding in enumerate(report.findings)}
    for number, finding in enumerate(report_facts.main_findings(report), 1):
        confidence = f"confidence {format_share(finding.confidence)}"
        yield {
            "number": number,
            "position": positions[id(finding)],  # the data of the charts names it by that
            "rule": clean_line(finding.rule),
            "name": clean_line(finding.name),
            "severity": finding.severity,
            "title": words(finding.title),
            "advice": words(finding.advice),
            "worth": "; ".join(
                filter(None, (describe_cost(report, finding), confidence if finding.confidence < _LIKELY else ""))
            ),
            "place": format_place(finding),
            "bar": range_bar(finding, step_ns),
            "fix": fix_block(finding),
            "evidence": list(_evidence(finding)),
            "covered": [describe_covered(each, words) for each in report_facts.covered_findings(report, finding)],
            "references": [(clean_line(r), bool(_URL.fullmatch(r))) for r in finding.references],
        }


def _evidence(finding: Finding) -> Iterator[tuple[str, str, bool]]:
    """What was observed, without what stands elsewhere in the finding; a long one takes a line of its own."""
    for each in finding.evidence:
        if each.id not in (SOURCE_LINE, USED_AT):
            label, value = words(each.label), words(format_evidence(each))
            yield label, value, len(label) + len(value) > _MAX_EVIDENCE


def _in_a_line(finding: Finding, detail: str) -> dict[str, str]:
    """A finding in a line; `detail` is when it occurs, or what it costs."""
    return {
        "rule": clean_line(finding.rule),
        "title": words(finding.title),
        "detail": detail,
        "place": format_place(finding),
        "advice": words(finding.advice),
    }


def _bucket_rows(split: TimeSplit) -> Iterator[dict[str, Any]]:
    """The buckets, each followed by those of its details that are worth a row of their own."""
    worth_showing = {part.label for part in split.details}
    for bucket, part in zip(BUCKETS, split.buckets, strict=True):
        yield _bucket_row(bucket, part, is_bucket=True)
        for name in BUCKETS[bucket]:
            if split.by_detail[name].label in worth_showing:
                yield _bucket_row(name, split.by_detail[name], is_bucket=False)


def _bucket_row(name: str, part: TimeSlice, *, is_bucket: bool) -> dict[str, Any]:
    time, share = format_duration(part.ns), format_share(part.share)
    return {"name": name, "label": part.label_with_roof, "time": time, "share": share, "is_bucket": is_bucket}


def _rank_lines(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "rank": row.rank,
            "step": format_duration(row.step_ns),
            "shares": list(map(format_share, row.shares)),
            "late": format_duration(row.late_ns),
            "segments": segments_of_shares(dict(zip(COLUMNS, row.shares, strict=True))),
        }
        for row in rank_rows(report)[0]
    ]


def _outcome_row(outcome: Outcome, findings: Mapping[str, int]) -> dict[str, str]:
    count = findings.get(outcome.rule, 0)
    return {
        "rule": clean_line(outcome.rule),
        "status": outcome.status,
        "findings": format_count(count, "finding") if count else "nothing" if outcome.status == "ran" else "",
        "why": words(outcome.why or ""),
        "seconds": f"{outcome.seconds:.3f} s",
    }


def _trace_row(trace: TraceSummary) -> tuple[str, ...]:
    """A trace: file, rank, device and how it is known, events, length, and whether it is whole."""
    device = words(trace.device) if trace.device else UNKNOWN
    known = f" (by {trace.device_from})" if trace.device_from else ""
    rank = UNKNOWN if trace.rank is None else str(trace.rank)
    of = f" of {trace.world_size}" if trace.world_size else ""
    whole = "complete" if trace.complete else "incomplete"
    figures = f"{trace.events:,}", format_duration(trace.span_ns)
    return words(trace.path), f"{rank}{of}", f"{device}{known}", *figures, whole


def _trials(report: Report) -> dict[str, Any] | None:
    """The trials of `perfdoctor try`; None for a report without them."""
    if not report_facts.has_trials(report):
        return None
    return {
        "verdict": words(trial_table.verdict_of_trials(report)),
        "how": trial_table.describe_trials(report),
        "columns": trial_table.TRIAL_COLUMNS,
        "rows": trial_table.trial_rows(report),
        "unmeasured": [words(line) for line in trial_table.unmeasured_lines(report)],
        "winners": trial_table.what_to_change(report),
        "remarks": [words(line) for line in (*trial_table.promise_lines(report), *trial_table.trial_notes(report))],
    }


# What a command line starts with: a setting of the environment, or a program that one calls by name.
_COMMAND = re.compile(
    r"(?:[A-Z][A-Z0-9_]*=\S* )|(?:env|export|python3?|torchrun|perfdoctor|pip|nsys|vllm|sudo|numactl) "
)
_CALLED = re.compile(r"([A-Za-z_]\w*)\(")


class FixLine(NamedTuple):
    """A line of a fix: "-" goes, "+" comes, " " stays, "$" is typed in a shell."""

    mark: str
    text: str


class FixBlock(NamedTuple):
    """A fix.

    Attributes:
        kind: "command" or "diff".
        place: The line that the diff is about; "" where it is not known.
        lines: What is shown.
        text: What the button copies.
    """

    kind: str
    place: str
    lines: tuple[FixLine, ...]
    text: str


def fix_block(finding: Finding) -> FixBlock | None:
    """The fix of a finding; None where it has none.

    The source line goes (-) where the fix calls the same function, and stays where it stands for what is to be added.
    """
    if not finding.fix:
        return None
    text = clean_block(finding.fix)
    lines = text.split("\n")
    if _COMMAND.match(text):
        return FixBlock("command", "", tuple(FixLine("$", line) for line in lines), text)
    place = clean_line(str(finding.location)) if finding.location else ""
    source = source_line(finding)
    before = (FixLine("-" if _calls_same(source, text) else " ", source),) if source else ()
    return FixBlock("diff", place, (*before, *(FixLine("+", line) for line in lines)), text)


def source_line(finding: Finding) -> str | None:
    """The text of the finding's source line; None where it could not be read."""
    found = finding.find_evidence(SOURCE_LINE)
    return clean_line(found) if isinstance(found, str) else None


def _calls_same(source: str, fix: str) -> bool:
    """Whether the first function that the fix calls is one that the source line calls: then it takes its place."""
    called = _CALLED.search(fix)
    return called is not None and called.group(1) in _CALLED.findall(source)
