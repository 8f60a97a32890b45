"""Clocks of hosts differ by an offset, and in a long recording by a drift; lateness is free of both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.match_collectives import match_collectives
from perfdoctor.analysis.communication.rank_clocks import MIN_DRIFT_EFFECT_NS, RankClock, fit_clock, fit_drift
from perfdoctor.analysis.communication.stragglers import find_late_rank
from perfdoctor.analysis.timeline.phases import PHASES
from perfdoctor.analyzers._late_rank_texts import clock_evidence
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

MS, SECOND = 1_000_000, 1_000_000_000
PPM = 1e-6


def ends(seconds: float = 30, count: int = 600) -> Int64Array:
    """Ends at irregular distances."""
    apart = np.random.default_rng(0).integers(1, 1000, count)
    return (np.cumsum(apart) * (seconds * SECOND / apart.sum())).astype(np.int64)


def drifted(common_ns: Int64Array, ppm: float, offset_ns: int = 0) -> Int64Array:
    """Times on a clock whose seconds are shorter by `ppm`, so that it shows more of them."""
    return common_ns + offset_ns + np.rint(common_ns * ppm * PPM).astype(np.int64)


def rank_table(
    rank: int,
    clock: tuple[float, int] = (0, 0),
    *,
    late_ns: int | Int64Array = 0,
    numbered: bool = True,
    seconds: float = 30,
) -> CollectiveTable:
    """A rank whose clock drifts by so many ppm and has an offset; it takes part in all-reduces of at most 2 ms."""
    end = ends(seconds)
    count, none = len(end), np.full(len(end), -1, np.int64)
    start = drifted(end - 2 * MS + late_ns, *clock)
    return CollectiveTable(
        rank=rank,
        strings=("dp",),
        start_ns=start,
        end_ns=drifted(end, *clock),
        kind=np.full(count, COLLECTIVE_KINDS.index("all_reduce"), np.int8),
        group=np.full(count, 0 if numbered else -1, np.int32),
        group_size=np.full(count, 2, np.int32),
        seq=np.arange(count) if numbered else none,
        bytes=none,
        dtype=none.astype(np.int32),
        stream=none,
        step=none.astype(np.int32),
        exposed_ns=none * 0,
        preceding_phase_ns=np.zeros((count, len(PHASES)), np.float32),
        preceding_once_ns=none * 0,
        since_pass_start_ns=none,
        window_ns=int(seconds * SECOND),
    )


@pytest.mark.parametrize("ppm", [20, -20, 3.5, 400])
def test_a_planted_drift_is_found(ppm: float) -> None:
    own = drifted(ends(), ppm, 5 * SECOND)
    clock = fit_clock(own, ends() - own)
    assert clock.drift == pytest.approx(-ppm * PPM, rel=0.01)
    assert np.abs(clock.to_common(own) - ends()).max() <= 3_000


def test_the_drift_is_that_of_most_ends() -> None:
    own = drifted(ends(), 20)
    own[::7] += 8 * MS  # one in seven ranks' threads woke up late
    noise = np.random.default_rng(1).integers(-30_000, 30_000, len(own))
    assert fit_drift(own, ends() - own + noise) == pytest.approx(-20 * PPM, rel=0.1)


@pytest.mark.parametrize(
    "differences",
    [
        np.full(600, 3 * SECOND),
        np.random.default_rng(2).integers(-400_000, 400_000, 600),
        np.repeat([0, 400_000], 300),  # the clock was set
        -ends() // 1000,  # 1000 ppm is no clock's drift
        -np.rint(ends() * 2e-6).astype(np.int64),  # 60 us in 30 s
    ],
    ids=["constant", "noise", "set", "steep", "slight"],
)
def test_what_is_no_line_is_no_drift(differences: Int64Array) -> None:
    assert fit_clock(ends(), differences) == RankClock(int(np.median(differences)))


def test_a_short_recording_and_few_ends_show_no_drift() -> None:
    short = ends(seconds=2)
    assert np.ptp(drifted(short, 20) - short) < MIN_DRIFT_EFFECT_NS
    assert fit_drift(short, short - drifted(short, 20)) == 0
    few = ends(count=40)
    assert fit_drift(few, few - drifted(few, 20)) == 0


@given(
    st.integers(-(1 << 60), 1 << 60),
    st.floats(-500, 500),
    st.lists(st.integers(0, 3600 * SECOND), min_size=1, max_size=9),
)
def test_a_time_comes_back_to_its_own_clock(offset_ns: int, ppm: float, times: list[int]) -> None:
    clock, own = RankClock(offset_ns, ppm * PPM, 1800 * SECOND), np.array(times, np.int64)
    assert np.abs(clock.to_own(clock.to_common(own)) - own).max() <= 1


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("clock", [(20, 0), (-35, 3 * SECOND), (100, -SECOND)])
def test_ranks_that_are_even_stay_even_whatever_their_clocks(numbered: bool, clock: tuple[float, int]) -> None:
    """At 20 ppm the clocks of the first and the last of 30 s differ by 0.6 ms; at 100 ppm no one offset fits all."""
    matched = match_collectives([rank_table(0, numbered=numbered), rank_table(1, clock, numbered=numbered)])
    assert matched is not None
    assert len(matched) == len(ends())
    assert matched.total_wait_ns.max() <= 10_000


@pytest.mark.parametrize("numbered", [True, False])
def test_a_rank_is_late_by_what_it_is_late_on_a_drifting_clock(numbered: bool) -> None:
    late_ns = np.where(np.arange(len(ends())) % 2, 200_000, 0)
    tables = [rank_table(0, numbered=numbered), rank_table(1, (20, 0), numbered=numbered, late_ns=late_ns)]
    tables.append(rank_table(2, (-15, SECOND), numbered=numbered))
    matched = match_collectives(tables)
    assert matched is not None
    late = find_late_rank(matched)
    assert late is not None
    assert (late.rank, late.co_late) == (1, (1,))
    assert late.blame > 0.95
    [gains] = clock_evidence(late)
    assert gains.label == "its clock gains on that of rank 0, each second"
    assert gains.value == pytest.approx(20_000, rel=0.02)
    assert np.abs(matched.last_arrival_ns - matched.second_arrival_ns - late_ns).max() <= 10_000


def test_without_a_drift_the_clock_is_the_offset_it_was() -> None:
    matched = match_collectives([rank_table(0), rank_table(1, (0, 12_345)), replace(rank_table(2), host="b")])
    assert matched is not None
    assert matched.clocks == (RankClock(), RankClock(-12_345), RankClock())
    assert matched.total_wait_ns.max() == 0
