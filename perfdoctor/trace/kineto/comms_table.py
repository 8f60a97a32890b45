"""What events say of collectives, as a table beside those of the events."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.kineto.event_columns import COMMS, LABELS, NUMBERS, Column
from perfdoctor.trace.tables.model import Comms


def comms_of(told: Mapping[str, Column], gpu_place: Column, gpu_op: Int32Array, op_place: Column) -> Comms:
    """The table of what a file says.

    An item whose launch lies directly in an op that speaks of a collective is part of that. Copies of a list of tensors
    into one, which the collective makes before or after, have ops of their own in between.

    Args:
        told: What the events at some places in the file say.
        gpu_place: For each GPU item its place.
        gpu_op: For each GPU item the row of the innermost op around its launch.
        op_place: For each op its place.
    """
    size = 1 + int(max((int(place.max()) for place in (told["place"], gpu_place, op_place) if len(place)), default=0))
    row = np.full(size, NONE, np.int32)
    row[told["place"]] = np.arange(len(told["place"]), dtype=np.int32)
    of_op, of_item = row[op_place], row[gpu_place]
    issued = np.where(gpu_op >= 0, np.append(of_op, NONE)[gpu_op], NONE)
    item = np.where(of_item >= 0, of_item, issued)
    items, ops = np.flatnonzero(item >= 0), np.flatnonzero(of_op >= 0)
    source = np.concatenate((item[items], of_op[ops]))
    columns = {name: told[name][source] for name in (*LABELS, *NUMBERS[COMMS])}
    return Comms(
        gpu=_rows(items, np.full(len(ops), NONE)),
        op=_rows(np.where(issued[items] >= 0, gpu_op[items], NONE), ops),
        **columns,
    )


def _rows(items: Int64Array, ops: Int64Array) -> Int32Array:
    return np.concatenate((items, ops)).astype(np.int32)
