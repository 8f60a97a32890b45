"""Traces for HTA (HolisticTraceAnalysis), read by perfdoctor.

    from perfdoctor.integrations.hta import to_trace_analysis
    analysis = to_trace_analysis("traces/")
    analysis.get_temporal_breakdown(visualize=False)

Its analyses and notebooks work on the result as on what `hta.trace_analysis.TraceAnalysis` loads itself; docs/hta.md
says what differs.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfdoctor.errors import UsageError
from perfdoctor.fleet.discover import find_traces
from perfdoctor.integrations.hta_columns import Columns, Symbols, make_columns, round_up_us, select_steps, set_times
from perfdoctor.trace import Trace, read
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.kineto.exact_times import parse_times
from perfdoctor.trace.tables.links import find_first
from perfdoctor.trace.tables.split_ranks import split_ranks

__all__ = ["to_trace_analysis"]

PathLike = str | os.PathLike[str]


def to_trace_analysis(paths: PathLike | Sequence[PathLike], *, include_last_profiler_step: bool = False) -> Any:
    """An `hta.trace_analysis.TraceAnalysis` of some traces, for HTA's analyses.

    Args:
        paths: What `perfdoctor.analyze` takes: files, folders of rank traces, patterns, URLs, or a list of them.
        include_last_profiler_step: Keep the last step, as the same argument of HTA's `TraceAnalysis` does. HTA leaves
            it out where several steps are marked, because the GPU may not have been recorded to its end.

    Returns:
        The `TraceAnalysis`, with a frame for each rank. A rank's number is the one in its file, else in the file's
        name; where these do not tell the ranks apart, they are numbered in their order, with a warning.

    Raises:
        UsageError: HTA is not installed.
        TraceError: A file is missing or is no trace.
        InputError: A folder holds no traces, or a pattern matches nothing.
    """
    trace_class, analysis_class, pandas, keeps_fractions = _import_hta()
    ranks = _read_ranks([paths] if isinstance(paths, (str, os.PathLike)) else list(paths))
    base_ns = next(iter(ranks.values())).trace.base_ns
    symbols = Symbols()
    frames = {rank: make_columns(each.trace, symbols, each.trace.base_ns - base_ns) for rank, each in ranks.items()}
    origin_ns = min((int(columns["start_ns"][0]) for columns in frames.values() if len(columns["start_ns"])), default=0)
    for columns in frames.values():
        set_times(columns, origin_ns, whole_us=not keeps_fractions)
    analysis = object.__new__(analysis_class)
    analysis.t = hta_trace = trace_class(trace_files={}, trace_dir="")
    hta_trace.symbol_table.add_symbols(symbols)
    hta_trace.trace_files = {rank: each.path for rank, each in ranks.items()}
    hta_trace.meta_data = {rank: _metadata(each.trace, rank, base_ns) for rank, each in ranks.items()}
    for rank, columns in frames.items():
        kept = select_steps(columns, symbols, include_last=include_last_profiler_step)
        hta_trace.traces[rank] = _to_frame(pandas, columns, kept)
    hta_trace.min_ts = round_up_us(origin_ns)
    hta_trace.is_parsed = True
    places = {rank: (each.path, each.part) for rank, each in ranks.items()}
    hta_trace.get_raw_trace_for_one_rank = functools.partial(_read_raw_trace, places)
    return analysis


class _ReadRank(NamedTuple):
    """The trace of a rank, and where it is: a file, and which of the ranks in it."""

    trace: Trace
    path: str
    part: int


def _read_raw_trace(places: Mapping[int, tuple[str, int]], rank: int = 0) -> dict[str, Any]:
    """The content of a rank's file, read again, in the order of its frame (see `read_in_row_order`).

    Raises:
        UsageError: There is no such rank, or the file is no JSON.
    """
    if rank not in places:
        raise UsageError(f"there is no trace of rank {rank}; the ranks are {', '.join(map(str, places))}")
    path, part = places[rank]
    return read_in_row_order(split_ranks(read(path))[part], path)


def _import_hta() -> tuple[Any, Any, Any, bool]:
    """HTA's `Trace` and `TraceAnalysis`, pandas, and whether HTA's own option asks for fractions of microseconds."""
    try:
        import pandas
        from hta.common.trace import Trace as HtaTrace
        from hta.configs.env_options import disable_ns_rounding
        from hta.trace_analysis import TraceAnalysis
    except ImportError as error:
        raise UsageError(f"HTA cannot be imported ({error}): pip install 'perfdoctor[hta]'") from error
    return HtaTrace, TraceAnalysis, pandas, disable_ns_rounding()


def _read_ranks(paths: Sequence[PathLike]) -> dict[int, _ReadRank]:
    """The traces by rank."""
    numbered: list[tuple[int | None, _ReadRank]] = []
    for file in find_traces(paths):
        path = os.path.abspath(file.path) if isinstance(file.path, Path) else str(file.path)
        for part, trace in enumerate(split_ranks(read(file.path))):
            numbered.append((file.rank if trace.rank is None else trace.rank, _ReadRank(trace, path, part)))
            if not trace.complete:
                warnings.warn("; ".join((f"{trace.path} is not complete", *trace.warnings)), stacklevel=3)
    counts = Counter(number for number, _ in numbered)
    if len(numbered) > 1 and (None in counts or len(counts) < len(numbered)):
        warnings.warn("the files do not tell their ranks apart: they are numbered in the order given", stacklevel=3)
        return {number: each for number, (_, each) in enumerate(numbered)}
    return {number or 0: each for number, each in sorted(numbered, key=lambda pair: pair[0] or 0)}


def _metadata(trace: Trace, rank: int, base_ns: int) -> dict[str, Any]:
    """What the top level of the file says, as far as a Trace keeps it."""
    device = trace.device
    properties = {
        "name": device.name,
        "computeMajor": device.capability[0] if device.capability else None,
        "computeMinor": device.capability[1] if device.capability else None,
        "numSms": device.sm_count,
        "totalGlobalMem": device.memory_bytes,
    }
    known = {name: value for name, value in properties.items() if value is not None}
    job = {"rank": rank} | ({} if trace.world_size is None else {"world_size": trace.world_size})
    return {"distributedInfo": job, "deviceProperties": [known] if known else [], "baseTimeNanoseconds": base_ns}


def _to_frame(pandas: Any, columns: Columns, kept: Any) -> Any:
    """The frame of a rank, with the events' index as its own."""
    rows = slice(None) if kept.all() else kept
    # Lists and texts stay objects: pandas would look at each of them for a better type.
    series = {name: pandas.Series(column[rows], dtype=column.dtype, copy=False) for name, column in columns.items()}
    frame = pandas.DataFrame(series, copy=False)
    return frame.set_index(pandas.Index(frame["index"].to_numpy()))


