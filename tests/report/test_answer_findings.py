"""Findings that trials answer: what was measured takes the place of the promise, and is counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.answer_findings import TRIED, answer_findings, answer_report, choose_trial, promise_of
from perfdoctor.report.finding import STEP_AFTER, Evidence, Finding
from perfdoctor.report.report import Report, StepSummary
from perfdoctor.report.trial_result import RatioRange, Trial
from perfdoctor.savings.saving import Saving, SavingAlone, SavingPromise

MS = 1_000_000


def finding(rule: str, expected_ms: float = 10, **changes) -> Finding:
    ns = round(expected_ms * MS)
    saving = Saving(ns // 2, ns, 2 * ns, "bounded", SavingAlone(ns // 2, ns, 2 * ns))
    facts = {"severity": "high", "saving": saving, "fix": "old fix", "location": SourceLocation("train.py", 3)}
    return Finding(rule, "name", f"the fault {rule}", 2 * ns, 0.2, advice="Do it.", **(facts | changes))


def trial(change: str = "workers", ratio: float = 0.8, verdict: str = "faster", **changes) -> Trial:
    facts = {"step_ns": round(100 * MS * ratio), "before_ns": 100 * MS, "fix": "new fix"}
    return Trial(change, "2", verdict, ratio=RatioRange(ratio, ratio - 0.02, ratio + 0.01, 3), **(facts | changes))


def evidence_of(each: Finding, label: str) -> list:
    return [evidence.value for evidence in each.evidence if evidence.label == label]


def test_what_was_measured_takes_the_place_of_the_promise_which_stays_beside_it():
    (answered,) = answer_findings([finding("PD101")], {0: [trial()]})
    assert answered.saving == Saving(
        19 * MS, 20 * MS, 22 * MS, "measured", SavingAlone(19 * MS, 20 * MS, 22 * MS),
        SavingPromise(5 * MS, 10 * MS, 20 * MS, "bounded"),
    )  # fmt: skip
    assert (answered.severity, answered.fix) == ("high", "new fix")
    assert evidence_of(answered, TRIED) == ["workers=2: faster, 0.80 (0.78 to 0.81) of the step in 3 pairs"]


def test_what_was_measured_of_a_longer_step_is_the_same_share_of_the_steps_of_the_report():
    # Workers start anew in each fourth step: the mean of the trial has them, the usual step of the report has not.
    steps = StepSummary(20, "annotated", 10 * MS, mean_ns=10 * MS)
    report = Report("1", (), steps, (), (), (finding("PD112", 4),), ())
    measured = trial("persistent-workers", 0.4, before_ns=35 * MS, in_turn=SavingAlone(7 * MS, 14 * MS, 21 * MS))
    answered = answer_report(report, {0: [measured]})
    saving = answered.findings[0].saving
    assert saving.alone == SavingAlone(round(5.9 * MS), 6 * MS, round(6.2 * MS))
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (2 * MS, 4 * MS, 6 * MS)
    assert saving.promised == SavingPromise(2 * MS, 4 * MS, 8 * MS, "bounded")
    assert answered.limit.after_fixes_ns == 6 * MS


def test_findings_that_no_trial_answers_stay_as_they_were():
    before = [finding("PD101"), finding("PD104", 5)]
    assert answer_findings(before, {}) == tuple(before)


def test_a_finding_whose_trial_gave_nothing_says_so_and_sinks():
    first, second = answer_findings(
        [finding("PD101", 50), finding("PD104", 5)], {0: [trial(ratio=1.0, verdict="same")]}
    )
    assert (first.rule, second.rule) == ("PD104", "PD101")
    assert (second.severity, second.fix, second.saving.expected_ns) == ("info", None, 0)
    assert second.saving.promised is not None
    assert second.saving.promised.expected_ns == 50 * MS
    assert first.severity == "high"


@pytest.mark.parametrize(("low", "is_answer"), [(0.7, False), (0.89, False), (0.95, True)])
def test_a_trial_too_noisy_to_see_what_was_promised_is_no_answer(low, is_answer):
    noisy = replace(trial(verdict="same"), ratio=RatioRange(1.0, low, 1.3, 2))
    (answered,) = answer_findings([finding("PD101", 10)], {0: [noisy]})
    assert (answered.saving.basis == "measured") == is_answer
    assert (answered.fix is None) == is_answer
    assert evidence_of(answered, TRIED)


def test_a_change_that_makes_the_step_slower_saves_nothing_and_never_less():
    (answered,) = answer_findings([finding("PD101")], {0: [trial(ratio=1.3, verdict="slower")]})
    assert answered.saving.alone == SavingAlone(0, 0, 0)


@pytest.mark.parametrize("verdict", ["broke", "not applicable"])
def test_a_trial_without_a_measurement_leaves_the_promise_and_is_mentioned(verdict):
    (answered,) = answer_findings([finding("PD101")], {0: [Trial("workers", "2", verdict, why="no such thing")]})
    assert answered.saving == finding("PD101").saving
    assert evidence_of(answered, TRIED) == [f"workers=2: {verdict}, no such thing"]


def test_order_and_severity_follow_what_was_measured():
    found = answer_findings(
        [finding("PD101", 30), finding("PD104", 20), finding("PD303", 2)],
        {0: [trial(ratio=0.98)], 2: [trial("fused", 0.6)]},
    )
    assert [(each.rule, each.severity) for each in found] == [("PD303", "high"), ("PD104", "high"), ("PD101", "low")]


def test_of_several_trials_the_best_one_counts_and_all_are_mentioned():
    trials = [trial(ratio=0.9), trial("prefetch", 0.7), Trial("pin", "", "broke", why="no")]
    (answered,) = answer_findings([finding("PD101")], {0: trials})
    assert answered.saving.alone.expected_ns == 30 * MS
    assert len(evidence_of(answered, TRIED)) == 3
    assert choose_trial(trials[2:]) is None


def test_a_trial_that_answers_several_findings_is_counted_once():
    one = trial("compile", 0.6)
    findings = [finding("PD104", 30), finding("PD301", 20), finding("PD303", 10)]
    found = answer_findings(findings, {0: [one], 1: [one]})
    assert [each.rule for each in found] == ["PD104", "PD303", "PD301"]
    assert sum(each.saving.expected_ns or 0 for each in found if each.saving.basis == "measured") == 40 * MS
    covered = found[2]
    assert found[covered.covered_by].rule == "PD104"
    assert covered.severity == "low"
    assert covered.saving.alone == SavingAlone()
    assert covered.saving.promised.expected_ns == 20 * MS


def test_a_trial_of_several_findings_that_gave_nothing_covers_none():
    one = trial("compile", 1.0, "same")
    found = answer_findings([finding("PD104"), finding("PD301")], {0: [one], 1: [one]})
    assert [each.covered_by for each in found] == [None, None]


def test_in_its_turn_a_fix_gives_what_the_combination_says():
    tried = trial(in_turn=SavingAlone(4 * MS, 5 * MS, 6 * MS))
    (answered,) = answer_findings([finding("PD101")], {0: [tried]})
    assert (answered.saving.expected_ns, answered.saving.alone.expected_ns) == (5 * MS, 20 * MS)


def test_positions_of_covering_findings_follow_the_new_order():
    findings = [finding("PD101", 30), finding("PD104", 20), finding("PD301", 1, covered_by=1)]
    found = answer_findings(findings, {0: [trial(ratio=1.0, verdict="same")]})
    covered = next(each for each in found if each.rule == "PD301")
    assert found[covered.covered_by].rule == "PD104"


def test_what_only_a_useless_fix_covered_stands_alone_again():
    findings = [finding("PD101", 30), finding("PD104", 20, covered_by=0)]
    assert answer_findings(findings, {0: [trial(ratio=1.0, verdict="same")]})[0].covered_by is None
    assert answer_findings(findings, {0: [trial()]})[1].covered_by == 0


def test_the_step_after_each_fix_is_no_longer_said_where_the_order_may_have_changed():
    before = replace(
        finding("PD101"),
        evidence=(
            Evidence("step after this fix and those above", 5, "ns", id=STEP_AFTER),
            Evidence("workers", 0, "count"),
        ),
    )
    (answered,) = answer_findings([before], {0: [trial()]})
    assert [each.label for each in answered.evidence] == [TRIED, "workers"]


def test_what_costs_less_than_its_end_gave_costs_at_least_that():
    (answered,) = answer_findings([finding("PD101", 2)], {0: [trial()]})
    assert (answered.cost_ns, answered.share_of_step) == (20 * MS, 0.2)


def test_a_promise_is_that_of_the_fix_alone_where_it_has_one():
    assert promise_of(Saving(1, 2, 3, "replayed", SavingAlone(4, 5, 6))) == SavingPromise(4, 5, 6, "replayed")
    assert promise_of(Saving(1, 2, 3, "bounded")) == SavingPromise(1, 2, 3, "bounded")
    assert promise_of(Saving()) == SavingPromise()
    with pytest.raises(ValueError, match="needs a basis"):
        SavingPromise(1, 2, 3)
