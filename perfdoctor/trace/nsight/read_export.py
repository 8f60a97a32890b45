"""Read an export of Nsight Systems (`nsys export --type sqlite`) into a Trace.

Kernels, copies, sets and whole graph launches are read, runtime and driver calls, synchronizations, and NVTX ranges; of
these the ranges that `torch.autograd.profiler.emit_nvtx` pushes become ops. Times are nanoseconds since the session
began.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from perfdoctor.errors import TraceError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import LIMIT_NS, NONE, BoolArray, Int32Array, Int64Array, as_int32
from perfdoctor.trace.nsight import export_names as names
from perfdoctor.trace.nsight.export_devices import device_of, physical_devices
from perfdoctor.trace.nsight.export_files import refuse_report
from perfdoctor.trace.nsight.export_tables import ExportTables
from perfdoctor.trace.nsight.marked_phases import rename_phases
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.links import find_latest, make_rank_keys
from perfdoctor.trace.tables.model import KERNEL, MEMCPY, MEMSET, Calls, GpuItems, Ops, Ranges, Syncs, Trace
from perfdoctor.trace.tables.nesting import innermost, parents
from perfdoctor.trace.tables.string_codes import StringCodes
from perfdoctor.trace.tables.trace_warnings import count_of, link_warnings, merged_warning

Block: TypeAlias = dict[str, Int64Array]
"""Columns of one kind of event, all of one length."""

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")  # only old versions have the second
_SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_NVTX = "NVTX_EVENTS"
_READ = (_KERNELS, _COPIES, _SETS, _GRAPHS, *_CALLS, _SYNCS, _NVTX)

_Wanted: TypeAlias = dict[str, Sequence[str]]

_TIMES: _Wanted = {"start_ns": ("start",), "end_ns": ("end",)}
_ON_THREAD: _Wanted = _TIMES | {"thread": ("globalTid",)}
_ON_DEVICE: _Wanted = _TIMES | {
    "device": ("deviceId",),
    "stream": ("streamId",),
    "correlation": ("correlationId",),
    "pid": ("globalPid",),
}
_GRID: _Wanted = {"x": ("gridX",), "y": ("gridY",), "z": ("gridZ",)}
_KERNEL_NAMES = ("demangledName", "shortName", "mangledName", "name")
_PUSH_POP, _START_END = 59, 60  # ENUM_NSYS_EVENT_TYPE; marks, domains and categories have other numbers
_NO_STREAM = 0xFFFFFFFF  # CUPTI_SYNCHRONIZATION_INVALID_VALUE: the stream of a context's synchronization


def read_nsight(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Trace:
    """Read an SQLite export of Nsight Systems.

    Args:
        path: The file.
        progress: Called now and then with the bytes read so far, and with the size of the file.

    Returns:
        The Trace. A file that is damaged somewhere is read as far as it goes: `complete` is False then.

    Raises:
        TraceError: it cannot be opened, is locked, is not an export of Nsight Systems, or holds no event that is used.
    """
    refuse_report(path)
    tables = ExportTables(path, progress)
    try:
        if not any(table in tables for table in (*_READ, "StringIds")):
            raise TraceError(
                f"{tables.path}: an SQLite database, but no export of Nsight Systems; "
                "make one with `nsys export --type sqlite`"
            )
        tables.expect_rows(_READ)
        return _Reader(tables).read()
    finally:
        tables.close()


@dataclass
class _Reader:
    """Reads one file, table by table; collects `warnings` and counts as `dropped` the events that cannot be used."""

    tables: ExportTables
    strings: StringCodes = field(default_factory=StringCodes)
    warnings: list[str] = field(default_factory=list)
    dropped: int = 0

    def read(self) -> Trace:
        """The Trace.

        Raises:
            TraceError: there is no event in it.
        """
        gpu, calls, syncs = self._read_gpu_items(), self._read_calls(), self._read_syncs()
        ranges, ops = self._read_ranges()
        threads = _Threads.of(calls, ops, ranges)
        ranks = _number_processes(gpu, physical_devices(self.tables))
        linked_ops = _build_ops(ops, threads)
        linked_calls = _build_calls(calls, linked_ops, threads)
        trace = Trace(
            path=self.tables.path,
            strings=tuple(self.strings.texts),
            threads=threads.texts,
            processes=tuple(ranks.get(pid, NONE) for pid in threads.pids) if len(ranks) > 1 else (),
            gpu=_build_gpu_items(gpu, calls, linked_calls, ranks),
            calls=linked_calls,
            ops=linked_ops,
            ranges=Ranges(**_event_columns(ranges), thread=threads.index(ranges)),
            syncs=Syncs(
                **_event_columns(syncs),
                stream=np.where(syncs["stream"] >= _NO_STREAM, NONE, syncs["stream"]),
                correlation=syncs["correlation"],
                wait_stream=np.full(_length(syncs), NONE, np.int64),
                record_correlation=np.full(_length(syncs), NONE, np.int64),
                process=_ranks_of(syncs["pid"], ranks),
            ),
            device=device_of(self.tables, _pid(gpu["pid"]), gpu["device"]),
            vendor="nvidia",
            complete=not self.tables.damaged,
            dropped=self.dropped,
            base_ns=self._session_start(),
        )
        if not trace.events:
            raise self._no_events_error()
        trace.freeze()
        return replace(trace, warnings=tuple(self._collect_warnings(trace, len(ranks))))

    def _read_gpu_items(self) -> Block:
        """Kernels, copies, sets and whole graphs."""
        kernels = self.tables.read_numbers(_KERNELS, _ON_DEVICE | _GRID)
        kernels["blocks"] = _count_blocks(kernels)
        kernels["name"] = self._fill_names(self.tables.read_names(_KERNELS, _KERNEL_NAMES, self.strings), kernels)
        copies = self.tables.read_numbers(_COPIES, _ON_DEVICE | dict(names.COPY_COLUMNS) | {"bytes": ("bytes",)})
        copies["name"] = names.copy_names(self.tables, copies, self.strings)
        sets = self.tables.read_numbers(_SETS, _ON_DEVICE | {"bytes": ("bytes",), "memory": ("memKind",)})
        sets["name"] = names.set_names(self.tables, sets["memory"], self.strings)
        graphs = self.tables.read_numbers(_GRAPHS, _ON_DEVICE | {"graph": ("graphId",)})
        graphs["name"] = names.graph_names(graphs["graph"], self.strings)
        if _length(graphs):
            self.warnings.append(
                f"recorded whole, without the kernels in them: {count_of(_length(graphs), 'CUDA graph')}; "
                "record with --cuda-graph-trace=node to see the kernels"
            )
        kinds = ((kernels, KERNEL), (copies, MEMCPY), (sets, MEMSET), (graphs, KERNEL))
        for block, kind in kinds:
            block["kind"] = np.full(_length(block), kind, np.int64)
            for column in ("bytes", "blocks"):
                block.setdefault(column, np.full(_length(block), NONE, np.int64))
        whole = _concatenate([block for block, _ in kinds])
        # CUPTI writes zero for both where it could not collect the times.
        return self._select_usable(whole, (whole["start_ns"] != 0) | (whole["end_ns"] != 0))

    def _read_calls(self) -> Block:
        """Runtime and driver calls."""
        blocks = []
        for table in _CALLS:
            block = self.tables.read_numbers(table, _ON_THREAD | {"correlation": ("correlationId",)})
            raw = self.tables.read_names(table, ("nameId", "name"), self.strings)
            block["name"] = names.strip_versions(self._fill_names(raw, block), self.strings)
            blocks.append(block)
        return self._select_usable(_concatenate(blocks))

    def _read_syncs(self) -> Block:
        """Synchronization records."""
        block = self.tables.read_numbers(_SYNCS, _ON_DEVICE | {"sync": ("syncType", "deprecatedSyncType")})
        block["name"] = names.sync_names(block["sync"], self.strings)
        return self._select_usable(block)

    def _read_ranges(self) -> tuple[Block, Block]:
        """NVTX ranges, and among them those that are operators."""
        block = self.tables.read_numbers(_NVTX, _ON_THREAD | {"type": ("eventType",), "domain": ("domainId",)})
        raw = StringCodes()
        codes = _pad_codes(self.tables.read_names(_NVTX, ("text", "textId"), raw), block)
        texts = names.parse_range_texts(codes, raw, self.strings)
        block |= {"name": texts.name, "dims": texts.sizes, "op": texts.is_op.astype(np.int64)}
        block["process"] = _pid(block["thread"])
        block["name"] = rename_phases(block, codes, raw, self.strings)
        ranges = _select(block, np.isin(block["type"], (_PUSH_POP, _START_END, NONE)))
        closed = ranges["end_ns"] >= ranges["start_ns"]  # nothing is NULL in new versions, and 0 in old ones
        if not closed.all():
            count = count_of(int((~closed).sum()), "NVTX range")
            self.warnings.append(f"left out because they had not ended with the recording: {count}")
        ranges = self._select_usable(_select(ranges, closed))
        is_op = ranges["op"] == 1
        return _select(ranges, ~is_op), _select(ranges, is_op)

    def _fill_names(self, codes: Int64Array, block: Block) -> Int64Array:
        """Codes of names, as many as the other columns have rows; the empty name where the file has none, or is cut."""
        filled = _pad_codes(codes, block)
        if (filled == NONE).any():
            filled[filled == NONE] = self.strings[""]
        return filled

    def _select_usable(self, block: Block, usable: BoolArray | None = None) -> Block:
        """The rows that can be used, by start, longest first: an event stands before those that it contains."""
        timed = block["start_ns"] != NONE  # a row in a damaged place has no values
        timed &= (block["start_ns"] > -LIMIT_NS) & (np.maximum(block["start_ns"], block["end_ns"]) < LIMIT_NS)
        if usable is not None:
            timed &= usable
        self.dropped += int((~timed).sum())
        block = _select(block, timed)
        order = np.lexsort((-block["end_ns"], block["start_ns"]))
        return {name: column[order] for name, column in block.items()}

    def _session_start(self) -> int:
        """Nanoseconds since the epoch at which the session's clock was zero; 0 where the file does not say."""
        rows = self.tables.read_records("TARGET_INFO_SESSION_START_TIME", {"epoch": ("utcEpochNs",)})
        epoch = rows[0]["epoch"] if rows else None
        return epoch if isinstance(epoch, int) else 0

    def _collect_warnings(self, trace: Trace, ranks: int) -> list[str]:
        """What the reader of a report should know about the file, one sentence each."""
        warnings = list(self.warnings)
        if not trace.complete:
            warnings.insert(
                0, f"the file is cut short or damaged: {count_of(trace.events, 'event')} read, others are missing"
            )
        if trace.dropped:
            warnings.append(f"left out because they cannot be read: {count_of(trace.dropped, 'event')}")
        if self.tables.missing_columns:
            warnings.append(
                f"not in an export of this version, so unknown: {', '.join(dict.fromkeys(self.tables.missing_columns))}"
            )
        warnings += link_warnings(trace)
        if ranks > 1:
            warnings.append("its processes are taken for ranks, numbered in the order of their devices")
            warnings.append(merged_warning(ranks))
        return warnings

    def _no_events_error(self) -> TraceError:
        """The error for an export that makes no trace."""
        if self.tables.damaged:
            why = "the database is damaged or cut short before its first event; export it again"
        else:
            why = "no CUDA activity and no NVTX ranges in this export; record with `nsys profile --trace=cuda,nvtx`"
        return TraceError(f"{self.tables.path}: {why}")


