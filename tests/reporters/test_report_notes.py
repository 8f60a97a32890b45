from __future__ import annotations

from dataclasses import replace

import report_samples as samples

from perfdoctor.reporters.report_notes import describe_incomplete_input, group_trace_warnings, skipped_rules
from perfdoctor.reporters.verdict import verdict_of


def test_missing_ranks_come_first_and_are_not_counted_as_devices():
    report = samples.four_ranks()
    lost = replace(report.traces[3], rank=9, device=None, complete=False, warnings=("it is missing: its worker died",))
    report = replace(report, traces=(*report.traces, lost))
    assert describe_incomplete_input(report) == "rank 9: it is missing: its worker died"
    assert "4 x AMD" in verdict_of(report)
    assert group_trace_warnings(report) == []
    more = replace(report, traces=(*report.traces, replace(lost, rank=10), replace(lost, rank=11)))
    assert describe_incomplete_input(more) == (
        "ranks 9-11 are missing from the analysis; the first, rank 9: it is missing: its worker died"
    )
    assert group_trace_warnings(more) == ["it is missing: its worker died (rank 9, alike on 2 more ranks)"]


def test_rules_skipped_for_one_reason_share_a_line():
    groups = skipped_rules(samples.cpu_only())
    assert [group.rules for group in groups] == [("PD201", "PD203"), ("PD401",)]


def test_one_warning_of_many_ranks_becomes_one_line():
    report = samples.four_ranks()
    odd = [f"{n} of 262 GPU items have no launching call." for n in (1, 5, 9)]
    traces = tuple(
        replace(t, warnings=(odd[i],) if i else ()) for i, t in zip((0, 1, 2, 0), report.traces, strict=True)
    )
    assert group_trace_warnings(replace(report, traces=traces)) == [
        "5 of 262 GPU items have no launching call (rank 1, alike on 1 more rank)"
    ]


def test_different_warnings_stay_different_lines():
    report = samples.incomplete()
    traces = (replace(report.traces[0], warnings=("3 events are odd", "the clock jumps")),)
    assert group_trace_warnings(replace(report, traces=traces)) == ["3 events are odd", "the clock jumps"]


def test_cut_traces_are_counted_and_whole_ones_are_not_mentioned():
    ranks = samples.four_ranks()
    one_cut = (replace(ranks.traces[0], complete=False), *ranks.traces[1:])
    assert describe_incomplete_input(replace(ranks, traces=one_cut)).startswith("1 of 4 traces are incomplete")
    assert describe_incomplete_input(samples.incomplete()).startswith("the trace is incomplete")
    assert describe_incomplete_input(ranks) is None
