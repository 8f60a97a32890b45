"""Trace: what a trace file says, as tables of numpy columns.

A Trace is a value: frozen, one row an event, int64 nanoseconds, every string coded once. The tables are sorted by
start. A column of ids holds -1 where the file says nothing. Rows of one table point to rows of another (`gpu.call`,
`gpu.op`, `calls.op`), also -1 for none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from perfdoctor.trace.arrays import BoolArray, Int8Array, Int32Array, Int64Array

KERNEL, MEMCPY, MEMSET = 0, 1, 2


def _ints() -> Int64Array:
    return np.empty(0, np.int64)


def _codes() -> Int32Array:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Table:
    """Events of one kind: `start_ns` and `end_ns` (int64, end >= start), `name` (code into `Trace.strings`)."""

    start_ns: Int64Array = field(default_factory=_ints)
    end_ns: Int64Array = field(default_factory=_ints)
    name: Int32Array = field(default_factory=_codes)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def dur_ns(self) -> Int64Array:
        """Duration of each row in nanoseconds."""
        return self.end_ns - self.start_ns


_Fits: TypeAlias = dict[re.Pattern[str], BoolArray]
_NAMES: WeakKeyDictionary[Table, tuple[tuple[int, ...], _Fits]] = WeakKeyDictionary()
"""The codes of the names in a table, and which of them fit a pattern: rules ask the same over and over."""
_FEW = 5
"""Up to so many names of a table are compared with its rows one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuItems(Table):
    """Kernels, copies and sets that ran on the device.

    `kind` is KERNEL, MEMCPY or MEMSET; `call` the row of the launching call in `Trace.calls`; `op` the row in
    `Trace.ops` of the innermost op around that call; `bytes` the size of a copy or set; `blocks` the thread blocks of
    a kernel's grid; `process` which of several ranks in the file it belongs to, 0 where there is one.
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


@dataclass(frozen=True, slots=True, eq=False)
class Calls(Table):
    """Runtime and driver calls (cudaLaunchKernel, hipMemcpyWithStream, ...).

    `thread` is an index into `Trace.threads`.
    """

    thread: Int32Array = field(default_factory=_codes)
    correlation: Int64Array = field(default_factory=_ints)
    op: Int32Array = field(default_factory=_codes)


@dataclass(frozen=True, slots=True, eq=False)
class Ops(Table):
    """Operators on the CPU. `parent` is the row of the op around it on its thread.

    `dims`, `types`, `strides` and `concrete` are codes of JSON texts.
    """

    thread: Int32Array = field(default_factory=_codes)
    external_id: Int64Array = field(default_factory=_ints)
    parent: Int32Array = field(default_factory=_codes)
    dims: Int32Array = field(default_factory=_codes)
    types: Int32Array = field(default_factory=_codes)
    strides: Int32Array = field(default_factory=_codes)
    concrete: Int32Array = field(default_factory=_codes)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Table):
    """Annotations: record_function ranges of the user, of the optimizer, of the DataLoader.

    Of the profiler itself (`ProfilerStep#`).
    """

    thread: Int32Array = field(default_factory=_codes)


@dataclass(frozen=True, slots=True, eq=False)
class Frames(Table):
    """Python functions, named ``file(line).

    Function`` with the line of the `def`; `parent` is the calling frame's row.
    """

    thread: Int32Array = field(default_factory=_codes)
    parent: Int32Array = field(default_factory=_codes)


@dataclass(frozen=True, slots=True, eq=False)
class Syncs(Table):
    """Records of category cuda_sync.

    `stream` waits (or is waited for by the host) for what `wait_stream` had recorded; `process` as for GPU items.
    """

    stream: Int64Array = field(default_factory=_ints)
    correlation: Int64Array = field(default_factory=_ints)
    wait_stream: Int64Array = field(default_factory=_ints)
    process: Int32Array = field(default_factory=_codes)


@dataclass(frozen=True, slots=True, eq=False)
class Comms:
    """What the file says of collectives and of sends and receives, a row for each event that it says it of.

    First come GPU items, in their order: `gpu` is the row in `Trace.gpu`, `op` that of the op which issued it, -1 where
    none is known. What the file says of the op counts for the item where it says nothing of the item. Then come ops, in
    theirs: `gpu` is -1 and `op` the row in `Trace.ops`; of most of them GPU items speak too, but on the CPU (gloo), or
    for one that waits, there are none.

    `collective` ("allreduce", "_allgather_base", "wait", ...), `dtype` ("Float", "BFloat16", ...), `group` and
    `description` (name and purpose of the process group) and `ranks` (its ranks as a list, which the profiler may have
    shortened) are codes of strings; `group_size` counts ranks, `in_elements` and `out_elements` the elements of the
    tensors of this rank, `sequence` the collectives of the group.
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


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What the file says about the device that its GPU items ran on; None where it does not say."""

    name: str | None = None
    capability: tuple[int, int] | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One rank's trace.

    `threads` holds ``"pid/tid"`` texts, `processes` for each of them the process as in `GpuItems` (-1: of none of the
    ranks; empty: all 0). `device` describes the device of the GPU items, `vendor` is "nvidia", "amd"
    or None. `complete` is False for a file cut short; `warnings` says in sentences what was odd, `events` counts the
    rows of all tables, `dropped` what could not be read. `base_ns` is what the file says must be added to the times
    to get nanoseconds since the epoch (0 when they are absolute already). `host` tells one machine from
    another; it is not its name.
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
        """All tables of events, in the order of the fields."""
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
        tables: tuple[Table | Comms, ...] = (*self.tables, self.comms)
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
        fits = self.match_strings(table, pattern)
        codes = np.flatnonzero(fits).tolist()
        # Most patterns fit few names or none, and comparing takes a tenth of looking up in the table.
        if len(codes) > _FEW:
            return fits.take(table.name)
        rows = np.zeros(len(table), bool)
        for code in codes:
            rows |= table.name == code
        return rows

    def match_strings(self, table: Table, pattern: str | re.Pattern[str]) -> BoolArray:
        """For each string whether it is a name in a table and the regular expression is found in it; read-only."""
        regex = re.compile(pattern)
        used, fits = self._names_and_matches(table)
        if regex not in fits:
            hits = np.zeros(len(self.strings), bool)
            hits[[code for code in used if regex.search(self.strings[code])]] = True
            hits.flags.writeable = False
            fits[regex] = hits
        return fits[regex]

    def _names_and_matches(self, table: Table) -> tuple[tuple[int, ...], _Fits]:
        """The names of a table, and what was asked of them so far."""
        if table not in _NAMES:
            # Marking the names that occur is much cheaper than sorting the column, and most strings are no names.
            there = np.zeros(len(self.strings), bool)
            there[table.name] = True
            _NAMES[table] = tuple(np.flatnonzero(there).tolist()), {}
        return _NAMES[table]
