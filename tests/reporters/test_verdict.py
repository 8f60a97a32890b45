from __future__ import annotations

from dataclasses import replace

import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.context.context import UNKNOWN_CONTEXT
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.finding import ONCE, Action, Recurrence
from perfdoctor.report.report import Limit, Report, StepSummary, UnexplainedSlice
from perfdoctor.reporters.report_facts import info_findings, share_of_step, step_length_ns
from perfdoctor.reporters.time_split import time_split_of
from perfdoctor.reporters.verdict import describe_ladder, describe_recorded_step, verdict_of
from perfdoctor.savings.saving import Saving

THREADS = Action("threads", 2)


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


def test_a_setting_whose_cost_is_not_known_keeps_a_report_from_a_clean_bill() -> None:
    unknown = replace(
        samples.loader_stall().findings[0],
        rule="PD512",
        cost_ns=0,
        severity="info",
        saving=Saving(),
        actions=(THREADS,),
    )
    verdict = verdict_of(replace(samples.healthy(), findings=(unknown,)))
    assert verdict.endswith("; no trace shows what PD512 (below) costs: perfdoctor try measures it.")
    seen = verdict_of(replace(samples.healthy(), findings=(replace(unknown, actions=()),)))
    assert "no trace shows" not in seen


def test_a_trace_that_no_rule_judged_is_not_called_healthy():
    verdict = verdict_of(samples.incomplete())
    assert "no rule could judge it" in verdict
    assert "nothing was found" not in verdict


def test_a_trace_that_few_rules_judged_is_not_called_healthy():
    report = replace(samples.cpu_only(), findings=())
    assert "only 1 of 4 rules could judge it, and nothing was found that" in verdict_of(report)


def test_time_outside_of_pytorch_is_mentioned_where_nothing_was_found():
    report = replace(samples.cpu_only(), findings=())
    assert "but 48% of it passes outside of PyTorch, where a profiler for Python sees more" in verdict_of(report)
    busy = replace(report, account=(samples.account(bandwidth=95, idle_unexplained=5),))
    assert "outside of PyTorch" not in verdict_of(busy)
    assert "outside of PyTorch" not in verdict_of(samples.healthy())


@pytest.mark.parametrize(("share", "said"), [(0.41, True), (0.04, False)], ids=["most", "little"])
def test_the_first_place_is_named_before_any_advice(share: float, said: bool) -> None:
    healthy = replace(samples.cpu_only(), findings=(), account=(samples.account(bandwidth=95, idle_unexplained=5),))
    for report in (healthy, samples.loader_stall()):
        head = verdict_of(samples.placed(report, share=share))
        assert (f"({round(100 * share)}%) of it is mlm.py:36: sort 2 times" in head) == said
    assert ". First to fix: " in verdict_of(samples.placed(samples.loader_stall()))
    assert ". Nothing was found that costs" in verdict_of(samples.placed(samples.healthy()))


def test_a_low_finding_is_worth_a_look_and_not_the_first_to_fix():
    report = samples.placed(samples.loader_stall())
    low = replace(report, findings=tuple(replace(finding, severity="low") for finding in report.findings))
    assert ". Worth a look: " in verdict_of(low)
    assert "First to fix" not in verdict_of(low)


def test_one_length_of_the_step_is_shown_and_the_median_is_for_the_long_form():
    report = samples.loader_stall()
    shaky = replace(report, steps=StepSummary(8, "annotated", 40_000_000, variation=0.3))
    assert verdict_of(shaky).startswith("Your step takes 43.1 ms on average on an NVIDIA A100")
    assert describe_recorded_step(shaky) is None
    assert describe_recorded_step(shaky, always=True) == "the median step takes 40.0 ms"
    assert "average" not in verdict_of(report)


@pytest.mark.parametrize(("between_ns", "said"), [(None, ""), (0, ""), (2_000_000, ""), (4_000_000, "4.00 ms")])
def test_time_between_steps_is_said_from_a_twentieth_of_the_step_on(between_ns: int | None, said: str) -> None:
    report = samples.loader_stall()
    verdict = verdict_of(replace(report, steps=replace(report.steps, between_ns=between_ns)))
    assert (f"({said} more lie between two steps on average, in none of these figures)" in verdict) == bool(said)
    assert ("between two steps" in verdict) == bool(said)


def test_the_verdict_says_that_no_gpu_was_seen():
    assert "on the CPU (no GPU was seen)" in verdict_of(samples.cpu_only())


def test_a_named_gpu_without_events_is_no_cpu_program():
    report = samples.cpu_only()
    named = replace(report, traces=(replace(report.traces[0], device="Tesla V100", ran_on="gpu_not_recorded"),))
    assert "the trace names a Tesla V100 and holds no GPU events" in verdict_of(named)
    assert time_split_of(named) is None
    assert time_split_of(report) is not None


