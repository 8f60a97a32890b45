"""Findings that a trial answers: what it measured takes the place of what was promised, which stays beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfdoctor.report.finding import SEVERITIES, STEP_AFTER, Evidence, Finding, severity_of
from perfdoctor.report.pricing import step_after_fixes_ns
from perfdoctor.report.report import Report
from perfdoctor.report.trial_result import Trial
from perfdoctor.savings.saving import Saving, SavingAlone, SavingPromise, scale_figures, worth_ns

TRIED = "tried"
"""Label of the evidence that says what came of a trial."""


def answer_findings(findings: Sequence[Finding], answers: Mapping[int, Sequence[Trial]]) -> tuple[Finding, ...]:
    """The findings with what trials measured of their fixes, ordered anew by what is known now.

    Of several trials that answer one finding, the one with the largest saving counts. Where a trial answers several
    findings, they were fixed together and its saving is counted once: it goes to the first of them in the report, and
    the others are covered by that one.

    Args:
        findings: The findings of a report, in its order.
        answers: By the position of a finding, the trials that do what it advises.

    Returns:
        The findings. A measured one has the trial's figures as its saving, alone and in its turn, the severity that
        they give, and the old promise in `saving.promised`. One whose trial saved nothing loses its fix. A trial that
        found nothing and could not have seen what was promised answers nothing: it is evidence, and the promise stays.
    """
    measured = {}
    for position, trials in answers.items():
        saving = findings[position].saving
        best = choose_trial([trial for trial in trials if not leaves_promise_open(trial, saving)])
        if best is not None:
            measured[position] = best
    first_of: dict[str, int] = {}
    for position in sorted(measured):
        if measured[position].verdict == "faster":
            first_of.setdefault(measured[position].label, position)
    answered = []
    for position, finding in enumerate(findings):
        evidence = tuple(each for each in finding.evidence if each.id != STEP_AFTER)
        tried = tuple(Evidence(TRIED, describe_trial(trial)) for trial in answers.get(position, ()))
        finding = replace(finding, evidence=(*tried, *evidence))
        if position in measured:
            first = first_of.get(measured[position].label, position)
            finding = _with_measurement(finding, measured[position], None if first == position else first)
        answered.append(finding)
    return _reorder([_release(finding, measured) for finding in answered])


def answer_report(report: Report, answers: Mapping[int, Sequence[Trial]]) -> Report:
    """The report with its findings answered, and with the step after all fixes by what is known now.

    What a trial measured is the same share of the report's step: the step of the trial may be longer, with what the
    usual step has not (workers that start anew) or on a busier machine.
    """
    limit, median_ns = report.limit, report.steps.median_ns
    mean_ns = report.steps.mean_ns or median_ns
    if mean_ns:
        answers = {position: [_scale_trial(each, mean_ns) for each in trials] for position, trials in answers.items()}
    findings = answer_findings(report.findings, answers)
    if answers and median_ns is not None and mean_ns is not None:
        ranks = [account.rank for account in report.account] or [None]
        after_ns = step_after_fixes_ns(findings, mean_ns, median_ns, dict.fromkeys(ranks, mean_ns))
        limit = replace(limit, after_fixes_ns=after_ns)
    return replace(report, findings=findings, limit=limit)


def _scale_trial(trial: Trial, step_ns: int) -> Trial:
    """A trial as if the plain step took so long."""
    if trial.ratio is None or not trial.before_ns:
        return trial
    in_turn = None if trial.in_turn is None else SavingAlone(*scale_figures(trial.in_turn, step_ns / trial.before_ns))
    return replace(trial, before_ns=step_ns, step_ns=round(step_ns * trial.ratio.median), in_turn=in_turn)


def choose_trial(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the largest saving among those that were measured; None where none was."""
    return max((each for each in trials if each.is_measured), key=lambda each: each.saved_ns or 0, default=None)


