"""The table of collectives, from what events of other kinds say of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array, IntArray
from perfdoctor.trace.kineto.event_columns import COMMS, LABELS, NUMBERS
from perfdoctor.trace.tables.model import Comms


def build_comms(metadata: Mapping[str, IntArray], gpu_index: IntArray, gpu_op: Int32Array, op_index: IntArray) -> Comms:
    """The table of collectives.

    Which event says something of a collective is found by the index of that event in the file. An item whose launch
    lies directly in an op that speaks of a collective is part of that. Copies of a list of tensors into one, which the
    collective makes before or after, have ops of their own in between. `metadata` is what events say, with their index
    in column "event_index"; `gpu_op` is the op around each item's launch.
    """
    indices = (metadata["event_index"], gpu_index, op_index)
    row = np.full(1 + int(max((int(index.max()) for index in indices if len(index)), default=0)), NONE, np.int32)
    row[metadata["event_index"]] = np.arange(len(metadata["event_index"]), dtype=np.int32)
    of_op, of_item = row[op_index], row[gpu_index]
    # What the file says of the op counts for an item that it says nothing about.
    of_launching_op = np.where(gpu_op >= 0, np.append(of_op, NONE)[gpu_op], NONE)
    of_item = np.where(of_item >= 0, of_item, of_launching_op)
    items, ops = np.flatnonzero(of_item >= 0), np.flatnonzero(of_op >= 0)
    source = np.concatenate((of_item[items], of_op[ops]))
    columns = {name: metadata[name][source] for name in (*LABELS, *NUMBERS[COMMS])}
    return Comms(
        gpu=_concatenate(items, np.full(len(ops), NONE)),
        op=_concatenate(np.where(of_launching_op[items] >= 0, gpu_op[items], NONE), ops),
        **columns,
    )


def _concatenate(items: Int64Array, ops: Int64Array) -> Int32Array:
    return np.concatenate((items, ops)).astype(np.int32)
