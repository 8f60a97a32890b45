"""Findings before and after: the same one in another line, folder or wording, and what was promised for those gone."""

from __future__ import annotations

from typing import Any

import pytest

from perfdoctor.analysis.step_noise import StepDifference
from perfdoctor.comparison.match_findings import ALL_TOGETHER, check_promises, match_findings
from perfdoctor.comparison.seen_finding import Promised, SeenFinding

UNKNOWN = Promised(None, None, None, "unknown")


def finding(rule: str = "PD102", cost: int = 100, **changes: Any) -> SeenFinding:
    values: dict[str, Any] = {
        "name": "host-device-sync", "title": f"item() waits {cost} times", "severity": "high", "subject": "item",
        "file": "/home/me/train.py", "line": 10, "function": "main", "promised": Promised(50, 80, 100, "replayed"),
        "promised_alone": UNKNOWN, "covered_by": None, "is_one_off": False,
    }  # fmt: skip
    return SeenFinding(rule=rule, cost_ns=cost, **values | changes)


def statuses(before: list[SeenFinding], after: list[SeenFinding]) -> list[tuple[str, str]]:
    return [(change.rule, change.status) for change in match_findings(before, after)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"line": 14},
        {"file": "/tmp/other/train.py", "line": 99},
        {"subject": "", "title": "item() waits 7 times"},
        {"subject": "", "title": "another wording", "line": 11},
        {"function": None, "line": 12},
        {"file": None, "line": None, "function": None},
        {"file": None, "line": None, "function": None, "subject": "", "title": "item() waits 3 times"},
    ],
)
def test_the_same_finding_is_still_there(changes: dict[str, Any]) -> None:
    assert statuses([finding()], [finding(**changes)]) == [("PD102", "still there")]
    assert statuses([finding(**changes)], [finding()]) == [("PD102", "still there")]


@pytest.mark.parametrize(
    "other",
    [
        finding("PD105"),
        finding(file="/home/me/model.py", subject="nonzero", title="nonzero waits"),
        finding(file="/home/me/model.py", subject="nonzero", title="nonzero waits", function="forward"),
    ],
)
def test_another_finding_is_new(other: SeenFinding) -> None:
    assert sorted(status for _, status in statuses([finding()], [other])) == ["fixed", "new"]


def test_of_several_each_is_matched_once_and_the_nearest_first() -> None:
    before = [finding(line=10, function="a"), finding(line=20, function="b", cost=50)]
    after = [finding(line=25, function="b", cost=50), finding(line=30, function="c", cost=7)]
    changes = match_findings(before, after)
    assert [(c.status, c.function, c.before_cost_ns, c.after_cost_ns) for c in changes] == [
        ("smaller", "c", 100, 7),
        ("still there", "b", 50, 50),
    ]


def test_one_that_costs_less_than_half_is_smaller() -> None:
    assert statuses([finding(cost=100)], [finding(cost=49)]) == [("PD102", "smaller")]
    assert statuses([finding(cost=100)], [finding(cost=50)]) == [("PD102", "still there")]


STEP = StepDifference(1000, 920, -80, -90, -70, 0.95, 10, "faster", "")


@pytest.mark.parametrize(
    ("promised", "outcome"),
    [
        (Promised(50, 80, 100, "replayed"), "kept"),
        (Promised(85, 95, 99, "replayed"), "kept"),
        (Promised(100, 120, 130, "replayed"), "less"),
        (Promised(10, 20, 30, "bounded"), "more"),
        (Promised(None, None, 75, "bounded"), "kept"),
        (Promised(None, None, 60, "bounded"), "more"),
    ],
)
def test_what_came_meets_the_promise_within_the_noise(promised: Promised, outcome: str) -> None:
    (promise,) = check_promises([finding(promised=promised)], [], STEP)
    assert (promise.came_ns, promise.low_ns, promise.high_ns, promise.outcome) == (80, 70, 90, outcome)


def test_the_only_one_that_went_is_judged_by_what_its_fix_gives_alone() -> None:
    alone = Promised(75, 80, 85, "replayed")
    (promise,) = check_promises([finding(promised=Promised(0, 0, 0, "replayed"), promised_alone=alone)], [], STEP)
    assert (promise.promised, promise.outcome) == (alone, "kept")


def test_of_several_only_the_sum_is_judged() -> None:
    before = [finding(), finding("PD105", promised=Promised(0, None, 20, "bounded"))]
    together, *each = check_promises(before, [], STEP)
    assert (together.rule, together.promised) == (ALL_TOGETHER, Promised(50, 90, 120, "sum"))
    assert (together.came_ns, together.outcome) == (80, "kept")
    assert [(promise.rule, promise.came_ns, promise.outcome) for promise in each] == [
        ("PD102", None, "unknown"),
        ("PD105", None, "unknown"),
    ]


def test_a_covered_one_counts_only_where_the_other_is_still_there() -> None:
    covering = finding("PD101")
    covered = finding(
        covered_by=0, promised=Promised(0, 0, 0, "replayed"), promised_alone=Promised(60, 70, 80, "replayed")
    )
    assert [p.rule for p in check_promises([covering, covered], [], STEP)] == ["PD101"]
    (promise,) = check_promises([covering, covered], [covering], STEP)
    assert (promise.rule, promise.promised.expected_ns) == ("PD102", 70)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([finding()], [finding()]),
        ([finding(promised=UNKNOWN)], []),
        ([finding(is_one_off=True)], []),
        ([], [finding()]),
    ],
)
def test_nothing_is_judged_where_nothing_went_or_was_promised(
    before: list[SeenFinding], after: list[SeenFinding]
) -> None:
    assert check_promises(before, after, STEP) == ()


def test_without_noise_what_came_is_shown_and_not_judged() -> None:
    (promise,) = check_promises([finding()], [], StepDifference(1000, 900, -100))
    assert (promise.came_ns, promise.low_ns, promise.outcome) == (100, None, "unknown")
    (promise,) = check_promises([finding()], [], StepDifference(None, None))
    assert (promise.came_ns, promise.outcome) == (None, "unknown")


def test_wrong_results_stand_before_what_is_slow() -> None:
    slow, wrong = finding("PD101", 500), finding("PD505", 0, title="wrong", subject="clip")
    assert [change.rule for change in match_findings([slow, wrong], [])] == ["PD505", "PD101"]
    assert [change.rule for change in match_findings([], [slow, wrong])] == ["PD505", "PD101"]