def leaves_promise_open(trial: Trial, saving: Saving) -> bool:
    """Whether a trial that decided nothing, or found the same step, may have missed what the fix was to save."""
    if trial.verdict == "undecided":
        return True
    if trial.verdict != "same" or trial.high_ns is None:
        return False
    return 0 < _of_the_fix_alone(saving).likely_ns <= trial.high_ns


def describe_trial(trial: Trial) -> str:
    """What came of a trial, in a few words: "workers=2: faster, 0.78 (0.77 to 0.80) of the step in 3 pairs"."""
    if trial.ratio is None:
        return f"{trial.label}: {trial.verdict}{f', {trial.why}' if trial.why else ''}"
    ratio = trial.ratio
    pairs = f"{ratio.pairs} pair{'s' * (ratio.pairs != 1)}"
    share = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    return f"{trial.label}: {trial.verdict}, {share} of the step in {pairs}"


def promise_of(saving: Saving) -> SavingPromise:
    """What a saving promises of the fix alone: that is what a trial measures."""
    figures = _of_the_fix_alone(saving)
    return SavingPromise(figures.low_ns, figures.expected_ns, figures.high_ns, saving.basis)


def _of_the_fix_alone(saving: Saving) -> Saving | SavingAlone:
    return saving.alone if saving.alone != SavingAlone() else saving


def _with_measurement(finding: Finding, trial: Trial, covered_by: int | None) -> Finding:
    """A finding with what its trial measured; one that is covered has no saving of its own."""
    alone = trial.worth if covered_by is None else SavingAlone()
    in_turn = (trial.in_turn or alone) if covered_by is None else SavingAlone(0, 0, 0)
    saved_ns = trial.worth.expected_ns or 0
    severity = severity_of(saved_ns / trial.before_ns if trial.before_ns else None)
    if covered_by is not None:
        severity = min(severity, "low", key=SEVERITIES.index)
    cost_ns, share = finding.cost_ns, finding.share_of_step
    if saved_ns > cost_ns and covered_by is None and trial.before_ns:
        # What ends with the cause is at least what the cause costs.
        cost_ns, share = saved_ns, min(saved_ns / trial.before_ns, 1.0)
    return replace(
        finding,
        severity=severity,
        cost_ns=cost_ns,
        share_of_step=share,
        saving=Saving(
            in_turn.low_ns, in_turn.expected_ns, in_turn.high_ns, "measured", alone, promise_of(finding.saving)
        ),
        order_key_ns=None,
        fix=(trial.fix or finding.fix) if saved_ns else None,
        actions=finding.actions if saved_ns else (),
        covered_by=finding.covered_by if covered_by is None and not saved_ns else covered_by,
    )


def _release(finding: Finding, measured: Mapping[int, Trial]) -> Finding:
    """A finding that was covered by one whose fix gave nothing stands alone again, with what its fix saves alone."""
    covering = finding.covered_by
    if (
        covering is None
        or covering not in measured
        or measured[covering].verdict == "faster"
        or finding.saving.basis == "measured"
    ):
        return finding
    saving, alone = finding.saving, finding.saving.alone
    if alone != SavingAlone():
        saving = replace(saving, low_ns=alone.low_ns, expected_ns=alone.expected_ns, high_ns=alone.high_ns)
    return replace(finding, covered_by=None, saving=saving, order_key_ns=None)


def _reorder(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings by what their fixes are worth in their turn, with `covered_by` naming the new positions."""

    def worth_in_turn_ns(position: int) -> float:
        finding = findings[position]
        if finding.order_key_ns is not None:
            return finding.order_key_ns
        return worth_ns(finding.saving, finding.confidence)

    order = sorted(range(len(findings)), key=lambda position: -worth_in_turn_ns(position))
    new_position: dict[int | None, int] = {position: new for new, position in enumerate(order)}
    return tuple(
        replace(findings[position], covered_by=new_position.get(findings[position].covered_by)) for position in order
    )
