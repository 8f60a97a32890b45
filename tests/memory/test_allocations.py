"""The account adds up: what is alive is what is allocated, at every event, against a reference in plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.memory.allocations import pair_events
from perfdoctor.trace import NONE, MemoryEvents

Event = tuple[int, int]  # signed bytes, address


def memory_of(events: list[Event], before_bytes: int = 0) -> MemoryEvents:
    count = len(events)
    size = np.array([size for size, _ in events], np.int64)
    zeros, codes = np.zeros(count, np.int64), np.full(count, NONE, np.int32)
    return MemoryEvents(
        time_ns=np.arange(count),
        bytes=size,
        requested_bytes=zeros,
        address=np.array([address for _, address in events], np.int64),
        allocated_bytes=before_bytes + np.cumsum(size),
        reserved_bytes=zeros,
        device_type=codes,
        device=codes,
        thread=codes,
        stream=zeros,
        stack=codes,
    )


def alive_after_each(events: list[Event]) -> tuple[list[Counter[int]], Counter[int]]:
    """After each event the sizes of what was allocated in the recording and is alive; and what is freed unseen.

    Event by event, with a stack of sizes for each address; knows nothing of sorting.
    """
    alive: dict[int, list[int]] = {}
    unseen: Counter[int] = Counter()
    after = []
    last: dict[int, int] = {}  # the event before at each address
    for size, address in events:
        if size > 0:
            alive.setdefault(address, []).append(size)
        elif size < 0:
            if last.get(address, 0) == -size:
                alive[address].pop()
            else:
                unseen[-size] += 1
        if size:
            last[address] = size
        after.append(Counter(size for sizes in alive.values() for size in sizes))
    return after, unseen


EVENTS = st.lists(st.tuples(st.sampled_from([1, 8, 8, -8, -1, 512, -512, 0]), st.integers(0, 3)), max_size=30)


@given(EVENTS, st.integers(0, 10_000))
def test_what_is_alive_adds_up_at_every_event(events: list[Event], before_bytes: int) -> None:
    memory = memory_of(events, before_bytes)
    allocations = pair_events(memory, np.arange(len(events)))
    expected, unseen = alive_after_each(events)
    before = allocations.begins == NONE
    assert Counter(allocations.bytes[before].tolist()) == unseen
    if events:
        assert allocations.unlisted_bytes == before_bytes - sum(size * count for size, count in unseen.items())
    for place, wanted in enumerate(expected):
        alive = allocations.alive_at(place)
        assert Counter(allocations.bytes[alive & ~before].tolist()) == wanted
        total = int(allocations.bytes[alive].sum()) + allocations.unlisted_bytes
        assert total == int(memory.allocated_bytes[place])


def test_an_address_is_used_again() -> None:
    allocations = pair_events(memory_of([(8, 7), (-8, 7), (4, 7), (-6, 9)], 6), np.arange(4))
    assert list(zip(allocations.bytes, allocations.begins, allocations.ends, strict=True)) == [
        (8, 0, 1),
        (4, 2, 4),
        (6, NONE, 3),
    ]
    assert allocations.unlisted_bytes == 0


def test_events_before_the_recording_are_no_events_of_it() -> None:
    allocations = pair_events(memory_of([(8, 7), (4, 5), (-8, 7), (2, 7)]), np.arange(4), opening_events=2)
    assert allocations.rows.tolist() == [2, 3]
    assert list(zip(allocations.bytes, allocations.begins, allocations.ends, strict=True)) == [
        (8, NONE, 0),
        (4, NONE, 2),
        (2, 1, 2),
    ]


def test_without_addresses_nothing_is_paired() -> None:
    allocations = pair_events(memory_of([(8, NONE), (-8, NONE)], 100), np.arange(2))
    assert allocations.bytes.tolist() == [8, 8]
    assert int(allocations.bytes[allocations.alive_at(1)].sum()) + allocations.unlisted_bytes == 100
