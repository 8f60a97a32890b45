"""Columns become a Trace: tables in order of time, their links, the device, the rank, and what is odd."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from perfdoctor.errors import TraceError
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.kineto import event_columns as c
from perfdoctor.trace.kineto.argument_values import integers
from perfdoctor.trace.kineto.comms_table import comms_of
from perfdoctor.trace.kineto.event_columns import Column, Columns
from perfdoctor.trace.kineto.merged_pids import MOST_RANKS, ranks_of_threads
from perfdoctor.trace.tables.links import first_with, keys_within, latest_before
from perfdoctor.trace.tables.model import Calls, Comms, DeviceProperties, Frames, GpuItems, Ops, Ranges, Syncs, Trace
from perfdoctor.trace.tables.nesting import innermost, parents
from perfdoctor.trace.tables.split_ranks import ranks_in
from perfdoctor.trace.tables.time_order import time_order
from perfdoctor.trace.tables.trace_warnings import count_of, link_warnings, merged_warning

_AMD = re.compile(r"\b(?:AMD|Radeon|Instinct|gfx[0-9]|MI[0-9]{2,3}[A-Z]?)\b", re.IGNORECASE)
_NVIDIA = re.compile(r"\b(?:NVIDIA|Tesla|Quadro|GeForce|RTX|GTX|TITAN|[ABHLTVP][0-9]{2,3}0?)\b", re.IGNORECASE)
_AMD_KERNEL = re.compile(r"Cijk_|__amd_rocclr|miopen|MIOpen|rocblas|\bck::|_gfx9|rccl")


class Reading(NamedTuple):
    """What a reader of any kind hands over beside the columns.

    `top` holds the few top-level keys that are used; `cut_at` is the byte at which the text ends early or stops being
    JSON, None when it is complete; `dropped` counts the events that could not be parsed; `notes` are further warnings.
    """

    path: str
    top: dict[str, Any]
    cut_at: int | None = None
    dropped: int = 0
    notes: tuple[str, ...] = ()


def build(columns: Columns, reading: Reading) -> Trace:
    """The Trace of one file.

    Raises:
        TraceError: it holds no event of PyTorch's profiler.
    """
    blocks = {kind: _Block(block) for kind, block in columns.finish().items()}
    dropped = columns.dropped + reading.dropped
    if not blocks:
        raise _no_events(columns, reading, dropped)
    strings = columns.strings.texts
    _split_annotations(blocks, strings)
    trace = _tables(blocks)
    trace = replace(
        trace,
        path=reading.path,
        strings=tuple(strings),
        threads=tuple(columns.threads.texts),
        processes=ranks_of_threads(columns.threads.texts),
        complete=reading.cut_at is None,
        dropped=dropped,
    )
    trace = replace(
        trace,
        device=_device(reading.top, trace.gpu),
        rank=_distributed(reading.top, "rank"),
        world_size=_distributed(reading.top, "world_size"),
        host=_host(reading.top.get("host_name")),
        base_ns=_integer(reading.top.get("baseTimeNanoseconds")) or 0,
    )
    _forget_work_items(trace)
    trace = replace(trace, vendor=_vendor(trace), warnings=tuple(_warnings(trace, blocks, reading)))
    trace.freeze()
    return trace


def _forget_work_items(trace: Trace) -> None:
    """Set to unknown what is recorded as blocks of a grid and is work items: HIP's manual says so of these calls."""
    in_items = trace.match_strings(trace.calls, vocabulary.WORK_ITEM_CALL)
    if in_items.any():
        gpu = trace.gpu
        launched = gpu.call >= 0
        launched[launched] = in_items[trace.calls.name[gpu.call[launched]]]
        gpu.blocks[launched] = NONE


class _Block:
    """The columns of one kind; what a kind lacks reads as -1."""

    def __init__(self, columns: dict[str, Column]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["start_ns"])

    def long(self, name: str) -> Int64Array:
        """A column as int64."""
        column = self.columns.get(name)
        return np.full(len(self), NONE, np.int64) if column is None else column.astype(np.int64, copy=False)

    def short(self, name: str) -> Int32Array:
        """A column as int32."""
        column = self.columns.get(name)
        return np.full(len(self), NONE, np.int32) if column is None else column.astype(np.int32, copy=False)

    @property
    def group(self) -> Int64Array:
        """The rank of each row; it takes no memory where the file has one."""
        column = self.columns.get("group")
        return np.broadcast_to(np.int64(0), len(self)) if column is None else column.astype(np.int64, copy=False)

    def rows(self, which: Int64Array | BoolArray) -> _Block:
        """Some rows."""
        return _Block({name: column[which] for name, column in self.columns.items()})

    def sorted(self) -> _Block:
        """The rows by start, longest first."""
        order = time_order(self.columns["start_ns"], self.columns["dur_ns"])
        return self if order is None else self.rows(order)

    def joined(self, other: _Block) -> _Block:
        """These rows and then those of `other`, in the columns that both have."""
        both = self.columns.keys() & other.columns.keys()
        return _Block({name: np.concatenate((self.columns[name], other.columns[name])) for name in sorted(both)})

    @property
    def time(self) -> dict[str, Any]:
        """The columns that every table has."""
        start = self.columns["start_ns"]
        return {
            "start_ns": start,
            "end_ns": start + np.maximum(self.columns["dur_ns"], 0),
            "name": self.short("name"),
        }

    @property
    def threaded(self) -> dict[str, Any]:
        """The columns of every table with threads."""
        return self.time | {"thread": self.short("thread")}


