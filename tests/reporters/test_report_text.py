from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.finding import STEP_AFTER, Evidence, Finding
from perfdoctor.report.merge_findings import SharedFinding
from perfdoctor.report.report import StepSummary
from perfdoctor.reporters import rank_table as ranks
from perfdoctor.reporters import report_text as summary
from perfdoctor.reporters.stacked_bar import cells
from perfdoctor.savings.saving import Saving


def test_the_verdict_names_step_device_cost_and_place():
    assert summary.verdict(samples.loader_stall()) == (
        "Your step takes 43.1 ms on an NVIDIA A100-SXM4-40GB; 19.0 ms (44%) of it: the GPU waits for the DataLoader, "
        "at train.py:41."
    )


def test_the_verdict_says_a_place_once():
    report = samples.loader_stall()
    told = replace(report.findings[0], title="The GPU waits for the DataLoader at train.py:41")
    assert summary.verdict(replace(report, findings=(told,))).count("train.py:41") == 1


def test_a_healthy_trace_gets_a_clean_bill():
    verdict = summary.verdict(samples.healthy())
    assert "nothing was found that costs 1% of it or more" in verdict
    assert "busy for 99% of it" in verdict


def test_a_trace_that_no_rule_judged_gets_no_clean_bill():
    verdict = summary.verdict(samples.incomplete())
    assert "no rule could judge it" in verdict
    assert "nothing was found" not in verdict


def test_few_judges_give_no_clean_bill():
    report = replace(samples.cpu_only(), findings=())
    assert "only 1 of 4 rules could judge it, and found nothing" in summary.verdict(report)


def test_time_outside_of_pytorch_is_no_clean_bill():
    report = replace(samples.cpu_only(), findings=())
    assert "but 48% of it passes outside of PyTorch, where a profiler for Python sees more" in summary.verdict(report)
    busy = replace(report, account=(samples.account(bandwidth=95, idle_unexplained=5),))
    assert "outside of PyTorch" not in summary.verdict(busy)
    assert "outside of PyTorch" not in summary.verdict(samples.healthy())


def test_mean_and_median_are_both_told_when_they_differ():
    report = samples.loader_stall()
    told = summary.verdict(replace(report, steps=StepSummary(8, "annotated", 40_000_000, 0.3)))
    assert told.startswith("Your step takes 43.1 ms on average (median 40.0 ms) on an NVIDIA A100")
    assert "average" not in summary.verdict(report)


def test_no_gpu_is_said_plainly():
    assert "on the CPU (no GPU was seen)" in summary.verdict(samples.cpu_only())


def test_a_named_gpu_without_events_is_no_cpu_program():
    report = samples.cpu_only()
    named = replace(report, traces=(replace(report.traces[0], device="Tesla V100"),))
    assert "the trace names a Tesla V100 and holds no GPU events" in summary.verdict(named)
    assert summary.split(named) is None
    assert summary.split(report) is not None


def test_a_window_without_steps_is_not_called_a_step():
    verdict = summary.verdict(samples.incomplete())
    assert "without steps" in verdict
    assert "Your step" not in verdict


def test_ranks_of_one_device_are_counted():
    assert "on 4 x AMD Instinct MI300X" in summary.verdict(samples.four_ranks())


def test_only_articles_lose_their_capital():
    report = samples.kernel()
    assert "of it: Matrix products" in summary.verdict(report)
    named = replace(report.findings[0], title="No Tensor Cores", location=SourceLocation("a.py"))
    assert "of it: no Tensor Cores, at a.py." in summary.verdict(replace(report, findings=(named,)))


def test_a_correctness_finding_without_cost_leads_without_a_number():
    report = samples.kernel()
    wrong = replace(report.findings[0], cost_ns=0, title="Gradients are clipped before they are unscaled")
    assert "; 0 ms" not in summary.verdict(replace(report, findings=(wrong,)))
    assert "Above all: Gradients" in summary.verdict(replace(report, findings=(wrong,)))


def test_the_split_of_a_step_is_the_window_over_its_steps():
    report = samples.loader_stall()
    split = summary.split(report)
    assert split.window_ns * samples.STEPS == report.account[0].window_ns
    assert sum(part.share for part in split.buckets) == pytest.approx(1)
    assert sum(part.ns for part in split.buckets) == pytest.approx(split.window_ns)
    assert [part.words for part in split.details][:2] == [
        "idle, waiting for the DataLoader",
        "idle, waiting for launches",
    ]


