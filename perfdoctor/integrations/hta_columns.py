"""The columns of HTA's frames, from the tables of a Trace.

HTA (HolisticTraceAnalysis) keeps the events of a rank in one frame, a row each. What its analyses ask of the columns:

- `name` and `cat` are ids in one symbol table, which all ranks share.
- `index` numbers the events, and `index_correlation` is the index of the event at the other end of a launch: the call
  of a kernel, the kernel of a call. 0 means that the other end was not recorded, -1 that there is none.
- `stream` and `correlation` tell GPU and CPU apart: both are -1 for operators and annotations.
- `ts` and `dur` are whole microseconds, from the first event of all ranks. Times with nanoseconds are rounded inwards,
  so that an event which follows another does not begin before its end.
- `iteration` is the number of the profiler's step, of GPU items that of the step which launched them; -1 outside.
- Arguments of the events have a column each, with a default in the rows of events without that argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int32Array, Int64Array
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.links import find_latest
from perfdoctor.trace.tables.model import KERNEL, MEMCPY, MEMSET, Ranges, Table, Trace

Columns: TypeAlias = dict[str, npt.NDArray[Any]]

# Around first: of events that start together each stands before those that it contains.
_TABLES = ("frames", "ranges", "ops", "calls", "gpu_ranges", "gpu", "syncs")
_WITH_THREADS = ("frames", "ranges", "ops", "calls", "gpu_ranges")
_CATEGORIES = {
    "frames": "python_function",
    "ranges": "user_annotation",
    "ops": "cpu_op",
    "gpu_ranges": "gpu_user_annotation",
    "syncs": "cuda_sync",
}
_GPU_CATEGORIES = {KERNEL: "kernel", MEMCPY: "gpu_memcpy", MEMSET: "gpu_memset"}
_DRIVER_CALL = r"^cu[A-Z]"
_DEVICE_SYNCS = ("Event Sync", "Context Sync")  # events of the GPU, though on no stream
_NO_TEXT = "-1"
_NOT_RECORDED = 0


class Symbols(dict[str, int]):
    """The ids of names and categories, in the order in which they are first asked for."""

    def __missing__(self, symbol: str) -> int:
        self[symbol] = number = len(self)
        return number

    def encode_names(self, trace: Trace) -> Int32Array:
        """The id of each string of a trace that names an event; NONE for the other strings."""
        ids = np.full(len(trace.strings), NONE, np.int32)
        for code in dict.fromkeys(code for table in trace.tables for code in trace.name_ids(table)):
            ids[code] = self[trace.strings[code]]
        return ids


def make_columns(trace: Trace, symbols: Symbols, shift_ns: int = 0) -> Columns:
    """The events of one rank in the order of their starts.

    Args:
        trace: One rank (see `split_ranks`).
        symbols: Receives the names and categories that it does not have yet.
        shift_ns: Is added to the times, to bring ranks with different base times on one clock.

    Returns:
        HTA's columns, all of one length, but with `start_ns` and `end_ns` for the times (see `set_times`). `index`
        counts from 1, because HTA takes 0 for no link.
    """
    frame = _Frame(trace)
    names = symbols.encode_names(trace)
    columns: Columns = {
        "index": np.arange(1, frame.count + 1),
        "start_ns": frame.fill({name: table.start_ns + shift_ns for name, table in frame.tables.items()}),
        "end_ns": frame.fill({name: table.end_ns + shift_ns for name, table in frame.tables.items()}),
        "name": frame.fill({name: names[table.name] for name, table in frame.tables.items()}, dtype=np.int32),
        "cat": frame.fill(_encode_categories(trace, symbols), dtype=np.int32),
    }
    columns |= _place_events(trace, frame)
    columns |= _list_arguments(trace, frame)
    columns["index_correlation"] = _link_launches(trace, frame, columns)
    columns["iteration"] = _number_iterations(trace, frame, columns, shift_ns)
    return columns


def set_times(columns: Columns, origin_ns: int, *, whole_us: bool = True) -> None:
    """Replace `start_ns` and `end_ns` by `ts`, `dur` and `end`, in microseconds from an origin.

    Args:
        columns: The events of one rank.
        origin_ns: The start of the first event of all ranks.
        whole_us: Round inwards to whole microseconds of the file's own clock, else keep fractions.
    """
    start_ns, end_ns = columns.pop("start_ns"), columns.pop("end_ns")
    if whole_us:
        origin_us = round_up_us(origin_ns)
        ts = round_up_us(start_ns) - origin_us
        end = np.maximum(end_ns // 1000 - origin_us, ts)
    else:
        ts, end = (start_ns - origin_ns) / 1000, (end_ns - origin_ns) / 1000
    columns |= {"ts": ts, "dur": end - ts, "end": end}


def round_up_us(times_ns: Any) -> Any:
    """Nanoseconds as microseconds, rounded up; of a number or of an array."""
    return -(-times_ns // 1000)


def select_steps(columns: Columns, symbols: Symbols, *, include_last: bool) -> BoolArray:
    """For each event of a rank whether HTA keeps it: what began before the last step, and GPU items launched by that.

    Everything is kept where fewer than two steps are marked in the traces, or none in this one. The last step is left
    out because the GPU was recorded only up to its end on the CPU.

    Args:
        columns: The events of one rank, with `ts` and `end`.
        symbols: The names of all ranks.
        include_last: Keep the last step, too.
    """
    marks = [number for name, number in symbols.items() if vocabulary.STEP_MARK in name]
    on_gpu = _is_on_gpu(columns, symbols)
    is_mark = np.isin(columns["name"], marks) & ~on_gpu
    if len(marks) < 2 or not is_mark.any():
        return np.ones(len(on_gpu), bool)
    ts, correlation = columns["ts"], columns["correlation"]
    in_time = ts <= columns["end"][is_mark].max() if include_last else ts < ts[is_mark].max()
    kept_on_cpu = in_time & ~on_gpu
    launched = on_gpu & (correlation >= 0)
    launched[launched] = np.isin(correlation[launched], correlation[kept_on_cpu & (correlation >= 0)])
    result: BoolArray = kept_on_cpu | launched
    return result


def _is_on_gpu(columns: Columns, symbols: Symbols) -> BoolArray:
    """What HTA takes for an event of the GPU."""
    syncs = [symbols[name] for name in _DEVICE_SYNCS if name in symbols]
    result: BoolArray = (columns["stream"] >= 0) & (columns["correlation"] >= 0) | np.isin(columns["name"], syncs)
    return result


class _Frame:
    """The rows of the frame: which of them hold the events of each table.

    Attributes:
        tables: The tables of the trace by name.
        rows: For each table the row of each of its events.
        count: Number of rows.
    """

    def __init__(self, trace: Trace) -> None:
        self.tables: dict[str, Table] = {name: getattr(trace, name) for name in _TABLES}
        order = np.argsort(np.concatenate([table.start_ns for table in self.tables.values()]), kind="stable")
        self.count = len(order)
        row = np.empty(self.count, np.int64)
        row[order] = np.arange(self.count)
        ends = np.cumsum([len(table) for table in self.tables.values()])
        self.rows = dict(zip(_TABLES, np.split(row, ends[:-1]), strict=True))

    def fill(self, parts: Mapping[str, Any], default: Any = NONE, dtype: Any = np.int64) -> npt.NDArray[Any]:
        """A column from the values of some tables, with a default in the rows of the others."""
        column = np.full(self.count, default, dtype)
        for name, values in parts.items():
            column[self.rows[name]] = values
        return column

    def select(self, *names: str) -> BoolArray:
        """For each row whether its event is of one of these tables."""
        return self.fill(dict.fromkeys(names, True), False, bool)


def _encode_categories(trace: Trace, symbols: Symbols) -> dict[str, Any]:
    """The category of the events of each table, in today's spelling also where the file has that of old profilers."""
    categories: dict[str, Any] = {
        name: symbols[category] for name, category in _CATEGORIES.items() if len(getattr(trace, name))
    }
    kinds = np.full(MEMSET + 1, NONE, np.int32)
    for kind in distinct(trace.gpu.kind).tolist():
        kinds[kind] = symbols[_GPU_CATEGORIES[kind]]
    in_driver = trace.match_rows(trace.calls, _DRIVER_CALL)
    calls = np.full(len(in_driver), NONE, np.int32)
    for rows, category in ((in_driver, "cuda_driver"), (~in_driver, "cuda_runtime")):
        if rows.any():
            calls[rows] = symbols[category]
    return categories | {"gpu": kinds[trace.gpu.kind], "calls": calls}