_NO_ROWS = _Block({"start_ns": np.empty(0, np.int64), "dur_ns": np.empty(0, np.int64)})


def _split_annotations(blocks: dict[str, _Block], strings: list[str]) -> None:
    """Move what is no operator from the ops to the ranges."""
    ops = blocks.get(c.OPS)
    if ops is None:
        return
    match = re.compile(vocabulary.ANNOTATION).match
    annotates = np.array([match(text) is not None for text in strings], bool)
    moved = annotates[ops.short("name")]
    if moved.any():
        ranges = blocks.get(c.RANGES)
        taken = ops.rows(moved)
        blocks[c.RANGES] = taken if ranges is None else ranges.joined(taken).sorted()
        blocks[c.OPS] = ops.rows(~moved)


def _tables(blocks: dict[str, _Block]) -> Trace:
    """The tables with their links."""
    ops = _ops(blocks.get(c.OPS, _NO_ROWS))
    calls = _calls(blocks.get(c.CALLS, _NO_ROWS), ops)
    gpu = _gpu(blocks, calls, ops)
    syncs = blocks.get(c.SYNCS, _NO_ROWS)
    return Trace(
        path="",
        gpu=gpu,
        calls=calls,
        ops=ops,
        ranges=Ranges(**blocks.get(c.RANGES, _NO_ROWS).threaded),
        gpu_ranges=Ranges(**blocks.get(c.GPU_RANGES, _NO_ROWS).threaded),
        frames=_frames(blocks.get(c.FRAMES, _NO_ROWS)),
        syncs=Syncs(
            **syncs.time,
            stream=syncs.long("stream"),
            correlation=syncs.long("correlation"),
            wait_stream=syncs.long("wait_stream"),
            process=syncs.group.astype(np.int32),
        ),
        comms=_comms(blocks, gpu),
    )


def _comms(blocks: dict[str, _Block], gpu: GpuItems) -> Comms:
    told = blocks.get(c.COMMS)
    if told is None:
        return Comms()
    items, ops = (blocks.get(kind, _NO_ROWS).long("place") for kind in (c.GPU, c.OPS))
    return comms_of(told.columns, items, gpu.op, ops)


def _ops(block: _Block) -> Ops:
    columns = block.threaded
    return Ops(
        **columns,
        external_id=block.long("external_id"),
        parent=parents(columns["start_ns"], columns["end_ns"], columns["thread"]),
        dims=block.short("dims"),
        types=block.short("types"),
        strides=block.short("strides"),
        concrete=block.short("concrete"),
    )


def _calls(block: _Block, ops: Ops) -> Calls:
    columns = block.threaded
    around = innermost(ops.start_ns, ops.end_ns, ops.thread, columns["start_ns"], columns["thread"])
    return Calls(**columns, correlation=block.long("correlation"), op=around)


def _gpu(blocks: dict[str, _Block], calls: Calls, ops: Ops) -> GpuItems:
    block = blocks.get(c.GPU, _NO_ROWS)
    times = block.time
    group, correlation, external_id = block.group, block.long("correlation"), block.long("external_id")
    launches = blocks.get(c.CALLS, _NO_ROWS).group, calls.correlation
    keys, call_keys = keys_within(group, correlation, shared=launches)
    call = latest_before(keys, times["start_ns"], call_keys, calls.start_ns)
    # Many versions write the correlation id once more as the external id: that one names no op.
    own = np.where(external_id == correlation, NONE, external_id)
    external, op_keys = keys_within(group, own, shared=(blocks.get(c.OPS, _NO_ROWS).group, ops.external_id))
    named = first_with(external, op_keys)
    launched = np.where(call >= 0, calls.op[call], NONE) if len(calls) else call
    return GpuItems(
        **times,
        kind=block.long("kind").astype(np.int8),
        device=block.short("device"),
        stream=block.long("stream"),
        correlation=correlation,
        call=call,
        op=np.where(call >= 0, launched, named).astype(np.int32),
        bytes=block.long("bytes"),
        blocks=block.long("blocks"),
        process=group.astype(np.int32),
    )


