"""Answers the rows of the field guide for one program."""

from __future__ import annotations

from importlib.metadata import version

from perfdoctor.field_guide.guide_answers import AnswerKind, Guide, GuideAnswer
from perfdoctor.field_guide.guide_row import DOCUMENTS, GuideRow
from perfdoctor.field_guide.guide_table import ROWS
from perfdoctor.field_guide.program_traits import ProgramTraits, traits_of
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.format_values import format_finding_saving, format_place, format_share
from perfdoctor.reporters.verdict import verdict_of


def make_guide(report: Report, rank: Rank) -> Guide:
    """The field guide for a program.

    Args:
        report: The report on all ranks.
        rank: The rank with the longest step.
    """
    traits = traits_of(report, rank)
    return Guide(
        version=version("perfdoctor"),
        paths=tuple(trace.path for trace in report.traces),
        program=verdict_of(report),
        answers=tuple(answer_row(row, traits) for row in ROWS),
    )


def answer_row(row: GuideRow, traits: ProgramTraits) -> GuideAnswer:
    """The answer to one row.

    What a rule has found applies, whatever else is true. Otherwise the advice does not apply where the program lacks
    its subject, and is done where something shows it, or where its rules ran on the subject and found nothing.
    """
    found = [finding for finding in traits.findings(*row.rules) if row.concerns(traits, finding)]
    if found:
        return _answer_by_findings(row, traits, found)
    subject = row.subject(traits)
    if subject.is_present is False:
        return _answer(row, "does not apply", subject.text)
    shown = row.evidence(traits)
    if shown is not None:
        return _answer(row, "done already", shown)
    if subject.is_present is None:
        return _answer(row, "cannot tell", subject.text)
    missing = _find_missing(row, traits)
    if missing is not None or not row.rules:
        return _answer(row, "cannot tell", missing or f"it takes {row.needs}")
    names = " and ".join(row.rules) if len(row.rules) < 3 else f"{', '.join(row.rules[:-1])} and {row.rules[-1]}"
    return _answer(row, "done already", f"{subject.text}, and {names} found nothing to change")


def _answer_by_findings(row: GuideRow, traits: ProgramTraits, found: list[Finding]) -> GuideAnswer:
    first = found[0]
    positions = tuple(i for i, each in enumerate(traits.report.findings) if any(each is one for one in found))
    worth = format_finding_saving(first) if first.cost_ns else "what it costs is not in the recording"
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    place = format_place(first)
    share = f", {format_share(first.share_of_step)} of the {traits.unit}" if first.cost_ns else ""
    why = f"{first.title}{f', at {place}' if place and place.partition(' in ')[0] not in first.title else ''}"
    return GuideAnswer(
        number=row.number,
        advice=row.advice,
        sources=titles_of(row),
        rules=row.rules,
        answer="applies",
        why=f"{why} ({first.rule}{more}{share}); {worth}",
        findings=positions,
        saving=first.saving,
        share_of_step=first.share_of_step,
        location=first.location,
    )


def titles_of(row: GuideRow) -> tuple[str, ...]:
    """The titles of the documents that say it."""
    return tuple(DOCUMENTS[letter] for letter in row.sources)


def _answer(row: GuideRow, kind: AnswerKind, why: str) -> GuideAnswer:
    return GuideAnswer(row.number, row.advice, titles_of(row), row.rules, kind, why)


def _find_missing(row: GuideRow, traits: ProgramTraits) -> str | None:
    """Why a rule of the row did not run; None where all ran."""
    for rule in row.rules:
        outcome = traits.outcome(rule)
        if outcome is None:
            return f"{rule} was not applied"
        if outcome.status == "skipped":
            return outcome.why or f"{rule} was skipped"
        if outcome.status == "failed":
            return f"{rule} failed: {outcome.why}"
    return None
