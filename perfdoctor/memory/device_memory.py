"""The memory of one device: its peak, and what is allocated then, by what it is for and by where it was made.

At every instant the parts add up to what is allocated, to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from perfdoctor.analysis.forward_ops import ForwardOps
from perfdoctor.analysis.host.locations import SourceLocation, parse_user_frame
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.allocations import Allocations, pair_events
from perfdoctor.memory.categories import ACTIVATIONS, BEFORE_RECORDING, CATEGORIES, UNKNOWN, categorize, is_cut_off
from perfdoctor.memory.evidence import Evidence, Phases, evidence_of, phases_of, releases_graph
from perfdoctor.places.name_places import find_lines
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import EndState, Trace

_CPU = 0  # c10::DeviceType
_MIN_LARGE = 1e-4
# Stacks of a snapshot begin in C++, where many functions have no line.
_NOT_PYTHON = re.compile(r"\(0\): |\.(c|cc|cpp|cu|cuh|h|hpp)\(\d+\): ")


@frozen_dataclass(eq=False)
class DeviceMemory:
    """The recorded memory of one device.

    Attributes:
        trace: The trace or snapshot.
        joins: The forward ops of its backward passes.
        rows: The events of the device, rows of `trace.memory`.
        device_type: As `c10::DeviceType`: 0 for the CPU.
        device: Its number; NONE for the CPU.
    """

    trace: Trace
    joins: ForwardOps
    rows: Int64Array
    device_type: int
    device: int

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the CPU."""
        return self.device_type == _CPU

    @property
    def end(self) -> EndState | None:
        """The state at the end, which only a snapshot has."""
        return self.trace.memory_ends.get(self.device)

    @cached_property
    def allocations(self) -> Allocations:
        """The allocations."""
        return pair_events(self.trace.memory, self.rows, 0 if self.end is None else self.end.opening_events)

    @cached_property
    def is_consistent(self) -> bool:
        """Whether the events fit their totals and, in a snapshot, lead to its end."""
        if self.end is not None:
            return self.end.is_consistent
        memory, rows = self.trace.memory, self.rows
        follows = np.diff(memory.allocated_bytes[rows]) == memory.bytes[rows[1:]]
        return bool(follows.all()) and self.allocations.unlisted_bytes >= 0

    @cached_property
    def peak(self) -> Peak | None:
        """The first instant at which most is allocated; None where only an end state is known, or nothing fits."""
        rows = self.allocations.rows
        if not self.is_consistent or not (self.trace.memory.bytes[rows] != 0).any():
            return None
        return Peak(self, int(self.trace.memory.allocated_bytes[rows].argmax()))

    @property
    def capacity_bytes(self) -> int | None:
        """The memory of the device; None where the recording does not say."""
        return None if self.is_cpu else self.trace.device.memory_bytes

    @cached_property
    def large(self) -> Selection:
        """The recorded allocations of a ten-thousandth of the peak or more: what fixes are about."""
        allocations, peak_bytes = self.allocations, 0 if self.peak is None else self.peak.allocated_bytes
        is_large = (allocations.begins >= 0) & (allocations.bytes >= max(peak_bytes * _MIN_LARGE, 1))
        return Selection(self, np.flatnonzero(is_large))

    @cached_property
    def phases(self) -> Phases:
        """The phase of each event."""
        return phases_of(self.trace, self.joins, self.allocations.rows)

    @cached_property
    def failed_request(self) -> int | None:
        """The place of the last event at which there was no room for what was asked for; None where there is none."""
        failed = np.flatnonzero(self.trace.memory.requested_bytes[self.allocations.rows])
        return int(failed[-1]) if len(failed) else None

    def origin_of(self, place: int) -> tuple[SourceLocation | None, str | None]:
        """The user's line and the op of an event; None where they are not known."""
        rows = self.allocations.rows[[place]]
        evidence = evidence_of(self.trace, self.joins, rows)
        locations, [line] = _lines_of(self, rows, evidence)
        [op] = evidence.op_name
        return None if line == NONE else locations[line], None if op == NONE else evidence.op_names[op]


