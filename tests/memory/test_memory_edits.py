"""What the peak is with some edits, against a sum over all events by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from recorded_allocator import record_lives

from perfdoctor.memory.memory_edits import MemoryEdit, allocated_after, peak_after, shrink

lives = st.tuples(st.integers(0, 40), st.integers(1, 41), st.integers(1, 1000))


@given(st.lists(lives, min_size=1, max_size=12), st.data())
def test_the_sum_over_all_events(tensors: list[tuple[int, int, int]], data: st.DataObject) -> None:
    memory = record_lives(tensors)
    allocations = memory.allocations
    count, events = len(allocations.bytes), len(allocations.rows)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1)))), np.int64)
    share = data.draw(st.sampled_from([0.25, 0.5, 1.0]))
    begins = np.array([data.draw(st.integers(0, events)) for _ in chosen], np.int64)
    edit = shrink(memory, 0, chosen, share, begins)
    expected = np.zeros(events, np.int64)
    for place in range(count):
        for event in range(events):
            size = int(allocations.bytes[place])
            if place in chosen and event >= begins[chosen.tolist().index(place)]:
                size -= int(size * share)
            expected[event] += size * (allocations.begins[place] <= event < allocations.ends[place])
    assert allocated_after(memory, [edit]).tolist() == expected.tolist()
    assert memory.peak is not None
    assert peak_after(memory, []) == memory.peak.allocated_bytes
    # No edit makes it higher, and what one has taken away no other takes away again.
    assert peak_after(memory, [edit]) <= memory.peak.allocated_bytes
    assert peak_after(memory, [edit, edit]) == peak_after(memory, [edit])


def test_the_next_peak_is_the_floor() -> None:
    memory = record_lives([(0, 5, 1000), (10, 5, 900)])
    first, second = (shrink(memory, 0, np.array([place])) for place in (0, 1))
    assert [peak_after(memory, edits) for edits in ([first], [second], [first, second])] == [900, 1000, 0]


def test_an_edit_without_allocations() -> None:
    memory = record_lives([(0, 5, 1000)])
    nothing = np.empty(0, np.int64)
    assert peak_after(memory, [MemoryEdit(0, nothing, nothing, nothing, nothing)]) == 1000
