"""Build a Trace from columns: tables in order of time, their links, the device, the rank, and warnings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from perfdoctor.errors import TraceError
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.kineto import event_columns as c
from perfdoctor.trace.kineto.argument_values import parse_integers
from perfdoctor.trace.kineto.build_comms import build_comms
from perfdoctor.trace.kineto.event_columns import EventColumns
from perfdoctor.trace.kineto.merged_pids import MAX_RANKS, ranks_of_threads
from perfdoctor.trace.tables.impossible_durations import find_impossible
from perfdoctor.trace.tables.links import find_first, find_latest, make_rank_keys
from perfdoctor.trace.tables.model import (
    Calls,
    Comms,
    DeviceProperties,
    Frames,
    GpuItems,
    MemoryEvents,
    Ops,
    Ranges,
    Syncs,
    Trace,
)
from perfdoctor.trace.tables.nesting import innermost, parents
from perfdoctor.trace.tables.split_ranks import ranks_in
from perfdoctor.trace.tables.time_order import time_order
from perfdoctor.trace.tables.trace_warnings import count_of, impossible_warning, link_warnings, merged_warning

_AMD = re.compile(r"\b(?:AMD|Radeon|Instinct|gfx[0-9]|MI[0-9]{2,3}[A-Z]?)\b", re.IGNORECASE)
_NVIDIA = re.compile(r"\b(?:NVIDIA|Tesla|Quadro|GeForce|RTX|GTX|TITAN|[ABHLTVP][0-9]{2,3}0?)\b", re.IGNORECASE)
_AMD_KERNEL = re.compile(r"Cijk_|__amd_rocclr|miopen|MIOpen|rocblas|\bck::|_gfx9|rccl")

_MEMORY, _OUT_OF_MEMORY = "[memory]", "[OutOfMemory]"


class ReaderResult(NamedTuple):
    """The results of a reader of any kind beside the columns.

    Attributes:
        path: The file, as it may stand in a report.
        top_level: The few top-level keys that are used.
        truncated_at: The byte at which the text ends early or stops being JSON; None when it is complete.
        dropped: Events that could not be parsed.
        notes: Further warnings.
        sm_count: Multiprocessors of the device, by its kernels; None where they do not say it.
    """

    path: str
    top_level: dict[str, Any]
    truncated_at: int | None = None
    dropped: int = 0
    notes: tuple[str, ...] = ()
    sm_count: int | None = None


def build_trace(columns: EventColumns, result: ReaderResult) -> Trace:
    """The Trace of one file.

    Raises:
        TraceError: it holds no event of PyTorch's profiler, or the program ran on an accelerator that is not known.
    """
    blocks = {kind: _EventBlock(block) for kind, block in columns.finish().items()}
    dropped = columns.dropped + result.dropped
    memory = blocks.pop(c.MEMORY, _NO_ROWS)
    other_device = blocks.pop(c.OTHER_DEVICE, None)
    if other_device is not None and not blocks.keys() & {c.GPU, c.CALLS}:
        raise _other_device_error(result.path, other_device)
    impossible = _drop_impossible_items(blocks)
    dropped += impossible
    if not blocks:
        raise _no_events_error(columns, result, dropped)
    strings = columns.strings.texts
    _move_annotations(blocks, strings)
    trace = _build_tables(blocks)
    trace = replace(
        trace,
        path=result.path,
        strings=tuple(strings),
        threads=tuple(columns.threads.texts),
        processes=ranks_of_threads(columns.threads.texts),
        complete=result.truncated_at is None,
        dropped=dropped,
        memory=_build_memory(memory, columns.strings.get(_MEMORY), columns.strings.get(_OUT_OF_MEMORY)),
    )
    trace = replace(
        trace,
        device=_device(result, trace.gpu),
        rank=_distributed_info(result.top_level, "rank"),
        world_size=_distributed_info(result.top_level, "world_size"),
        host=_fingerprint_host(result.top_level.get("host_name")),
        base_ns=_integer(result.top_level.get("baseTimeNanoseconds")) or 0,
    )
    _clear_work_item_grids(trace)
    trace = replace(
        trace, vendor=_find_vendor(trace), warnings=tuple(_collect_warnings(trace, blocks, result, impossible))
    )
    trace.freeze()
    return trace


def _clear_work_item_grids(trace: Trace) -> None:
    """Set `blocks` to unknown where the recorded grid counts work items: HIP's manual says so of some launch calls."""
    in_items = trace.match_strings(trace.calls, vocabulary.WORK_ITEM_CALL)
    if in_items.any():
        gpu = trace.gpu
        launched = gpu.call >= 0
        launched[launched] = in_items[trace.calls.name[gpu.call[launched]]]
        gpu.blocks[launched] = NONE