def test_a_window_without_steps_is_not_called_a_step():
    verdict = verdict_of(samples.incomplete())
    assert "without steps" in verdict
    assert "Your step" not in verdict


def test_ranks_of_one_device_are_counted():
    assert "on 4 x AMD Instinct MI300X" in verdict_of(samples.four_ranks())


def test_common_words_lose_their_capital_and_names_keep_it():
    report = samples.kernel()
    assert "of it: matrix products" in verdict_of(report)
    named = replace(report.findings[0], title="No Tensor Cores", location=SourceLocation("a.py"))
    assert "of it: no Tensor Cores, at a.py." in verdict_of(replace(report, findings=(named,)))


def test_a_correctness_finding_without_cost_leads_without_a_number():
    report = samples.kernel()
    wrong = replace(report.findings[0], cost_ns=0, title="Gradients are clipped before they are unscaled")
    assert "; 0 ms" not in verdict_of(replace(report, findings=(wrong,)))
    assert "Above all: gradients" in verdict_of(replace(report, findings=(wrong,)))


@pytest.mark.parametrize(
    ("recorded_ns", "short", "long"),
    [
        (43_100_000, None, None),
        (60_000_000, None, "recorded with the profiler a step took 60.0 ms"),
        (
            100_000_000,
            "recorded with the profiler a step took 100 ms: more than half of that is the profiler or other "
            "programs, so shares of the step are estimates",
            None,
        ),
    ],
)
def test_the_recorded_step_is_for_the_long_form_unless_it_is_mostly_the_profiler(
    recorded_ns: int, short: str | None, long: str | None
) -> None:
    report = samples.loader_stall()
    report = replace(report, steps=replace(report.steps, recorded_median_ns=recorded_ns))
    assert describe_recorded_step(report) == short
    assert describe_recorded_step(report, always=True) == (long or short)
    assert "takes 43.1 ms on" in verdict_of(report)


def test_the_ladder_goes_from_now_over_the_fixes_to_the_limit() -> None:
    report = replace(samples.kernel(), limit=Limit(12_000_000, 0.74, 21_000_000, "replayed"))
    assert describe_ladder(report) == (
        "now 47.5 ms -> 2 fixes -> about 21.0 ms; limit of its kernels on this GPU 12.0 ms (known for 74% of its time)"
    )
    little = replace(report, limit=replace(report.limit, known_share=0.14))
    assert str(describe_ladder(little)).endswith("; 12.0 ms if nothing waited")
    known = replace(report, limit=replace(report.limit, known_share=1.0))
    assert str(describe_ladder(known)).endswith("limit of its kernels on this GPU 12.0 ms")


def test_a_ladder_has_only_the_rungs_that_are_known() -> None:
    report = samples.kernel()
    assert describe_ladder(report) is None
    assert describe_ladder(replace(report, limit=Limit(after_fixes_ns=21_000_000))) == (
        "now 47.5 ms -> 2 fixes -> about 21.0 ms"
    )
    assert describe_ladder(replace(report, findings=(), limit=Limit(12_000_000, 1.0))) == (
        "now 47.5 ms; limit of its kernels on this GPU 12.0 ms"
    )


def test_the_verdict_names_the_program_where_it_is_known() -> None:
    report = samples.loader_stall()
    context = replace(
        UNKNOWN_CONTEXT, phase="training", frameworks=("PyTorch", "Lightning"), parallelism=("DDP",), compiled_share=0.8
    )
    assert verdict_of(replace(report, context=context)).startswith(
        "Training (Lightning, DDP, 80% of kernels compiled): a step takes 43.1 ms on an NVIDIA A100"
    )
    assert verdict_of(report).startswith("Your step takes 43.1 ms")
    plain = replace(context, frameworks=("PyTorch",), parallelism=(), compiled_share=0.001)
    assert verdict_of(replace(report, context=plain)).startswith("Training: a step takes")
    engine = replace(UNKNOWN_CONTEXT, frameworks=("vLLM",), steady=False)
    assert verdict_of(replace(report, context=engine)).startswith("A program (vLLM, not steady): a step takes")


def test_the_verdict_names_the_rank_whose_cost_it_gives() -> None:
    assert "15.0 ms (37%) of it on rank 2: rank 2" in verdict_of(samples.four_ranks())


def test_time_that_nobody_explains_keeps_a_report_from_a_clean_bill() -> None:
    idle = UnexplainedSlice(None, "idle_launch", 300 * samples.MS, 0.3, "launches are slower than kernels")
    verdict = verdict_of(replace(samples.healthy(), unexplained=(idle,)))
    assert "nothing was found" not in verdict
    assert "12.0 ms (30%) of it: idle, waiting for launches, which no finding explains." in verdict


