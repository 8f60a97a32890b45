"""Answers the rows of the field guide for one program."""

from __future__ import annotations

from dataclasses import replace

from perfdoctor.field_guide.guide_answers import AnswerKind, Guide, GuideAnswer
from perfdoctor.field_guide.guide_row import DOCUMENTS, GuideRow
from perfdoctor.field_guide.guide_table import ROWS
from perfdoctor.field_guide.program_traits import ProgramTraits, traits_of
from perfdoctor.installed_packages import find_version
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.format_values import format_finding_saving, format_place, format_saving
from perfdoctor.reporters.verdict import verdict_of
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.savings.saving import Saving, SavingAlone
from perfdoctor.units import format_count, format_share

_OF_GPUS = frozenset(REQUIREMENTS[need] for need in ("gpu_items", "kernels", "launches"))


def make_guide(report: Report, rank: Rank) -> Guide:
    """The field guide for a program, from the report on all its ranks and the rank with the longest step."""
    traits = traits_of(report, rank)
    return Guide(
        version=find_version(),
        paths=tuple(trace.path for trace in report.traces),
        program=verdict_of(report),
        answers=tuple(answer_row(row, traits) for row in ROWS),
    )


def answer_row(row: GuideRow, traits: ProgramTraits) -> GuideAnswer:
    """The answer to one row.

    What a rule has found applies, whatever else is true. Otherwise the advice does not apply where the program lacks
    its subject, and is done where something shows it, or where its rules ran on the subject and found nothing.
    """
    found = [finding for finding in traits.findings(*row.all_rules) if row.concerns(traits, finding)]
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
    names = " and ".join(rule for rule in row.rules if traits.ran(rule))
    return _answer(row, "done already", f"{subject.text}, and {names} found nothing to change")


def _answer_by_findings(row: GuideRow, traits: ProgramTraits, found: list[Finding]) -> GuideAnswer:
    first = found[0]
    positions = tuple(i for i, each in enumerate(traits.report.findings) if any(each is one for one in found))
    figure = row.evidence(traits) if row.has_figure else None
    return GuideAnswer(
        number=row.number,
        advice=row.advice,
        sources=titles_of(row),
        rules=row.all_rules,
        answer="applies",
        why=f"{f'{figure}. ' if figure else ''}{_describe_finding(traits, first, len(found) - 1)}",
        findings=positions,
        saving=first.saving,
        share_of_step=first.share_of_step,
        location=first.location,
    )


def _describe_finding(traits: ProgramTraits, finding: Finding, more: int) -> str:
    """What was found, where, what it costs, and what its fix saves."""
    is_placed = finding.location is None or finding.location.short in finding.title
    place = "" if is_placed else f", at {format_place(finding)}"
    others = f" and {format_count(more, 'finding')} more" if more else ""
    if not finding.cost_ns:
        saved = "" if finding.saved_bytes is None else f"; {format_finding_saving(finding)}"
        return f"{finding.title}{place} ({finding.rule}{others}){saved}"
    cost = f"{finding.rule}{others}, {format_share(finding.share_of_step)} of the {traits.unit}"
    return f"{finding.title}{place} ({cost}); {_describe_saving(finding)}"


def _describe_saving(finding: Finding) -> str:
    """What the fix saves by itself, which is what a row asks: others may give the same."""
    saving = finding.saving
    if saving.promised is not None or saving.alone == SavingAlone() or not saving.alone.likely_ns:
        return format_finding_saving(finding)
    by_itself = Saving(saving.alone.low_ns, saving.alone.expected_ns, saving.alone.high_ns, saving.basis)
    if saving.high_ns == 0 or saving.expected_ns == 0:
        return f"{format_saving(by_itself)} by itself, and nothing more after better fixes"
    return format_finding_saving(replace(finding, saving=by_itself))


def titles_of(row: GuideRow) -> tuple[str, ...]:
    """The titles of the documents that say it."""
    return tuple(DOCUMENTS[letter] for letter in row.sources)


def _answer(row: GuideRow, kind: AnswerKind, why: str) -> GuideAnswer:
    return GuideAnswer(row.number, row.advice, titles_of(row), row.all_rules, kind, why)


def _find_missing(row: GuideRow, traits: ProgramTraits) -> str | None:
    """Why a rule of the row did not run; None where all ran that look at such a program."""
    of_gpus = [rule for rule in row.rules if _looks_at_gpus_only(rule, traits)]
    if of_gpus and len(of_gpus) == len(row.rules):
        return f"{' and '.join(of_gpus)} look{'s' if len(of_gpus) == 1 else ''} at GPUs only: a trial would tell"
    for rule in row.rules:
        outcome = traits.outcome(rule)
        if outcome is None:
            return f"{rule} was not applied"
        if outcome.status == "skipped" and rule not in of_gpus:
            return outcome.why or f"{rule} was skipped"
        if outcome.status == "failed":
            return f"{rule} failed: {outcome.why}"
    return None


def _looks_at_gpus_only(rule: str, traits: ProgramTraits) -> bool:
    """Whether a rule was skipped because a program of the CPU has no kernels."""
    outcome = traits.outcome(rule)
    if outcome is None or outcome.status != "skipped" or traits.device_kind != "cpu":
        return False
    return outcome.why in _OF_GPUS