def _place_events(trace: Trace, frame: _Frame) -> Columns:
    """Process, thread, stream and correlation; on the GPU device and stream stand for process and thread."""
    parts = [thread.partition("/") for thread in trace.threads]
    pids, tids = (_as_ids([part[side] for part in parts]) for side in (0, 2))
    of_thread = {name: getattr(trace, name).thread for name in _WITH_THREADS}
    gpu, syncs = trace.gpu, trace.syncs
    device = int(np.bincount(gpu.device[gpu.device >= 0]).argmax()) if (gpu.device >= 0).any() else 0
    pid = {name: pids[thread] for name, thread in of_thread.items()}
    tid = {name: tids[thread] for name, thread in of_thread.items()}
    return {
        "pid": frame.fill(pid | {"gpu": gpu.device, "syncs": device}, dtype=pids.dtype),
        "tid": frame.fill(tid | {"gpu": gpu.stream, "syncs": syncs.stream}, dtype=tids.dtype),
        # Not of annotations on the GPU: HTA would take them for work.
        "stream": frame.fill({"gpu": gpu.stream, "syncs": syncs.stream}),
        "correlation": frame.fill(
            {"calls": trace.calls.correlation, "gpu": gpu.correlation, "syncs": syncs.correlation}
        ),
    }


def _as_ids(texts: list[str]) -> npt.NDArray[Any]:
    """Ids of processes or threads: integers, or objects where one of them is a text."""
    try:
        return np.array([int(text) for text in texts], np.int64)
    except (ValueError, OverflowError):
        ids: list[Any] = [int(text) if text.lstrip("-").isdecimal() else text for text in texts]
        return np.array([*ids, None], object)[:-1]


