"""Byte strings become numbers: a hash table whose parts are given by their addresses."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.trace.kernel.machine import compiled, load, shifted, store
from perfdoctor.trace.layout import GROW

_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)


class Table(NamedTuple):
    """A table of interned byte strings, by the addresses of its parts; `perfdoctor.trace.scan.Interner` owns them."""

    hashes: int
    ids: int
    mask: int
    offsets: int
    arena: int
    room: int
    size: int


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
def _same(one: int, other: int, length: int) -> bool:
    """Whether bytes at two addresses are the same."""
    while length >= 8:
        if load(one) != load(other):
            return False
        one += 8
        other += 8
        length -= 8
    return length == 0 or ((load(one) ^ load(other)) & ((1 << (8 * length)) - 1)) == 0


@compiled
def find(start: int, stop: int, mixed: int, table: Table) -> int:
    """The id of bytes in a table, or minus the place for them, less one."""
    place = shifted(mixed, 20) & table.mask
    while True:
        number = load(table.ids + 8 * place)
        if number == 0:
            return -place - 1
        if load(table.hashes + 8 * place) == mixed:
            begin = load(table.offsets + 8 * (number - 1))
            length = load(table.offsets + 8 * number) - begin
            if length == stop - start and _same(start, table.arena + begin, length):
                return number - 1
        place = (place + 1) & table.mask


@compiled
def put(start: int, stop: int, mixed: int, place: int, table: Table) -> int:
    """A new id for bytes, or GROW where the table has no room: it is at most half full, with 16 bytes to spare."""
    count = load(table.size)
    begin = load(table.offsets + 8 * count)
    if begin + (stop - start) + 16 > table.room or 2 * (count + 1) > table.mask:
        return GROW
    for at in range(0, stop - start, 8):
        store(table.arena + begin + at, load(start + at))
    store(table.offsets + 8 * (count + 1), begin + (stop - start))
    store(table.hashes + 8 * place, mixed)
    store(table.ids + 8 * place, count + 1)
    store(table.size, count + 1)
    return count


@compiled
def interned(start: int, stop: int, table: Table) -> int:
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


@compiled
def table_at(at: int) -> Table:
    """A table from the addresses of its parts, which lie at an address."""
    return Table(load(at), load(at + 8), load(at + 16), load(at + 24), load(at + 32), load(at + 40), load(at + 48))
