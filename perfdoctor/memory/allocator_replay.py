"""What the CUDA allocator would reserve with some allocations smaller, or not there for some time, or other settings.

What is allocated is a sum, and exact. What is reserved is what a model of the allocator takes for the
same requests in the same order, from the segments and blocks of the beginning of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.allocations import Allocations
from perfdoctor.memory.caching_allocator import Block, CachingAllocator, Segment, round_sizes
from perfdoctor.memory.device_memory import DeviceMemory
from perfdoctor.memory.memory_edits import MemoryEdit, peak_after
from perfdoctor.memory.opening_segments import OpeningSegment, opening_segments
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import AllocatorSettings, Segments

TRUSTED_SHARE = 0.02
"""How far the replayed peak of what is reserved may be from the recorded one."""


@frozen_dataclass
class FailedRequest:
    """A request for which there was no room.

    Attributes:
        place: The event at which it was made, a place in `Allocations.rows`; NONE before the first one.
        bytes: What was asked for, rounded.
        allocated_bytes: What the blocks in use took.
        reserved_bytes: What was reserved, after all that can be was given back.
        largest_free_bytes: The largest free block that it could have had.
    """

    place: int
    bytes: int
    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int


@frozen_dataclass(eq=False)
class Replay:
    """What the allocator makes of the requests.

    Attributes:
        blocks_bytes: What the blocks in use take after each event: what was requested, rounded up.
        reserved_bytes: What is reserved after each event.
        segments: The blocks of each segment at the end.
        failed: The first request for which there was no room, which ends the replay; None where all had room.
        served: Whether there was room for what was refused in the recording; None where nothing was, or with no limit.
    """

    blocks_bytes: Int64Array
    reserved_bytes: Int64Array
    segments: tuple[tuple[Block, ...], ...]
    failed: FailedRequest | None
    served: bool | None

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that is reserved after an event."""
        return int(self.reserved_bytes.max(initial=0))


