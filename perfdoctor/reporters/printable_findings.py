"""Findings that every reporter can print: plain copies of what the rules yielded.

A rule may come from a third party. Its findings have the right types, but a value of a subclass (a str that raises when
it is formatted, a location with properties) can still fail while a report is rendered, and would end the whole report.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.finding import (
    SEVERITIES,
    Basis,
    Claim,
    Evidence,
    Finding,
    Saving,
    describe_error,
    failed_rule_finding,
)
from perfdoctor.report.report import Report
from perfdoctor.reporters.format_values import format_evidence
from perfdoctor.trace.tables.intervals import Intervals


def with_printable_findings(report: Report) -> Report:
    """The report with findings that hold nothing but plain str, int, float, None and int64 arrays.

    A finding that cannot be copied so is replaced by finding PD901, which names its rule and comes last; the outcome of
    that rule becomes "failed".
    """
    printable: list[Finding] = []
    failed: list[Finding] = []
    reasons: dict[str, str] = {}
    for finding in report.findings:
        try:
            printable.append(_copy_finding(finding))
        except Exception as error:  # whatever the values of a third party raise
            failed.append(_replace_finding(finding, error))
            reasons[failed[-1].subject] = describe_error(error)
    outcomes = tuple(
        replace(outcome, status="failed", why=reasons[outcome.rule]) if outcome.rule in reasons else outcome
        for outcome in report.outcomes
    )
    return replace(report, findings=(*printable, *failed), outcomes=outcomes)


def _replace_finding(finding: Finding, error: Exception) -> Finding:
    """Finding PD901 in place of one whose fields may raise."""
    fields: dict[str, Any] = {}
    for name, copy in (("rule", _text), ("name", _text), ("rank", _integer_or_none)):
        try:
            fields[name] = copy(getattr(finding, name))
        except Exception:  # this field is the faulty one, or one of them
            fields[name] = None
    return failed_rule_finding(fields["rule"] or "a rule", fields["name"] or "without a name", error, fields["rank"])


def _copy_finding(finding: Finding) -> Finding:
    severity = _text(finding.severity)
    if severity not in SEVERITIES:
        raise ValueError(f"its severity is {severity!r}, which is none of {', '.join(SEVERITIES)}")
    return Finding(
        rule=_text(finding.rule),
        name=_text(finding.name),
        title=_text(finding.title),
        cost_ns=_integer(finding.cost_ns),
        share_of_step=None if finding.share_of_step is None else _number(finding.share_of_step),
        severity=severity,
        saving=_copy_saving(finding.saving),
        advice=_text(finding.advice),
        confidence=_number(finding.confidence),
        rank=_integer_or_none(finding.rank),
        location=None if finding.location is None else _copy_location(finding.location),
        evidence=tuple(map(_copy_evidence, finding.evidence)),
        fix=None if finding.fix is None else _text(finding.fix),
        references=tuple(map(_text, finding.references)),
        claim=_copy_claim(finding.claim),
        subject=_text(finding.subject),
        edit=finding.edit,
        order_key_ns=finding.order_key_ns,
    )


def _copy_saving(saving: Saving) -> Saving:
    low, expected, high = map(_integer_or_none, (saving.low_ns, saving.expected_ns, saving.high_ns))
    return Saving(low, expected, high, cast(Basis, _text(saving.basis)))


def _copy_location(location: SourceLocation) -> SourceLocation:
    function = None if location.function is None else _text(location.function)
    return SourceLocation(_text(location.file), _integer_or_none(location.line), function)


def _copy_evidence(evidence: Evidence) -> Evidence:
    value = evidence.value
    if value is not None:
        value = _text(value) if isinstance(value, str) else _number(value)
    copy = Evidence(_text(evidence.label), value, _text(evidence.unit))
    format_evidence(copy)  # which raises for a time that is infinite or no number
    return copy


def _copy_claim(claim: Claim) -> Claim:
    return Claim(
        _intervals(claim.intervals), bool(claim.kernels), _integer_or_none(claim.rank), _integer(claim.exclusive_ns)
    )


def _intervals(value: object) -> Intervals:
    rows = np.asarray(value)
    if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype != np.int64:
        raise TypeError(
            f"its claim holds {rows.dtype} of shape {rows.shape}, where intervals are int64 of shape (n, 2)"
        )
    return rows


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"it holds a {type(value).__name__} where a text belongs")
    return str.__str__(value)  # of a subclass a plain str, whatever its own methods do


def _number(value: object) -> float:
    if isinstance(value, np.number):
        value = np.number.item(value)
    if isinstance(value, float):
        return float.__float__(value)
    return value if isinstance(value, bool) else _integer(value)


def _integer(value: object) -> int:
    if isinstance(value, np.integer):
        value = np.integer.item(value)
    if not isinstance(value, int):
        raise TypeError(f"it holds a {type(value).__name__} where a number belongs")
    plain = int.__index__(value)
    if not -(1 << 63) <= plain < 1 << 64:
        raise ValueError(f"it holds a number of {plain.bit_length()} bits, and a report holds no more than 64")
    return plain


def _integer_or_none(value: object) -> int | None:
    return None if value is None else _integer(value)