class _EventBlock:
    """The columns of one kind of event; a column that is not there reads as NONE."""

    def __init__(self, columns: dict[str, IntArray]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["start_ns"])

    def int64(self, name: str) -> Int64Array:
        """A column as int64."""
        column = self.columns.get(name)
        return np.full(len(self), NONE, np.int64) if column is None else column.astype(np.int64, copy=False)

    def int32(self, name: str) -> Int32Array:
        """A column as int32."""
        column = self.columns.get(name)
        return np.full(len(self), NONE, np.int32) if column is None else column.astype(np.int32, copy=False)

    @property
    def rank(self) -> Int64Array:
        """The rank of each row; it takes no memory where the file holds one."""
        column = self.columns.get("rank")
        return np.broadcast_to(np.int64(0), len(self)) if column is None else column.astype(np.int64, copy=False)

    def select(self, which: Int64Array | BoolArray) -> _EventBlock:
        """A block of some of the rows."""
        return _EventBlock({name: column[which] for name, column in self.columns.items()})

    def sort_by_time(self) -> _EventBlock:
        """A block of the same rows by start, longest first."""
        order = time_order(self.columns["start_ns"], self.columns["dur_ns"])
        return self if order is None else self.select(order)

    def append(self, other: _EventBlock) -> _EventBlock:
        """A block of these rows and then those of `other`, in the columns that both have."""
        both = self.columns.keys() & other.columns.keys()
        return _EventBlock({name: np.concatenate((self.columns[name], other.columns[name])) for name in sorted(both)})

    @property
    def event_columns(self) -> dict[str, Any]:
        """The columns that every table has."""
        start = self.columns["start_ns"]
        return {"start_ns": start, "end_ns": start + np.maximum(self.columns["dur_ns"], 0), "name": self.int32("name")}

    @property
    def thread_columns(self) -> dict[str, Any]:
        """The columns that every table with threads has."""
        return self.event_columns | {"thread": self.int32("thread")}


_NO_ROWS = _EventBlock({"start_ns": np.empty(0, np.int64), "dur_ns": np.empty(0, np.int64)})


def _move_annotations(blocks: dict[str, _EventBlock], strings: list[str]) -> None:
    """Move annotations that legacy files keep among the operators from there to the ranges."""
    ops = blocks.get(c.OPS)
    if ops is None:
        return
    match = re.compile(vocabulary.ANNOTATION).match
    annotates = np.array([match(text) is not None for text in strings], bool)
    rows = annotates[ops.int32("name")]
    if rows.any():
        ranges = blocks.get(c.RANGES)
        annotations = ops.select(rows)
        blocks[c.RANGES] = annotations if ranges is None else ranges.append(annotations).sort_by_time()
        blocks[c.OPS] = ops.select(~rows)


def _drop_impossible_items(blocks: dict[str, _EventBlock]) -> int:
    """Drop GPU items whose duration is impossible; returns how many."""
    items = blocks.get(c.GPU)
    if items is None:
        return 0
    host = [blocks[kind].columns for kind in (c.CALLS, c.OPS, c.RANGES, c.FRAMES) if kind in blocks]
    begins = [int(columns["start_ns"][0]) for columns in host]
    ends = [int((columns["start_ns"] + np.maximum(columns["dur_ns"], 0)).max()) for columns in host]
    impossible = find_impossible(
        items.columns["start_ns"],
        items.columns["dur_ns"],
        (items.rank, items.int32("device"), items.int64("stream")),
        (min(begins), max(ends)) if host else None,
    )
    count = int(impossible.sum())
    if count == len(items):
        del blocks[c.GPU]
    elif count:
        blocks[c.GPU] = items.select(~impossible)
    return count


def _build_tables(blocks: dict[str, _EventBlock]) -> Trace:
    """The tables with their links."""
    ops = _build_ops(blocks.get(c.OPS, _NO_ROWS))
    calls = _build_calls(blocks.get(c.CALLS, _NO_ROWS), ops)
    gpu = _build_gpu_items(blocks, calls, ops)
    syncs = blocks.get(c.SYNCS, _NO_ROWS)
    return Trace(
        path="",
        gpu=gpu,
        calls=calls,
        ops=ops,
        ranges=Ranges(**blocks.get(c.RANGES, _NO_ROWS).thread_columns),
        gpu_ranges=Ranges(**blocks.get(c.GPU_RANGES, _NO_ROWS).thread_columns),
        frames=_build_frames(blocks.get(c.FRAMES, _NO_ROWS)),
        syncs=Syncs(
            **syncs.event_columns,
            stream=syncs.int64("stream"),
            correlation=syncs.int64("correlation"),
            wait_stream=syncs.int64("wait_stream"),
            record_correlation=syncs.int64("record_correlation"),
            process=syncs.rank.astype(np.int32),
        ),
        comms=_link_comms(blocks, gpu),
    )