@frozen_dataclass(eq=False)
class Peak:
    """What is allocated on a device after one of its events: its holders, and as the last one what no event names.

    Attributes:
        memory: The device.
        place: The event, a place in `memory.allocations.rows`.
    """

    memory: DeviceMemory
    place: int

    @property
    def row(self) -> int:
        """The event, a row of `Trace.memory`."""
        return int(self.memory.allocations.rows[self.place])

    @property
    def allocated_bytes(self) -> int:
        """What is allocated; of a snapshot as it was requested, in a trace rounded as the allocator does."""
        return int(self.memory.trace.memory.allocated_bytes[self.row])

    @property
    def reserved_bytes(self) -> int | None:
        """What the allocator holds of the device; None where there is no such allocator, as on the CPU."""
        reserved = int(self.memory.trace.memory.reserved_bytes[self.row])
        return reserved if reserved > 0 else None

    @property
    def time_ns(self) -> int | None:
        """When it is; None where the snapshot does not say."""
        time_ns = int(self.memory.trace.memory.time_ns[self.row])
        return None if time_ns == NONE else time_ns

    @property
    def phase(self) -> int:
        """The part of the loop, an index into `evidence.PHASES`."""
        return int(self.memory.phases.phase[self.place])

    @cached_property
    def holders(self) -> Selection:
        """The allocations that hold memory then."""
        return Selection(self.memory, np.flatnonzero(self.memory.allocations.alive_at(self.place)))

    @cached_property
    def bytes(self) -> Int64Array:
        """The size of each holder, and as the last one what was allocated before the recording and no event names."""
        return np.append(self.holders.bytes, self.memory.allocations.unlisted_bytes)

    @cached_property
    def categories(self) -> Int8Array:
        """For each of `bytes` an index into `CATEGORIES`."""
        return np.append(self.holders.categories, np.int8(BEFORE_RECORDING))

    @property
    def has_origin(self) -> BoolArray:
        """Which of `bytes` have an event that says where they were allocated."""
        return np.append(self.holders.origin != NONE, False)

    @cached_property
    def lines(self) -> tuple[Sequence[SourceLocation], Int32Array]:
        """The user's lines, each once, and for each of `bytes` the number of its own; NONE where it is not known."""
        locations, code = self.holders.lines
        return locations, np.append(code, NONE).astype(np.int32)


@frozen_dataclass(eq=False)
class Selection:
    """Some allocations of a device, and what is known of each.

    Attributes:
        memory: The device.
        places: Places in the columns of `memory.allocations`.
    """

    memory: DeviceMemory
    places: Int64Array

    @property
    def bytes(self) -> Int64Array:
        """The size of each."""
        return self.memory.allocations.bytes[self.places]

    @property
    def origin(self) -> Int64Array:
        """The row of `Trace.memory` that says where each was made; NONE where none does."""
        return self.memory.allocations.origin[self.places]

    @cached_property
    def evidence(self) -> Evidence:
        """Where each was made; of one whose event is not recorded it says nothing that holds."""
        return evidence_of(self.memory.trace, self.memory.joins, self.origin)

    def made_by(self, pattern: str) -> BoolArray:
        """Which were made by an op whose name, without its overload, matches all of a regular expression."""
        names = re.compile(rf"aten::({pattern})(_[A-Z]\w*|_(int|dim|self)\w*)?")
        known = [names.fullmatch(name) is not None for name in self.evidence.op_names]
        result: BoolArray = np.array([*known, False])[self.evidence.op_name]
        return result

    def is_for(self, *categories: int) -> BoolArray:
        """Which are for one of some purposes, indices into `CATEGORIES`."""
        return np.isin(self.categories, categories)

    @cached_property
    def categories(self) -> Int8Array:
        """What each is for, an index into `CATEGORIES`.

        Of a forward pass in which the recording ends nobody sees that its backward pass frees what it keeps: large
        values of modules, of the size and op of activations before, are activations.
        """
        large, allocations = self.memory.large, self.memory.allocations
        result = self._by_life.copy()
        is_alike = np.isin(self._kind, large._kind[large._by_life == ACTIVATIONS])
        is_unfinished = is_cut_off(allocations, self.places, self.memory.phases)
        result[is_alike & is_unfinished & self.evidence.in_module & (result == UNKNOWN)] = ACTIVATIONS
        return result

    @property
    def _kind(self) -> Int64Array:
        """A number for the op and the size of each."""
        result: Int64Array = self.bytes * (len(self.evidence.op_names) + 1) + self.evidence.op_name
        return result

    @cached_property
    def _by_life(self) -> Int8Array:
        """What each is for by when it was made and freed."""
        memory, allocations = self.memory, self.memory.allocations
        released = np.zeros(len(self.places), bool)
        if memory.trace.stacks:
            ends = allocations.ends[self.places]
            freed = np.flatnonzero(ends < len(allocations.rows))
            released[freed] = releases_graph(memory.trace, allocations.rows[ends[freed]])
        return categorize(allocations, self.places, memory.phases, self.evidence, released)

    @cached_property
    def lines(self) -> tuple[Sequence[SourceLocation], Int32Array]:
        """The user's lines, each once, and for each allocation the number of its own; NONE where it is not known.

        What a trace says was made in a backward pass belongs to the line of its forward op.
        """
        return _lines_of(self.memory, self.origin, self.evidence)


