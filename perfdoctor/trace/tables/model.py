"""Trace: the content of a trace file, as tables of numpy columns.

A Trace is a value: frozen, one row for each event, int64 nanoseconds, every string coded once. The tables are sorted by
start. A column of ids holds NONE (-1) where the file says nothing. A column of rows points to rows of another table
(`gpu.call`, `gpu.op`, `calls.op`), and holds NONE where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables.distinct import occurring

KERNEL, MEMCPY, MEMSET = 0, 1, 2


def _ints() -> Int64Array:
    return np.empty(0, np.int64)


def _codes() -> Int32Array:
    return np.empty(0, np.int32)


def _flags() -> BoolArray:
    return np.zeros(0, bool)


@frozen_dataclass(weakref_slot=True, eq=False)
class Table:
    """Events of one kind.

    Attributes:
        start_ns: Start of each event.
        end_ns: End of each event, never before its start.
        name: Name of each event, as a code into `Trace.strings`.
    """

    start_ns: Int64Array = field(default_factory=_ints)
    end_ns: Int64Array = field(default_factory=_ints)
    name: Int32Array = field(default_factory=_codes)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def dur_ns(self) -> Int64Array:
        """Duration of each row in nanoseconds."""
        return self.end_ns - self.start_ns


_Matches: TypeAlias = dict[str | re.Pattern[str], BoolArray]
_NAMES: WeakKeyDictionary[Table, tuple[tuple[int, ...], _Matches]] = WeakKeyDictionary()
"""The codes of the names in a table, and which strings match a pattern: rules ask the same over and over."""
_FEW_NAMES = 5
"""Up to so many codes are compared with the column of names one by one."""


@frozen_dataclass(eq=False)
class GpuItems(Table):
    """Kernels, copies and memory sets that ran on the device.

    Attributes:
        kind: KERNEL, MEMCPY or MEMSET.
        device: Number of the device.
        stream: Id of the stream.
        correlation: Id that the item shares with its launching call.
        call: Row of the launching call in `Trace.calls`.
        op: Row in `Trace.ops` of the innermost op around that call.
        bytes: Size of a copy or memory set.
        blocks: Thread blocks of a kernel's grid.
        process: The rank in a file of several ranks; 0 in a file of one.
    """

    kind: Int8Array = field(default_factory=lambda: np.empty(0, np.int8))
    device: Int32Array = field(default_factory=_codes)
    stream: Int64Array = field(default_factory=_ints)
    correlation: Int64Array = field(default_factory=_ints)
    call: Int32Array = field(default_factory=_codes)
    op: Int32Array = field(default_factory=_codes)
    bytes: Int64Array = field(default_factory=_ints)
    blocks: Int64Array = field(default_factory=_ints)
    process: Int32Array = field(default_factory=_codes)


@frozen_dataclass(eq=False)
class Calls(Table):
    """Runtime and driver calls (cudaLaunchKernel, hipMemcpyWithStream, ...).

    Attributes:
        thread: Index into `Trace.threads`.
        correlation: Id that the call shares with the items that it launches.
        op: Row in `Trace.ops` of the innermost op around the call.
    """

    thread: Int32Array = field(default_factory=_codes)
    correlation: Int64Array = field(default_factory=_ints)
    op: Int32Array = field(default_factory=_codes)


@frozen_dataclass(eq=False)
class Ops(Table):
    """Operators on the CPU.

    Attributes:
        thread: Index into `Trace.threads`.
        external_id: Id by which GPU items without a launching call name their op.
        parent: Row of the op around the op on its thread.
        dims: Shapes of the inputs, as the code of a JSON text; so are the following.
        types: Types of the inputs.
        strides: Strides of the inputs.
        concrete: Values of the inputs that are not tensors.
        sequence: Number that autograd gives to a forward op, and to the node of its backward pass. Each thread counts
            its own; several ops have the same number where only the last of them made a node.
    """

    thread: Int32Array = field(default_factory=_codes)
    external_id: Int64Array = field(default_factory=_ints)
    parent: Int32Array = field(default_factory=_codes)
    dims: Int32Array = field(default_factory=_codes)
    types: Int32Array = field(default_factory=_codes)
    strides: Int32Array = field(default_factory=_codes)
    concrete: Int32Array = field(default_factory=_codes)
    sequence: Int64Array = field(default_factory=_ints)


@frozen_dataclass(eq=False)
class Ranges(Table):
    """Annotations: record_function ranges of the user, the optimizer, the DataLoader and the profiler's own steps.

    Attributes:
        thread: Index into `Trace.threads`.
    """

    thread: Int32Array = field(default_factory=_codes)


@frozen_dataclass(eq=False)
class Frames(Table):
    """Calls of Python functions, named ``file(line): function`` with the line of the `def`.

    Attributes:
        thread: Index into `Trace.threads`.
        parent: Row of the calling frame.
    """

    thread: Int32Array = field(default_factory=_codes)
    parent: Int32Array = field(default_factory=_codes)


@frozen_dataclass(eq=False)
class Syncs(Table):
    """Records of category cuda_sync: which stream waited for what.

    Attributes:
        stream: The stream that waits for an event, or that the host waits for.
        correlation: Id that the record shares with its call.
        wait_stream: The stream on which that event was recorded.
        record_correlation: Correlation id of the call that recorded that event.
        process: The rank, as in `GpuItems`.
    """

    stream: Int64Array = field(default_factory=_ints)
    correlation: Int64Array = field(default_factory=_ints)
    wait_stream: Int64Array = field(default_factory=_ints)
    record_correlation: Int64Array = field(default_factory=_ints)
    process: Int32Array = field(default_factory=_codes)


@frozen_dataclass(eq=False)
class Comms:
    """Metadata of collectives and of sends and receives, one row for each event that has some.

    First come GPU items, in their order; an item without metadata has those of the op that issued it. Then come ops, in
    their order. Most of these have a row as GPU item, too; a collective on the CPU (gloo) or a wait has none.

    Attributes:
        gpu: Row in `Trace.gpu`; NONE in the rows of ops.
        op: Row in `Trace.ops`; in the rows of GPU items that of the op which issued the item.
        collective: "allreduce", "_allgather_base", "wait", ..., as the code of a string; so are the next four.
        dtype: "Float", "BFloat16", ...
        group: Name of the process group.
        description: Purpose of the process group.
        ranks: The ranks of the process group as a list, which the profiler may have shortened.
        group_size: How many ranks the process group has.
        in_elements: Elements of the input tensors of this rank.
        out_elements: Elements of the output tensors of this rank.
        sequence: Number of the collective in its process group.
    """

    gpu: Int32Array = field(default_factory=_codes)
    op: Int32Array = field(default_factory=_codes)
    collective: Int32Array = field(default_factory=_codes)
    dtype: Int32Array = field(default_factory=_codes)
    group: Int32Array = field(default_factory=_codes)
    description: Int32Array = field(default_factory=_codes)
    ranks: Int32Array = field(default_factory=_codes)
    group_size: Int64Array = field(default_factory=_ints)
    in_elements: Int64Array = field(default_factory=_ints)
    out_elements: Int64Array = field(default_factory=_ints)
    sequence: Int64Array = field(default_factory=_ints)

    def __len__(self) -> int:
        return len(self.gpu)


@frozen_dataclass(eq=False)
class MemoryEvents:
    """Allocations and frees of tensors' memory, in order of time: [memory] events of a trace, or those of a snapshot.

    A snapshot has no threads, and a trace no stacks. What a snapshot says was allocated before its recording comes
    first, as allocations without a time. A column of amounts holds NONE where the file says nothing.

    Attributes:
        time_ns: When it happened.
        bytes: What was allocated; negative where it was freed, 0 where there was no room for `requested_bytes`.
        requested_bytes: What was asked for and not given; 0 in all other rows.
        address: Where.
        allocated_bytes: What is allocated on the device after it.
        reserved_bytes: What the allocator holds of the device after it.
        device_type: 0 for the CPU, 1 for CUDA, 6 for HIP (`c10::DeviceType`).
        device: Number of the device; NONE for the CPU.
        thread: Index into `Trace.threads`.
        stream: Of a snapshot the stream that the memory belongs to, by its handle.
        stack: Row of `Trace.stacks`.
    """

    time_ns: Int64Array = field(default_factory=_ints)
    bytes: Int64Array = field(default_factory=_ints)
    requested_bytes: Int64Array = field(default_factory=_ints)
    address: Int64Array = field(default_factory=_ints)
    allocated_bytes: Int64Array = field(default_factory=_ints)
    reserved_bytes: Int64Array = field(default_factory=_ints)
    device_type: Int32Array = field(default_factory=_codes)
    device: Int32Array = field(default_factory=_codes)
    thread: Int32Array = field(default_factory=_codes)
    stream: Int64Array = field(default_factory=_ints)
    stack: Int32Array = field(default_factory=_codes)

    def __len__(self) -> int:
        return len(self.time_ns)


@frozen_dataclass
class AllocatorSettings:
    """Settings of PyTorch's CUDA allocator, as in PYTORCH_CUDA_ALLOC_CONF; the defaults are PyTorch's.

    Attributes:
        expandable_segments: Whether it maps pages into reservations of addresses instead of calling cudaMalloc.
        max_split_bytes: Blocks of this size and more are not split; None where all are.
        garbage_collection_threshold: The share of its capacity above which it frees what is cached; 0 for never.
        roundup_power2_divisions: Into how many parts a power of two is divided to round a request up, for requests of
            at most 2 MiB, 4 MiB, and so on; where it is empty or 0, requests are rounded to 512 bytes.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = ()


