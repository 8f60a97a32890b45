"""Recordings made by the allocator's model come back from their replay; edits and settings change what they say."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_allocator import Recorder, Step

from perfdoctor.memory.allocator_replay import AllocatorReplay, Savings
from perfdoctor.memory.caching_allocator import LARGE_SEGMENT_BYTES, MIB
from perfdoctor.memory.device_memory import DeviceMemory
from perfdoctor.memory.memory_edits import MemoryEdit, allocated_after, shrink
from perfdoctor.memory.slack import Slack, slack_at
from perfdoctor.rank import Rank
from perfdoctor.trace import read
from perfdoctor.trace.tables.model import AllocatorSettings

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def what_if(
    memory: DeviceMemory, edits: Sequence[MemoryEdit] = (), settings: AllocatorSettings | None = None
) -> Savings:
    return AllocatorReplay(memory).what_if(edits, settings)


def memory_of(value: dict[str, Any], folder: Path) -> DeviceMemory:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value))
    [memory] = Rank(read(path)).memory
    return memory


def record(
    steps: Sequence[Step], folder: Path, settings: AllocatorSettings | None = None, cut: int = 0
) -> DeviceMemory:
    recorder = Recorder(settings or AllocatorSettings())
    recorder.run(steps, cut)
    return memory_of(recorder.snapshot(), folder)


# Sizes after which nothing too small to split off is left over: that cannot be seen at the beginning of a recording.
SIZES = st.sampled_from([500, 3000, 200_000, MIB, 2 * MIB, 8 * MIB, 12 * MIB, 24 * MIB, 70 * MIB])
STEPS = st.lists(
    st.one_of(st.tuples(SIZES, st.integers(0, 1), st.integers(0, 1)), st.integers(0, 20), st.none()),
    min_size=1,
    max_size=40,
)


@given(STEPS, st.booleans(), st.integers(0, 40))
def test_a_recording_comes_back_whole(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], expandable: bool, cut: int
) -> None:
    recorder = Recorder(EXPANDABLE if expandable else AllocatorSettings())
    recorder.run(steps, min(cut, len(steps)))
    value = recorder.snapshot()
    if not recorder.alive and all(each["action"].startswith("segment") for each in recorder.history):
        return
    memory = memory_of(value, tmp_path_factory.mktemp("replay"))
    replay = AllocatorReplay(memory)
    assert memory.is_consistent
    if not len(replay.recorded_bytes):
        return
    assert replay.distrust is None
    np.testing.assert_array_equal(replay.plain.reserved_bytes, replay.recorded_bytes)
    assert (replay.plain.blocks_bytes <= replay.plain.reserved_bytes).all()
    for place, reserved in enumerate(replay.recorded_bytes.tolist()):
        slack = slack_at(replay, place)
        assert slack is not None
        parts = [getattr(slack, each.name) for each in fields(slack)]
        assert min(parts) >= 0
        allocated = int(memory.trace.memory.allocated_bytes[memory.allocations.rows[place]])
        assert sum(parts) + allocated == reserved
    in_use, found = (
        sorted(
            (0 if expandable else block.address, block.size) for blocks in segments for block in blocks if block.in_use
        )
        for segments in (recorder.allocator.segments(), replay.plain.segments)
    )  # a new expandable segment may lie anywhere
    assert found == in_use
    np.testing.assert_array_equal(AllocatorReplay(memory).plain.reserved_bytes, replay.plain.reserved_bytes)


@given(STEPS, st.integers(0, 40), st.sets(st.integers(0, 20)), st.floats(0, 1), st.integers(0, 40), st.integers(0, 40))
def test_less_is_never_more_allocated(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Step],
    cut: int,
    which: set[int],
    share: float,
    first: int,
    last: int,
) -> None:
    recorder = Recorder(AllocatorSettings())
    recorder.run(steps, min(cut, len(steps)))
    value = recorder.snapshot()
    if not recorder.alive and all(each["action"].startswith("segment") for each in recorder.history):
        return
    memory = memory_of(value, tmp_path_factory.mktemp("edits"))
    count = len(memory.allocations.bytes)
    places = np.array(sorted(each for each in which if each < count), np.int64)
    begins, ends = (np.full(len(places), event) for event in (first, last))
    edit = shrink(memory, 0, places, share, begins, ends)
    replay = AllocatorReplay(memory)
    if replay.distrust is not None:
        return
    made = replay.replay([edit])
    # Rounding adds up to 512 bytes to each, and up to 1 MiB is not split off.
    allocated = allocated_after(memory, [edit])
    assert (made.blocks_bytes >= allocated).all()
    assert (made.blocks_bytes <= allocated + count * (MIB + 512)).all()
    assert (made.reserved_bytes >= made.blocks_bytes).all()
    assert (allocated <= allocated_after(memory, [])).all()


LOOP: list[Step] = [(60 * MIB, 0, 0), (40 * MIB, 0, 0), 0, (64 * MIB, 0, 0), 1, 0]


def test_without_edits_the_recorded_totals_come_back(tmp_path: Path) -> None:
    memory = record(LOOP * 2, tmp_path, cut=3)
    np.testing.assert_array_equal(
        allocated_after(memory, []), memory.trace.memory.allocated_bytes[memory.allocations.rows]
    )


def test_what_is_never_made_is_not_reserved(tmp_path: Path) -> None:
    memory = record(LOOP * 2, tmp_path)
    plain = what_if(memory)
    assert (plain.peak_allocated_bytes, plain.peak_reserved_bytes) == (104 * MIB, 164 * MIB)
    first = memory.allocations.begins.argsort()
    large = first[memory.allocations.bytes[first] == 64 * MIB]
    made = what_if(memory, [shrink(memory, 0, large)])
    assert (made.peak_allocated_bytes, made.peak_reserved_bytes, made.reason) == (100 * MIB, 100 * MIB, None)


def test_what_is_cached_from_before_is_not_reserved_again(tmp_path: Path) -> None:
    memory = record([(300 * MIB, 0, 0), (10 * MIB, 0, 0), 0, *LOOP], tmp_path, cut=3)
    assert AllocatorReplay(memory).plain.peak_reserved_bytes == 310 * MIB
    assert what_if(memory).peak_reserved_bytes == 310 * MIB  # all were cut out of that of 300
    gone = np.flatnonzero(memory.allocations.begins >= 0)
    assert what_if(memory, [shrink(memory, 0, gone)]).peak_reserved_bytes == 10 * MIB


def test_a_segment_of_the_beginning_that_is_never_used_does_not_count(tmp_path: Path) -> None:
    memory = record([(64 * MIB, 0, 0), (9 * MIB, 0, 5), 1, *LOOP], tmp_path, cut=3)  # that of stream 5 is cached
    plain = AllocatorReplay(memory).plain.peak_reserved_bytes
    assert plain - what_if(memory).peak_reserved_bytes == 20 * MIB  # type: ignore[operator]


def test_freed_earlier_and_made_later(tmp_path: Path) -> None:
    memory = record([(30 * MIB, 0, 0), (40 * MIB, 0, 0), 0, (24 * MIB, 0, 0), 1], tmp_path)
    places = np.array([0])
    early = shrink(memory, 0, places, begins=np.array([1]))  # before the second
    assert what_if(memory, [early]).peak_allocated_bytes == 64 * MIB
    assert what_if(memory, [early]).peak_reserved_bytes == 70 * MIB  # 40 need a segment of their own, 24 fit into 30
    late = shrink(memory, 0, places, ends=np.array([2]))  # after the second, so it is not there at all
    assert AllocatorReplay(memory).replay([late]).blocks_bytes.tolist() == [size * MIB for size in (0, 40, 40, 64, 40)]
    gap = shrink(memory, 0, np.array([1]), 0.5, np.array([2]), np.array([3]))
    assert AllocatorReplay(memory).replay([gap]).blocks_bytes.tolist() == [size * MIB for size in (30, 70, 20, 64, 40)]


@pytest.mark.parametrize(
    ("settings", "slack"),
    [
        # Of 32 MiB 8 are free beside 24; 60 are a segment of their own; stream 5 and pool 1 have 20 each.
        (None, Slack(0, 60 * MIB, 8 * MIB, 20 * MIB, 20 * MIB)),
        # 24 MiB in use and 76 free behind them: 16 to the next page of 20, and three pages.
        (EXPANDABLE, Slack(0, 60 * MIB, 16 * MIB, 20 * MIB, 20 * MIB)),
    ],
)
def test_slack_has_its_causes(tmp_path: Path, settings: AllocatorSettings | None, slack: Slack) -> None:
    steps: list[Step] = [(32 * MIB, 0, 0), (60 * MIB, 0, 0), (9 * MIB, 0, 5), (9 * MIB, 1, 0), 0, 0, 0, 0]
    memory = record([*steps, (24 * MIB, 0, 0)], tmp_path, settings)
    assert slack_at(AllocatorReplay(memory), 8) == slack


def test_expandable_segments_reserve_what_varying_sizes_leave_unused(tmp_path: Path) -> None:
    steps: list[Step] = [each for size in range(40, 80, 4) for each in ((size * MIB, 0, 0), 0)]
    memory = record(steps, tmp_path)
    assert what_if(memory).peak_reserved_bytes == sum(range(40, 80, 4)) * MIB
    assert what_if(memory, settings=EXPANDABLE).peak_reserved_bytes == 4 * LARGE_SEGMENT_BYTES


def test_the_first_request_without_room_ends_the_replay(tmp_path: Path) -> None:
    memory = record(LOOP, tmp_path)
    failed = AllocatorReplay(memory).replay(capacity_bytes=90 * MIB).failed
    assert failed is not None
    figures = failed.place, failed.bytes, failed.allocated_bytes, failed.reserved_bytes, failed.largest_free_bytes
    assert figures == (1, 40 * MIB, 60 * MIB, 60 * MIB, 0)
    assert AllocatorReplay(memory).replay(capacity_bytes=104 * MIB).failed is None  # 60 are given back for 64


def oom_snapshot() -> dict[str, Any]:
    recorder = Recorder(AllocatorSettings())
    recorder.run([(60 * MIB, 0, 0), (30 * MIB, 0, 0), (20 * MIB, 0, 0)], 0)
    value = recorder.snapshot()
    value["device_traces"][0].append(
        {"action": "oom", "size": 50 * MIB, "device_free": 30 * MIB, "stream": 0, "frames": [], "time_us": 1}
    )
    return value


def test_a_request_that_was_refused_is_made_again(tmp_path: Path) -> None:
    replay = AllocatorReplay(memory_of(oom_snapshot(), tmp_path))
    assert (replay.capacity_bytes, replay.plain.served) == (140 * MIB, False)
    for place, served in ((2, True), (1, True), (0, True)):
        edit = shrink(replay.memory, 0, np.array([place]))
        assert replay.replay([edit], capacity_bytes=replay.capacity_bytes).served is served
    half = shrink(replay.memory, 0, np.array([2]), 0.5)
    assert replay.replay([half], capacity_bytes=replay.capacity_bytes).served is False  # 10 MiB free, 20 more wanted


def test_what_cannot_be_trusted_says_why(tmp_path: Path) -> None:
    recorder = Recorder(AllocatorSettings())
    recorder.run(LOOP, 0)
    value = recorder.snapshot()
    for segment in value["segments"]:
        segment["stream"] = 3  # while the allocations are on stream 0
    value["device_traces"][0] = [each for each in value["device_traces"][0] if not each["action"].startswith("seg")]
    savings = what_if(memory_of(value, tmp_path))
    assert savings.peak_allocated_bytes == 104 * MIB
    assert savings.peak_reserved_bytes is None
    assert savings.reason is not None
    value["device_traces"][0] = value["device_traces"][0][1:]  # a free of what lies in no known order
    assert what_if(memory_of(value, tmp_path)).reason is not None
