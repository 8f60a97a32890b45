from __future__ import annotations

from dataclasses import replace

import pytest
import report_samples as samples

from perfdoctor.report.finding import Finding
from perfdoctor.report.merge_findings import SharedFinding
from perfdoctor.reporters.rank_table import format_finding_ranks, rank_rows


def test_few_ranks_are_all_shown():
    rows, left_out = rank_rows(samples.four_ranks())
    assert [row.rank for row in rows] == ["0", "1", "2", "3"]
    assert left_out == ""


def test_the_parts_of_a_ranks_step_add_up_to_it():
    for row in rank_rows(samples.four_ranks())[0]:
        assert sum(row.parts_ns) == pytest.approx(row.step_ns)
        assert sum(row.shares) == pytest.approx(1)


def test_of_many_ranks_the_outliers_are_shown_and_how_near_the_others_are():
    rows, left_out = rank_rows(samples.ranks(128))
    assert [row.rank for row in rows] == ["126"]
    assert left_out == "and 127 others, each figure within 0% of a step from the median"


def test_of_many_ranks_the_worst_of_each_column_are_shown():
    report = samples.ranks(64)
    idle = [
        samples.account(r, compute=20 + r / 100, bandwidth=4, communication=10, idle_launch=9 if r == 7 else 1)
        for r in range(64)
    ]
    report = replace(report, account=tuple(idle), late_ns={**dict.fromkeys(range(64), 0), 9: 5_000_000})
    rows, left_out = rank_rows(report)
    assert [row.rank for row in rows] == ["0", "7", "9", "63"]
    assert [row.late_ns for row in rows] == [0, 0, 5_000_000, 0]
    assert left_out.startswith("and 60 others, each figure within ")


def test_lateness_that_nobody_knows_is_not_zero():
    assert {row.late_ns for row in rank_rows(samples.four_ranks())[0]} == {None}


def test_a_finding_names_its_ranks():
    report = samples.four_ranks()
    (own,) = report.findings

    def over(*numbers: int) -> Finding:
        return next(SharedFinding((own,), frozenset(numbers), 0).merge())

    assert format_finding_ranks(report, own) == " on rank 2"
    assert format_finding_ranks(report, over(0, 1, 2)) == " on ranks 0-2"
    assert format_finding_ranks(report, over(0, 1, 2, 3)) == " on all 4 ranks"
    assert format_finding_ranks(report, over(*range(0, 16, 2))) == " on ranks 0, 2, 4, 6, 8, 10, 12, 14"
    assert format_finding_ranks(report, over(*range(0, 900, 2))) == " on ranks 0, 2, 4, 6, 8, 10, 12, 14 and more"
    assert format_finding_ranks(report, replace(own, rank=None)) == ""
    assert format_finding_ranks(samples.healthy(), own) == ""