def test_nothing_to_account_for_is_no_split():
    assert summary.split(samples.empty()) is None


def test_details_below_one_percent_are_not_told():
    told = {part.words for part in summary.split(samples.loader_stall()).details}
    assert "idle, unexplained" not in told
    assert "copies" in told


def test_unknown_tensor_core_use_is_not_zero():
    assert summary.split(samples.cpu_only()).tensor_cores is None
    unknown = {"used": 0, "slow_path": 0, "not_used": 0, "unknown": 7}
    report = samples.report((samples.account(tensor_core=unknown, compute=3),))
    assert summary.split(report).tensor_cores is None


@pytest.mark.parametrize(
    ("device", "told"), [("Quadro GP100", False), ("NVIDIA GeForce GTX 1650", False), (None, True)]
)
def test_a_device_without_tensor_cores_does_not_leave_them_unused(device: str | None, told: bool):
    report = samples.loader_stall()
    report = replace(report, traces=tuple(replace(t, device=device, vendor="nvidia") for t in report.traces))
    assert (summary.split(report).tensor_cores is not None) == told


def test_tensor_core_use_adds_up_in_words():
    assert summary.split(samples.loader_stall()).tensor_cores == (
        "Tensor Cores in 12.0 ms of matrix work: used 62%, slow path 15%, not used 21%, unknown 2.1%"
    )


def test_varying_and_inferred_steps_are_said():
    steady = samples.healthy()
    shaky = replace(steady, steps=StepSummary(8, "inferred", 40_000_000, 0.31))
    assert "inferred, varying by 31%" in summary.split(shaky).title
    assert "varying" not in summary.split(steady).title


def test_few_ranks_are_all_shown():
    rows, left_out = summary.rank_rows(samples.four_ranks())
    assert [row.rank for row in rows] == ["0", "1", "2", "3"]
    assert left_out == ""


def test_the_parts_of_a_ranks_step_add_up_to_it():
    for row in summary.rank_rows(samples.four_ranks())[0]:
        assert sum(row.parts_ns) == pytest.approx(row.step_ns)
        assert sum(row.shares) == pytest.approx(1)


def test_of_many_ranks_the_odd_ones_are_shown_and_how_near_the_others_are():
    rows, left_out = summary.rank_rows(samples.ranks(128))
    assert [row.rank for row in rows] == ["126"]
    assert left_out == "and 127 others, each figure within 0% of a step from the median"


def test_of_many_ranks_the_worst_of_each_column_are_shown():
    report = samples.ranks(64)
    idle = [
        samples.account(r, compute=20 + r / 100, bandwidth=4, communication=10, idle_launch=9 if r == 7 else 1)
        for r in range(64)
    ]
    report = replace(report, account=tuple(idle), late_ns={**dict.fromkeys(range(64), 0), 9: 5_000_000})
    rows, left_out = summary.rank_rows(report)
    assert [row.rank for row in rows] == ["0", "7", "9", "63"]
    assert [row.late_ns for row in rows] == [0, 0, 5_000_000, 0]
    assert left_out.startswith("and 60 others, each figure within ")


def test_lateness_that_nobody_knows_is_not_zero():
    assert {row.late_ns for row in summary.rank_rows(samples.four_ranks())[0]} == {None}


def test_a_finding_names_the_ranks_that_it_holds_for():
    report = samples.four_ranks()
    (own,) = report.findings

    def over(*numbers: int) -> Finding:
        return next(SharedFinding((own,), frozenset(numbers), 0).findings())

    assert ranks.whose(report, own) == " on rank 2"
    assert ranks.whose(report, over(0, 1, 2)) == " on ranks 0-2"
    assert ranks.whose(report, over(0, 1, 2, 3)) == " on all 4 ranks"
    assert ranks.whose(report, replace(own, rank=None)) == ""
    assert ranks.whose(samples.healthy(), own) == ""


def test_missing_ranks_are_told_first_and_count_for_no_device():
    report = samples.four_ranks()
    lost = replace(report.traces[3], rank=9, device=None, complete=False, warnings=("it is missing: its worker died",))
    report = replace(report, traces=(*report.traces, lost))
    assert summary.cut_short(report) == "rank 9: it is missing: its worker died"
    assert "4 x AMD" in summary.verdict(report)
    assert summary.oddities(report) == []
    more = replace(report, traces=(*report.traces, replace(lost, rank=10), replace(lost, rank=11)))
    assert summary.cut_short(more) == (
        "ranks 9-11 are missing from the analysis; the first, rank 9: it is missing: its worker died"
    )
    assert summary.oddities(more) == ["rank 9: it is missing: its worker died (alike on 2 more ranks)"]


