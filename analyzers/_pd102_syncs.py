"""Which line of PyTorch makes the CPU wait for the GPU: every blocking call, named by the ops around it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from perfdoctor.analysis.timeline.idle_gaps import match_blocking_calls
from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.model import MEMCPY, Trace

ITEM, IF, NONZERO, MASK, UNIQUE, REPEAT, COMPARE = "item", "if", "nonzero", "mask", "unique", "repeat", "compare"
PRINT, CLIP, SCALER = "print", "clip", "scaler"
TO_CPU, PINNED, PAGEABLE, COPY = "to-cpu", "pinned", "pageable", "copy"
DEVICE, EVENT, STREAM = "synchronize", "event", "stream"

# The op that tells, and what was written. Of several around a call the outermost counts.
_BY_OP: Mapping[str, str] = MappingProxyType(
    {
        r"^aten::(item|_local_scalar_dense)$": ITEM,
        r"^aten::is_nonzero$": IF,
        r"^aten::(nonzero|argwhere|nonzero_numpy|nonzero_static)$": NONZERO,
        r"^aten::(index|index_put_?|_index_put_impl_|masked_select|masked_scatter_?)$": MASK,
        r"^aten::_?unique(2|_dim|_consecutive|_dim_consecutive)?$": UNIQUE,
        r"^aten::repeat_interleave$": REPEAT,
        r"^aten::(equal|allclose)$": COMPARE,
        r"^aten::(to|_to_copy|copy_|cpu|cuda)$": COPY,
    }
)
_BY_CALL: Mapping[str, str] = MappingProxyType(
    {
        vocabulary.DEVICE_SYNC_CALL: DEVICE,
        vocabulary.EVENT_SYNC_CALL: EVENT,
        vocabulary.STREAM_SYNC_CALL: STREAM,
        vocabulary.COPY_CALL: COPY,
    }
)
# An index is a mask only where the positions of its hits are counted, else it is a copy of indices from the CPU.
_NEEDS_NONZERO = r"^aten::(index|index_put_?|_index_put_impl_)$"
_COUNTS = r"^aten::(nonzero|masked_select|masked_scatter_?)$"
# Ops of PyTorch itself; an op of another library is named as it is, whatever it calls.
_OWN = r"^aten::|^autograd::|^[^:]+$|^torch::autograd::"
# What came before on the thread tells who asks: `print` picks the finite values and looks at each, clip_grad_norm_ asks
# for both NaN and infinity, GradScaler has just unscaled. A tensor of n values is printed in some 30 + 2 n ops.
_LOOK_BACK = 30
_SIGNS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    (CLIP, (r"^aten::logical_or$", r"^aten::isinf$", r"^aten::isnan$"), 3),
    (SCALER, (r"^aten::_amp_foreach_non_finite_check_and_unscale_$",), 4),
    (PRINT, (r"^aten::isfinite$", r"^aten::(__and__|bitwise_and)$"), _LOOK_BACK),
)


@dataclass(frozen=True, slots=True, eq=False)
class Syncs:
    """The blocking calls of the window, one row each, sorted by start.

    Attributes:
        call: Row in `Trace.calls`.
        op: The outermost op around it that tells the cause, else the outermost; -1 for none.
        cause: What was written, one of the names above, or the name of the op or call itself.
        wait: Number of the wait: the calls of one op (a copy, and the wait for it) are one.
    """

    call: Int32Array
    op: Int32Array
    cause: tuple[str, ...]
    wait: Int32Array

    def __len__(self) -> int:
        return len(self.call)


def find_syncs(run: Rank) -> Syncs:
    """Every call of the analysed window in which the CPU waited for the GPU."""
    trace, calls = run.trace, run.trace.calls
    rows = np.flatnonzero(match_blocking_calls(trace) & iv.contains(run.window, calls.start_ns)).astype(np.int32)
    inner = calls.op[rows]
    outer = nesting.outermost(trace.ops.parent, inner) if len(trace.ops) else inner
    told, top = _by_op(trace, inner)
    causes = np.where(told != "", told, np.where(outer >= 0, _names(trace, outer), _by_call(trace, rows)))
    foreign = (outer >= 0) & ~_matches(trace, outer, _OWN)
    causes = np.where(foreign, _names(trace, outer), causes)
    causes = _directions(trace, rows, causes)
    op = np.where((top >= 0) & ~foreign, top, outer)
    wait = np.unique(np.where(op >= 0, op, -2 - rows.astype(np.int64)), return_inverse=True)[1]
    return Syncs(rows, op, tuple(_asked_by(trace, top, causes).tolist()), wait.reshape(-1).astype(np.int32))


def _names(trace: Trace, op: Int32Array) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    return np.array([trace.text(int(trace.ops.name[row])) if row >= 0 else "" for row in op], object)


def _matches(trace: Trace, op: Int32Array, pattern: str) -> BoolArray:
    """For each op whether its name fits; not for -1."""
    if not len(trace.ops):
        return np.zeros(len(op), bool)
    fits: BoolArray = (op >= 0) & trace.match_strings(trace.ops, pattern)[trace.ops.name[op]]
    return fits


def _by_call(trace: Trace, rows: Int32Array) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """What a blocking call is by its own name, for those outside all ops."""
    found: dict[int, str] = {}
    for code in set(trace.calls.name[rows].tolist()):
        name = trace.strings[code]
        found[code] = next((cause for pattern, cause in _BY_CALL.items() if re.search(pattern, name)), name)
    return np.array([found[code] for code in trace.calls.name[rows].tolist()], object)


def _by_op(trace: Trace, inner: Int32Array) -> tuple[np.ndarray[tuple[int], np.dtype[np.object_]], Int32Array]:
    """What the ops around each call tell ("" for nothing), and the outermost of them that tells."""
    told, top = np.full(len(inner), "", object), np.full(len(inner), NONE, np.int32)
    by_name = np.full(len(trace.strings), "", object)
    for pattern, meaning in _BY_OP.items():
        by_name[trace.match_strings(trace.ops, pattern)] = meaning
    counted = np.zeros(len(inner), bool)
    at = inner.copy()
    while (at >= 0).any():
        counted |= _matches(trace, at, _COUNTS)
        cause = by_name[trace.ops.name[at]]
        hit = (at >= 0) & (cause != "") & (counted | ~_matches(trace, at, _NEEDS_NONZERO))
        told[hit], top[hit] = cause[hit], at[hit]
        at = np.where(at >= 0, trace.ops.parent[at], NONE).astype(np.int32)
    return told, top


def _directions(
    trace: Trace, rows: Int32Array, causes: np.ndarray[tuple[int], np.dtype[np.object_]]
) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """Copies by where they go: to the CPU, or to the GPU from pinned or from pageable memory."""
    gpu, calls = trace.gpu, trace.calls
    copies = np.flatnonzero(gpu.kind == MEMCPY)
    of_call, of_op = np.full(len(calls) + 1, NONE), np.full(len(trace.ops) + 1, NONE)
    of_call[gpu.call[copies]] = copies  # -1 writes to the spare place at the end
    of_op[gpu.op[copies]] = copies
    of_call[-1] = of_op[-1] = NONE
    item = np.where(of_call[rows] >= 0, of_call[rows], of_op[calls.op[rows]])
    kinds = copy_kinds_of(trace)
    known = np.flatnonzero((causes == COPY) & (item >= 0))
    direction, pageable = kinds.direction[item[known]], kinds.host_memory[item[known]] == vocabulary.PAGEABLE
    causes[known[direction == vocabulary.DTOH]] = TO_CPU
    causes[known[(direction == vocabulary.HTOD) & pageable]] = PAGEABLE
    causes[known[(direction == vocabulary.HTOD) & ~pageable]] = PINNED
    return causes


def _asked_by(
    trace: Trace, top: Int32Array, causes: np.ndarray[tuple[int], np.dtype[np.object_]]
) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """Reads of a value whose thread shows by what it did before who reads: `print`, clipping, GradScaler."""
    reads = np.flatnonzero(np.isin(causes, (ITEM, IF, MASK)) & (top >= 0))
    if not len(reads):
        return causes
    ops = trace.ops
    tops = np.flatnonzero(ops.parent < 0)
    order = tops[np.lexsort((ops.start_ns[tops], ops.thread[tops]))]
    place = np.full(len(ops), NONE)
    place[order] = np.arange(len(order))
    at = place[nesting.outermost(ops.parent, top[reads])]
    names = ops.name[order]
    for cause, signs, reach in _SIGNS:
        seen = np.ones(len(reads), bool)
        for sign in signs:
            if not seen.any():
                break
            given = np.append(NONE, np.flatnonzero(trace.match_strings(ops, sign)[names]))
            near = given[np.searchsorted(given, at, side="right") - 1]
            seen &= (near >= 0) & (at - near <= reach) & (ops.thread[order[near]] == ops.thread[order[at]])
        causes[reads[seen]] = cause
    return causes
