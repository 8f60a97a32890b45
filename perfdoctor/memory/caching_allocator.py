"""A model of PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp): what it reserves for which requests.

A segment is what cudaMalloc gave, or what is mapped into a reservation of addresses (an expandable segment). It is
divided into blocks; no two free ones are neighbours::

    segment  |  in use  |  free  |  in use  |      free      |
    expandable, of 20 MiB pages:  |  in use  |  free  |  not mapped  |  in use  | not mapped ...
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np

from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.model import AllocatorSettings

MIB: Final = 1 << 20
SMALL_BYTES: Final = 1 * MIB
"""Requests of up to this size have pools of their own."""
SMALL_SEGMENT_BYTES: Final = 2 * MIB
LARGE_SEGMENT_BYTES: Final = 20 * MIB
_ROUND_BYTES = 512
_OWN_SEGMENT_BYTES = 10 * MIB  # requests of this size and more get segments of their own
_ROUND_LARGE_BYTES = 2 * MIB
EXPANDABLE_ADDRESSES: Final = LARGE_SEGMENT_BYTES << 20
"""Addresses of an expandable segment: more than any device has, so that one a pool is enough (PyTorch: 9/8 of it)."""

PoolKey: TypeAlias = tuple[int, int, bool]
"""A private pool or 0, a stream, and whether it is for small requests."""
BlockState: TypeAlias = Literal["in use", "free", "unmapped"]


def round_sizes(requested: Int64Array, settings: AllocatorSettings) -> Int64Array:
    """The sizes of the blocks that some requests get."""
    result = (np.maximum(requested, 1) + _ROUND_BYTES - 1) // _ROUND_BYTES * _ROUND_BYTES
    if settings.roundup_power2_divisions:
        floor_log2 = np.frexp(requested.astype(float))[1].astype(np.int64) - 1
        table = np.array(settings.roundup_power2_divisions, np.int64)
        divisions = table[np.clip(floor_log2 - 20, 0, len(table) - 1)]
        divides = (divisions > 1) & (requested > _ROUND_BYTES * divisions)
        step = np.maximum((1 << np.maximum(floor_log2, 0)) // np.maximum(divisions, 1), 1)
        result = np.where(divides, (requested + step - 1) // step * step, result)
    return result.astype(np.int64)


class Segment:
    """What cudaMalloc gave, or the addresses of an expandable segment, which begins with a whole page.

    Attributes:
        address: Where it begins.
        pool: The pool that its free blocks belong to.
        is_expandable: Whether it is an expandable one.
        was_used: Whether a block of it has ever been in use.
    """

    __slots__ = ("address", "is_expandable", "pool", "was_used")

    def __init__(self, address: int, pool: _Pool, *, is_expandable: bool) -> None:
        self.address, self.pool, self.is_expandable, self.was_used = address, pool, is_expandable, False


class Block:
    """A part of a segment: in use, free, or (of an expandable one) not mapped."""

    __slots__ = ("address", "after", "before", "freed_at", "in_use", "is_mapped", "segment", "size")

    def __init__(self, address: int, size: int, segment: Segment) -> None:
        self.address, self.size, self.segment = address, size, segment
        self.before: Block | None = None
        self.after: Block | None = None
        self.in_use, self.is_mapped = False, True
        self.freed_at = 0  # by the count of searches, in which garbage collection measures age

    @property
    def is_split(self) -> bool:
        """Whether it is a part of a segment, so that it cannot be given back alone."""
        return self.before is not None or self.after is not None

    @property
    def pages(self) -> tuple[int, int]:
        """Begin and end of the whole pages in a block of an expandable segment; the end may lie before the begin."""
        base, page_bytes = self.segment.address, self.segment.pool.page_bytes
        begin, end = self.address - base, self.address - base + self.size
        return base + _round_up(begin, page_bytes), base + end // page_bytes * page_bytes


class _Pool:
    """The free blocks of a stream for small or for large requests, by size and then by address."""

    __slots__ = ("free", "free_at", "is_private", "is_small", "stream", "unmapped")

    def __init__(self, key: PoolKey) -> None:
        pool, self.stream, self.is_small = key
        self.is_private = pool != 0
        self.free: list[tuple[int, int]] = []
        self.free_at: dict[int, Block] = {}
        self.unmapped: list[tuple[int, Block]] = []  # by address, each once

    @property
    def page_bytes(self) -> int:
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES

    def add(self, block: Block) -> None:
        insort(self.free, (block.size, block.address))
        self.free_at[block.address] = block

    def remove(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]
        del self.free_at[block.address]

    def add_unmapped(self, block: Block) -> None:
        block.is_mapped = False
        insort(self.unmapped, (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        del self.unmapped[bisect_left(self.unmapped, (block.address,))]

    def free_blocks(self) -> list[Block]:
        return [self.free_at[address] for _, address in self.free]


class CachingAllocator:
    """The allocator of one device.

    Attributes:
        reserved_bytes: What it holds of the device.
        allocated_bytes: The sizes of the blocks in use.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        capacity_bytes: int | None = None,
        segment_addresses: Iterable[tuple[int, int]] = (),
    ) -> None:
        """An allocator that holds nothing.

        Args:
            settings: Its settings.
            capacity_bytes: The most it can reserve; None for no limit.
            segment_addresses: Size and address of segments that cudaMalloc gave in a recording, in their order: the
                next one of a size gets that address, where it is free. Of blocks of one size the allocator takes the
                one with the lowest address.
        """
        self.settings, self._capacity = settings, capacity_bytes
        self.reserved_bytes = self.allocated_bytes = 0
        self._pools: dict[PoolKey, _Pool] = {}
        self._in_use: dict[int, Block] = {}  # by address
        self._searches = 0  # for large requests
        self._segments: list[tuple[int, int]] = []  # address and end
        self._next_address = 1 << 50  # behind all that a device has
        self._recorded: dict[int, deque[int]] = {}
        for size, address in segment_addresses:
            self._recorded.setdefault(size, deque()).append(address)

    def allocate(self, size: int, pool: int = 0, stream: int = 0) -> Block | None:
        """A block for a request of a rounded size, as `round_sizes` gives it; None where there is no room."""
        key = pool, stream, size <= SMALL_BYTES
        own = self._pools.get(key) or self._pool(key)
        block = self._take(own, size) or self._reserve(own, size)
        if block is not None:
            self._split(block, size)
            self._use(block)
        return block

    def free(self, block: Block) -> None:
        """Make a block free, as one with its free neighbours."""
        self.allocated_bytes -= block.size
        block.in_use = False
        del self._in_use[block.address]
        self._merge(block)
        block.freed_at = self._searches
        block.segment.pool.add(block)

    def release_cached(self) -> None:
        """Give back to the device what is free: whole segments, and whole pages of expandable ones."""
        for pool in self._pools.values():
            if pool.is_private:  # until its graphs are gone
                continue
            for block in pool.free_blocks():
                if block.segment.is_expandable:
                    self._unmap(block)
                elif not block.is_split:
                    self._give_back(block)

    def restore(self, key: PoolKey, blocks: Sequence[tuple[int, int, BlockState]], is_expandable: bool) -> list[Block]:
        """Put a segment as it was at the beginning of a recording.

        Args:
            key: The pool.
            blocks: Address, size and state of its blocks, in the order of their addresses.
            is_expandable: Whether it is an expandable segment.

        Returns:
            Its blocks.
        """
        pool, found = self._pool(key), list[Block]()
        segment = Segment(blocks[0][0], pool, is_expandable=is_expandable)
        for address, size, state in blocks:
            block = Block(address, size, segment)
            _link(found[-1] if found else None, block)
            found.append(block)
            if state == "unmapped":
                pool.add_unmapped(block)
                continue
            self.reserved_bytes += size
            if state == "free":
                pool.add(block)
            else:
                self._use(block)
        self._next_address = max(self._next_address, found[-1].address + found[-1].size)
        if not is_expandable:
            insort(self._segments, (segment.address, found[-1].address + found[-1].size))
        return found

    def segments(self) -> Iterator[list[Block]]:
        """The blocks of each segment, by their addresses."""
        blocks = list(self._in_use.values())
        for pool in self._pools.values():
            blocks += [*pool.free_at.values(), *(block for _, block in pool.unmapped)]
        for first in sorted((block for block in blocks if block.before is None), key=lambda block: block.address):
            segment = [first]
            while (following := segment[-1].after) is not None:
                segment.append(following)
            yield segment

    def largest_free_bytes(self, pool: int, stream: int, size: int) -> int:
        """The largest free block that a request of a size might have had; 0 where none is free."""
        own = self._pools.get((pool, stream, size <= SMALL_BYTES))
        return own.free[-1][0] if own and own.free else 0

    def _pool(self, key: PoolKey) -> _Pool:
        if key not in self._pools:
            self._pools[key] = _Pool(key)
        return self._pools[key]

    def _use(self, block: Block) -> None:
        block.in_use = block.segment.was_used = True
        self._in_use[block.address] = block
        self.allocated_bytes += block.size

    def _take(self, pool: _Pool, size: int) -> Block | None:
        """The smallest free block with room, at the lowest address; None where there is none."""
        if not pool.is_small and not pool.is_private:
            self._searches += 1
        free, place = pool.free, bisect_left(pool.free, (size, 0))
        if place == len(free):
            return None
        block = pool.free_at[free[place][1]]
        if block.segment.is_expandable:
            # A block that can grow counts with all it can grow by.
            while self.settings.expandable_segments and place + 1 < len(free):
                following = pool.free_at[free[place + 1][1]]
                if not block.segment.is_expandable or _size_with_growth(following) >= _size_with_growth(block):
                    break
                place, block = place + 1, following
            while not self.settings.expandable_segments and block.segment.is_expandable:
                place += 1
                if place == len(free):
                    return None
                block = pool.free_at[free[place][1]]
        limit = self.settings.max_split_bytes
        if limit is not None and (block.size >= limit if size < limit else block.size >= size + LARGE_SEGMENT_BYTES):
            return None
        del free[place], pool.free_at[block.address]
        return block

    def _split(self, block: Block, size: int) -> None:
        """Make what a block has more than it is asked for a free block, where that is worth it."""
        rest, pool, limit = block.size - size, block.segment.pool, self.settings.max_split_bytes
        if pool.is_small or self.settings.expandable_segments:
            splits = rest >= _ROUND_BYTES
        else:
            splits = rest > SMALL_BYTES and (limit is None or size < limit)
        if splits:
            pool.add(_cut(block, size))

    def _merge(self, block: Block) -> None:
        """Add the neighbours of a block that are free, or not mapped, as it is."""
        before, after = block.before, block.after
        if before is not None and not before.in_use and before.is_mapped == block.is_mapped:
            _remove(before)
            block.address = before.address
            block.size += before.size
            _link(before.before, block)
        if after is not None and not after.in_use and after.is_mapped == block.is_mapped:
            _remove(after)
            block.size += after.size
            _link(block, after.after)

    def _reserve(self, pool: _Pool, size: int) -> Block | None:
        """A block from the device, if need be in place of what is free; None where there is no room."""
        if self._capacity is None:
            return self._reserve_once(pool, size)
        self._collect_garbage(self._capacity)
        block = self._reserve_once(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._reserve_once(pool, size)
        if block is None:
            self.release_cached()
            block = self._reserve_once(pool, size)
        return block

    def _reserve_once(self, pool: _Pool, size: int) -> Block | None:
        if self.settings.expandable_segments:
            return self._expand(pool, size)
        if pool.is_small:
            bytes_ = SMALL_SEGMENT_BYTES
        elif size < _OWN_SEGMENT_BYTES:
            bytes_ = LARGE_SEGMENT_BYTES
        else:
            bytes_ = _round_up(size, _ROUND_LARGE_BYTES)
        if not self._has_room(bytes_):
            return None
        self.reserved_bytes += bytes_
        address = self._address(bytes_)
        insort(self._segments, (address, address + bytes_))
        return Block(address, bytes_, Segment(address, pool, is_expandable=False))

    def _has_room(self, size: int) -> bool:
        return self._capacity is None or self.reserved_bytes + size <= self._capacity

    def _address(self, size: int) -> int:
        """The address of a new segment: that of the recording, where it is free."""
        recorded = self._recorded.get(size)
        if recorded:
            address = recorded.popleft()
            place = bisect_left(self._segments, (address + size,))
            if not place or self._segments[place - 1][1] <= address:
                self._next_address = max(self._next_address, address + size)
                return address
        self._next_address += size
        return self._next_address - size

    def _expand(self, pool: _Pool, size: int) -> Block | None:
        """A block at the lowest address at which one can be made of free and unmapped ones."""
        block = self._expandable_block(pool, size)
        if not block.is_mapped and not self._map(block, min(size, block.size)):
            return None
        while block.size < size:
            following = block.after
            if following is None or not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # which has taken in the one before
        pool.remove(block)
        return block

    def _expandable_block(self, pool: _Pool, size: int) -> Block:
        for _, block in pool.unmapped:
            before = block.before
            first = before if before is not None and not before.in_use else block
            available, last = first.size, first
            while available < size and (following := last.after) is not None and not following.in_use:
                available, last = available + following.size, following
            if available >= size:
                return first
        self._next_address = _round_up(self._next_address, LARGE_SEGMENT_BYTES)
        segment = Segment(self._next_address, pool, is_expandable=True)
        block = Block(segment.address, EXPANDABLE_ADDRESSES, segment)
        self._next_address += EXPANDABLE_ADDRESSES
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map whole pages at the begin of an unmapped block; False where there is no room for them."""
        pool = block.segment.pool
        mapped = min(_round_up(size, pool.page_bytes), block.size)
        if not self._has_room(mapped):
            return False
        pool.remove_unmapped(block)
        block.is_mapped = True
        if mapped < block.size:
            pool.add_unmapped(_cut(block, mapped))
        self.reserved_bytes += mapped
        self._merge(block)
        pool.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Give back the whole pages in a free block of an expandable segment."""
        pool = block.segment.pool
        begin, end = block.pages
        if end <= begin:
            return
        pool.remove(block)
        if begin > block.address:
            before = Block(block.address, begin - block.address, block.segment)
            _link(block.before, before)
            _link(before, block)
            pool.add(before)
        if end < block.address + block.size:
            pool.add(_cut(block, end - block.address))
        block.address, block.size, block.is_mapped = begin, end - begin, False
        self.reserved_bytes -= block.size
        self._merge(block)
        pool.add_unmapped(block)

    def _give_back(self, block: Block) -> None:
        """Give a free segment back."""
        block.segment.pool.remove(block)
        del self._segments[bisect_left(self._segments, (block.address,))]
        self.reserved_bytes -= block.size

    def _release_oversize(self, pool: _Pool, size: int) -> bool:
        """Give back free segments that are too large to be split, until there is room; whether there is."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        wanted, place = max(size, limit), bisect_left(pool.free, (max(size, limit), 0))
        released, taken = 0, pool.free[place : place + 1] or [each for each in reversed(pool.free) if each[0] >= limit]
        for length, address in taken:
            block = pool.free_at[address]
            if released < wanted and not block.is_split:
                self._give_back(block)
                released += length
        return released >= wanted

    def _collect_garbage(self, capacity_bytes: int) -> None:
        """Give back the free segments that were not used for longest, where more is reserved than the threshold."""
        threshold = self.settings.garbage_collection_threshold
        target = self.reserved_bytes - int(threshold * capacity_bytes)
        if not threshold or target <= 0:
            return
        pools = [pool for pool in self._pools.values() if not pool.is_small and not pool.is_private]
        blocks = [block for pool in pools for block in pool.free_blocks() if not block.is_split]
        reclaimed = 0
        while reclaimed < target and blocks:
            age = {id(block): self._searches - block.freed_at for block in blocks}
            average = sum(age.values()) / len(blocks)
            for block in blocks:
                if age[id(block)] >= average:
                    self._give_back(block)
                    reclaimed += block.size
            blocks = [block for block in blocks if age[id(block)] < average]


def _cut(block: Block, size: int) -> Block:
    """Shorten a block to a size; returns the rest, which stands behind it."""
    rest = Block(block.address + size, block.size - size, block.segment)
    block.size = size
    _link(rest, block.after)
    _link(block, rest)
    return rest


def _link(before: Block | None, after: Block | None) -> None:
    if before is not None:
        before.after = after
    if after is not None:
        after.before = before


def _remove(block: Block) -> None:
    if block.is_mapped:
        block.segment.pool.remove(block)
    else:
        block.segment.pool.remove_unmapped(block)


def _size_with_growth(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step