@frozen_dataclass
class Savings:
    """What is left of a device's peaks, in bytes.

    Attributes:
        peak_allocated_bytes: The most that is allocated: exact.
        peak_reserved_bytes: The most that is reserved, by the replay; None where the replay is not to be trusted.
        reason: Why `peak_reserved_bytes` is None, as a sentence; None where it is known.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    reason: str | None


_SLOTS = 4  # what may happen at an event, in its order
_RELEASE, _EDITED_FREE, _EDITED_MAKE, _OWN = range(_SLOTS)


@frozen_dataclass(eq=False)
class _Requests:
    """What is asked for in a replay, a row each: an allocation, or a part of the life of one that an edit changes.

    Attributes:
        which: The allocation.
        bytes: The size.
        make, free: When it is made and freed, as ``event * _SLOTS + slot``; `make` is NONE before the recording.
    """

    which: Int64Array
    bytes: Int64Array
    make: Int64Array
    free: Int64Array


def _requests_of(allocations: Allocations, edits: Sequence[MemoryEdit]) -> _Requests:
    """An allocation of which an edit takes some bytes for some events is up to three requests, one after the other."""
    make = np.where(allocations.begins < 0, NONE, allocations.begins * _SLOTS + _OWN)
    free = allocations.ends * _SLOTS + _OWN
    taken = np.empty(0, np.int64)
    parts = []
    for edit in edits:
        left = ~np.isin(edit.places, taken)
        which, removed, begins, ends = (each[left] for each in (edit.places, edit.bytes, edit.begins, edit.ends))
        size = allocations.bytes[which]
        from_start = begins <= np.maximum(allocations.begins[which], 0)
        to_end = ends >= allocations.ends[which]
        shrinks_at = [
            np.where(from_start, make[which], begins * _SLOTS + slot) for slot in (_EDITED_FREE, _EDITED_MAKE)
        ]
        grows_at = [np.where(to_end, free[which], ends * _SLOTS + slot) for slot in (_EDITED_FREE, _EDITED_MAKE)]
        parts += [
            (which, np.where(from_start, 0, size), make[which], shrinks_at[0]),
            (which, size - removed, shrinks_at[1], grows_at[0]),
            (which, np.where(to_end, 0, size), grows_at[1], free[which]),
        ]
        taken = np.append(taken, which)
    whole = np.setdiff1d(np.arange(len(allocations.bytes)), taken)
    parts.append((whole, allocations.bytes[whole], make[whole], free[whole]))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    is_made = columns[1] > 0
    return _Requests(*(column[is_made] for column in columns))


class _Run:
    """A replay while it goes on."""

    def __init__(self, allocator: CachingAllocator, sizes: list[int], pools: list[int], streams: list[int]) -> None:
        self.allocator, self._sizes, self._pools, self._streams = allocator, sizes, pools, streams
        self.blocks: dict[int, Block] = {}
        self.refused: list[tuple[int, int]] = []
        self.failed: FailedRequest | None = None
        self.served: bool | None = None
        self.place = NONE

    def restore(self, opening: Sequence[OpeningSegment], request_of: dict[int, int]) -> list[Segment]:
        """Begin with some segments; blocks of allocations that are no request any more are free."""
        segments = []
        for each in opening:
            blocks = self.allocator.restore(each.key, [block[:3] for block in each.blocks], each.is_expandable)
            segments.append(blocks[0].segment)
            segments[-1].was_used = False
            for part, block in zip(each.blocks, blocks, strict=True):
                if part.which in request_of:
                    self.blocks[request_of[part.which]] = block
                    block.segment.was_used = True
                elif part.which is not None:
                    self.allocator.free(block)
        return segments

    def make(self, request: int) -> None:
        pool, stream, size = self._pools[request], self._streams[request], self._sizes[request]
        block = self.allocator.allocate(size, pool, stream)
        if block is None:
            self._fail(size, pool, stream)
        else:
            self.blocks[request] = block

    def free(self, request: int) -> None:
        self.allocator.free(self.blocks.pop(request))

    def release(self, _: int) -> None:
        self.allocator.release_cached()

    def ask(self, number: int) -> None:
        """Ask for what was refused in the recording. The program goes on as if it was refused again."""
        size, stream = self.refused[number]
        block = self.allocator.allocate(size, stream=stream)
        self.served = block is not None
        if block is not None:
            self.allocator.free(block)

    def _fail(self, size: int, pool: int, stream: int) -> None:
        allocator = self.allocator
        largest = allocator.largest_free_bytes(pool, stream, size)
        self.failed = FailedRequest(self.place, size, allocator.allocated_bytes, allocator.reserved_bytes, largest)

    def play(self, steps: Sequence[tuple[Int64Array, Callable[[int], None], Int64Array]], count: int) -> Replay:
        """Take each step at its time: arrays of times, what to do, and with what. `count` is the number of events."""
        key = np.concatenate([keys for keys, _, _ in steps])
        order = np.argsort(key, kind="stable")
        action = np.repeat(np.arange(len(steps)), [len(keys) for keys, _, _ in steps])[order].tolist()
        value = np.concatenate([values for _, _, values in steps])[order].tolist()
        place = (key[order] // _SLOTS).tolist()
        actions = [act for _, act, _ in steps]
        allocator = self.allocator
        reserved, in_blocks = [allocator.reserved_bytes], [allocator.allocated_bytes]
        for at, number, argument in zip(place, action, value, strict=True):
            if self.failed is not None:
                break
            self.place = at
            actions[number](argument)
            reserved.append(allocator.reserved_bytes)
            in_blocks.append(allocator.allocated_bytes)
        # How many steps were made up to the end of each event.
        last = np.minimum(np.searchsorted(key[order], np.arange(1, count + 1) * _SLOTS), len(reserved) - 1)
        return Replay(
            np.array(in_blocks, np.int64)[last],
            np.array(reserved, np.int64)[last],
            tuple(map(tuple, allocator.segments())),
            self.failed,
            self.served,
        )


@frozen_dataclass(eq=False)
class AllocatorReplay:
    """The replay of the allocator of a device, from what is known of its beginning.

    For example::

        replay = AllocatorReplay(memory)
        if replay.distrust is None:
            expandable = replay.replay(settings=AllocatorSettings(expandable_segments=True))

    Attributes:
        memory: The device.
    """

    memory: DeviceMemory

    @property
    def settings(self) -> AllocatorSettings:
        """The settings of the recording."""
        return self.memory.end.settings if self.memory.end else AllocatorSettings()

    @cached_property
    def recorded_bytes(self) -> Int64Array:
        """What was reserved after each event; no rows where there is no such allocator."""
        reserved = self.memory.trace.memory.reserved_bytes[self.memory.allocations.rows]
        return reserved if not self.memory.is_cpu and (reserved > 0).any() else reserved[:0]

    @cached_property
    def capacity_bytes(self) -> int | None:
        """The most that could be reserved, where a request failed; None where the recording does not say."""
        end, place = self.memory.end, self.memory.failed_request
        if end is None or end.free_bytes is None or place is None:
            return None
        return int(self.recorded_bytes[place]) + end.free_bytes

    @property
    def can_replay(self) -> bool:
        """Whether there is an allocator, and events that fit to what is known of it."""
        opens = self.memory.end is None or self._opening is not None
        return bool(len(self.recorded_bytes)) and self.memory.is_consistent and opens

    @cached_property
    def distrust(self) -> str | None:
        """Why the replay does not say what is reserved, as a sentence; None where it does."""
        if not len(self.recorded_bytes):
            return "There is no caching allocator on this device."
        if not self.memory.is_consistent:
            return "The recorded events do not lead to the state at the end."
        if not self.can_replay:
            return "The blocks at the beginning of the recording do not fit into its segments."
        if self.memory.end is None:
            return "A trace does not say what was cached at its beginning, nor on which streams."
        if self._is_close(self.plain.peak_reserved_bytes):
            return None
        return "The model of the allocator reserves another amount for the recorded requests."

    @cached_property
    def plain(self) -> Replay:
        """The replay without edits, from the segments of the beginning."""
        return self._replay((), self.settings, self.capacity_bytes, self._opening)[0]

    def state_at(self, place: int) -> Replay:
        """The replay without edits up to an event: its segments are those after it."""
        return self._replay((), self.settings, self.capacity_bytes, self._opening, last=place)[0]

    def replay(
        self,
        edits: Sequence[MemoryEdit] = (),
        settings: AllocatorSettings | None = None,
        capacity_bytes: int | None = None,
    ) -> Replay:
        """The replay of a program that has run with some edits, or other settings, from its start on.

        Segments of the beginning of which nothing is used are not there: those edits free, and those that the program
        left over from before. Of expandable segments this holds page by page. With other settings what is allocated at
        the beginning is allocated anew.

        Args:
            edits: The edits.
            settings: The settings of the allocator; None for those of the recording.
            capacity_bytes: The most that can be reserved; None for no limit.
        """
        settings = settings or self.settings
        opening = self._opening if settings == self.settings else None
        result, was_used = self._replay(edits, settings, capacity_bytes, opening, trims_pages=True)
        if opening is None or all(was_used):
            return result
        used = [segment for segment, was in zip(opening, was_used, strict=True) if was]
        return self._replay(edits, settings, capacity_bytes, used, trims_pages=True)[0]

    def what_if(self, edits: Sequence[MemoryEdit] = (), settings: AllocatorSettings | None = None) -> Savings:
        """The peaks with some edits, or with other settings of the allocator (None: those of the recording)."""
        reason = self.distrust
        if reason is None and settings not in (None, self.settings) and not self._can_start_anew(settings):
            reason = "Without what was cached at its beginning the model reserves another amount than was recorded."
        reserved = self.replay(edits, settings).peak_reserved_bytes if reason is None else None
        return Savings(peak_after(self.memory, edits), reserved, reason)

    def bytes_saved_by(self, settings: AllocatorSettings, edits: Sequence[MemoryEdit] = ()) -> int:
        """How much lower the peak of what is reserved is with other settings, with the same edits before and after."""
        own, other = (self.replay(edits, each).peak_reserved_bytes for each in (None, settings))
        return max(own - other, 0)

    def _can_start_anew(self, settings: AllocatorSettings | None) -> bool:
        """Whether a replay that allocates anew what is there at the beginning can be compared with the recording.

        Expandable segments hardly depend on what was allocated before (in all recordings at hand not at all), those of
        cudaMalloc do.
        """
        if settings is not None and settings.expandable_segments:
            return True
        return self._is_close(self._replay((), self.settings, None, None)[0].peak_reserved_bytes)

    def _is_close(self, peak_bytes: int) -> bool:
        recorded = int(self.recorded_bytes.max())
        return abs(peak_bytes - recorded) <= TRUSTED_SHARE * recorded

    def _replay(
        self,
        edits: Sequence[MemoryEdit],
        settings: AllocatorSettings,
        capacity_bytes: int | None,
        opening: Sequence[OpeningSegment] | None,
        *,
        trims_pages: bool = False,
        last: int | None = None,
    ) -> tuple[Replay, list[bool]]:
        """The replay up to an event from some segments (`opening`; None for none), and whether each was used."""
        allocations = self.memory.allocations
        count = len(allocations.rows) if last is None else last + 1
        requests = _requests_of(allocations, edits)
        reservations = self.memory.end.reservations if self.memory.end else Segments()
        taken = reservations.bytes > 0
        recorded = zip(reservations.bytes[taken].tolist(), reservations.address[taken].tolist(), strict=True)
        allocator = CachingAllocator(settings, capacity_bytes, recorded)
        pools, streams = self._pools[requests.which].tolist(), self._streams[requests.which].tolist()
        run = _Run(allocator, round_sizes(requests.bytes, settings).tolist(), pools, streams)
        is_open, segments = requests.make < 0, list[Segment]()
        if opening is not None:
            kept = np.flatnonzero(is_open & (requests.bytes == allocations.bytes[requests.which]))
            segments = run.restore(opening, dict(zip(requests.which[kept].tolist(), kept.tolist(), strict=True)))
            if trims_pages and settings.expandable_segments:
                allocator.release_cached()
        elif allocations.unlisted_bytes > 0:
            allocator.allocate(int(round_sizes(np.array([allocations.unlisted_bytes]), settings)[0]))
        for request in np.flatnonzero(is_open).tolist():
            if request not in run.blocks and run.failed is None:
                run.make(request)
        released = distinct(reservations.place[~taken])
        released = released[released < count]
        table, rows = self.memory.trace.memory, allocations.rows[:count]
        refused = np.flatnonzero(table.requested_bytes[rows]) if capacity_bytes is not None else np.empty(0, np.int64)
        asked_bytes = round_sizes(table.requested_bytes[rows[refused]], settings).tolist()
        run.refused = list(zip(asked_bytes, np.maximum(table.stream[rows[refused]], 0).tolist(), strict=True))
        makes = np.flatnonzero(~is_open & (requests.make < count * _SLOTS))
        frees = np.flatnonzero(requests.free < count * _SLOTS)
        result = run.play(
            (
                (released * _SLOTS + _RELEASE, run.release, released),
                (requests.make[makes], run.make, makes),
                (refused * _SLOTS + _OWN, run.ask, np.arange(len(refused))),
                (requests.free[frees], run.free, frees),
            ),
            count,
        )
        return result, [segment.was_used for segment in segments]

    @cached_property
    def _opening(self) -> list[OpeningSegment] | None:
        """The segments at the beginning; None where they are not known, as in a trace."""
        allocations, end = self.memory.allocations, self.memory.end
        if end is None:
            return None
        which = np.flatnonzero(allocations.begins < 0)
        size = round_sizes(allocations.bytes[which], self.settings)
        return opening_segments(end, which, self._addresses[which], size)

    @cached_property
    def _addresses(self) -> Int64Array:
        return self.memory.trace.memory.address[self.memory.allocations.origin]

    @cached_property
    def _pools(self) -> Int64Array:
        """For each allocation its private pool, by where it lies; 0 for none."""
        pools = np.zeros(len(self.memory.allocations.bytes), np.int64)
        at_end = self.memory.end.segments if self.memory.end else Segments()
        private = np.flatnonzero(at_end.pool)
        for each in private.tolist():
            pools[self._is_in(at_end, each)] = at_end.pool[each]
        return pools

    @cached_property
    def _streams(self) -> Int64Array:
        """For each allocation its stream; 0, the default stream, where it is not known."""
        origin = self.memory.allocations.origin
        streams = np.where(origin >= 0, self.memory.trace.memory.stream[origin], NONE)
        at_end = self.memory.end.segments if self.memory.end else Segments()
        for each in np.flatnonzero(at_end.stream).tolist():
            streams[self._is_in(at_end, each) & (streams < 0)] = at_end.stream[each]
        return np.maximum(streams, 0)

    def _is_in(self, segments: Segments, row: int) -> BoolArray:
        distance = self._addresses - segments.address[row]
        result: BoolArray = (self.memory.allocations.origin >= 0) & (distance >= 0) & (distance < segments.bytes[row])
        return result
