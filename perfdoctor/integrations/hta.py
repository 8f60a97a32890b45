"""Traces for HTA (HolisticTraceAnalysis), read by perfdoctor.

    from perfdoctor.integrations.hta import to_trace_analysis
    analysis = to_trace_analysis("traces/")
    analysis.get_temporal_breakdown(visualize=False)

Its analyses and notebooks work on the result as on what `hta.trace_analysis.TraceAnalysis` loads itself; docs/hta.md
says what differs.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perfdoctor.errors import UsageError
from perfdoctor.fleet.discover import find_traces
from perfdoctor.integrations.hta_columns import Columns, Symbols, make_columns, round_up_us, select_steps, set_times
from perfdoctor.integrations.hta_raw_trace import read_in_row_order
from perfdoctor.trace import Trace, read
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