def _frames(block: _Block) -> Frames:
    columns = block.threaded
    group = block.group
    callers, own = keys_within(group, block.long("parent_id"), shared=(group, block.long("id")))
    parent = first_with(callers, own)
    if len(block) and not (own >= 0).any():
        parent = parents(columns["start_ns"], columns["end_ns"], columns["thread"])
    return Frames(**columns, parent=parent)


def _no_events(columns: Columns, reading: Reading, dropped: int) -> TraceError:
    """Why a list of events makes no trace."""
    if reading.cut_at is not None:
        return TraceError(
            f"{reading.path}: the file is cut short or damaged at byte {reading.cut_at}, before its first event; "
            "record the trace again, and let the profiler finish writing"
        )
    if columns.seen and not columns.phases:
        return TraceError(
            f"{reading.path}: JSON, but no trace; give the file that torch.profiler's export_chrome_trace writes"
        )
    if dropped:
        return TraceError(
            f"{reading.path}: none of its events can be read ({dropped} without usable times); record the trace again"
        )
    return TraceError(
        f"{reading.path}: the trace holds no events of PyTorch's profiler; "
        "check that the profiled code ran between the profiler's start and stop"
    )


def _device(top: dict[str, Any], gpu: GpuItems) -> DeviceProperties:
    """The device that most GPU items ran on, else the first that the file lists."""
    listed = top.get("deviceProperties")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    if not entries:
        return DeviceProperties()
    used = gpu.device[gpu.device >= 0]
    most = int(np.bincount(used).argmax()) if len(used) and int(used.max()) < 1 << 16 else 0
    entry = next((entry for entry in entries if entry.get("id") == most), entries[0])
    name = entry.get("name")
    major, minor = _integer(entry.get("computeMajor")), _integer(entry.get("computeMinor"))
    return DeviceProperties(
        name=_text(name),
        capability=(major, minor or 0) if major is not None else None,
        sm_count=_integer(entry.get("numSms")),
        memory_bytes=_integer(entry.get("totalGlobalMem")),
    )


def _text(value: object) -> str | None:
    """A text that is not blank, without lone surrogates; None for anything else."""
    return value.encode("utf-8", errors="replace").decode() if isinstance(value, str) and value.strip() else None


def _host(name: object) -> str | None:
    """What tells one host from another without naming it: names of machines are nobody else's business."""
    text = _text(name)
    if text is None:
        return None
    import hashlib  # takes 3 ms, and most files name none

    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def _distributed(top: dict[str, Any], key: str) -> int | None:
    info = top.get("distributedInfo")
    value = _integer(info.get(key)) if isinstance(info, dict) else None
    return value if value is not None and 0 <= value < MOST_RANKS else None


def _integer(value: object) -> int | None:
    number = int(integers([value])[0])
    return None if number == NONE else number


def _vendor(trace: Trace) -> str | None:
    """Who made the device: its name says it, else the calls do, else the kernels' names."""
    name = trace.device.name or ""
    if _AMD.search(name):
        return "amd"
    if _NVIDIA.search(name):
        return "nvidia"
    hip = int(trace.match_rows(trace.calls, vocabulary.HIP_CALL).sum())
    cuda = int(trace.match_rows(trace.calls, vocabulary.CUDA_CALL).sum())
    if hip or cuda:
        return "amd" if hip > cuda else "nvidia"
    return "amd" if trace.match_strings(trace.gpu, _AMD_KERNEL).any() else None


def _warnings(trace: Trace, blocks: dict[str, _Block], reading: Reading) -> list[str]:
    """What is odd about the file, one sentence each."""
    said: list[str] = []
    if reading.cut_at is not None:
        said.append(
            f"the file is cut short or damaged at byte {reading.cut_at}: "
            f"{count_of(trace.events, 'event')} read, what followed is missing"
        )
    if trace.dropped:
        said.append(f"left out because they cannot be read: {count_of(trace.dropped, 'event')}")
    negative = sum(int((block.columns["dur_ns"] < 0).sum()) for kind, block in blocks.items() if kind != c.COMMS)
    if negative:
        said.append(f"taken to have no duration because theirs is negative: {count_of(negative, 'event')}")
    said += link_warnings(trace)
    ranks = len(ranks_in(trace)) if trace.processes else 1
    if ranks > 1:
        said.append(merged_warning(ranks))
    said += reading.notes
    return said