_GZIP = b"\x1f\x8b"


def read_in_row_order(trace: Trace, path: str) -> dict[str, Any]:
    """The content of a file, with event `index` of `make_columns` at place `index` of its `traceEvents`.

    Events without a row follow. The place of a row without an event of its own, such as one that was made of a begin
    and an end, holds one without meaning.

    Args:
        trace: The rank of the file that the rows are of.
        path: The file.

    Raises:
        UsageError: It is no JSON, as a database of Nsight Systems.
    """
    symbols = Symbols()
    columns = make_columns(trace, symbols)
    content = _parse(path)
    events: list[Any] = content["traceEvents"]
    # Once more with the times as they stand: as floats they are only exact to 0.25 us.
    timed = _parse(path, parse_float=str)["traceEvents"]
    complete = [at for at, event in enumerate(timed) if isinstance(event, dict) and event.get("ph") == "X"]
    start_ns, _ = parse_times([timed[at].get("ts") for at in complete])
    dur_ns, _ = parse_times([timed[at].get("dur") for at in complete])
    names = np.array([symbols.get(str(timed[at].get("name")), NONE) for at in complete], np.int64)
    found = _match(
        (columns["name"], columns["start_ns"], columns["end_ns"]), (names, start_ns, start_ns + np.maximum(dur_ns, 0))
    )
    places = [complete[at] if at >= 0 else NONE for at in found.tolist()]
    others = sorted(set(range(len(events))).difference(places))
    first = [events[others.pop(0)] if others else _no_event()]
    rows = [events[at] if at >= 0 else _no_event() for at in places]
    return content | {"traceEvents": [*first, *rows, *(events[at] for at in others)]}


def _no_event() -> dict[str, Any]:
    return {"ph": "M", "name": "", "args": {}}


def _parse(path: str, **options: Any) -> dict[str, Any]:
    """The JSON of a file, as an object."""
    data = Path(path).read_bytes()
    try:
        content = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data, **options)
    except ValueError as error:
        raise UsageError(f"{path}: HTA draws into a copy of the trace, and this file is no JSON ({error})") from error
    return content if isinstance(content, dict) else {"traceEvents": content}


def _match(rows: tuple[Int64Array, ...], events: tuple[Int64Array, ...]) -> Int32Array:
    """For each row the event with the same values, of equal ones each another; NONE without one."""
    count = len(rows[0])
    both = [np.concatenate(pair) for pair in zip(rows, events, strict=True)]
    order = np.lexsort(both[::-1])
    differs = np.any([column[order[1:]] != column[order[:-1]] for column in both], axis=0)
    group = np.concatenate(([0], np.cumsum(differs)))
    keys = np.empty(len(order), np.int64)
    for side in (order < count, order >= count):
        of_side = group[side]
        occurrence = np.arange(len(of_side)) - np.searchsorted(of_side, of_side)
        keys[order[side]] = of_side * len(order) + occurrence
    return find_first(keys[:count], keys[count:])
