"""Byte strings become numbers: a hash table, given by the address of its control block of addresses and sizes."""

from __future__ import annotations

from perfdoctor.trace.scanner.intrinsics import compiled, load, shifted, store
from perfdoctor.trace.scanner.layout import GROW, TABLE

HASHES, IDS, MASK, OFFSETS, ARENA, ROOM, SIZE = range(0, 8 * len(TABLE), 8)
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)


@compiled
def hashed(start: int, stop: int) -> int:
    """A hash of bytes, eight at a time; what follows them is readable but does not count."""
    mixed = (stop - start) * _MULTIPLIER
    while stop - start >= 8:
        mixed = (mixed ^ load(start)) * _MULTIPLIER
        mixed ^= shifted(mixed, 29)
        start += 8
    if stop > start:
        rest = load(start) & ((1 << (8 * (stop - start))) - 1)
        mixed = (mixed ^ rest) * _MULTIPLIER
        mixed ^= shifted(mixed, 29)
    return mixed


@compiled
def same(one: int, other: int, length: int) -> bool:
    """Whether bytes at two addresses are the same."""
    while length >= 8:
        if load(one) != load(other):
            return False
        one += 8
        other += 8
        length -= 8
    return length == 0 or ((load(one) ^ load(other)) & ((1 << (8 * length)) - 1)) == 0


@compiled
def find(start: int, stop: int, mixed: int, table: int) -> int:
    """The id of bytes in a table, or minus the place for them, less one."""
    place = shifted(mixed, 20) & load(table + MASK)
    while True:
        number = load(load(table + IDS) + 8 * place)
        if number == 0:
            return -place - 1
        if load(load(table + HASHES) + 8 * place) == mixed:
            begin = load(load(table + OFFSETS) + 8 * (number - 1))
            length = load(load(table + OFFSETS) + 8 * number) - begin
            if length == stop - start and same(start, load(table + ARENA) + begin, length):
                return number - 1
        place = (place + 1) & load(table + MASK)


@compiled
def put(start: int, stop: int, mixed: int, place: int, table: int) -> int:
    """A new id for bytes, or GROW where the table has no room: it is at most half full, with 16 bytes to spare."""
    count = load(load(table + SIZE))
    begin = load(load(table + OFFSETS) + 8 * count)
    if begin + (stop - start) + 16 > load(table + ROOM) or 2 * (count + 1) > load(table + MASK):
        return GROW
    for at in range(0, stop - start, 8):
        store(load(table + ARENA) + begin + at, load(start + at))
    store(load(table + OFFSETS) + 8 * (count + 1), begin + (stop - start))
    store(load(table + HASHES) + 8 * place, mixed)
    store(load(table + IDS) + 8 * place, count + 1)
    store(load(table + SIZE), count + 1)
    return count


@compiled
def interned(start: int, stop: int, table: int) -> int:
    """The id of bytes, a new one if need be; GROW where there is no room for one."""
    mixed = hashed(start, stop)
    number = find(start, stop, mixed, table)
    return number if number >= 0 else put(start, stop, mixed, -number - 1, table)


@compiled
def rehash(hashes: int, ids: int, new_hashes: int, new_ids: int, size: int) -> int:
    """Put the ids of a table of `size` places into one of four times that size, given by their addresses."""
    for place in range(size):
        number = load(ids + 8 * place)
        if number != 0:
            mixed = load(hashes + 8 * place)
            new = shifted(mixed, 20) & (4 * size - 1)
            while load(new_ids + 8 * new) != 0:
                new = (new + 1) & (4 * size - 1)
            store(new_hashes + 8 * new, mixed)
            store(new_ids + 8 * new, number)
    return 0
