"""Summaries reduce to the same report in any order and grouping, and are small enough to be sent."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from fleet_helpers import content_of
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_once

import perfdoctor
from perfdoctor import pipeline
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.pipeline import summarize_rank
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.merge_findings import merge_findings
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.report.reduce_ranks import FleetPart, from_rank, reduce_parts
from perfdoctor.report.to_plain import to_plain
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer, Run
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.testing import SyntheticFleet, TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.units import format_ranges

RANKS = 7


@cache
def ranks() -> tuple[Rank, ...]:
    builders = SyntheticFleet(ranks=RANKS, steps=3).late_loader(2, by_us=4000).slow_backward(5, 1.3).builders()
    return tuple(Rank(builder.trace()) for builder in builders)


@cache
def summaries() -> tuple[RankSummary, ...]:
    return tuple(pipeline.summarize_rank(rank, registry.load_analyzers()) for rank in ranks())


@cache
def report() -> Mapping[str, object]:
    return MappingProxyType(
        content_of(pipeline.report_on_summaries(map(from_rank, summaries()), registry.load_analyzers()))
    )


@st.composite
def trees(draw: st.DrawFn) -> FleetPart:
    """All ranks in any order, reduced in any grouping."""
    parts = draw(st.permutations([from_rank(summary) for summary in summaries()]))
    while len(parts) > 1:
        first = draw(st.integers(0, len(parts) - 2))
        last = draw(st.integers(first + 2, len(parts)))
        parts = [*parts[:first], reduce_parts(parts[first:last]), *parts[last:]]
    return parts[0]


@given(trees())
def test_any_order_and_grouping_gives_the_same_report(part: FleetPart) -> None:
    assert content_of(pipeline.report_on_summaries([part], registry.load_analyzers())) == report()


def test_map_and_reduce_are_the_whole_diagnosis() -> None:
    assert content_of(pipeline.diagnose_run(Run(ranks()), registry.load_analyzers())) == report()
    assert {finding["rule"] for finding in report()["findings"]} >= {"PD101", "PD409"}  # type: ignore[index, attr-defined]


def test_the_seconds_of_a_rule_are_those_of_all_ranks() -> None:
    every = [o.seconds for s in summaries() for o in s.outcomes if o.rule == "PD101"]
    (outcome,) = [o for o in reduce_parts(map(from_rank, summaries())).outcomes.values() if o.rule == "PD101"]
    assert outcome.seconds == pytest.approx(sum(every))


def test_no_rank_is_no_report_but_no_error() -> None:
    assert pipeline.report_on_summaries([], []).traces == ()


def test_a_summary_can_be_pickled() -> None:
    (summary,) = [s for s in summaries() if s.rank == 2]
    sent = pickle.loads(pickle.dumps(summary))
    assert sent == summary
    assert np.array_equal(sent.collectives.end_ns, summary.collectives.end_ns)
    assert to_plain(sent.findings) == to_plain(summary.findings) != []


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["v100-torchrec-4ranks/rank0", "a100-ddp-control/rank3", "v100-df-index/rank1"])
def test_the_summary_of_a_real_rank_is_small(corpus: Path, name: str) -> None:
    rank = Rank(read_once(corpus / f"{name}.json.gz"))
    assert len(pickle.dumps(pipeline.summarize_rank(rank, registry.load_analyzers()))) < 300_000


def test_only_a_single_rank_keeps_the_intervals_that_an_annotated_trace_needs() -> None:
    one = pipeline.diagnose_run(Run(ranks()[2:3]), registry.load_analyzers())
    assert len(one.account[0].parts["bandwidth"])
    assert any(len(finding.claim.intervals) for finding in one.findings)
    several = pipeline.diagnose_run(Run(ranks()[:2]), registry.load_analyzers())
    assert [dict(account.parts) for account in several.account] == [{}, {}]


def test_each_rank_has_its_places() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 100).range("@/me/train.py:12 main", 100, 900)
    rank = Rank(trace.trace())
    for options in (AnalysisOptions(), AnalysisOptions(is_only_rank=True)):
        largest, *others = summarize_rank(rank, options=options).places
        assert str(largest.location) == "/me/train.py:12"
        assert largest.ns + sum(place.ns for place in others) == rank.mean_step_ns


def test_a_claim_loses_intervals_but_not_length() -> None:
    rank = ranks()[0]
    work, wait = rank.account.parts["bandwidth"], rank.exposed_parts["communication"]
    claim = Claim(iv.union_of((work[:3], wait[:2])), rank=rank.rank)
    finding = make_finding(rank=rank.rank, claim=claim)
    (priced,) = summarize_rank(rank, known_findings=[finding]).findings
    assert priced.claim.intervals.tolist() == wait[:2].tolist()
    assert priced.claim.total_ns == claim.total_ns
    assert priced.claim.unshared_ns == iv.total(work[:3])


def make_finding(**named: Any) -> Finding:
    plain = {"cost_ns": 1, "share_of_step": None, "severity": "info", "saving": Saving(), "advice": ""}
    return Finding(rule="XX001", name="x", title="x", **{**plain, **named})


class Waiting(FleetAnalyzer):
    """A rule over ranks that claims all exposed communication of the first rank."""

    rule = "XX001"
    name = "waiting"
    needs = frozenset({"ranks"})

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        rank = fleet.summaries[0]
        assert rank.collectives is not None
        claim = Claim(rank.collectives.exposed, rank=rank.rank)
        cost = rank.per_step(claim.total_ns)
        yield self.finding(
            rank, title="w", cost_ns=cost, advice="", saving=Saving(0, None, cost, "bounded"), claim=claim
        )


class Overlapping(RankAnalyzer):
    """A rule that claims the same time on the rank, and some work."""

    rule = "XX002"
    name = "overlapping"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        if rank.rank != 0:
            return
        parts = rank.exposed_parts
        claim = Claim(iv.union_of((parts["communication"], parts["bandwidth"][:1])))
        cost = rank.per_step(claim.total_ns)
        yield self.finding(
            rank, title="o", cost_ns=cost, advice="", saving=Saving(0, None, cost, "bounded"), claim=claim
        )


def test_time_that_a_rule_over_ranks_claims_is_promised_once() -> None:
    two = Run(ranks()[:2])
    rank = two.ranks[0]
    found = {f.rule: f for f in pipeline.diagnose_run(two, [Waiting, Overlapping]).findings}
    first = rank.account.parts["bandwidth"][:1]
    assert found["XX001"].saving.high_ns == found["XX001"].cost_ns
    assert found["XX002"].saving.high_ns == int(iv.total(first) / rank.steps.count)
    alone = {f.rule: f for f in pipeline.diagnose_run(two, [Overlapping]).findings}
    # Not the cost itself: a ledger rounds down what it promises, and a cost is rounded to the nearest.
    assert alone["XX002"].saving.high_ns == alone["XX002"].claim.total_ns // rank.steps.count


class Comparing(Analyzer):
    """A rule of a third party that names the ranks it sees."""

    rule = "XX003"
    name = "comparing"
    needs = frozenset({"ranks"})

    def analyze(self, run: Run) -> Iterator[Finding]:
        title = format_ranges(rank.rank or 0 for rank in run.ranks)
        yield self.finding(run.ranks[1], title=title, cost_ns=0, advice="", saving=Saving(), claim=Claim())


class Looking(Comparing):
    """The same rule without the requirement "ranks"."""

    rule = "XX004"
    needs = frozenset()

    def analyze(self, run: Run) -> Iterator[Finding]:
        title = format_ranges(rank.rank or 0 for rank in run.ranks)
        yield self.finding(run.ranks[0], title=title, cost_ns=0, advice="", saving=Saving(), claim=Claim())


def test_a_strangers_analyzer_sees_all_ranks_of_this_process() -> None:
    found = pipeline.diagnose_run(Run(ranks()[:3]), [Comparing, Looking])
    assert [(f.title, f.rank) for f in found.findings] == [("0-2", 1), ("0-2", 0)]
    assert [(o.rule, o.status) for o in found.outcomes[-2:]] == [("XX003", "ran"), ("XX004", "ran")]


@pytest.mark.process
def test_over_processes_it_is_skipped_if_it_compares_and_sees_them_one_by_one_if_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, builder in enumerate(SyntheticFleet(ranks=3, steps=2).builders()):
        builder.write(tmp_path / f"rank{rank}.json")
    monkeypatch.setattr(registry, "list_rules", lambda: tuple(map(registry.list_rule, (Comparing, Looking))))
    here = perfdoctor.analyze(tmp_path, jobs=1)
    assert sorted(f.title for f in here.findings) == ["0-2", "0-2"]
    shared = perfdoctor.analyze(tmp_path, jobs=2)
    outcomes = {o.rule: o for o in shared.outcomes}
    assert outcomes["XX003"].status == "skipped"
    assert outcomes["XX003"].why is not None
    assert outcomes["XX003"].why.endswith("run with --jobs 1")


def test_what_ranks_share_is_reported_once_whatever_their_order() -> None:
    found = [
        make_finding(cost_ns=100 + (rank == 3), severity="low", saving=Saving(rank, None, 99, "bounded"), rank=rank)
        for rank in range(64)
    ]
    (merged,) = merge_findings(found)
    assert (merged.rank, merged.cost_ns, merged.saving.low_ns) == (None, 101, 0)
    assert {e.label: e.value for e in merged.evidence} == {"ranks": "0-63", "costliest rank": 3}
    assert [replace(f) for f in merge_findings(reversed(found))] == [merged]


@pytest.mark.parametrize(
    ("numbers", "words"), [([], ""), ([3], "3"), ([2, 1], "1, 2"), ([0, 1, 2, 5, 7, 8, 9], "0-2, 5, 7-9")]
)
def test_ranks_in_a_row_are_a_range(numbers: list[int], words: str) -> None:
    assert format_ranges(numbers) == words


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_every_rank_and_no_other(numbers: set[int]) -> None:
    named: set[int] = set()
    for part in filter(None, format_ranges(numbers).split(", ")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers
