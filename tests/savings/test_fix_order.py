"""The order of fixes: what each saves after the fixes before it, and which is masked by another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_bound import loader_bound, remove_loader_waits
from trace_strategies import lawful_file, rank_of

from perfdoctor.pipeline import price_rank
from perfdoctor.rank import Rank
from perfdoctor.report.finding import SEVERITIES, STEP_AFTER, Finding
from perfdoctor.report.pricing import price_findings
from perfdoctor.savings.edits import (
    Edit,
    move_work,
    remove_cpu_time,
    remove_pauses,
    remove_sections,
    scale_durations,
    set_duration_range,
)
from perfdoctor.savings.ledger import Ledger
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import GpuRows

KERNEL = "ampere_sgemm_128x64_nn"


def make_finding(rule: str, edit: Edit | None, cost_us: float = 1000, high_us: float | None = None) -> Finding:
    cost = round(cost_us * 1000)
    return Finding(
        rule=rule,
        name="test",
        title=rule,
        cost_ns=cost,
        share_of_step=None,
        severity="high",
        saving=Saving(0, None, cost if high_us is None else round(high_us * 1000), "bounded"),
        advice="",
        claim=Claim(iv.window(0, cost)),
        edit=edit,
    )


def evidence_of(finding: Finding) -> dict[str, Any]:
    return {e.id or e.label: e.value for e in finding.evidence}


def saving_us(finding: Finding) -> tuple[float | None, ...]:
    saving = finding.saving
    return tuple(None if ns is None else ns / 1000 for ns in (saving.low_ns, saving.expected_ns, saving.high_ns))


def test_the_fix_that_saves_most_comes_first_and_each_shows_the_step_after_it() -> None:
    rank = loader_bound()
    kernels = scale_durations(GpuRows(rank.trace.gpu, np.arange(8)), 0.5, is_upper_bound=False)
    first, second = price_rank(rank, [make_finding("PD901", kernels), make_finding("PD902", remove_loader_waits(rank))])
    assert [f.rule for f in (first, second)] == ["PD902", "PD901"]
    assert (saving_us(first)[1], evidence_of(first)[STEP_AFTER]) == (600, 400_000)
    assert (saving_us(second)[1], evidence_of(second)[STEP_AFTER]) == (150, 250_000)
    assert {f.saving.basis for f in (first, second)} == {"replayed"}


def test_two_fixes_of_the_same_time_share_it() -> None:
    rank = loader_bound()
    whole, half = (
        scale_durations(GpuRows(rank.trace.gpu, np.arange(8)), share, is_upper_bound=False) for share in (0.5, 0.25)
    )
    first, second = price_rank(rank, [make_finding("PD901", half), make_finding("PD902", whole)])
    assert (saving_us(first)[1], saving_us(second)[1]) == (150, 0)


def test_of_an_upper_bound_nothing_in_between_is_expected() -> None:
    rank = loader_bound()
    (only,) = price_rank(rank, [make_finding("PD901", scale_durations(GpuRows(rank.trace.gpu, np.arange(8)), 0.5))])
    assert saving_us(only) == (0, None, 150)
    assert STEP_AFTER not in evidence_of(only)


def test_a_range_of_durations_becomes_a_range_of_the_saving() -> None:
    rank = loader_bound()
    rows = GpuRows(rank.trace.gpu, np.arange(8))
    edit = set_duration_range(rows, *(np.full(8, us * 1000.0) for us in (120, 50, 40)))
    (only,) = price_rank(rank, [make_finding("PD901", edit)])
    low, expected, high = saving_us(only)
    assert expected == 2 * (150 - 50)
    assert low == pytest.approx(2 * (150 - 120), rel=0.03)  # the replay explains nearly all of what the CPU waited
    assert high == pytest.approx(2 * (150 - 40), rel=0.03)


def test_a_fix_with_a_range_joined_with_one_without_varies_as_far_as_its_own_part() -> None:
    rank = loader_bound()
    first, second = (GpuRows(rank.trace.gpu, np.arange(start, 8, 2)) for start in (0, 1))
    edit = set_duration_range(first, *(np.full(4, us * 1000.0) for us in (120, 50, 40)))
    joined = edit | scale_durations(second, 0.5, is_upper_bound=False)
    (only,) = price_rank(rank, [make_finding("PD901", joined)])
    low, expected, high = saving_us(only)
    assert expected == 100 + 75
    assert low == pytest.approx(30 + 75, rel=0.03)
    assert high == pytest.approx(110 + 75, rel=0.03)


def test_a_cause_costs_what_the_step_takes_less_without_it_whatever_its_rule_measured() -> None:
    rank = loader_bound()
    for measured_us in (50, 100, 700):
        (found,) = price_rank(rank, [make_finding("PD901", remove_loader_waits(rank), cost_us=measured_us)])
        assert (found.cost_ns, found.share_of_step) == (600_000, 0.6)
        low, *others = saving_us(found)
        assert others == [600, 600]
        assert low == pytest.approx(600, rel=0.03)  # the replay explains nearly all of what the CPU waited


def test_what_remains_of_a_cause_is_a_part_of_its_cost_and_not_of_the_saving() -> None:
    rank = loader_bound()
    starts = np.arange(4) * 1_000_000 + 10_000
    half = remove_cpu_time(np.zeros(4, np.int32), (starts, starts + 600_000), rank.window, remaining_share=0.5)
    (found,) = price_rank(rank, [make_finding("PD901", half)])
    assert found.cost_ns == 600_000
    assert (found.saving.expected_ns, found.saving.alone.expected_ns) == (300_000, 300_000)


def test_no_step_gets_shorter_than_the_worker_is_busy_that_a_fix_moves_work_to() -> None:
    """A worker needs 500 of the 600 us that the program waits: whatever else gets faster, a step takes as long."""
    rank = loader_bound()
    moved = move_work(remove_loader_waits(rank), "worker", 500_000)
    kernels = scale_durations(GpuRows(rank.trace.gpu, np.arange(8)), 0.5, is_upper_bound=False)
    first, second = price_rank(rank, [make_finding("PD901", kernels), make_finding("PD902", moved)])
    assert (first.rule, first.cost_ns, evidence_of(first)[STEP_AFTER]) == ("PD902", 600_000, 500_000)
    assert saving_us(first)[1:] == (500, 500)
    assert (second.covered_by, evidence_of(second)[STEP_AFTER]) == (0, 500_000)
    assert saving_us(second) == (0, 0, 0)
    assert second.saving.alone.expected_ns == 150_000


def test_work_that_several_fixes_move_to_one_worker_adds_up_there() -> None:
    rank = loader_bound()
    half, other_half = (
        move_work(remove_cpu_time(np.zeros(4, np.int32), (starts, starts + 300_000), rank.window), "worker", 300_000)
        for starts in (np.arange(4) * 1_000_000 + at for at in (10_000, 310_000))
    )
    first, second = price_rank(rank, [make_finding("PD901", half), make_finding("PD902", other_half)])
    assert [saving_us(f)[1] for f in (first, second)] == [300, 100]  # 1000, 700, and the worker's 600


def test_without_a_replay_moved_work_is_a_floor_as_well() -> None:
    moved = make_finding("PD901", move_work(Edit(), "worker", 600_000), 700)
    other = replace(make_finding("PD902", None, 300), claim=Claim(iv.window(700_000, 1_000_000)))
    first, second = price_findings([other, moved], None, Ledger(1_000_000))
    assert (first.rule, saving_us(first)[2], first.saving.alone.high_ns) == ("PD901", 400, 400_000)
    assert (saving_us(second)[2], second.saving.alone.high_ns) == (0, 300_000)


def test_removed_pauses_and_sections_save_their_time() -> None:
    rank = loader_bound()
    starts = np.arange(4) * 1_000_000 + 10_000
    waits = iv.union(starts, starts + 600_000)
    (pauses,) = price_rank(rank, [make_finding("PD901", remove_pauses(rank.trace, waits, rank.window))])
    assert pauses.cost_ns == 600_000
    launches = iv.union(starts + 605_000, starts + 700_000)
    edit = remove_sections(rank.trace, 0, launches, rank.window)
    assert (len(edit.items), len(edit.dropped_calls)) == (8, 12)  # the launches, and the sync among them
    (sections,) = price_rank(rank, [make_finding("PD902", edit)])
    assert sections.cost_ns > 300_000  # the kernels, for which the CPU waited


def test_a_fix_for_which_another_leaves_next_to_nothing_is_covered_by_it_and_low_at_most() -> None:
    rank = loader_bound()
    whole, part = (
        scale_durations(GpuRows(rank.trace.gpu, np.arange(8)), share, is_upper_bound=False) for share in (0.5, 0.45)
    )
    first, second = price_rank(rank, [make_finding("PD901", part), make_finding("PD902", whole)])
    assert (first.rule, first.covered_by, first.severity) == ("PD902", None, "high")
    assert (second.rule, second.covered_by, second.severity) == ("PD901", 0, "low")
    assert (second.saving.expected_ns, second.saving.alone.expected_ns) == (0, 135_000)
    assert second.cost_ns == 135_000


def test_a_fix_for_which_a_third_is_left_is_not_covered() -> None:
    rank = loader_bound()
    one, other = (
        scale_durations(GpuRows(rank.trace.gpu, rows), 0.5, is_upper_bound=False)
        for rows in (np.array([0, 1, 2, 3, 4, 5]), np.array([4, 5, 6]))
    )
    priced = price_rank(rank, [make_finding("PD901", one), make_finding("PD902", other)])
    assert [f.covered_by for f in priced] == [None, None]


def test_a_fix_that_another_makes_worth_while_is_masked_and_comes_after_it() -> None:
    """The CPU works for 700 of each 1000 us while a kernel of 900 runs, for which it then waits."""
    trace = TraceBuilder()
    for i in range(4):
        at = 1000 * i
        trace.step(at, 1000).call("cudaGetDevice", at, 5)
        trace.kernel(KERNEL, at + 30, 900, launch_us=at + 20)
        trace.call("cudaStreamSynchronize", at + 700, 235)
        trace.call("cudaGetDevice", at + 990, 5)
    rank = Rank(trace.trace())
    starts = np.arange(4) * 1_000_000 + 40_000
    python = remove_cpu_time(np.zeros(4, np.int32), (starts, starts + 650_000), rank.window)
    kernels = scale_durations(GpuRows(rank.trace.gpu, np.arange(4)), 0.9, is_upper_bound=False)
    first, second = price_rank(rank, [make_finding("PD901", python), make_finding("PD902", kernels)])
    assert (first.rule, second.rule) == ("PD902", "PD901")
    assert second.saving.likely_ns > first.saving.likely_ns  # although it comes after the fix that it needs
    assert evidence_of(second)["saves by itself, masked until PD902 is fixed"] == 0


def test_where_a_replay_cannot_be_trusted_the_bounds_stay_and_the_evidence_says_why() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.kernel(KERNEL, 10, 400, launch_us=0).kernel(KERNEL, 500, 10, stream=8)
    trace.call("cudaStreamSynchronize", 10, 600)
    rank = Rank(trace.trace())
    edit = scale_durations(GpuRows(rank.trace.gpu, np.arange(1)), 0.5)
    (only,) = price_rank(rank, [make_finding("PD901", edit, cost_us=400)])
    assert saving_us(only) == (0, None, 400)
    assert evidence_of(only) == {
        "not replayed": "the launches of 50% of the GPU's work were not recorded",
        "the cost": "at least: what the recording shows, without what else it delays",
    }


def test_findings_without_an_edit_do_not_change_and_edits_do_not_leave_the_rank() -> None:
    rank = loader_bound()
    priced = price_rank(
        rank, [make_finding("PD901", None, cost_us=200), make_finding("PD902", remove_loader_waits(rank), cost_us=700)]
    )
    assert [f.edit for f in priced] == [None, None]
    bare = next(f for f in priced if f.rule == "PD901")
    assert (bare.saving.basis, bare.evidence) == ("bounded", ())


def test_time_that_a_replayed_fix_claims_is_not_promised_again() -> None:
    rank = loader_bound()
    priced = price_rank(
        rank, [make_finding("PD901", None, cost_us=200), make_finding("PD902", remove_loader_waits(rank), cost_us=700)]
    )
    assert [f.saving.high_ns for f in priced if f.rule == "PD901"] == [0]  # the other fix claims all of its time


@given(lawful_file(), st.data())
def test_the_price_keeps_every_resource_and_does_not_depend_on_the_order_of_findings(
    file: dict[str, Any], data: st.DataObject
) -> None:
    rank = rank_of(file)
    items = np.flatnonzero(iv.contains(rank.window, rank.trace.gpu.start_ns))
    step_ns = rank.per_step(rank.window_ns)
    findings, busy_ns = [], []
    for number in range(data.draw(st.integers(1, 4))):
        share = data.draw(st.floats(0, 1))
        edit = scale_durations(GpuRows(rank.trace.gpu, items[number:]), share, is_upper_bound=False)
        edit |= remove_pauses(rank.trace, rank.window, rank.window, 1 - share)
        busy_ns.append(data.draw(st.integers(0, step_ns)))
        findings.append(make_finding(f"PD90{number}", move_work(edit, "worker", busy_ns[-1]), step_ns / 1000))
    priced = price_rank(rank, findings)
    if rank.replay is not None and rank.replay.gates.reason is None:
        after_ns = step_ns - sum(f.saving.expected_ns or 0 for f in priced)
        done = {f.rule for f in priced if f.saving.expected_ns}
        assert after_ns >= sum(ns for f, ns in zip(findings, busy_ns, strict=True) if f.rule in done) - len(findings)
        gone = [replace(f.edit, moved=()) for f in findings if f.edit is not None]
        assert after_ns >= rank.replay.step_ns((edit, 1.0) for edit in gone) - len(findings)
        for finding, edit in zip(findings, gone, strict=True):
            alone = next(f.saving.alone for f in priced if f.rule == finding.rule)
            assert (alone.expected_ns or 0) <= (rank.counterfactual_cost_ns(edit) or 0) + 1
    shuffled = price_rank(rank, data.draw(st.permutations(findings)))
    assert sorted(f.saving.alone.high_ns or 0 for f in shuffled) == sorted(f.saving.alone.high_ns or 0 for f in priced)
    if len({f.saving.alone.expected_ns for f in priced}) == len(priced):  # ties go to the one that comes first
        assert [(f.rule, f.saving) for f in shuffled] == [(f.rule, f.saving) for f in priced]


@given(lawful_file(), st.data())
def test_savings_never_exceed_cost_nor_together_the_step(file: dict[str, Any], data: st.DataObject) -> None:
    rank = rank_of(file)
    items = np.flatnonzero(iv.contains(rank.window, rank.trace.gpu.start_ns))
    step_ns = rank.mean_step_ns
    findings = []
    for number in range(data.draw(st.integers(1, 4))):
        share, cost = data.draw(st.floats(0, 1)), data.draw(st.integers(0, step_ns))
        edit = scale_durations(GpuRows(rank.trace.gpu, items[number:]), share, is_upper_bound=data.draw(st.booleans()))
        findings.append(make_finding(f"PD90{number}", edit, cost / 1000))
    priced = price_rank(rank, findings)
    assert all((f.saving.high_ns or 0) <= f.cost_ns <= step_ns for f in priced)
    for position, each in enumerate(priced):
        assert (each.saving.alone.high_ns or 0) <= each.cost_ns
        if each.covered_by is not None:
            assert each.covered_by < position
            assert SEVERITIES.index(each.severity) <= SEVERITIES.index("low")
    assert sum(f.saving.high_ns or 0 for f in priced) <= step_ns
    after = [evidence_of(f)[STEP_AFTER] for f in priced if STEP_AFTER in evidence_of(f)]
    assert after == sorted(after, reverse=True)