@frozen_dataclass(eq=False)
class _Threads:
    """All threads of the file, one row each: the serialized ids, ascending, the process of each, and its "pid/tid"."""

    ids: Int64Array
    pids: tuple[int, ...]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, *blocks: Block) -> _Threads:
        """The threads of some events."""
        ids = distinct(np.concatenate([block["thread"] for block in blocks]))
        pids = tuple(_pid(ids).tolist())
        tids = (ids & 0xFFFFFF).tolist()
        texts = tuple(f"{max(pid, 0)}/{tid}" for pid, tid in zip(pids, tids, strict=True))
        return cls(ids, pids, texts)

    def index(self, block: Block) -> Int32Array:
        """For each event of a block the index of its thread."""
        return np.searchsorted(self.ids, block["thread"]).astype(np.int32)


def _pid(serialized: Int64Array) -> Int64Array:
    """The process of serialized ids: the bits above the 24 of the thread (NVIDIA's "SQLite Examples")."""
    return np.where(serialized < 0, NONE, (serialized >> 24) & 0xFFFFFF)


def _number_processes(gpu: Block, physical: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """The rank of each process that used a GPU: numbered in the order of their devices, then of their ids."""
    pids, first = np.unique(_pid(gpu["pid"]), return_index=True)
    pairs = list(zip(pids.tolist(), gpu["device"][first].tolist(), strict=True))
    if all(pair in physical for pair in pairs):
        pairs = [(pid, physical[pid, cuda]) for pid, cuda in pairs]
    return {pid: number for number, (pid, _) in enumerate(sorted(pairs, key=lambda pair: (pair[1], pair[0])))}


def _ranks_of(serialized: Int64Array, ranks: Mapping[int, int]) -> Int32Array:
    """For each row the rank of its process, NONE for a process without GPU items; 0 where the file has one process."""
    if len(ranks) < 2:
        return np.zeros(len(serialized), np.int32)
    pids, which = np.unique(_pid(serialized), return_inverse=True)
    return np.array([ranks.get(pid, NONE) for pid in pids.tolist()], np.int32)[which]


def _build_ops(block: Block, threads: _Threads) -> Ops:
    columns, thread = _event_columns(block), threads.index(block)
    nothing = np.full(_length(block), NONE, np.int32)
    return Ops(
        **columns,
        thread=thread,
        external_id=np.full(_length(block), NONE, np.int64),
        parent=parents(columns["start_ns"], columns["end_ns"], thread),
        dims=block["dims"].astype(np.int32),
        types=nothing,
        strides=nothing.copy(),
        concrete=nothing.copy(),
        sequence=np.full(_length(block), NONE, np.int64),
    )


def _build_calls(block: Block, ops: Ops, threads: _Threads) -> Calls:
    thread = threads.index(block)
    return Calls(
        **_event_columns(block),
        thread=thread,
        correlation=block["correlation"],
        op=innermost(ops.start_ns, ops.end_ns, ops.thread, block["start_ns"], thread),
    )


def _build_gpu_items(block: Block, call_block: Block, calls: Calls, ranks: Mapping[int, int]) -> GpuItems:
    """GPU items with their launches: correlation ids count from one in each process."""
    known = (block["pid"] > 0).all()  # old versions do not say it, or write 0, but record one process
    pids = np.concatenate((_pid(block["pid"]), _pid(call_block["thread"])))
    group = np.unique(pids, return_inverse=True)[1] if known else np.zeros(len(pids), np.int64)
    launches = group[_length(block) :], calls.correlation
    keys, call_keys = make_rank_keys(group[: _length(block)], block["correlation"], other=launches)
    call = find_latest(keys, block["start_ns"], call_keys, calls.start_ns)
    return GpuItems(
        **_event_columns(block),
        kind=block["kind"].astype(np.int8),
        device=as_int32(block["device"]),
        stream=block["stream"],
        correlation=block["correlation"],
        call=call,
        op=np.where(call >= 0, calls.op[call], NONE).astype(np.int32) if len(calls) else call.copy(),
        bytes=block["bytes"],
        blocks=block["blocks"],
        process=_ranks_of(block["pid"], ranks),
    )


def _count_blocks(block: Block) -> Int64Array:
    """Thread blocks of kernels' grids, up to 2^63 in CUDA; NONE where a size is not known."""
    sizes = [block[axis] for axis in _GRID]
    blocks: Int64Array = np.prod(sizes, axis=0, dtype=np.int64)
    return np.where((np.minimum.reduce(sizes) > 0) & (blocks > 0), blocks, NONE)


def _event_columns(block: Block) -> dict[str, Any]:
    """The columns that every table has."""
    start = block["start_ns"]
    return {"start_ns": start, "end_ns": np.maximum(block["end_ns"], start), "name": block["name"].astype(np.int32)}


def _length(block: Block) -> int:
    return len(block["start_ns"])


def _pad_codes(codes: Int64Array, block: Block) -> Int64Array:
    """Codes, as many as the other columns have rows; NONE for rows that are missing."""
    padded = np.full(_length(block), NONE, np.int64)
    known = min(len(codes), len(padded))
    padded[:known] = codes[:known]
    return padded


def _select(block: Block, which: BoolArray) -> Block:
    return {name: column[which] for name, column in block.items()}


def _concatenate(blocks: Sequence[Block]) -> Block:
    """The rows of several blocks, in the columns that all have."""
    shared = set.intersection(*(set(block) for block in blocks))
    return {name: np.concatenate([block[name] for block in blocks]) for name in sorted(shared)}
