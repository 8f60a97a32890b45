"""Pricing keeps its promises: the order, the caps, and no nanosecond promised twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.timeline.recurrence import Recurrence
from perfdoctor.report.finding import SEVERITIES, STEP_AFTER, Evidence, Finding, Severity, end_of_severity, severity_of
from perfdoctor.report.merge_findings import merge_findings
from perfdoctor.report.pricing import doubt_prices, prioritize_fleet, step_after_fixes_ns
from perfdoctor.savings.ledger import Ledger
from perfdoctor.savings.saving import Basis, Claim, Saving, worth_ns
from perfdoctor.trace.tables import intervals as iv

WINDOW_NS = 1_000


def finding_of(
    high: int,
    *spans: tuple[int, int],
    rule: str = "PD999",
    kernels: bool = False,
    rank: int | None = None,
    expected: int | None = None,
    basis: Basis = "bounded",
    cost: int | None = None,
    subject: str = "",
    severity: Severity = "high",
    confidence: float = 1.0,
) -> Finding:
    rows = np.array(spans, np.int64).reshape(-1, 2)
    cost = high if cost is None else cost
    return Finding(
        rule=rule,
        name="test",
        title=f"{rule} {subject}",
        cost_ns=cost,
        share_of_step=None,
        severity=severity,
        saving=Saving(0, expected, high, basis),
        advice="",
        confidence=confidence,
        rank=rank,
        claim=Claim(iv.union(rows[:, 0], rows[:, 1]), kernels, rank),
        subject=subject,
    )


def prioritize(*findings: Finding, budget: float | None = None, steps: int = 1) -> tuple[Finding, ...]:
    return prioritize_fleet((), findings, {None: Ledger(WINDOW_NS, steps, budget)})


def test_the_largest_saving_comes_first():
    small, large = finding_of(10, (0, 10), rule="PD001"), finding_of(500, (100, 600), rule="PD002")
    assert [f.rule for f in prioritize(small, large)] == ["PD002", "PD001"]


def test_an_expected_saving_comes_before_a_larger_upper_bound_of_unknown_size():
    sure = finding_of(300, (0, 300), rule="PD001", expected=290)
    vague = finding_of(400, (400, 800), rule="PD002")
    assert [f.rule for f in prioritize(vague, sure)] == ["PD001", "PD002"]


def test_time_claimed_twice_is_promised_once():
    first, second = prioritize(finding_of(300, (0, 300), rule="PD001"), finding_of(250, (100, 350), rule="PD002"))
    assert (first.saving.high_ns, second.saving.high_ns) == (300, 50)


def test_disjoint_claims_are_promised_in_full():
    first, second = prioritize(finding_of(300, (0, 300), rule="PD001"), finding_of(250, (300, 550), rule="PD002"))
    assert (first.saving.high_ns, second.saving.high_ns) == (300, 250)


def test_kernel_time_saves_no_more_than_the_cpu_waits_for_the_gpu():
    assert [f.saving.high_ns for f in prioritize(finding_of(300, (0, 300), kernels=True), budget=40)] == [40]


def test_two_kernel_findings_share_the_wait():
    both = prioritize(
        finding_of(300, (0, 300), rule="PD001", kernels=True),
        finding_of(200, (300, 500), rule="PD002", kernels=True),
        budget=350,
    )
    assert [f.saving.high_ns for f in both] == [300, 50]


def test_idle_time_is_wall_time_whatever_the_cpu_waits():
    assert [f.saving.high_ns for f in prioritize(finding_of(300, (0, 300)), budget=0)] == [300]


def test_a_saving_never_exceeds_the_findings_own_cost():
    assert prioritize(finding_of(300, (0, 300), cost=120))[0].saving.high_ns == 120


def test_savings_are_per_step():
    assert prioritize(finding_of(300, (0, 300)), steps=10)[0].saving.high_ns == 30


def test_what_two_ranks_share_is_reported_once_and_names_them():
    merged = merge_findings(
        [finding_of(100, (0, 100), rank=0, subject="a"), finding_of(200, (0, 200), rank=1, subject="a")]
    )
    assert len(merged) == 1
    assert merged[0].rank is None
    assert merged[0].cost_ns == 200
    assert {e.label: e.value for e in merged[0].evidence} == {"ranks": "0, 1", "costliest rank": 1}


def test_different_subjects_of_one_rule_are_not_merged():
    merged = merge_findings(
        [finding_of(100, (0, 100), rank=0, subject="a"), finding_of(200, (0, 200), rank=1, subject="b")]
    )
    assert len(merged) == 2


def test_two_findings_of_one_rule_in_one_rank_both_stay():
    assert len(merge_findings([finding_of(100, (0, 100)), finding_of(200, (200, 400))])) == 2


def test_severity_is_by_what_the_fix_is_worth_alone() -> None:
    assert [severity_of(share) for share in (0.1, 0.03, 0.01, 0.009, None)] == ["high", "medium", "low", "info", "info"]
    (expected,) = prioritize(finding_of(500, (0, 500), expected=40))
    assert expected.severity == "medium"
    (replayed,) = prioritize(finding_of(500, (0, 500), basis="replayed"))
    assert replayed.severity == "high"  # half of 50 %
    (doubted,) = prioritize(finding_of(500, (0, 500), basis="replayed", confidence=0.3))
    assert doubted.severity == "medium"  # 0.3 of it
    (capped,) = prioritize(finding_of(500, (0, 500), severity="low"))
    assert capped.severity == "low"  # as its rule says
    (free,) = prioritize(finding_of(0, severity="low"))
    assert free.severity == "low"  # about the recording: nothing to save


@pytest.mark.parametrize("expected", [None, 450])
def test_what_was_not_replayed_may_save_nothing_and_is_medium_at_most(expected: int | None) -> None:
    bounded = replace(finding_of(500, (0, 500)), saving=Saving(400, expected, 500, "bounded"))
    unknown = replace(finding_of(500, (500, 1000), rule="PD001"), saving=Saving())
    for finding in prioritize(bounded) + prioritize(unknown):
        assert (finding.saving.low_ns or 0, finding.saving.alone.low_ns or 0, finding.severity) == (0, 0, "medium")


def at_line(finding: Finding, line: int | None, **changes: Any) -> Finding:
    return replace(finding, location=None if line is None else SourceLocation("train.py", line), **changes)


@pytest.mark.parametrize("basis", ["bounded", "replayed"])
def test_a_symptom_stands_below_its_cause_and_is_covered_by_it(basis: Basis) -> None:
    pages = at_line(finding_of(400, (0, 400), rule="PD513"), 3, is_symptom=True)
    cause = at_line(finding_of(90, (300, 390), rule="PD010", basis=basis, expected=50), 3)
    elsewhere = at_line(finding_of(70, (900, 970), rule="PD104", expected=60), 9)
    first, second, third = prioritize(pages, cause, elsewhere)
    assert [each.rule for each in (first, second, third)] == ["PD104", "PD010", "PD513"]
    assert (third.covered_by, third.severity) == (1, "low")


@pytest.mark.parametrize(
    ("line", "others"),
    [
        (4, {}),
        (None, {}),
        (3, {"is_symptom": True}),
        (3, {"severity": "info"}),
        (3, {"recurrence": Recurrence(1, 9, 9, 9)}),
    ],
    ids=["another-line", "no-line", "a-symptom-as-well", "for-information", "not-in-every-step"],
)
def test_a_symptom_without_a_cause_at_its_line_stands_by_what_it_costs(line: int | None, others: Any) -> None:
    pages = at_line(finding_of(400, (0, 400), rule="PD513"), 3, is_symptom=True)
    other = at_line(finding_of(90, (500, 590), rule="PD010"), line, **others)
    first = prioritize(pages, other)[0]
    assert (first.rule, first.covered_by) == ("PD513", None)


def with_table(start: int, end: int) -> Finding:
    table = finding_of(end - start, (start, end), rule="PD210", expected=(end - start) * 9 // 10)
    return replace(table, has_table_price=True)


def test_what_was_measured_here_stands_above_a_price_from_a_table() -> None:
    form = finding_of(420, (0, 420), rule="PD212", basis="measured", expected=100)
    first, second = prioritize(with_table(0, 400), form)
    assert [each.rule for each in (first, second)] == ["PD212", "PD210"]
    assert (second.covered_by, second.severity) == (0, "low")


@pytest.mark.parametrize(
    ("time", "others"),
    [((200, 620), {"basis": "measured"}), ((0, 420), {}), ((0, 420), {"basis": "measured", "rank": 3})],
    ids=["other-time", "not-measured", "another-rank"],
)
def test_a_price_from_a_table_stands_where_nothing_was_measured(time: tuple[int, int], others: Any) -> None:
    first = prioritize(with_table(0, 400), finding_of(420, time, rule="PD212", expected=100, **others))[0]
    assert (first.rule, first.covered_by) == ("PD210", None)


def test_alone_is_what_the_rule_says_before_others_claim_the_time() -> None:
    first, second = prioritize(finding_of(300, (0, 300), rule="PD001"), finding_of(250, (40, 290), rule="PD002"))
    assert (first.saving.alone.high_ns, second.saving.alone.high_ns) == (300, 250)
    assert (second.saving.high_ns, second.covered_by, second.severity) == (0, 0, "low")


def test_kernel_time_alone_is_worth_no_more_than_the_cpu_waits_for_it() -> None:
    (only,) = prioritize(finding_of(300, (0, 300), kernels=True), budget=15)
    assert (only.saving.alone.high_ns, only.severity) == (15, "info")


def test_time_of_which_enough_is_left_is_not_covered() -> None:
    _, second = prioritize(finding_of(300, (0, 300), rule="PD001"), finding_of(250, (200, 450), rule="PD002"))
    assert (second.saving.high_ns, second.covered_by, second.severity) == (150, None, "medium")


def test_two_findings_that_both_would_free_nearly_the_whole_step_free_the_same_time() -> None:
    late = finding_of(915, (0, 915), rule="PD401", rank=0, expected=915)
    pause = finding_of(910, (0, 910), rule="PD103", rank=2)
    other = finding_of(40, (950, 990), rule="PD107", rank=2, expected=40)
    ledgers: dict[int | None, Ledger] = {rank: Ledger(WINDOW_NS) for rank in (0, 2)}
    result = {f.rule: f for f in prioritize_fleet((pause, other), (late,), ledgers)}
    assert next(iter(result)) == "PD401"
    assert (result["PD103"].covered_by, result["PD103"].severity) == (0, "low")
    assert (result["PD107"].covered_by, result["PD107"].saving.expected_ns) == (None, 40)


def test_the_step_after_each_fix_counts_the_fixes_of_all_ranks_above_it() -> None:
    """What the evidence of each rank says is of that rank alone."""
    findings = [
        replace(
            finding_of(ns, (at, at + ns), rule=rule, rank=rank, expected=ns),
            saving=Saving(0, ns, ns, "replayed"),
            evidence=(Evidence("step after this fix and those above", after, "ns", id=STEP_AFTER),),
        )
        for ns, at, rule, rank, after in ((300, 0, "PD001", 0, 500), (200, 400, "PD002", 1, 800))
    ]
    result = prioritize_fleet(findings, (), {rank: Ledger(WINDOW_NS) for rank in (0, 1)})
    own_ns = {0: WINDOW_NS, 1: WINDOW_NS}
    # The other rank still takes as long as before, and then as long as its own fix leaves.
    assert [e.value for f in result for e in f.evidence] == [1000, 800]
    assert step_after_fixes_ns(result, WINDOW_NS, 500, own_ns) == 400  # 80 % of the mean step, so 80 % of the median
    assert step_after_fixes_ns([finding_of(10, (0, 10))], WINDOW_NS, 500, own_ns) is None


def late_rank_and_its_cause(cause_saves: int) -> tuple[Finding, ...]:
    """Rank 1 is late by 300 of 1000 ns, and rank 0 waits; a fix of its own saves some of the same time."""
    late = replace(finding_of(300, (600, 900), rule="PD401", rank=0, expected=300), rank=1)
    return late, finding_of(cause_saves, (0, cause_saves), rule="PD104", rank=1, expected=cause_saves)


def test_what_makes_a_rank_late_and_its_lateness_are_the_same_time() -> None:
    own_ns = {0: 700, 1: 1000}
    assert step_after_fixes_ns(late_rank_and_its_cause(250), WINDOW_NS, 1000, own_ns) == 700
    # Faster than the others it is no longer what the step takes.
    assert step_after_fixes_ns(late_rank_and_its_cause(400), WINDOW_NS, 1000, own_ns) == 700
    both = (*late_rank_and_its_cause(400), finding_of(100, (0, 100), rule="PD102", expected=100))
    assert step_after_fixes_ns(both, WINDOW_NS, 1000, own_ns) == 600  # what all ranks have


spans = st.tuples(st.integers(0, WINDOW_NS), st.integers(0, WINDOW_NS)).map(lambda s: (min(s), max(s) + 1))
findings = st.builds(
    lambda high, span, kernels, rank, subject: finding_of(high, *span, kernels=kernels, rank=rank, subject=subject),
    st.integers(0, 5 * WINDOW_NS),
    st.lists(spans, max_size=4),
    st.booleans(),
    st.sampled_from([None, 0, 1]),
    st.sampled_from("abc"),
)


@given(st.lists(findings, max_size=8))
def test_the_step_after_fixes_falls_with_each_and_by_no_more_than_it_saves(many: list[Finding]) -> None:
    some = [replace(f, saving=Saving(0, f.saving.high_ns, f.saving.high_ns, "bounded")) for f in many]
    after = [step_after_fixes_ns(some[:n], WINDOW_NS, 1000, {0: 1000, 1: 900}) for n in range(1, len(some) + 1)]
    steps = [1000, *(1000 if ns is None else ns for ns in after)]  # None as long as nothing is expected
    for finding, before_ns, after_ns in zip(some, steps, steps[1:], strict=False):
        assert 0 <= before_ns - after_ns <= (finding.saving.expected_ns or 0) + 1


@given(st.lists(findings, max_size=8), st.integers(1, 5), st.one_of(st.none(), st.integers(0, WINDOW_NS)))
def test_together_savings_never_exceed_the_step(many: list[Finding], steps: int, budget: int | None):
    ledgers = {rank: Ledger(WINDOW_NS, steps, budget) for rank in (None, 0, 1)}
    result = prioritize_fleet((), merge_findings(many), ledgers)
    assert sum(f.saving.high_ns or 0 for f in result) <= WINDOW_NS / steps
    assert all((f.saving.high_ns or 0) <= f.cost_ns for f in result)
    savings = [f.saving.likely_ns for f in result]
    assert savings == sorted(savings, reverse=True)
    for position, each in enumerate(result):
        assert (each.saving.high_ns or 0) <= (each.saving.alone.high_ns or 0) <= each.cost_ns
        if each.covered_by is not None:
            assert each.covered_by < position
            assert SEVERITIES.index(each.severity) <= SEVERITIES.index("low")


def test_the_middle_of_a_range_without_a_figure_counts_in_the_order() -> None:
    doubted = finding_of(400, (0, 400), rule="PD001", confidence=0.5)  # half of it is 200
    sure = finding_of(250, (500, 750), rule="PD002")
    known = finding_of(150, (800, 950), rule="PD003", expected=110)
    assert [f.rule for f in prioritize(known, sure, doubted)] == ["PD001", "PD002", "PD003"]


def test_a_doubted_cause_stays_below_what_is_more_severe() -> None:
    doubted = finding_of(350, (0, 350), rule="PD001", confidence=0.5)  # worth 87.5: medium
    known = finding_of(150, (800, 950), rule="PD003", expected=101, basis="replayed")
    smaller = finding_of(100, (400, 500), rule="PD004", expected=90)
    assert [(f.rule, f.severity) for f in prioritize(smaller, known, doubted)] == [
        ("PD003", "high"),
        ("PD001", "medium"),
        ("PD004", "medium"),
    ]


@pytest.mark.parametrize(
    ("cost", "severity", "order"),
    [
        (400, "high", ["PD002", "PD001"]),
        (400, "medium", ["PD002", "PD001"]),
        (400, "low", ["PD001", "PD002"]),  # about the recording, such as room in memory: it asks for nothing
        (80, "high", ["PD001", "PD002"]),  # half of its cost is less than the small fix saves
    ],
)
def test_a_cause_of_unknown_saving_stands_by_what_it_takes(cost: int, severity: Severity, order: list[str]) -> None:
    small = finding_of(90, (0, 90), rule="PD001", expected=50)
    unknown = replace(finding_of(cost, (100, 100 + cost), rule="PD002", severity=severity), saving=Saving())
    assert [f.rule for f in prioritize(small, unknown)] == order


priced = st.builds(
    lambda high, expected, confidence, span: finding_of(
        high, span, expected=expected and min(expected, high), confidence=confidence
    ),
    st.integers(0, WINDOW_NS),
    st.one_of(st.none(), st.integers(0, WINDOW_NS)),
    st.sampled_from([0.3, 0.5, 0.7, 1.0]),
    spans,
)


@given(st.lists(priced, max_size=8))
@example(  # of 200 and 202 that are left to save the middles lie at the border to high, above which none is ordered
    [finding_of(high, span, confidence=0.7) for high, span in ((286, (0, 402)), (287, (0, 202)))]
)
def test_the_order_follows_what_fixes_are_worth_and_so_does_severity(many: list[Finding]) -> None:
    result = prioritize(*(replace(f, rule=f"PD{i:03d}") for i, f in enumerate(many)))
    worth = [(SEVERITIES.index(severity_of(worth_ns(f.saving, f.confidence) / WINDOW_NS)), f) for f in result]
    assert [number for number, _ in worth] == sorted((number for number, _ in worth), reverse=True)
    for number in (2, 3):  # lesser ones ask for nothing, and stand by their worth
        most_ns = end_of_severity(SEVERITIES[number]) * WINDOW_NS
        middles = [min(f.saving.likely_ns, most_ns) for each, f in worth if each == number and f.severity == "medium"]
        assert middles == sorted(middles, reverse=True)
    # What keeps all that it is worth alone stands by its severity, too.
    whole = [
        f for f in result if f.cost_ns and worth_ns(f.saving.alone, f.confidence) == worth_ns(f.saving, f.confidence)
    ]
    severities = [SEVERITIES.index(f.severity) for f in whole if f.covered_by is None]
    assert severities == sorted(severities, reverse=True)


@given(st.lists(findings, max_size=6), st.randoms())
def test_the_order_of_the_input_does_not_matter(many: list[Finding], random):
    distinct = [replace(f, rule=f"PD{i:03d}") for i, f in enumerate(many)]
    shuffled = list(distinct)
    random.shuffle(shuffled)

    def promises(permuted: list[Finding]) -> list[tuple[str, int | None]]:
        ledgers = {rank: Ledger(WINDOW_NS, 1, 500) for rank in (None, 0, 1)}
        return [(f.rule, f.saving.high_ns) for f in prioritize_fleet((), merge_findings(permuted), ledgers)]

    assert promises(distinct) == promises(shuffled)


def test_a_fix_that_saves_nothing_is_not_offered():
    known, unknown = (
        replace(finding_of(high, (at, at + 100), rule=rule, cost=100, expected=expected), fix="do(this)")
        for high, at, rule, expected in ((100, 0, "PD001", 0), (100, 200, "PD002", None))
    )
    fixes = {finding.rule: (finding.fix, finding.severity) for finding in prioritize(known, unknown)}
    assert fixes["PD001"] == (None, "info")
    assert fixes["PD002"][0] == "do(this)"


def test_a_fix_that_another_one_covers_is_still_offered():
    _, second = prioritize(
        finding_of(300, (0, 300), rule="PD001"), replace(finding_of(250, (40, 290), rule="PD002"), fix="do(this)")
    )
    assert second.saving.high_ns == 0
    assert second.fix == "do(this)"


def test_what_makes_results_wrong_comes_first_and_stays_high():
    slow = finding_of(500, (100, 600), rule="PD001", expected=500)
    wrong = replace(finding_of(0, rule="PD999"), saving=Saving(), makes_results_wrong=True, fix="right()")
    first, second = prioritize(slow, wrong)
    assert (first.rule, first.severity, first.cost_ns, first.fix) == ("PD999", "high", 0, "right()")
    assert first.saving.high_ns is None
    assert (second.rule, second.saving.expected_ns) == ("PD001", 500)


def test_what_costs_nothing_and_is_not_wrong_comes_last():
    slow = finding_of(20, (100, 120), rule="PD001", expected=20)
    note = replace(finding_of(0, rule="PD999", severity="info"), saving=Saving())
    assert [each.rule for each in prioritize(note, slow)] == ["PD001", "PD999"]


@given(st.lists(findings, max_size=8), st.floats(0.01, 0.79))
def test_on_a_busy_machine_ranges_are_wider_and_nothing_is_high(many: list[Finding], core_share: float) -> None:
    sure = [replace(each, makes_results_wrong=position == 0) for position, each in enumerate(prioritize(*many))]
    doubted = doubt_prices(sure, core_share)
    assert doubted[:1] == tuple(sure[:1])  # wrong results are wrong on any machine
    for before, after in zip(sure[1:], doubted[1:], strict=True):
        if not before.cost_ns:
            assert after == before  # memory that runs out does so on any machine
            continue
        assert SEVERITIES.index(after.severity) == min(SEVERITIES.index(before.severity), SEVERITIES.index("medium"))
        for old, new in ((before.saving, after.saving), (before.saving.alone, after.saving.alone)):
            assert new.expected_ns == old.expected_ns
            assert (new.low_ns or 0) <= (old.low_ns or 0)
            assert (old.high_ns or 0) <= (new.high_ns or 0) <= max(old.high_ns or 0, before.cost_ns)
