"""What shorter or hidden collectives save: the trace of an only rank is replayed, where the CPU may be late as well."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_cases import ALL_REDUCE, TENSOR_GEMM

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.analyzers.pd402_exposed_communication import ExposedCommunication
from perfdoctor.pipeline import diagnose_run, price_rank, summarize_rank
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.rules.analyzer import Run
from perfdoctor.savings.edits import Edit
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv


def step_with_reductions(*, busy_us: float = 0, count: int = 1, world_size: int = 1) -> TraceBuilder:
    """A step of 1000 us: a product until 300, reductions until 600, a product until 900, for which the CPU waits.

    The CPU launches the second product after `busy_us`, or at once.
    """
    trace = TraceBuilder(rank=0, world_size=world_size).step(0, 1000)
    trace.kernel(TENSOR_GEMM, 0, 300, launch_us=0)
    for row in range(count):
        trace.kernel(ALL_REDUCE, 300 + row * 300 / count, 300 / count, launch_us=6 + row)
    trace.kernel(TENSOR_GEMM, 600, 300, launch_us=max(busy_us, 6 + count))
    trace.call("cudaStreamSynchronize", max(busy_us, 6 + count) + 6, 894 - max(busy_us, 6 + count))
    trace.call("cudaGetDevice", 995, 5)
    return trace


def exposed_in(trace: TraceBuilder) -> Finding:
    (found,) = diagnose_run(Run((Rank(trace.trace()),)), [ExposedCommunication]).findings
    return found


def summary_of(trace: TraceBuilder) -> tuple[Rank, RankSummary]:
    rank = Rank(trace.trace())
    summary = summarize_rank(rank, options=AnalysisOptions(is_only_rank=True))
    return rank, replace(summary, collective_items=rank.kernels.of_category("communication").rows)


def test_a_collective_that_the_cpu_waits_for_costs_its_time() -> None:
    found = exposed_in(step_with_reductions())
    assert (found.cost_ns, found.saving.basis) == (300_000, "replayed")
    assert found.saving.high_ns == 300_000


@pytest.mark.parametrize("busy_us", [400, 590])
def test_hiding_a_collective_saves_no_more_than_the_cpu_has_launched_ahead(busy_us: float) -> None:
    found = exposed_in(step_with_reductions(busy_us=busy_us))
    assert found.saving.high_ns == pytest.approx(600_000 - busy_us * 1000, abs=8_000)  # and the latency of a launch


def test_a_file_of_which_most_was_taken_out_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = step_with_reductions(busy_us=590)
    monkeypatch.setattr(Rank, "is_subsampled", True)
    found = exposed_in(trace)
    assert (found.cost_ns, found.saving.high_ns, found.saving.basis) == (300_000, 300_000, "bounded")


def test_of_several_ranks_whose_traces_are_gone_a_ledger_bounds_it() -> None:
    ranks = [Rank(replace(step_with_reductions(world_size=2).trace(), rank=number)) for number in range(2)]
    (found,) = diagnose_run(Run(tuple(ranks)), [ExposedCommunication]).findings
    assert (found.cost_ns, found.saving.high_ns, found.saving.basis) == (300_000, 300_000, "bounded")


def test_what_no_work_can_hide_is_a_part_of_the_cost_alone() -> None:
    trace = step_with_reductions()
    rank, summary = summary_of(trace)
    finding = replace(exposed_in(trace), edit=summary.shorten_collectives(iv.window(0, 1_000_000), 1 / 3, 1.0))
    (priced,) = price_rank(rank, [finding])
    assert priced.cost_ns == 300_000
    assert priced.saving.high_ns == pytest.approx(100_000, rel=0.03)  # the replay explains nearly all of the waits


@given(st.integers(1, 6), st.floats(0, 1), st.floats(0, 1), st.floats(6, 890))
def test_shorter_collectives_never_make_a_step_longer_nor_save_more_than_all_of_them(
    count: int, first: float, second: float, busy_us: float
) -> None:
    rank, summary = summary_of(step_with_reductions(busy_us=busy_us, count=count))
    replay = rank.replay
    assert replay is not None
    shares = (0.0, min(first, second), max(first, second), 1.0)
    edits = [summary.shorten_collectives(iv.window(300_000, 600_000), share) for share in shares]
    steps_ns = [replay.step_ns([(edit, 1.0)]) for edit in edits if edit is not None]
    assert len(steps_ns) == 4
    assert steps_ns == sorted(steps_ns, reverse=True)
    assert steps_ns[0] == replay.step_ns()
    assert steps_ns[0] - steps_ns[-1] <= 300_000


def test_joined_edits_cost_what_both_causes_cost() -> None:
    _, summary = summary_of(step_with_reductions(count=2))
    spans = (iv.window(300_000, 450_000), iv.window(450_000, 600_000))
    first, second = (summary.shorten_collectives(span, 0.5, 1.0) for span in spans)
    assert first is not None
    assert second is not None
    both = first | second
    assert isinstance(both.cause, Edit)
    assert sorted(both.cause.dur_ns.tolist()) == [0, 0, 150_000, 150_000]
    assert sorted(both.dur_ns.tolist()) == [75_000, 75_000, 150_000, 150_000]


def test_half_of_the_bytes_is_half_of_the_time_in_which_nothing_computes() -> None:
    trace = step_with_reductions()
    rank, summary = summary_of(trace)
    edit = summary.shorten_collectives(iv.window(300_000, 600_000), 0.5, 1.0, is_upper_bound=False)
    (priced,) = price_rank(rank, [replace(exposed_in(trace), edit=edit)])
    assert (priced.cost_ns, priced.saving.expected_ns) == (300_000, 150_000)
