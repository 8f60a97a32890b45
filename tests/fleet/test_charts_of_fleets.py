"""Of thousands of ranks one keeps its charts, whatever the order in which their results come."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfdoctor import pipeline
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.fleet.analyze_files import keep_longest_step
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.reduce_ranks import drop_charts_of_shorter_steps, from_rank, reduce_parts
from perfdoctor.reporters.html.page_data import page_data
from perfdoctor.rules import registry
from perfdoctor.testing import TraceBuilder


def summary(rank: int | None, step_us: int, *, charts: bool = True) -> RankSummary:
    trace = TraceBuilder(rank=rank).step(0, step_us).kernel("ampere_sgemm_128x64_nn", 0, step_us, launch_us=0)
    return pipeline.summarize_rank(Rank(trace.trace()), options=AnalysisOptions(charts=charts))


def ranks_with_charts(summaries: list[RankSummary]) -> list[int | None]:
    return [each.rank for each in summaries if each.charts is not None]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_longest_step_keeps_its_charts_and_of_equal_ones_the_first_rank(order: tuple[int, ...]) -> None:
    made = [summary(0, 100), summary(1, 200), summary(2, 200)]
    assert ranks_with_charts(drop_charts_of_shorter_steps([made[i] for i in order])) == [1]
    assert ranks_with_charts(list(reduce_parts(from_rank(made[i]) for i in order).summaries)) == [1]


def test_without_charts_only_the_tables_of_shorter_steps_go() -> None:
    made = [summary(rank, step_us, charts=False) for rank, step_us in enumerate((100, 200, 200))]
    kept = drop_charts_of_shorter_steps(made)
    assert [bool(each.tables) for each in kept] == [False, True, True]
    assert [replace(each, tables={}) for each in kept] == [replace(each, tables={}) for each in made]
    assert pipeline.report_on_summaries(map(from_rank, made), ()).charts is None


def test_the_report_has_the_charts_of_the_longest_step() -> None:
    report = pipeline.report_on_summaries(map(from_rank, [summary(0, 100), summary(1, 300), summary(2, 200)]), ())
    assert report.charts is not None
    assert report.charts.rank == 1
    assert report.charts.timeline is not None
    assert report.charts.timeline.span_ns == 300_000


def test_charts_have_the_number_that_their_rank_gets() -> None:
    renumbered = summary(None, 100).renumber(5, "numbered")
    assert renumbered.charts is not None
    assert renumbered.charts.rank == 5


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_as_results_come_one_set_of_charts_is_kept(order: tuple[int, ...]) -> None:
    made: dict[int, Sequence[RankSummary]] = {
        0: [summary(0, 100), summary(1, 250)],
        1: [summary(2, 50)],
        2: [summary(3, 200)],
    }
    longest = order[0]
    for index in order:
        longest = keep_longest_step(made, longest, index)
    kept = {(index, each.rank) for index, ranks in made.items() for each in ranks if each.charts is not None}
    assert (longest, kept) == (0, {(0, 1)})


def test_findings_of_several_ranks_are_marked_on_the_timeline_of_the_longest() -> None:
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    rules = [rule for rule in registry.load_analyzers() if rule.rule == "PD101"]
    made = []
    for rank in (0, 1):
        trace, length = TraceBuilder(rank=rank, world_size=2), 10_000 + 500 * rank
        for at in range(0, 4 * length, length):
            trace.step(at, length).range(loading, at, 6_000)
            trace.kernel("ampere_sgemm_128x64_nn", at + 6_200, length - 6_300, launch_us=at + 6_110)
        made.append(pipeline.summarize_rank(Rank(trace.trace()), rules, AnalysisOptions(charts=True)))
    report = pipeline.report_on_summaries(map(from_rank, made), rules)
    (finding,) = report.findings
    assert not len(finding.claim.intervals)
    (marked,) = page_data(report)["timeline"]["findings"]
    assert marked["finding"] == 0
    assert 5_000_000 < sum(marked["dur"]) < 7_000_000
