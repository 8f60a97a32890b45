"""Memory over time: the categories add up to what is allocated at each point, and the peak is one of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_allocator import Request, SnapshotBuilder

from perfdoctor.charts.memory_timeline import memory_timelines_of
from perfdoctor.charts.rank_charts import rank_charts_of
from perfdoctor.memory.categories import CATEGORIES
from perfdoctor.memory.device_memory import DeviceMemory
from perfdoctor.memory.memory_edits import MemoryEdit
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import MemoryTimeline
from perfdoctor.report.finding import Finding
from perfdoctor.savings.saving import Saving
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, read

MIB = 1 << 20


def check(timeline: MemoryTimeline, memory: DeviceMemory, max_points: int) -> None:
    peak, rows = memory.peak, memory.allocations.rows
    assert peak is not None
    shown = timeline.event.tolist()
    assert len(shown) == len(rows) if len(rows) <= max_points else len(shown) <= max_points
    assert shown == sorted(set(shown))
    assert {0, peak.place, len(rows) - 1} <= set(shown)
    assert timeline.bytes.shape == (len(timeline.categories), len(shown))
    assert (timeline.bytes >= 0).all()
    allocated = memory.trace.memory.allocated_bytes[rows[shown]]
    np.testing.assert_array_equal(timeline.bytes.sum(axis=0), allocated)
    assert (shown[timeline.peak], allocated[timeline.peak]) == (peak.place, peak.allocated_bytes)
    # The report's own account of the peak, which is made from those alive then alone.
    summary = timeline.summary.peak
    assert summary is not None
    at_peak = dict(zip(timeline.categories, timeline.bytes[:, timeline.peak].tolist(), strict=True))
    assert {name: at_peak.get(name, 0) for name in CATEGORIES} == summary.by_category


# An allocation: its size, a part of the loop. Else a free, of which of those that are alive.
REQUESTS = st.builds(
    Request,
    st.sampled_from([500, 200_000, 3 * MIB, 24 * MIB]),
    pool=st.just(0),
    stream=st.just(0),
    line=st.just(7),
    phase=st.sampled_from(["", "forward", "backward", "optimizer"]),
)
STEPS = st.lists(st.one_of(REQUESTS, st.integers(0, 20)), min_size=1, max_size=60)


@given(STEPS, st.integers(0, 30), st.integers(6, 70))
def test_categories_add_up_at_each_point_and_the_peak_is_one(
    steps: list[Request | int], cut: int, max_points: int
) -> None:
    rank = Rank(SnapshotBuilder([*steps, Request(2 * MIB)], cut=min(cut, len(steps))).trace())
    [timeline] = memory_timelines_of(rank, max_points=max_points)
    check(timeline, rank.memory[0], max_points)
    assert timeline.time_ns is None, "every event of this recorder has the same time"


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 9)), min_size=2, max_size=60), st.integers(6, 70))
def test_times_begin_at_the_first_event(made: list[tuple[int, int]], max_points: int) -> None:
    b = TraceBuilder(device=None).op("aten::mm", 0, 10)
    at_us = 100.0
    for number, (wait_us, size) in enumerate(made):
        at_us += wait_us
        b.memory(at_us, size * MIB, number)
    rank = Rank(b.trace())
    [timeline] = memory_timelines_of(rank, max_points=max_points)
    check(timeline, rank.memory[0], max_points)
    waits_us = np.cumsum([0, *(wait for wait, _ in made[1:])])
    assert timeline.time_ns is not None
    assert timeline.time_ns.tolist() == (waits_us[timeline.event] * 1000).tolist()
    assert timeline.reserved_bytes is None


def test_a_short_burst_leaves_points_for_the_rest() -> None:
    b = TraceBuilder(device=None).op("aten::mm", 0, 10)
    for number in range(500):  # a microsecond each
        b.memory(number, MIB if number % 2 == 0 else -MIB, 7)
    for number in range(20):
        b.memory(10_000 * (number + 1), 2 * MIB if number % 2 == 0 else -2 * MIB, 8)
    [timeline] = memory_timelines_of(Rank(b.trace()), max_points=100)
    assert len(timeline.event) <= 100
    assert (timeline.event >= 500).sum() == 20


def test_a_gpu_program_shows_its_gpus_and_what_they_reserve() -> None:
    b = TraceBuilder().op("aten::mm", 0, 10)
    for number, device in enumerate((None, 0, 1, None)):
        b.memory(10 + number, (number + 2) * MIB, 100 + number, device=device)
    first, second = memory_timelines_of(Rank(b.trace()))
    assert (first.summary.device, second.summary.device) == (1, 0)
    assert first.reserved_bytes is not None
    assert first.reserved_bytes.tolist() == [1 << 30]


def test_at_most_four_devices_with_the_highest_peaks() -> None:
    b = TraceBuilder().op("aten::mm", 0, 10)
    for device in range(6):
        b.memory(10 + device, (device + 2) * MIB, 100, device=device)
    assert [each.summary.device for each in memory_timelines_of(Rank(b.trace()))] == [5, 4, 3, 2]


def edited(device: int, rule: str) -> Finding:
    none = np.empty(0, np.int64)
    edit = MemoryEdit(device, none, none, none, none)
    return Finding(
        rule, "name", "title", 0, None, "info", Saving(), "Do it.", subject=f"GPU {device}", memory_edit=edit
    )


def test_each_device_has_the_findings_on_it() -> None:
    b = TraceBuilder(device=None).op("aten::mm", 0, 10)
    b.memory(1, 4 * MIB, 7, device=0).memory(2, 2 * MIB, 7, device=1)
    findings = [edited(1, "PD701"), edited(0, "PD703"), replace(edited(0, "PD101"), memory_edit=None)]
    first, second = memory_timelines_of(Rank(b.trace()), findings)
    assert list(first.findings) == [("PD703", "GPU 0", None)]
    assert list(second.findings) == [("PD701", "GPU 1", None)]


@pytest.mark.parametrize(
    "trace",
    [
        TraceBuilder().op("aten::mm", 0, 10).trace(),
        TraceBuilder(device=None).op("aten::mm", 0, 10).memory(1, 4096, 7).memory(2, -4096, 7).trace(),  # a counter
        Trace("empty.json"),
    ],
    ids=["no memory", "next to none", "empty"],
)
def test_without_memory_there_is_no_chart(trace: Trace) -> None:
    assert rank_charts_of(Rank(trace)).memory == ()


@pytest.mark.corpus
def test_real_snapshots_add_up(shared: Path) -> None:
    with_peak = 0
    for path in sorted((shared / "memory").glob("*.pickle")):
        rank = Rank(read(path))
        memory_of = {each.device: each for each in rank.memory}
        for max_points in (2_000, 50):
            for timeline in memory_timelines_of(rank, max_points=max_points):
                device = timeline.summary.device
                assert device is not None
                check(timeline, memory_of[device], max_points)
                assert (timeline.time_ns is None) == (path.name == "ftcourse-finetune.pickle"), path.name
                with_peak += 1
    assert with_peak >= 2 * 12
