"""Waits for a late rank stand at the line that makes it late, and the places of each rank add up as before."""

from __future__ import annotations

from collections import Counter

import pytest

from perfdoctor import pipeline
from perfdoctor.places.place import Place
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.report.waits_at_late_rank import places_of_ranks
from perfdoctor.testing import TraceBuilder, collective

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEPS, STEP_US = 6, 1000


def summary(rank: int, late_us: int) -> RankSummary:
    """Steps with work at model.py:5, a sleep at train.py:9, and an all_reduce that ends at the same time on all."""
    trace = TraceBuilder(device="NVIDIA A100-SXM4-80GB")
    trace.header(distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl"})
    for number in range(STEPS):
        at = number * STEP_US
        trace.step(at, STEP_US)
        trace.range("@/me/train.py:9 main", at, max(late_us, 1)).range("@/me/model.py:5 forward", at + late_us, 100)
        trace.op("aten::mm", at + late_us, 50).kernel("gemm", at + late_us + 10, 200, launch_us=at + late_us + 5)
        trace.range("@/me/train.py:12 main", at + late_us + 100, 50)
        begin = at + late_us + 215
        comm = collective(in_elements=1 << 20, dtype="Float", ranks=(0, 1))
        trace.op("c10d::allreduce_", at + late_us + 110, 20)
        trace.kernel(ALL_REDUCE, begin, at + 900 - begin, 20, launch_us=at + late_us + 115, comm=comm)
    return pipeline.summarize_rank(Rank(trace.trace()))


def time_at(places: tuple[Place, ...], rank: int, line: int) -> int:
    return sum(place.ns for place in places if (place.rank, place.line) == (rank, line))


def sums(places: tuple[Place, ...]) -> Counter[tuple[int | None, str]]:
    total = Counter[tuple[int | None, str]]()
    for place in places:
        assert sum(place.causes.values()) == place.ns >= place.backward_ns
        total.update({(place.rank, name): ns for name, ns in place.causes.items()})
    return total


def test_waits_go_to_the_line_of_the_late_rank() -> None:
    fleet = Fleet((summary(0, 0), summary(1, 400)))
    assert fleet.late_rank is not None
    assert fleet.late_rank.rank == 1
    before, after = tuple(place for each in fleet.summaries for place in each.places), places_of_ranks(fleet)
    assert sums(after) == sums(before)
    assert time_at(after, 0, 9) == pytest.approx(400_000, abs=60_000)
    (place,) = (place for place in after if (place.rank, place.line) == (0, 9))
    assert [(each.name, each.kind) for each in place.within][:1] == [("waiting for rank 1", "wait")]


def test_without_a_late_rank_all_stays_where_it_is() -> None:
    fleet = Fleet((summary(0, 0), summary(1, 0)))
    assert places_of_ranks(fleet) == tuple(place for each in fleet.summaries for place in each.places)
