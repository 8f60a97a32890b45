"""Findings that every reporter can print: those that still pass the check of `Finding`.

Whatever a rule of a third party returns is checked where it is made. What went around that check (a subclass of
Finding, a field set afterwards) could raise while a report is rendered, and would end the whole report.
"""

from __future__ import annotations

from dataclasses import replace

from perfdoctor.report.finding import Finding, describe_error, finding_of_failure
from perfdoctor.report.report import Report


def with_printable_findings(report: Report) -> Report:
    """The report without findings that could fail while they are rendered.

    Each of those is replaced by finding PD901, which names its rule and comes last; the outcome of that rule becomes
    "failed".
    """
    printable: list[Finding] = []
    failed: list[Finding] = []
    reasons: dict[str, str] = {}
    new_position: dict[int | None, int] = {}
    for position, finding in enumerate(report.findings):
        try:
            _check_again(finding)
            new_position[position] = len(printable)
            printable.append(finding)
        except Exception as error:  # whatever the values of a third party raise
            failed.append(
                finding_of_failure(_text(finding, "rule", "a rule"), _text(finding, "name", "without a name"), error)
            )
            reasons[failed[-1].subject] = describe_error(error)
    if not failed:
        return report
    outcomes = tuple(
        replace(outcome, status="failed", why=reasons[outcome.rule]) if outcome.rule in reasons else outcome
        for outcome in report.outcomes
    )
    printable = [replace(finding, covered_by=new_position.get(finding.covered_by)) for finding in printable]
    return replace(report, findings=(*printable, *failed), outcomes=outcomes)


def _check_again(finding: object) -> None:
    """Raise what the constructor of Finding raises for these fields; a subclass may print whatever it likes."""
    if type(finding) is not Finding:
        raise TypeError(f"it is a {type(finding).__name__}, not a Finding")
    replace(finding)
    replace(finding.saving)
    replace(finding.saving.alone)
    if finding.saving.promised is not None:
        replace(finding.saving.promised)
    if finding.recurrence is not None:
        replace(finding.recurrence)


def _text(finding: object, field: str, default: str) -> str:
    """A field of a finding as text, where it is one; the field itself may be the faulty one."""
    try:
        value = getattr(finding, field)
    except Exception:  # as above
        return default
    return value if type(value) is str else default
