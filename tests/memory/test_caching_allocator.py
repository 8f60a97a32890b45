"""The model of the CUDA allocator, by cases from its source and by what holds of any sequence of requests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.memory.caching_allocator import MIB, Block, CachingAllocator, round_sizes
from perfdoctor.trace.tables.model import AllocatorSettings

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def allocator(**settings: object) -> CachingAllocator:
    return CachingAllocator(AllocatorSettings(**settings))  # type: ignore[arg-type]


def took(of: CachingAllocator, size: int, **where: int) -> Block:
    block = of.allocate(size, **where)
    assert block is not None
    return block


@pytest.mark.parametrize(
    ("requested", "divisions", "rounded"),
    [
        (1, 0, 512),
        (512, 0, 512),
        (513, 0, 1024),
        (1200 * MIB, 4, 1280 * MIB),  # between 1024 and 2048 MiB: 1024, 1280, 1536, 1792
        (1280 * MIB, 4, 1280 * MIB),
        (1024 * MIB, 4, 1024 * MIB),
        (1200 * MIB, 8, 1280 * MIB),
        (1100 * MIB, 8, 1152 * MIB),
        (513, 4, 1024),  # at most 4 times 512 bytes: rounded to 512
    ],
)
def test_sizes_are_rounded(requested: int, divisions: int, rounded: int) -> None:
    settings = AllocatorSettings(roundup_power2_divisions=(divisions,) * 16)
    assert round_sizes(np.array([requested]), settings).tolist() == [rounded]


def test_the_divisions_are_those_of_the_size() -> None:
    settings = AllocatorSettings(roundup_power2_divisions=(8, 4, *(0,) * 14))  # up to 2 MiB, up to 4 MiB, and above
    requested = np.array([MIB + 1, 2 * MIB + 1, 4 * MIB + 1])
    assert round_sizes(requested, settings).tolist() == [MIB + MIB // 8, 2 * MIB + MIB // 2, 4 * MIB + 512]


@pytest.mark.parametrize(
    ("size", "reserved", "expandable"),
    [
        (512, 2, 2),
        (MIB, 2, 2),
        (MIB + 512, 20, 20),
        (10 * MIB - 512, 20, 20),
        (10 * MIB, 10, 20),
        (11 * MIB, 12, 20),
        (21 * MIB, 22, 40),
    ],
)
def test_the_size_of_what_is_reserved(size: int, reserved: int, expandable: int) -> None:
    plain, mapped = allocator(), CachingAllocator(EXPANDABLE)
    took(plain, size)
    took(mapped, size)
    assert (plain.reserved_bytes, mapped.reserved_bytes) == (reserved * MIB, expandable * MIB)


def test_the_smallest_block_with_room_is_taken_and_split() -> None:
    made = allocator()
    large, small = took(made, 40 * MIB), took(made, 30 * MIB)
    made.free(large)
    made.free(small)
    block = took(made, 28 * MIB)
    assert block is not large
    assert (block.address, block.size) == (small.address, 28 * MIB)
    assert block.after is not None
    assert block.after.size == 2 * MIB
    assert took(made, 39 * MIB + 512).size == 40 * MIB  # up to 1 MiB is not split off
    assert made.reserved_bytes == 70 * MIB


def test_of_two_of_one_size_the_lower_address_is_taken() -> None:
    made = CachingAllocator(AllocatorSettings(), None, [(20 * MIB, 900 * MIB), (20 * MIB, 100 * MIB)])
    blocks = [took(made, 20 * MIB), took(made, 20 * MIB)]
    for block in blocks:
        made.free(block)
    assert [took(made, 20 * MIB).address for _ in range(2)] == [100 * MIB, 900 * MIB]


def test_streams_and_private_pools_share_nothing() -> None:
    made = allocator()
    for where in ({}, {"stream": 7}, {"pool": 1}):
        made.free(took(made, 20 * MIB, **where))
    assert made.reserved_bytes == 60 * MIB
    made.release_cached()
    assert made.reserved_bytes == 20 * MIB  # the graph's


def test_a_segment_in_use_is_not_given_back() -> None:
    made = allocator()
    first, second, whole = took(made, 8 * MIB), took(made, 8 * MIB), took(made, 30 * MIB)
    made.free(first)
    made.free(whole)
    made.release_cached()
    assert made.reserved_bytes == 20 * MIB
    made.free(second)
    made.release_cached()
    assert made.reserved_bytes == 0


def test_pages_of_an_expandable_segment_are_given_back_and_mapped_again_at_the_lowest_address() -> None:
    made = CachingAllocator(EXPANDABLE)
    first, second, third = (took(made, size * MIB) for size in (50, 20, 10))
    assert made.reserved_bytes == 80 * MIB
    made.free(first)
    made.release_cached()
    assert made.reserved_bytes == 40 * MIB  # the third page is in use too
    made.free(third)
    again = took(made, 45 * MIB)
    assert again.address == first.address
    assert made.reserved_bytes == 80 * MIB
    assert second.in_use


def test_an_expandable_segment_grows_for_a_block_that_does_not_fit() -> None:
    made = CachingAllocator(EXPANDABLE)
    made.free(took(made, 50 * MIB))
    assert took(made, 70 * MIB).size == 70 * MIB
    assert made.reserved_bytes == 80 * MIB
    plain = allocator()
    plain.free(took(plain, 50 * MIB))
    took(plain, 70 * MIB)
    assert plain.reserved_bytes == 120 * MIB


def test_large_blocks_are_not_split_above_max_split() -> None:
    made = allocator(max_split_bytes=100 * MIB)
    made.free(took(made, 200 * MIB))
    took(made, 20 * MIB)  # not out of the block of 200 MiB
    took(made, 150 * MIB)  # which has 20 MiB or more too much for this
    assert made.reserved_bytes == 370 * MIB
    assert took(made, 190 * MIB).size == 200 * MIB


def test_what_is_cached_makes_room() -> None:
    made = CachingAllocator(AllocatorSettings(), 100 * MIB)
    made.free(took(made, 60 * MIB))
    assert took(made, 80 * MIB).size == 80 * MIB
    assert made.reserved_bytes == 80 * MIB
    assert made.allocate(22 * MIB) is None


def test_oversize_blocks_make_room_before_all_others() -> None:
    made = CachingAllocator(AllocatorSettings(max_split_bytes=30 * MIB), 100 * MIB)
    cached = [took(made, size * MIB) for size in (20, 32, 40)]
    for block in cached:
        made.free(block)
    took(made, 64 * MIB)
    assert made.reserved_bytes == 84 * MIB  # that of 20 MiB stays


def test_garbage_collection_gives_back_what_was_not_used_for_longest() -> None:
    made = CachingAllocator(AllocatorSettings(garbage_collection_threshold=0.5), 100 * MIB)
    old, new = took(made, 30 * MIB), took(made, 32 * MIB)
    made.free(old)
    for _ in range(5):
        made.free(new)
        new = took(made, 32 * MIB)
    made.free(new)
    took(made, 34 * MIB)  # 62 of 100 MiB are reserved: above the threshold
    assert made.reserved_bytes == 66 * MIB


SIZES = st.sampled_from([512, 1024, 256 * 1024, MIB, MIB + 512, 3 * MIB, 9 * MIB, 10 * MIB, 11 * MIB, 27 * MIB])
STEPS = st.lists(
    st.one_of(st.tuples(SIZES, st.integers(0, 1), st.integers(0, 1)), st.integers(0, 20), st.none()), max_size=60
)
SETTINGS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_bytes=st.sampled_from([None, None, 20 * MIB]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.3]),
)


@given(STEPS, SETTINGS, st.sampled_from([None, 60 * MIB, 200 * MIB]))
def test_blocks_fill_their_segments_without_overlap(
    steps: list[tuple[int, int, int] | int | None], settings: AllocatorSettings, capacity: int | None
) -> None:
    made = CachingAllocator(settings, capacity)
    alive: list[Block] = []
    for step in steps:
        if step is None:
            made.release_cached()
        elif isinstance(step, int):
            if alive:
                made.free(alive.pop(step % len(alive)))
        elif (block := made.allocate(*step)) is not None:
            assert block.size >= step[0]
            alive.append(block)
    assert made.allocated_bytes == sum(block.size for block in alive)
    assert capacity is None or made.reserved_bytes <= capacity
    segments = list(made.segments())
    in_use = [block for segment in segments for block in segment if block.in_use]
    assert sorted(map(id, in_use)) == sorted(map(id, alive))
    mapped, before = 0, 0
    for segment in segments:
        assert segment[0].address >= before
        for block, following in pairwise(segment):
            assert block.address + block.size == following.address
            assert block.in_use or following.in_use or block.is_mapped != following.is_mapped
        before = segment[-1].address + segment[-1].size
        mapped += sum(block.size for block in segment if block.is_mapped)
    assert mapped == made.reserved_bytes >= made.allocated_bytes