@frozen_dataclass(eq=False)
class Segments:
    """Memory that the allocator holds of a device, a row each: by cudaMalloc, or mapped into an expandable segment.

    Attributes:
        address: Where it begins.
        bytes: Its size; negative where it is given back.
        place: How many events of the device come before it.
        stream: The stream that it belongs to.
        pool: 0 for the pool of all, other numbers for private ones (as of CUDA graphs); 0 where the file does not say.
        is_small: Whether it is for requests of up to 1 MiB; False where the file does not say.
        is_expandable: Whether it is a part of an expandable segment.
    """

    address: Int64Array = field(default_factory=_ints)
    bytes: Int64Array = field(default_factory=_ints)
    place: Int64Array = field(default_factory=_ints)
    stream: Int64Array = field(default_factory=_ints)
    pool: Int64Array = field(default_factory=_ints)
    is_small: BoolArray = field(default_factory=_flags)
    is_expandable: BoolArray = field(default_factory=_flags)

    def __len__(self) -> int:
        return len(self.address)


@frozen_dataclass(eq=False)
class EndState:
    """What a snapshot says of a device at its end.

    Attributes:
        allocated_bytes: What is allocated, as it was requested.
        reserved_bytes: What the allocator holds of the device.
        is_consistent: Whether the recorded events lead to it.
        opening_events: How many of its events, the first ones, stand for what was allocated before the recording.
        free_bytes: What was free of the device when a request failed for the last time; None where none did.
        segments: What the allocator holds.
        reservations: What it took and gave back in the recording.
        settings: The allocator's settings; the defaults where the file does not say.
    """

    allocated_bytes: int
    reserved_bytes: int
    is_consistent: bool
    opening_events: int
    free_bytes: int | None = None
    segments: Segments = field(default_factory=Segments)
    reservations: Segments = field(default_factory=Segments)
    settings: AllocatorSettings = AllocatorSettings()


