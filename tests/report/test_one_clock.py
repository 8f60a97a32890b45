"""One clock: every figure that people read is of the step without the profiler; recorded figures are for accounts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from perfdoctor import pipeline
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.json_ import load_schema
from perfdoctor.reporters.terminal import Terminal
from perfdoctor.reporters.time_split import time_split_of
from perfdoctor.reporters.verdict import describe_ladder
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import RankAnalyzer, Run
from perfdoctor.savings.ledger import Ledger
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.vocabulary import SINGLE_PROCESS_LOADER, dataloader_next_name

RECORDED_US = (1000, 1000, 1000, 1000, 2000)
LOADER = dataloader_next_name(SINGLE_PROCESS_LOADER)


def program() -> TraceBuilder:
    """A program on the CPU that waits 300 us of each step for its loader; the last step takes twice as long."""
    trace, at = TraceBuilder(device=None), 0
    for length in RECORDED_US:
        trace.step(at, length).range(LOADER, at + 10, 300).op("aten::addmm", at + 320, length - 330)
        at += length
    return trace


def rank_of(base_us: list[int], **facts: object) -> Rank:
    return Rank(
        program().trace(), facts=CapturedFacts.parse({"base_step_ns": [1000 * each for each in base_us], **facts})
    )


def report_on(rank: Rank) -> Report:
    return pipeline.diagnose_run(Run((rank,)), registry.load_analyzers())


def test_amounts_add_up_to_the_median_step_without_the_profiler() -> None:
    rank = rank_of([600, 610, 590])
    assert rank.profiler_factor == pytest.approx(1000 / 600)
    assert rank.mean_step_ns == 600_000
    assert sum(rank.per_step(ns) for ns in rank.account.detail.values()) == pytest.approx(600_000, abs=5)
    assert rank.share(rank.per_step(5 * 300_000)) == pytest.approx(1500 / 6000)
    assert (rank.to_unprofiled_ns(2_000_000), rank.count_per_step(50)) == (1_200_000, 10)


@pytest.mark.parametrize("base_us", [[], [1200]])
def test_without_timed_steps_time_is_as_recorded_and_slower_ones_count_as_well(base_us: list[int]) -> None:
    rank = rank_of(base_us)
    assert rank.mean_step_ns == (1_200_000 if base_us else sum(RECORDED_US) * 1000 // 5)


def test_steps_with_other_numbers_of_batches_are_compared_by_the_batch() -> None:
    """Accumulation that ramps up: two batches a step while nothing is recorded, four in the recorded steps."""
    recorded_ns = [1000 * each for each in RECORDED_US]
    counts = {
        "base_batches": [2] * 3,
        "base_backwards": [2] * 3,
        "timing_batches": [4] * 5,
        "timing_backwards": [4] * 5,
    }
    assert rank_of([450] * 3, timing_step_ns=recorded_ns).profiler_factor == pytest.approx(1000 / 450)
    assert rank_of([450] * 3, timing_step_ns=recorded_ns, **counts).profiler_factor == pytest.approx(1000 / 900)


def test_a_report_shows_the_unprofiled_step_and_keeps_the_account_as_recorded() -> None:
    report = report_on(rank_of([600] * 5))
    steps, account = report.steps, report.account[0]
    assert (steps.median_ns, steps.mean_ns, steps.recorded_median_ns) == (600_000, 600_000, 1_000_000)
    assert account.window_ns == sum(account.buckets.values()) == sum(RECORDED_US) * 1000
    split = time_split_of(report)
    assert split is not None
    assert split.window_ns == pytest.approx(600_000)
    assert sum(part.ns for part in split.buckets) == pytest.approx(600_000)
    assert set(report.to_dict()["steps"]) == set(load_schema()["$defs"]["StepSummary"]["required"])


class Waits(RankAnalyzer):
    """All waits for batches, of which a fix saves two thirds, and at most what the step takes."""

    rule, name = "ZZ101", "waits"

    def analyze_rank(self, rank: Rank) -> Iterable[Finding]:
        """One finding."""
        time = iv.intersect(rank.loader_waits.intervals, rank.window)
        cost_ns = rank.per_step(iv.total(time))
        yield self.finding(
            rank,
            title=f"waits {cost_ns / 1e3:.0f} us",
            cost_ns=cost_ns,
            saving=Saving(0, cost_ns * 2 // 3, rank.mean_step_ns, "bounded"),
            advice="Wait less.",
            claim=Claim(time),
        )


def test_costs_savings_and_the_ladder_are_of_the_unprofiled_step() -> None:
    report = pipeline.diagnose_run(Run((rank_of([600] * 5),)), [Waits])
    finding = report.findings[0]
    # 300 of 1200 us in the mean
    assert (finding.title, finding.cost_ns, finding.share_of_step) == ("waits 150 us", 150_000, 0.25)
    assert (finding.saving.expected_ns, finding.saving.high_ns) == (100_000, 150_000)
    assert (report.steps.median_ns, report.limit.after_fixes_ns) == (600_000, 500_000)
    assert describe_ladder(report) == "now 600 us -> 1 fix -> about 500 us"
    assert "costs 150 us a step (25%); saves up to 150 us (expected 100 us, bounded)" in Terminal().render(report)


def test_people_read_no_recorded_figure_unless_they_ask() -> None:
    report = report_on(rank_of([600] * 5))
    short, long = Terminal().render(report), Terminal(verbosity=1).render(report)
    assert "takes 600 us" in short
    assert "recorded with the profiler" not in short
    assert "recorded with the profiler a step took 1.00 ms" in long
    assert "recorded with the profiler a step took 1.00 ms: more than half" in Terminal().render(
        report_on(rank_of([400] * 5))
    )


def test_a_ledger_promises_unprofiled_time_for_recorded_claims() -> None:
    ledger = Ledger(10_000, 2, 4_000, time_scale=0.5)
    claim = Claim(iv.window(0, 4_000), kernels=True)
    assert (ledger.step_ns, ledger.limit_ns(claim)) == (2_500, 1_000)
    ledger.claim_time(claim, 500)
    assert ledger.kernel_budget_ns == 2_000
    assert ledger.limit_ns(Claim(iv.window(2_000, 8_000))) == 1_000
