from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import report_samples as samples

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.finding import STEP_AFTER, Evidence, Finding
from perfdoctor.report.report import StepSummary
from perfdoctor.reporters.time_split import time_split_of
from perfdoctor.reporters.verdict import describe_fix_chain, verdict_of
from perfdoctor.savings.saving import Saving


def test_the_verdict_names_step_device_cost_and_place():
    assert verdict_of(samples.loader_stall()) == (
        "Your step takes 43.1 ms on an NVIDIA A100-SXM4-40GB; 19.0 ms (44%) of it: the GPU waits for the DataLoader, "
        "at train.py:41."
    )


def test_the_verdict_names_a_place_once():
    report = samples.loader_stall()
    finding = replace(report.findings[0], title="The GPU waits for the DataLoader at train.py:41")
    assert verdict_of(replace(report, findings=(finding,))).count("train.py:41") == 1


def test_a_healthy_trace_is_called_healthy():
    verdict = verdict_of(samples.healthy())
    assert "nothing was found that costs 1% of it or more" in verdict
    assert "busy for 99% of it" in verdict


def test_a_trace_that_no_rule_judged_is_not_called_healthy():
    verdict = verdict_of(samples.incomplete())
    assert "no rule could judge it" in verdict
    assert "nothing was found" not in verdict


def test_a_trace_that_few_rules_judged_is_not_called_healthy():
    report = replace(samples.cpu_only(), findings=())
    assert "only 1 of 4 rules could judge it, and found nothing" in verdict_of(report)


def test_time_outside_of_pytorch_is_mentioned_where_nothing_was_found():
    report = replace(samples.cpu_only(), findings=())
    assert "but 48% of it passes outside of PyTorch, where a profiler for Python sees more" in verdict_of(report)
    busy = replace(report, account=(samples.account(bandwidth=95, idle_unexplained=5),))
    assert "outside of PyTorch" not in verdict_of(busy)
    assert "outside of PyTorch" not in verdict_of(samples.healthy())


def test_mean_and_median_are_both_shown_when_they_differ():
    report = samples.loader_stall()
    verdict = verdict_of(replace(report, steps=StepSummary(8, "annotated", 40_000_000, 0.3)))
    assert verdict.startswith("Your step takes 43.1 ms on average (median 40.0 ms) on an NVIDIA A100")
    assert "average" not in verdict_of(report)


def test_the_verdict_says_that_no_gpu_was_seen():
    assert "on the CPU (no GPU was seen)" in verdict_of(samples.cpu_only())


def test_a_named_gpu_without_events_is_no_cpu_program():
    report = samples.cpu_only()
    named = replace(report, traces=(replace(report.traces[0], device="Tesla V100"),))
    assert "the trace names a Tesla V100 and holds no GPU events" in verdict_of(named)
    assert time_split_of(named) is None
    assert time_split_of(report) is not None


def test_a_window_without_steps_is_not_called_a_step():
    verdict = verdict_of(samples.incomplete())
    assert "without steps" in verdict
    assert "Your step" not in verdict


def test_ranks_of_one_device_are_counted():
    assert "on 4 x AMD Instinct MI300X" in verdict_of(samples.four_ranks())


def test_only_articles_lose_their_capital():
    report = samples.kernel()
    assert "of it: Matrix products" in verdict_of(report)
    named = replace(report.findings[0], title="No Tensor Cores", location=SourceLocation("a.py"))
    assert "of it: no Tensor Cores, at a.py." in verdict_of(replace(report, findings=(named,)))


def test_a_correctness_finding_without_cost_leads_without_a_number():
    report = samples.kernel()
    wrong = replace(report.findings[0], cost_ns=0, title="Gradients are clipped before they are unscaled")
    assert "; 0 ms" not in verdict_of(replace(report, findings=(wrong,)))
    assert "Above all: Gradients" in verdict_of(replace(report, findings=(wrong,)))


@pytest.mark.parametrize(
    ("unprofiled_ns", "expected"),
    [(36_000_000, ", and 36.0 ms without the profiler; 19.0 ms"), (42_900_000, "A100-SXM4-40GB; 19.0 ms")],
)
def test_the_step_without_the_profiler_is_shown_when_it_differs(unprofiled_ns: int, expected: str) -> None:
    report = samples.loader_stall()
    verdict = verdict_of(replace(report, steps=replace(report.steps, unprofiled_ns=unprofiled_ns)))
    assert expected in verdict


def _replayed(rule: str, saves_ms: float, after_ms: float, **changes: Any) -> Finding:
    saves, after = round(saves_ms * samples.MS), round(after_ms * samples.MS)
    base = samples.loader_stall().findings[0]
    evidence = (Evidence(STEP_AFTER, after, "ns"),)
    finding = replace(base, rule=rule, saving=Saving(0, saves, saves, "replayed"), evidence=evidence)
    return replace(finding, **changes)


def test_replayed_fixes_form_a_chain():
    report = samples.loader_stall()
    bare = report.findings[0]
    three = (_replayed("PD101", 10, 33.1), bare, _replayed("PD201", 5, 28.1), _replayed("PD303", 0.1, 28.0))
    assert describe_fix_chain(replace(report, findings=three)) == (
        "Fixed one after the other, 1 and 3 take a step from 43.1 ms to about 28.1 ms (replayed)"
    )


def test_a_single_fix_is_no_chain():
    report = samples.loader_stall()
    assert describe_fix_chain(replace(report, findings=(_replayed("PD101", 10, 33.1), report.findings[0]))) is None
    assert describe_fix_chain(report) is None


def test_steps_of_different_ranks_are_no_chain():
    report = samples.loader_stall()
    apart = (_replayed("PD101", 10, 33.1), _replayed("PD201", 5, 28.1, rank=3))
    assert describe_fix_chain(replace(report, findings=apart)) is None
