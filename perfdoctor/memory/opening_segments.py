"""The allocator's segments at the beginning of a recording, with the blocks in use then.

They are those of the end, less what was reserved in between, plus what was given back. Free neighbours are always one
block, so what is between the blocks in use is one free block each::

    at the end        |  B  |     free     |
    at the beginning  |  B  |  A  |  free  |      A is freed in the recording
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.caching_allocator import (
    EXPANDABLE_ADDRESSES,
    LARGE_SEGMENT_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    BlockState,
    PoolKey,
)
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables.model import AllocatorSettings, EndState, Segments


class OpeningBlock(NamedTuple):
    """A part of a segment; of one in use also which of the allocations it is."""

    address: int
    size: int
    state: BlockState
    which: int | None = None


@frozen_dataclass
class OpeningSegment:
    """A segment at the beginning, and its blocks in the order of their addresses."""

    key: PoolKey
    blocks: tuple[OpeningBlock, ...]
    is_expandable: bool


class _Range(NamedTuple):
    """Memory that the allocator holds."""

    address: int
    size: int
    key: PoolKey
    is_expandable: bool


def opening_segments(
    end: EndState, which: Int64Array, address: Int64Array, size: Int64Array
) -> list[OpeningSegment] | None:
    """The segments of a device at the beginning of its recording; None where its blocks do not fit into them.

    Args:
        end: The end, and what was reserved on the way to it.
        which: Numbers of the allocations that are alive at the beginning.
        address: Their addresses.
        size: Their sizes, rounded as the allocator does.
    """
    order = np.argsort(address, kind="stable")
    blocks = list(zip(address[order].tolist(), size[order].tolist(), which[order].tolist(), strict=True))
    ranges = _ranges_at_begin(end, blocks)
    if ranges is None:
        return None
    found: list[OpeningSegment] = []
    used = 0
    for place, each in enumerate(ranges):
        first, last = (bisect_left(blocks, (at,)) for at in (each.address, each.address + each.size))
        parts = _blocks_in(each, blocks[first:last], end.settings)
        if parts is None:
            return None
        if each.is_expandable:
            following = ranges[place + 1].address if place + 1 < len(ranges) else each.address + EXPANDABLE_ADDRESSES
            at = each.address + each.size
            parts.append(OpeningBlock(at, following - at, "unmapped"))
        if found and _continues(found[-1], each):
            found[-1] = OpeningSegment(each.key, (*found[-1].blocks, *parts), is_expandable=True)
        else:
            found.append(OpeningSegment(each.key, tuple(parts), each.is_expandable))
        used += last - first
    return found if used == len(blocks) else None


def _blocks_in(
    part: _Range, in_use: Sequence[tuple[int, int, int]], settings: AllocatorSettings
) -> list[OpeningBlock] | None:
    blocks, at, limit = [], part.address, settings.max_split_bytes
    keeps_rest = not part.key[2] and not part.is_expandable
    ends = [*(address for address, _, _ in in_use[1:]), part.address + part.size]
    for (address, size, which), end in zip(in_use, ends, strict=False):
        rest = end - address - size
        if address < at or rest < 0:
            return None
        if address > at:
            blocks.append(OpeningBlock(at, address - at, "free"))
        if keeps_rest and (rest <= SMALL_BYTES or (limit is not None and size >= limit)):
            size += rest  # too little to split it off, or not allowed to
        blocks.append(OpeningBlock(address, size, "in use", which))
        at = address + size
    if at < part.address + part.size:
        blocks.append(OpeningBlock(at, part.address + part.size - at, "free"))
    return blocks


def _continues(segment: OpeningSegment, part: _Range) -> bool:
    """Whether a range belongs to the same expandable segment: it lies on one of its pages."""
    page_bytes = SMALL_SEGMENT_BYTES if part.key[2] else LARGE_SEGMENT_BYTES
    is_on_page = (part.address - segment.blocks[0].address) % page_bytes == 0
    return part.is_expandable and segment.is_expandable and segment.key == part.key and is_on_page


def _ranges_at_begin(end: EndState, blocks: Sequence[tuple[int, int, int]]) -> list[_Range] | None:
    """What the allocator holds at the beginning, by address; None where that is not possible."""
    at_end, changes = end.segments, end.reservations
    key_of = {
        address: (pool, stream, is_small)
        for address, pool, stream, is_small in _rows(at_end, "address", "pool", "stream", "is_small")
    }
    count: Counter[tuple[int, int]] = Counter()
    for address, size in _rows(at_end, "address", "bytes", of=~at_end.is_expandable):
        count[address, size] += 1
    for address, size, stream in _rows(changes, "address", "bytes", "stream", of=~changes.is_expandable):
        count[address, abs(size)] -= 1 if size > 0 else -1
        key_of.setdefault(address, (0, stream, abs(size) == SMALL_SEGMENT_BYTES))
    if not set(count.values()) <= {0, 1}:
        return None
    ranges = [_Range(*at, key_of[at[0]], is_expandable=False) for at, times in count.items() if times and at[1]]
    expandable = _mapped_at_begin(at_end, changes)
    if expandable is None:
        return None
    known = _rows(at_end, "address", "bytes", "pool", "stream", "is_small", of=at_end.is_expandable)
    # What is not there at the end was given back, which nothing of a private pool is while its graphs are there.
    known += [
        (address, -size, 0, stream, None)
        for address, size, stream in _rows(changes, "address", "bytes", "stream", of=changes.is_expandable)
        if size < 0
    ]
    for address, size in expandable:
        # Segments of different pools lie far apart.
        pool, stream, is_small = next(
            each[2:] for each in known if each[0] < address + size and address < each[0] + each[1]
        )
        if is_small is None:
            first = bisect_left(blocks, (address,))
            is_in_use = first < len(blocks) and blocks[first][0] < address + size
            is_small = blocks[first][1] <= SMALL_BYTES if is_in_use else size % LARGE_SEGMENT_BYTES != 0
        ranges.append(_Range(address, size, (pool, stream, is_small), is_expandable=True))
    return sorted(ranges)


def _mapped_at_begin(at_end: Segments, changes: Segments) -> list[tuple[int, int]] | None:
    """Address and size of what is mapped at the beginning; None where something is mapped twice, or unmapped twice."""
    is_at_end, is_changed = at_end.is_expandable, changes.is_expandable
    begin = np.concatenate((at_end.address[is_at_end], changes.address[is_changed]))
    size = np.concatenate((at_end.bytes[is_at_end], -changes.bytes[is_changed]))
    bounds = np.concatenate((begin, begin + np.abs(size)))
    at, place = np.unique(bounds, return_inverse=True)
    times = np.cumsum(np.bincount(place, np.concatenate((np.sign(size), -np.sign(size))), len(at)).astype(np.int64))
    if not np.isin(times, (0, 1)).all():
        return None
    edges = at[np.flatnonzero(np.diff(times, prepend=0))]
    return list(zip(edges[::2].tolist(), (edges[1::2] - edges[::2]).tolist(), strict=True))


def _rows(segments: Segments, *columns: str, of: BoolArray | slice = slice(None)) -> list[tuple[Any, ...]]:
    return list(zip(*(getattr(segments, column)[of].tolist() for column in columns), strict=True))