def _link_comms(blocks: dict[str, _EventBlock], gpu: GpuItems) -> Comms:
    metadata = blocks.get(c.COMMS)
    if metadata is None:
        return Comms()
    items, ops = (blocks.get(kind, _NO_ROWS).int64("event_index") for kind in (c.GPU, c.OPS))
    return build_comms(metadata.columns, items, gpu.op, ops)


def _build_ops(block: _EventBlock) -> Ops:
    columns = block.thread_columns
    return Ops(
        **columns,
        external_id=block.int64("external_id"),
        parent=parents(columns["start_ns"], columns["end_ns"], columns["thread"]),
        dims=block.int32("dims"),
        types=block.int32("types"),
        strides=block.int32("strides"),
        concrete=block.int32("concrete"),
        sequence=block.int64("sequence_number"),
    )


def _build_calls(block: _EventBlock, ops: Ops) -> Calls:
    columns = block.thread_columns
    around = innermost(ops.start_ns, ops.end_ns, ops.thread, columns["start_ns"], columns["thread"])
    return Calls(**columns, correlation=block.int64("correlation"), op=around)


def _build_gpu_items(blocks: dict[str, _EventBlock], calls: Calls, ops: Ops) -> GpuItems:
    block = blocks.get(c.GPU, _NO_ROWS)
    times = block.event_columns
    rank, correlation, external_id = block.rank, block.int64("correlation"), block.int64("external_id")
    calls_block, launch_id = blocks.get(c.CALLS, _NO_ROWS), calls.correlation
    if not (correlation > 0).any() and not (launch_id > 0).any():
        # Some ROCm builds write the correlation id as the external id of kernels and calls; ops count in ids of theirs.
        launch_id = calls_block.int64("external_id")
        correlation = np.where(
            np.isin(external_id, launch_id) & ~np.isin(external_id, ops.external_id), external_id, NONE
        )
    keys, call_keys = make_rank_keys(rank, correlation, other=(calls_block.rank, launch_id))
    call = find_latest(keys, times["start_ns"], call_keys, calls.start_ns)
    # Many versions write the correlation id once more as the external id: such an id names no op.
    external_id = np.where(external_id == correlation, NONE, external_id)
    keys, op_keys = make_rank_keys(rank, external_id, other=(blocks.get(c.OPS, _NO_ROWS).rank, ops.external_id))
    op_by_id = find_first(keys, op_keys)
    op_by_call = np.where(call >= 0, calls.op[call], NONE) if len(calls) else call
    return GpuItems(
        **times,
        kind=block.int64("kind").astype(np.int8),
        device=block.int32("device"),
        stream=block.int64("stream"),
        correlation=correlation,
        call=call,
        op=np.where(call >= 0, op_by_call, op_by_id).astype(np.int32),
        bytes=block.int64("bytes"),
        blocks=block.int64("blocks"),
        process=rank.astype(np.int32),
    )


def _build_frames(block: _EventBlock) -> Frames:
    columns = block.thread_columns
    rank = block.rank
    caller_keys, keys = make_rank_keys(rank, block.int64("parent_id"), other=(rank, block.int64("id")))
    parent = find_first(caller_keys, keys)
    if len(block) and not (keys >= 0).any():
        parent = parents(columns["start_ns"], columns["end_ns"], columns["thread"])
    else:
        parent = np.where(_begins_before(parent, columns["start_ns"], block.int64("id")), parent, NONE)
    return Frames(**columns, parent=parent.astype(np.int32))


def _build_memory(block: _EventBlock, allocation: int | None, failure: int | None) -> MemoryEvents:
    """The allocations and frees, and the requests that failed; `allocation` and `failure` are the codes of their names.

    Old profilers write neither addresses nor totals, so that nothing is known of what they leave allocated.
    """
    name = block.int32("name")
    block = block.select(((name == allocation) | (name == failure)) & (block.int64("allocated") >= 0))
    failed, changed = block.int32("name") == failure, block.int64("bytes")
    return MemoryEvents(
        time_ns=block.int64("start_ns"),
        bytes=np.where(failed, 0, changed),
        requested_bytes=np.where(failed, changed, 0),
        address=block.int64("address"),
        allocated_bytes=block.int64("allocated"),
        reserved_bytes=block.int64("reserved"),
        device_type=block.int32("device_type"),
        device=block.int32("device_index"),
        thread=block.int32("thread"),
        stream=np.full(len(block), NONE, np.int64),
        stack=np.full(len(block), NONE, np.int32),
    )