def test_rules_skipped_for_one_reason_share_a_line():
    groups = summary.skipped(samples.cpu_only())
    assert [group.rules for group in groups] == [("PD201", "PD203"), ("PD401",)]


def test_one_oddity_of_many_ranks_is_told_once():
    report = samples.four_ranks()
    odd = [f"{n} of 262 GPU items have no launching call." for n in (1, 5, 9)]
    traces = tuple(
        replace(t, warnings=(odd[i],) if i else ()) for i, t in zip((0, 1, 2, 0), report.traces, strict=True)
    )
    assert summary.oddities(replace(report, traces=traces)) == [
        "rank 1: 5 of 262 GPU items have no launching call (alike on 1 more rank)"
    ]


def test_different_oddities_are_told_apart():
    report = samples.incomplete()
    traces = (replace(report.traces[0], warnings=("3 events are odd", "the clock jumps")),)
    assert summary.oddities(replace(report, traces=traces)) == ["3 events are odd", "the clock jumps"]


def test_cut_traces_are_counted_and_whole_ones_are_not_mentioned():
    ranks = samples.four_ranks()
    one_cut = (replace(ranks.traces[0], complete=False), *ranks.traces[1:])
    assert summary.cut_short(replace(ranks, traces=one_cut)).startswith("1 of 4 traces are incomplete")
    assert summary.cut_short(samples.incomplete()).startswith("the trace is incomplete")
    assert summary.cut_short(ranks) is None


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=6), st.integers(10, 200))
def test_the_cells_of_a_bar_fill_it_and_hide_nothing(shares, width):
    counts = cells(shares, width)
    assert sum(counts) == (width if sum(shares) > 0 else 0)
    assert all((count > 0) == (share > 0) for count, share in zip(counts, shares, strict=True)) or sum(shares) == 0


@given(st.lists(st.integers(1, 1000), min_size=4, max_size=4))
def test_a_cell_count_is_within_a_cell_of_its_share_unless_it_had_to_be_shown(shares):
    for count, share in zip(cells(shares, 76), shares, strict=True):
        assert abs(count - 76 * share / sum(shares)) < 4


@pytest.mark.parametrize(
    ("unprofiled_ns", "told"),
    [(36_000_000, ", and 36.0 ms without the profiler; 19.0 ms"), (42_900_000, "A100-SXM4-40GB; 19.0 ms")],
)
def test_the_step_without_the_profiler_is_told_when_it_is_another(unprofiled_ns: int, told: str) -> None:
    report = samples.loader_stall()
    verdict = summary.verdict(replace(report, steps=replace(report.steps, unprofiled_ns=unprofiled_ns)))
    assert told in verdict


def _replayed(rule: str, saves_ms: float, after_ms: float, **changes: Any) -> Finding:
    saves, after = round(saves_ms * samples.MS), round(after_ms * samples.MS)
    base = samples.loader_stall().findings[0]
    evidence = (Evidence(STEP_AFTER, after, "ns"),)
    told = replace(base, rule=rule, saving=Saving(0, saves, saves, "replayed"), evidence=evidence)
    return replace(told, **changes)


def test_fixes_that_were_replayed_are_told_together():
    report = samples.loader_stall()
    bare = report.findings[0]
    three = (_replayed("PD101", 10, 33.1), bare, _replayed("PD201", 5, 28.1), _replayed("PD303", 0.1, 28.0))
    assert summary.together(replace(report, findings=three)) == (
        "Fixed one after the other, 1 and 3 take a step from 43.1 ms to about 28.1 ms (replayed)"
    )


def test_a_single_fix_speaks_for_itself():
    report = samples.loader_stall()
    assert summary.together(replace(report, findings=(_replayed("PD101", 10, 33.1), report.findings[0]))) is None
    assert summary.together(report) is None


def test_steps_of_different_ranks_are_no_chain():
    report = samples.loader_stall()
    apart = (_replayed("PD101", 10, 33.1), _replayed("PD201", 5, 28.1, rank=3))
    assert summary.together(replace(report, findings=apart)) is None