def _list_arguments(trace: Trace, frame: _Frame) -> Columns:
    """The arguments that HTA reads by default."""
    gpu, ops, calls = trace.gpu, trace.ops, trace.calls
    # One more for row NONE.
    external_id = np.append(ops.external_id, NONE)
    columns: Columns = {
        "bytes": frame.fill({"gpu": gpu.bytes}),
        "memory_bw_gbps": frame.fill({"gpu": _copy_rates(trace)}, 0.0, np.float64),
        "wait_on_stream": frame.fill({"syncs": trace.syncs.wait_stream}),
        "wait_on_cuda_event_record_corr_id": frame.fill({"syncs": trace.syncs.record_correlation}),
        "external_id": frame.fill({"ops": ops.external_id, "calls": external_id[calls.op], "gpu": external_id[gpu.op]}),
    }
    for name, codes in (("input_dims", ops.dims), ("input_type", ops.types), ("input_strides", ops.strides)):
        columns[name] = frame.fill({"ops": _decode_values(trace, codes)}, _NO_TEXT, object)
    return columns


def _copy_rates(trace: Trace) -> FloatArray:
    """The rate of each copy and memory set in GB/s, which is bytes a nanosecond; 0 for kernels."""
    gpu = trace.gpu
    counts = (gpu.kind != KERNEL) & (gpu.bytes > 0) & (gpu.dur_ns > 0)
    rates = np.zeros(len(gpu))
    rates[counts] = gpu.bytes[counts] / gpu.dur_ns[counts]
    return rates


def _decode_values(trace: Trace, codes: Int32Array) -> npt.NDArray[Any]:
    """The values of JSON texts; equal ones are one object."""
    values = np.full(len(trace.strings) + 1, _NO_TEXT, object)
    for code in distinct(codes[codes >= 0]).tolist():
        values[code] = orjson.loads(trace.strings[code])
    return values[codes]


def _link_launches(trace: Trace, frame: _Frame, columns: Columns) -> Int64Array:
    """The index of the event at the other end of each launch or synchronization."""
    index, correlation = columns["index"], columns["correlation"]
    links = np.where(correlation >= 0, _NOT_RECORDED, NONE)
    calls = frame.rows["calls"]
    ids = np.where(trace.syncs.correlation > 0, trace.syncs.correlation, NONE)
    synced = find_latest(ids, trace.syncs.start_ns, trace.calls.correlation, trace.calls.start_ns)
    # Items last: of several that a call launches, its link is the last one.
    for name, call in (("syncs", synced), ("gpu", trace.gpu.call)):
        rows, linked = frame.rows[name], call >= 0
        links[rows[linked]] = index[calls[call[linked]]]
        links[calls[call[linked]]] = index[rows[linked]]
    return links


def _number_iterations(trace: Trace, frame: _Frame, columns: Columns, shift_ns: int) -> Int64Array:
    """The number of the step in whose time each event began, and of GPU items that of the step of their launch."""
    iteration = np.full(frame.count, NONE, np.int64)
    numbers = _step_numbers(trace, trace.ranges)
    marks = np.flatnonzero(numbers >= 0)
    if not len(marks):
        return iteration
    start_ns, end_ns = (times[marks] + shift_ns for times in (trace.ranges.start_ns, trace.ranges.end_ns))
    mark = np.searchsorted(start_ns, columns["start_ns"], side="right") - 1
    inside = (mark >= 0) & (columns["start_ns"] < end_ns[mark]) & frame.select(*_WITH_THREADS)
    iteration[inside] = numbers[marks[mark[inside]]]
    linked = np.flatnonzero(frame.select("gpu", "syncs") & (columns["index_correlation"] > 0))
    iteration[linked] = iteration[columns["index_correlation"][linked] - 1]
    return iteration


def _step_numbers(trace: Trace, ranges: Ranges) -> Int64Array:
    """For each range the number of the profiler's step that it marks; NONE for other ranges."""
    numbers = np.full(len(trace.strings), NONE, np.int64)
    for code in trace.name_ids(ranges):
        number = vocabulary.profiler_step_number(trace.strings[code])
        numbers[code] = NONE if number is None else number
    result: Int64Array = numbers[ranges.name]
    return result