@frozen_dataclass
class DeviceProperties:
    """Properties of the device that the GPU items ran on; None where the file does not say."""

    name: str | None = None
    capability: tuple[int, int] | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None


@frozen_dataclass(eq=False)
class Trace:
    """The trace of one rank, or of several that a file holds together (see `split_ranks`).

    Attributes:
        path: The file, as it may stand in a report.
        strings: The strings by code.
        threads: ``"pid/tid"`` of each thread.
        processes: For each thread the process as in `GpuItems`, NONE for a thread of no rank; empty when all are 0.
        gpu: Kernels, copies and memory sets.
        calls: Calls of the runtime and the driver.
        ops: Operators on the CPU.
        ranges: Annotations on the CPU.
        gpu_ranges: The same annotations on the GPU, from the first to the last item that was launched within.
        frames: Python functions.
        syncs: Synchronization records.
        comms: Metadata of collectives.
        memory: Allocations and frees.
        stacks: Of a snapshot the stacks of `memory`, innermost frame first: codes of "file(line): function".
        memory_ends: Of a snapshot the state of each device, by its number, at the end.
        device: The device of the GPU items.
        vendor: "nvidia", "amd" or None.
        rank: The rank of the process; None where the file does not say.
        world_size: How many ranks the job has; None where the file does not say.
        host: A hash that tells one machine from another.
        complete: False for a file that is cut short or damaged.
        warnings: What the reader of a report should know about the file, one sentence each.
        dropped: Events that could not be read.
        base_ns: Nanoseconds to add to the times to get nanoseconds since the epoch; 0 when they are absolute already.
    """

    path: str
    strings: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    gpu: GpuItems = field(default_factory=GpuItems)
    calls: Calls = field(default_factory=Calls)
    ops: Ops = field(default_factory=Ops)
    ranges: Ranges = field(default_factory=Ranges)
    gpu_ranges: Ranges = field(default_factory=Ranges)
    frames: Frames = field(default_factory=Frames)
    syncs: Syncs = field(default_factory=Syncs)
    comms: Comms = field(default_factory=Comms)
    memory: MemoryEvents = field(default_factory=MemoryEvents)
    stacks: tuple[tuple[int, ...], ...] = ()
    memory_ends: Mapping[int, EndState] = field(default_factory=dict)
    device: DeviceProperties = field(default_factory=DeviceProperties)
    vendor: str | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    complete: bool = True
    warnings: tuple[str, ...] = ()
    dropped: int = 0
    base_ns: int = 0

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables of events, in the order of the attributes."""
        return (self.gpu, self.calls, self.ops, self.ranges, self.gpu_ranges, self.frames, self.syncs)

    @property
    def events(self) -> int:
        """Rows of all tables."""
        return sum(len(t) for t in self.tables)

    @property
    def extent_ns(self) -> tuple[int, int]:
        """First start and last end over all tables; (0, 0) for a trace without events."""
        filled = [t for t in self.tables if len(t)]
        if not filled:
            return 0, 0
        return min(int(t.start_ns.min()) for t in filled), max(int(t.end_ns.max()) for t in filled)

    def freeze(self) -> None:
        """Make every column read-only: a Trace is a value."""
        tables: list[Table | Comms | MemoryEvents | Segments] = [*self.tables, self.comms, self.memory]
        for end in self.memory_ends.values():
            tables += [end.segments, end.reservations]
        for table in tables:
            for column in fields(table):
                getattr(table, column.name).flags.writeable = False

    def text(self, code: int) -> str | None:
        """The string of a code; None for -1."""
        return self.strings[code] if code >= 0 else None

    def name_ids(self, table: Table) -> tuple[int, ...]:
        """The codes of the names that occur in a table, ascending."""
        return self._names_and_matches(table)[0]

    def match_rows(self, table: Table, pattern: str | re.Pattern[str]) -> BoolArray:
        """For each row of a table whether the regular expression is found in its name."""
        matches = self.match_strings(table, pattern)
        codes = np.flatnonzero(matches).tolist()
        # Most patterns match few names or none, and a comparison takes a tenth of a look-up.
        if len(codes) > _FEW_NAMES:
            return matches.take(table.name)
        rows = np.zeros(len(table), bool)
        for code in codes:
            rows |= table.name == code
        return rows

    def match_strings(self, table: Table, pattern: str | re.Pattern[str]) -> BoolArray:
        """For each string whether it is a name in a table and the regular expression is found in it; read-only."""
        names, matches = self._names_and_matches(table)
        found = matches.get(pattern)
        if found is None:
            search = re.compile(pattern).search
            found = matches[pattern] = np.zeros(len(self.strings), bool)
            found[[code for code in names if search(self.strings[code])]] = True
            found.flags.writeable = False
        return found

    def _names_and_matches(self, table: Table) -> tuple[tuple[int, ...], _Matches]:
        """The codes of the names of a table, and the patterns that were asked for so far."""
        found = _NAMES.get(table)
        if found is None:
            found = _NAMES[table] = tuple(occurring(table.name).tolist()), {}
        return found