def test_work_that_cannot_be_judged_is_no_waste() -> None:
    work = UnexplainedSlice(None, "compute", 300 * samples.MS, 0.3, "no shapes were recorded")
    verdict = verdict_of(replace(samples.healthy(), unexplained=(work,)))
    assert "nothing was found that costs 1% of it or more" in verdict
    assert "and arithmetic limits 75% of it (how near it comes is not known)" in verdict


def test_a_cost_without_a_fix_keeps_the_head_from_saying_that_nothing_costs_as_much() -> None:
    report = samples.kernel()
    costly = replace(report.findings[0], severity="info")
    assert ", and no rule found a fix worth 1% of it (" in verdict_of(replace(report, findings=(costly,)))
    small = replace(costly, cost_ns=200_000, share_of_step=0.004)
    assert "nothing was found" in verdict_of(replace(report, findings=(small,)))


@st.composite
def reports_with_findings(draw: st.DrawFn) -> Report:
    """Any findings, on all ranks, one, or several, below a head of any kind."""
    report = draw(st.sampled_from((samples.healthy(), samples.cpu_only(), samples.four_ranks(), samples.incomplete())))
    base, step_ns, ranks = samples.loader_stall().findings[0], step_length_ns(report), len(report.account)
    findings = []
    for position in range(draw(st.integers(0, 3))):
        cost_ns = round(draw(st.sampled_from((0.0, 0.004, 0.0099, 0.01, 0.019, 0.04, 0.3))) * step_ns)
        saving = draw(st.sampled_from((Saving(), Saving(0, 0, 0, "bounded"), Saving(0, cost_ns, cost_ns, "bounded"))))
        findings.append(
            replace(
                base,
                cost_ns=cost_ns,
                severity=draw(st.sampled_from(("info", "low", "high"))),
                saving=saving,
                rank=draw(st.sampled_from((None, *range(ranks)))) if ranks > 1 else None,
                covered_by=draw(st.sampled_from((None, *range(position)))),
                recurrence=draw(st.sampled_from((None, Recurrence(1, 8, cost_ns, cost_ns)))),
            )
        )
    return replace(report, findings=tuple(findings))


@given(reports_with_findings())
def test_the_head_denies_no_cost_that_stands_below_it(report: Report) -> None:
    costs = [share_of_step(report, finding) or 0.0 for finding in report.findings]
    assert max(costs, default=0.0) < 0.01 or "nothing was found" not in verdict_of(report)


@given(reports_with_findings())
def test_a_head_without_costs_below_it_says_that_nothing_was_found(report: Report) -> None:
    cheap = tuple(replace(finding, severity="info", cost_ns=0, saving=Saving()) for finding in report.findings)
    head = verdict_of(replace(samples.healthy(), findings=cheap))
    assert "nothing was found that costs 1% of it or more" in head


def test_what_happens_once_is_said_once() -> None:
    report = samples.kernel()
    once = replace(report.findings[0], title=f"{ONCE}the GPU waits while modules are loaded", occurs_once=True)
    assert "37.5 ms (79%) of it, once in this trace: the GPU waits while modules" in verdict_of(
        replace(report, findings=(once,))
    )


def test_a_one_off_and_a_covered_finding_do_not_lead() -> None:
    report = samples.kernel()
    first, second, _ = report.findings
    once = replace(first, recurrence=Recurrence(1, 8, 40_000_000, 40_000_000))
    assert verdict_of(replace(report, findings=(once, second))).count("host waits for the GPU") == 1
    covered = replace(first, covered_by=1)
    assert verdict_of(replace(report, findings=(covered, second))).count("host waits for the GPU") == 1
    often = replace(first, recurrence=Recurrence(4, 8, 40_000_000, 40_000_000))
    assert "matrix products" in verdict_of(replace(report, findings=(often, second)))


def test_that_other_programs_had_the_cores_comes_before_everything_else() -> None:
    report = samples.loader_stall()
    traces = tuple(replace(each, core_share=0.25) for each in report.traces)
    busy = replace(report, traces=traces, steps=replace(report.steps, timed_median_ns=172_000_000))
    caution = "Other programs had the cores 75% of the time: record again when it is quiet. "
    assert verdict_of(busy) == caution + verdict_of(report)
    recorded = replace(busy, steps=replace(busy.steps, recorded_median_ns=400_000_000))
    assert describe_recorded_step(recorded) is None
    in_full = describe_recorded_step(recorded, always=True)
    assert in_full is not None
    assert "with its waits for a core a step took 172 ms" in in_full


def test_threads_without_a_core_are_not_said_twice() -> None:
    report = samples.loader_stall()
    crowd = replace(report.findings[0], rule="PD512", subject="crowd", severity="info")
    quiet = replace(report, findings=(crowd,))
    busy = replace(quiet, traces=tuple(replace(each, core_share=0.25) for each in report.traces))
    assert [len(info_findings(each, in_full=False)) for each in (quiet, busy)] == [1, 0]
    assert len(info_findings(busy)) == 1