def bytes_of_categories(memory: DeviceMemory, shown: Int64Array) -> Int64Array:
    """For each of `CATEGORIES` a row of what is allocated for it after each of some events, ascending places.

    A column adds up to all that is allocated then. For example, with events 1 and 4 shown, what is made at event 2 and
    freed at event 4 is 0 in both.
    """
    allocations = memory.allocations
    categories = Selection(memory, np.arange(len(allocations.bytes))).categories
    changes = np.zeros((len(CATEGORIES), len(shown) + 1), np.int64)  # the last column is behind all that is shown
    np.add.at(changes, (categories, np.searchsorted(shown, allocations.begins)), allocations.bytes)
    np.subtract.at(changes, (categories, np.searchsorted(shown, allocations.ends)), allocations.bytes)
    changes[BEFORE_RECORDING, 0] += allocations.unlisted_bytes
    result: Int64Array = changes[:, :-1].cumsum(axis=1)
    return result


@frozen_dataclass
class MemorySpan:
    """The memory of a device in a stretch of time, in bytes: at its begin and its end, and the most in between."""

    begin_bytes: int
    peak_bytes: int
    end_bytes: int


def spans_of(memory: DeviceMemory, intervals: Int64Array) -> list[MemorySpan]:
    """The memory of a device in some stretches of time, such as steps: rows of start and end."""
    table, rows = memory.trace.memory, memory.allocations.rows
    allocated = table.allocated_bytes[rows]
    before_bytes = int(allocated[0] - table.bytes[rows[0]]) if len(rows) else 0
    totals = np.concatenate(([before_bytes], allocated))  # after so many events
    first, last = np.searchsorted(table.time_ns[rows], intervals.T)
    return [
        MemorySpan(int(totals[begin]), int(totals[begin : end + 1].max()), int(totals[end]))
        for begin, end in zip(first.tolist(), last.tolist(), strict=True)
    ]


def memory_of_devices(trace: Trace, joins: ForwardOps) -> tuple[DeviceMemory, ...]:
    """The memory of each device of a trace: those with the highest peak first, the CPU last."""
    kind, number = trace.memory.device_type, trace.memory.device
    found = [
        DeviceMemory(trace, joins, rows, device_type, device)
        for device_type in distinct(kind).tolist()
        for device in distinct(number[kind == device_type]).tolist()
        for rows in [np.flatnonzero((kind == device_type) & (number == device))]
    ]
    return tuple(
        sorted(found, key=lambda each: (each.device_type == _CPU, -int(trace.memory.allocated_bytes[each.rows].max())))
    )


def _lines_of(
    memory: DeviceMemory, rows: Int64Array, evidence: Evidence
) -> tuple[Sequence[SourceLocation], Int32Array]:
    """The user's lines, each once, and the number of that of each of some events, rows of `Trace.memory` or NONE."""
    trace = memory.trace
    if trace.stacks:
        locations, of_stack = _lines_of_stacks(trace)
        return locations, np.where(rows >= 0, of_stack[trace.memory.stack[rows]], np.int32(NONE))
    at_ns = np.where(rows >= 0, trace.memory.time_ns[rows], NONE)
    places, code = find_lines(trace, memory.joins, at_ns, trace.memory.thread[rows], evidence.op)
    return [each.location for each in places if each.location is not None], code


def _lines_of_stacks(trace: Trace) -> tuple[list[SourceLocation], Int32Array]:
    """The user's lines, each once, and for each stack the number of the innermost; NONE for a stack without one."""
    of_frame = [None if _NOT_PYTHON.search(text) else parse_user_frame(text) for text in trace.strings]
    number_of: dict[SourceLocation, int] = {}
    code = np.full(len(trace.stacks) + 1, NONE, np.int32)
    for row, stack in enumerate(trace.stacks):
        location = next((of_frame[each] for each in stack if of_frame[each] is not None), None)
        if location is not None:
            code[row] = number_of.setdefault(location, len(number_of))
    return list(number_of), code
