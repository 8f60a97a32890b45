"""Fixes replayed one on top of the other: their order, what each adds, and which is masked by another."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import lawful_file, run_of

from perfdoctor.pipeline import price_rank
from perfdoctor.rank import Rank
from perfdoctor.report.finding import STEP_AFTER, Finding, severity_of
from perfdoctor.savings.edits import Edit, remove_cpu_time, scale_durations
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import GpuRows

KERNEL = "ampere_sgemm_128x64_nn"


def fix(rule: str, edit: Edit | None, cost_us: float = 1000, high_us: float | None = None) -> Finding:
    cost = round(cost_us * 1000)
    return Finding(
        rule=rule,
        name="test",
        title=rule,
        cost_ns=cost,
        share_of_step=None,
        severity=severity_of(None),
        saving=Saving(0, None, cost if high_us is None else round(high_us * 1000), "bounded"),
        advice="",
        claim=Claim(iv.window(0, cost)),
        edit=edit,
    )


def loader_bound() -> Rank:
    """Each step of 1000 us: 600 of them wait for a batch, then kernels of 300 us that the CPU waits for."""
    trace = TraceBuilder()
    for i in range(4):
        at = 1000 * i
        trace.step(at, 1000)
        trace.call("cudaGetDevice", at, 5)
        trace.kernel(KERNEL, at + 630, 150, launch_us=at + 620).kernel(KERNEL, at + 780, 150, launch_us=at + 626)
        trace.call("cudaStreamSynchronize", at + 635, 300)
        trace.call("cudaGetDevice", at + 990, 5)
    return Rank(trace.trace())


def loader(run: Rank) -> Edit:
    starts = np.arange(4) * 1_000_000 + 10_000
    return remove_cpu_time(np.zeros(4, np.int32), (starts, starts + 600_000), run.window)


def told(finding: Finding) -> dict[str, Any]:
    return {e.label: e.value for e in finding.evidence}


def us(finding: Finding) -> tuple[float | None, ...]:
    saving = finding.saving
    return tuple(None if ns is None else ns / 1000 for ns in (saving.low_ns, saving.expected_ns, saving.high_ns))


def test_the_fix_that_saves_most_comes_first_and_each_is_told_what_it_adds() -> None:
    run = loader_bound()
    kernels = scale_durations(GpuRows(run.trace.gpu, np.arange(8)), 0.5, is_upper_bound=False)
    first, second = price_rank(run, [fix("PD901", kernels), fix("PD902", loader(run))])
    assert [f.rule for f in (first, second)] == ["PD902", "PD901"]
    assert (us(first)[1], told(first)[STEP_AFTER]) == (600, 400_000)
    assert (us(second)[1], told(second)[STEP_AFTER]) == (150, 250_000)
    assert {f.saving.basis for f in (first, second)} == {"replayed"}


def test_two_fixes_of_the_same_time_share_it() -> None:
    run = loader_bound()
    whole, half = (
        scale_durations(GpuRows(run.trace.gpu, np.arange(8)), share, is_upper_bound=False) for share in (0.5, 0.25)
    )
    first, second = price_rank(run, [fix("PD901", half), fix("PD902", whole)])
    assert (us(first)[1], us(second)[1]) == (150, 0)


def test_a_bound_is_reached_half_way_and_perhaps_not_at_all() -> None:
    run = loader_bound()
    (only,) = price_rank(run, [fix("PD901", scale_durations(GpuRows(run.trace.gpu, np.arange(8)), 0.5))])
    low, expected, high = us(only)
    assert (low, expected) == (0, 75)
    assert high is not None
    assert 150 <= high < 155  # nearly all of what the CPU waited is released


def test_a_replay_promises_no_more_than_the_rule_and_the_cost_allow() -> None:
    run = loader_bound()
    (capped,) = price_rank(run, [fix("PD901", loader(run), high_us=100)])
    assert us(capped) == (100, 100, 100)
    (cheap,) = price_rank(run, [fix("PD901", loader(run), cost_us=50)])
    assert us(cheap) == (50, 50, 50)


def test_a_fix_that_another_makes_worth_while_is_masked_and_comes_after_it() -> None:
    """The CPU works for 700 of each 1000 us while a kernel of 900 runs, for which it then waits."""
    trace = TraceBuilder()
    for i in range(4):
        at = 1000 * i
        trace.step(at, 1000).call("cudaGetDevice", at, 5)
        trace.kernel(KERNEL, at + 30, 900, launch_us=at + 20)
        trace.call("cudaStreamSynchronize", at + 700, 235)
        trace.call("cudaGetDevice", at + 990, 5)
    run = Rank(trace.trace())
    starts = np.arange(4) * 1_000_000 + 40_000
    python = remove_cpu_time(np.zeros(4, np.int32), (starts, starts + 650_000), run.window)
    kernels = scale_durations(GpuRows(run.trace.gpu, np.arange(4)), 0.9, is_upper_bound=False)
    first, second = price_rank(run, [fix("PD901", python), fix("PD902", kernels)])
    assert (first.rule, second.rule) == ("PD902", "PD901")
    assert second.saving.likely_ns > first.saving.likely_ns  # and yet it comes after what it needs
    assert told(second)["saves by itself, masked until PD902 is fixed"] == 0


def test_where_a_replay_cannot_be_trusted_the_bounds_stay_and_it_is_said_why() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.kernel(KERNEL, 10, 400, launch_us=0).kernel(KERNEL, 500, 10, stream=8)
    trace.call("cudaStreamSynchronize", 10, 600)
    run = Rank(trace.trace())
    edit = scale_durations(GpuRows(run.trace.gpu, np.arange(1)), 0.5)
    (only,) = price_rank(run, [fix("PD901", edit, cost_us=400)])
    assert us(only) == (0, None, 400)
    assert told(only) == {"not replayed": "the launches of 50% of the GPU's work were not recorded"}


def test_findings_without_an_edit_stay_as_they_are_and_edits_do_not_leave_the_rank() -> None:
    run = loader_bound()
    ranked = price_rank(run, [fix("PD901", None, cost_us=200), fix("PD902", loader(run), cost_us=700)])
    assert [f.edit for f in ranked] == [None, None]
    bare = next(f for f in ranked if f.rule == "PD901")
    assert (bare.saving.basis, bare.evidence) == ("bounded", ())


def test_what_is_replayed_leaves_its_time_to_no_bound() -> None:
    run = loader_bound()
    ranked = price_rank(run, [fix("PD901", None, cost_us=200), fix("PD902", loader(run), cost_us=700)])
    assert [f.saving.high_ns for f in ranked if f.rule == "PD901"] == [0]  # all of its time is claimed by the other


@given(lawful_file(), st.data())
def test_savings_never_exceed_cost_nor_together_the_step(file: dict[str, Any], data: st.DataObject) -> None:
    run = run_of(file)
    items = np.flatnonzero(iv.contains(run.window, run.trace.gpu.start_ns))
    step_ns = run.per_step(run.window_ns)
    findings = []
    for number in range(data.draw(st.integers(1, 4))):
        share, cost = data.draw(st.floats(0, 1)), data.draw(st.integers(0, step_ns))
        edit = scale_durations(GpuRows(run.trace.gpu, items[number:]), share, is_upper_bound=data.draw(st.booleans()))
        findings.append(fix(f"PD90{number}", edit, cost / 1000))
    ranked = price_rank(run, findings)
    assert all((f.saving.high_ns or 0) <= f.cost_ns for f in ranked)
    assert sum(f.saving.high_ns or 0 for f in ranked) <= step_ns
    after = [told(f)[STEP_AFTER] for f in ranked if STEP_AFTER in told(f)]
    assert after == sorted(after, reverse=True)
