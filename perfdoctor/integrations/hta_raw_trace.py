"""The JSON of a trace in the order of HTA's rows: overlays that HTA draws take an event's index for its place there."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from perfdoctor.errors import UsageError
from perfdoctor.integrations.hta_columns import Symbols, make_columns
from perfdoctor.trace import Trace
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.kineto.exact_times import parse_times
from perfdoctor.trace.tables.links import find_first

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
