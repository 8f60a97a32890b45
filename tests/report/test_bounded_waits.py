"""Of thousands of ranks only those that can matter are looked at closely; reports are as with a look at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fleet_helpers import content_of

from perfdoctor import pipeline
from perfdoctor.analysis.communication import collective_sums
from perfdoctor.analysis.communication.stragglers import LateRank
from perfdoctor.rank import Rank
from perfdoctor.report.own_steps import steps_without_waits
from perfdoctor.report.rank_summary import Fleet
from perfdoctor.report.reduce_ranks import from_rank
from perfdoctor.rules import registry
from perfdoctor.testing import SyntheticFleet
from perfdoctor.trace.tables import intervals as iv

FLEETS: dict[str, Callable[[], SyntheticFleet]] = {
    "late": lambda: SyntheticFleet(ranks=5, steps=4).late_loader(2, by_us=3000),
    "slow": lambda: SyntheticFleet(ranks=4, steps=4).slow_backward(1, 1.4),
    "noise": lambda: SyntheticFleet(ranks=4, steps=6).noise(2500),
    "groups": lambda: SyntheticFleet(ranks=6, steps=4, tensor_parallel=2).late_loader(3, by_us=2000),
    "link": lambda: SyntheticFleet(ranks=4, steps=4).slow_link([0], 3).late_loader(1, by_us=500),
    "clocks": lambda: SyntheticFleet(ranks=4, steps=4, sequences=False).late_loader(3, by_us=2000).clock_offset(1, 3e6),
}


def fleet_of(name: str) -> Fleet:
    return Fleet(tuple(pipeline.summarize_rank(Rank(each.trace())) for each in FLEETS[name]().builders()))


@pytest.mark.parametrize("name", FLEETS)
def test_no_wait_is_shorter_than_its_bound(name: str) -> None:
    fleet = fleet_of(name)
    late = fleet.late_rank
    assert late is not None
    shares = []
    for summary in fleet.summaries:
        assert summary.collectives is not None
        exact_ns = [iv.total(each(summary.collectives)) for each in (late.wait_time_of, late.any_wait_time_of)]
        min_ns = [each(summary.collectives) for each in (late.min_own_wait_ns_of, late.min_wait_ns_of)]
        assert all(lower <= exact for lower, exact in zip(min_ns, exact_ns, strict=True))
        shares.append(min_ns[1] / max(exact_ns[1], 1))
    assert max(shares) > 0.9  # a bound of 0 would be one, too


@pytest.mark.parametrize("name", FLEETS)
def test_the_longest_own_step_is_that_of_all_ranks(name: str) -> None:
    fleet = fleet_of(name)
    late = fleet.late_rank
    assert late is not None
    every = {
        each.rank: each.per_step(each.window_ns - each.recoverable_ns(iv.total(late.wait_time_of(each.collectives))))
        for each in fleet.summaries
        if each.collectives is not None
    }
    [(rank, own_ns)] = steps_without_waits(fleet, ()).items()
    assert own_ns == every[rank] == max(every.values())


@pytest.mark.parametrize("name", FLEETS)
def test_reports_do_not_depend_on_bounds_or_on_the_tree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = registry.load_analyzers()
    summaries = [pipeline.summarize_rank(Rank(each.trace()), rules) for each in FLEETS[name]().builders()]
    bounded = content_of(pipeline.report_on_summaries(map(from_rank, summaries), rules))
    monkeypatch.setattr(LateRank, "_bound_waits", lambda *_: (0, 0))
    monkeypatch.setattr(collective_sums, "FAN_IN", 2)
    assert content_of(pipeline.report_on_summaries(map(from_rank, summaries), rules)) == bounded