def _begins_before(parent: Int32Array, start_ns: Int64Array, number: Int64Array) -> BoolArray:
    """Whether each frame's caller began before it, or with it and under a lower number.

    A frame that is its own caller, or a circle of them, would be climbed without end. In real files a frame can outlive
    its caller, but does not begin before it.
    """
    earlier = start_ns[parent] < start_ns
    result: BoolArray = earlier | ((start_ns[parent] == start_ns) & (number[parent] < number))
    return result


def _other_device_error(path: str, events: _EventBlock) -> TraceError:
    """The error for a program on an accelerator that is not known: to call it a CPU program would mislead."""
    counts = np.bincount(events.columns["kind"], minlength=len(c.OTHER_DEVICE_CATEGORIES))
    most_used = int(counts.argmax())
    seen = f"{count_of(int(counts[most_used]), 'event')} of category {c.OTHER_DEVICE_CATEGORIES[most_used]}"
    return TraceError(
        f"{path}: the program ran on an accelerator that is not known here "
        f"({seen}, but neither kernels nor GPU copies); "
        "give the trace of a run on NVIDIA or AMD GPUs, or use the tools of the accelerator's vendor"
    )


def _no_events_error(columns: EventColumns, result: ReaderResult, dropped: int) -> TraceError:
    """The error for a list of events that makes no trace."""
    if result.truncated_at is not None:
        return TraceError(
            f"{result.path}: the file is cut short or damaged at byte {result.truncated_at}, before its first event; "
            "record the trace again, and let the profiler finish writing"
        )
    if columns.seen and not columns.phases:
        return TraceError(
            f"{result.path}: JSON, but no trace; give the file that torch.profiler's export_chrome_trace writes"
        )
    if dropped:
        return TraceError(
            f"{result.path}: none of its events can be read ({dropped} without usable times); record the trace again"
        )
    return TraceError(
        f"{result.path}: the trace holds no events of PyTorch's profiler; "
        "check that the profiled code ran between the profiler's start and stop"
    )


def _device(result: ReaderResult, gpu: GpuItems) -> DeviceProperties:
    """The device that most GPU items ran on, else the first that the file lists."""
    listed = result.top_level.get("deviceProperties")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    if not entries:
        return DeviceProperties(sm_count=result.sm_count)
    used = gpu.device[gpu.device >= 0]
    most_used = int(np.bincount(used).argmax()) if len(used) and int(used.max()) < 1 << 16 else 0
    entry = next((entry for entry in entries if entry.get("id") == most_used), entries[0])
    name = entry.get("name")
    major, minor = _integer(entry.get("computeMajor")), _integer(entry.get("computeMinor"))
    return DeviceProperties(
        name=_text(name),
        capability=(major, minor or 0) if major is not None else None,
        sm_count=_integer(entry.get("numSms")) or result.sm_count,
        memory_bytes=_integer(entry.get("totalGlobalMem")),
    )


def _text(value: object) -> str | None:
    """A text that is not blank, without lone surrogates; None for anything else."""
    return value.encode("utf-8", errors="replace").decode() if isinstance(value, str) and value.strip() else None


def _fingerprint_host(name: object) -> str | None:
    """A hash that tells one host from another: the names of machines are nobody else's business."""
    text = _text(name)
    if text is None:
        return None
    import hashlib  # takes 3 ms, and most files name none

    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def _distributed_info(top_level: dict[str, Any], key: str) -> int | None:
    info = top_level.get("distributedInfo")
    value = _integer(info.get(key)) if isinstance(info, dict) else None
    return value if value is not None and 0 <= value < MAX_RANKS else None


def _integer(value: object) -> int | None:
    number = int(parse_integers([value])[0])
    return None if number == NONE else number


def _find_vendor(trace: Trace) -> str | None:
    """The vendor of the device, by its name, else by the calls, else by the kernels' names."""
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


def _collect_warnings(trace: Trace, blocks: dict[str, _EventBlock], result: ReaderResult, impossible: int) -> list[str]:
    """What the reader of a report should know about the file, one sentence each."""
    warnings: list[str] = []
    if result.truncated_at is not None:
        warnings.append(
            f"the file is cut short or damaged at byte {result.truncated_at}: "
            f"{count_of(trace.events, 'event')} read, what followed is missing"
        )
    if trace.dropped > impossible:
        warnings.append(f"left out because they cannot be read: {count_of(trace.dropped - impossible, 'event')}")
    if impossible:
        warnings.append(impossible_warning(impossible))
    negative = sum(int((block.columns["dur_ns"] < 0).sum()) for kind, block in blocks.items() if kind != c.COMMS)
    if negative:
        warnings.append(f"taken to have no duration because theirs is negative: {count_of(negative, 'event')}")
    warnings += link_warnings(trace)
    ranks = len(ranks_in(trace)) if trace.processes else 1
    if ranks > 1:
        warnings.append(merged_warning(ranks))
    warnings += result.notes
    return warnings
