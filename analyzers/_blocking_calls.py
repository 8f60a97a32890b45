"""What in the program makes the CPU wait for the GPU: every blocking call, with its cause by the ops around it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from perfdoctor.rules import (
    MEMCPY,
    NONE,
    Advice,
    BoolArray,
    Int32Array,
    Rank,
    Trace,
    advise,
    copy_kinds_of,
    frozen_dataclass,
    match_blocking_calls,
    nesting,
    read_texts,
    vocabulary,
)

ITEM, IF, NONZERO, MASK, UNIQUE, REPEAT, COMPARE = "item", "if", "nonzero", "mask", "unique", "repeat", "compare"
PRINT, CLIP, SCALER = "print", "clip", "scaler"
TO_CPU, PINNED, PAGEABLE, COPY = "to-cpu", "pinned", "pageable", "copy"
DEVICE, EVENT, STREAM = "synchronize", "event", "stream"

# Ops that say what was written. Of several around a call the outermost counts.
_CAUSE_OF_OP: Mapping[str, str] = {
    r"^aten::(item|_local_scalar_dense)$": ITEM,
    r"^aten::is_nonzero$": IF,
    r"^aten::(nonzero|argwhere|nonzero_numpy|nonzero_static)$": NONZERO,
    r"^aten::(index|index_put_?|_index_put_impl_|masked_select|masked_scatter_?)$": MASK,
    r"^aten::_?unique(2|_dim|_consecutive|_dim_consecutive)?$": UNIQUE,
    r"^aten::repeat_interleave$": REPEAT,
    r"^aten::(equal|allclose)$": COMPARE,
    r"^aten::(to|_to_copy|copy_|cpu|cuda)$": COPY,
}
_CAUSE_OF_CALL: Mapping[str, str] = {
    vocabulary.DEVICE_SYNC_CALL: DEVICE,
    vocabulary.EVENT_SYNC_CALL: EVENT,
    vocabulary.STREAM_SYNC_CALL: STREAM,
    vocabulary.COPY_CALL: COPY,
}
# An index is a mask only where the positions of its hits are counted, else it is a copy of indices from the CPU.
_INDEX_OP = r"^aten::(index|index_put_?|_index_put_impl_)$"
_COUNTING_OP = r"^aten::(nonzero|masked_select|masked_scatter_?)$"
# Ops of PyTorch itself; an op of another library is its own cause, whatever it calls.
_PYTORCH_OP = r"^aten::|^autograd::|^[^:]+$|^torch::autograd::"
# Who reads a value shows by the ops before it on the thread, at most so many back: `print` picks the finite values and
# looks at each, clip_grad_norm_ asks for both NaN and infinity, GradScaler has just unscaled. A tensor of n values is
# printed in some 30 + 2 n ops.
_READERS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    (CLIP, (r"^aten::logical_or$", r"^aten::isinf$", r"^aten::isnan$"), 3),
    (SCALER, (vocabulary.GRAD_SCALER_OP,), 4),
    (PRINT, (r"^aten::isfinite$", r"^aten::(__and__|bitwise_and)$"), 30),
)

_Texts: TypeAlias = np.ndarray[tuple[int], np.dtype[np.object_]]


@frozen_dataclass(eq=False)
class BlockingCalls:
    """The blocking calls of the window, one row each, sorted by start.

    For example, `.item()`, whose op copies and then waits, and a `torch.cuda.synchronize()`::

        call                        op    cause        wait
        17 cudaMemcpyAsync          4     item         1
        18 cudaStreamSynchronize    4     item         1
        25 cudaDeviceSynchronize    NONE  synchronize  0

    Attributes:
        call: Row in `Trace.calls`.
        op: The outermost op around it that says the cause, else the outermost; NONE outside all ops.
        cause: What was written: one of the constants above, or the name of the op or call itself.
        wait: Number of the wait: the calls of one op (a copy, and the wait for it) are one.
    """

    call: Int32Array
    op: Int32Array
    cause: tuple[str, ...]
    wait: Int32Array

    def __len__(self) -> int:
        return len(self.call)


def find_blocking_calls(rank: Rank) -> BlockingCalls:
    """Every call of the window in which the CPU waited for the GPU."""
    trace = rank.trace
    calls = rank.calls.where(match_blocking_calls(trace)).in_steps().rows.index.astype(np.int32)
    innermost = trace.calls.op[calls]
    outermost = nesting.outermost(trace.ops.parent, innermost) if len(trace.ops) else innermost
    causes, cause_op = _causes_by_op(trace, innermost)
    outermost_names = np.array([trace.text(int(trace.ops.name[op])) if op >= 0 else "" for op in outermost], object)
    unknown = np.where(outermost >= 0, outermost_names, _causes_by_call(trace, calls))
    foreign = (outermost >= 0) & ~_match_ops(trace, outermost, _PYTORCH_OP)
    causes = np.where(foreign, outermost_names, np.where(causes != "", causes, unknown))
    _refine_copies(trace, calls, causes)
    _refine_reads(trace, cause_op, causes)
    op = np.where((cause_op >= 0) & ~foreign, cause_op, outermost)
    wait = np.unique(np.where(op >= 0, op, -2 - calls.astype(np.int64)), return_inverse=True)[1]
    return BlockingCalls(calls, op, tuple(causes.tolist()), wait.reshape(-1).astype(np.int32))


def _match_ops(trace: Trace, op: Int32Array, pattern: str) -> BoolArray:
    """For each op whether its name matches; False for NONE."""
    if not len(trace.ops):
        return np.zeros(len(op), bool)
    matches: BoolArray = (op >= 0) & trace.match_strings(trace.ops, pattern)[trace.ops.name[op]]
    return matches


def _causes_by_call(trace: Trace, calls: Int32Array) -> _Texts:
    """The cause of each call by its own name."""
    causes: dict[int, str] = {}
    for code in set(trace.calls.name[calls].tolist()):
        name = trace.strings[code]
        causes[code] = next((cause for pattern, cause in _CAUSE_OF_CALL.items() if re.search(pattern, name)), name)
    return np.array([causes[code] for code in trace.calls.name[calls].tolist()], object)


def _causes_by_op(trace: Trace, innermost: Int32Array) -> tuple[_Texts, Int32Array]:
    """The cause of each call by the ops around it, and the outermost op that says it; "" and NONE where none does."""
    causes, cause_op = np.full(len(innermost), "", object), np.full(len(innermost), NONE, np.int32)
    cause_of_name = np.full(len(trace.strings), "", object)
    for pattern, cause in _CAUSE_OF_OP.items():
        cause_of_name[trace.match_strings(trace.ops, pattern)] = cause
    is_counting = np.zeros(len(innermost), bool)
    op = innermost.copy()
    while (op >= 0).any():
        is_counting |= _match_ops(trace, op, _COUNTING_OP)
        of_op = cause_of_name[trace.ops.name[op]]
        hit = (op >= 0) & (of_op != "") & (is_counting | ~_match_ops(trace, op, _INDEX_OP))
        causes[hit], cause_op[hit] = of_op[hit], op[hit]
        op = np.where(op >= 0, trace.ops.parent[op], NONE).astype(np.int32)
    return causes, cause_op


def _refine_copies(trace: Trace, calls: Int32Array, causes: _Texts) -> None:
    """Replace COPY by where the copy goes: to the CPU, or to the GPU from pinned or from pageable memory."""
    gpu = trace.gpu
    copies = np.flatnonzero(gpu.kind == MEMCPY)
    # The last entries are for copies without a call or op.
    copy_of_call, copy_of_op = np.full(len(trace.calls) + 1, NONE), np.full(len(trace.ops) + 1, NONE)
    copy_of_call[gpu.call[copies]] = copies
    copy_of_op[gpu.op[copies]] = copies
    copy_of_call[-1] = copy_of_op[-1] = NONE
    copy = np.where(copy_of_call[calls] >= 0, copy_of_call[calls], copy_of_op[trace.calls.op[calls]])
    known = np.flatnonzero((causes == COPY) & (copy >= 0))
    kinds = copy_kinds_of(trace)
    direction, pageable = kinds.direction[copy[known]], kinds.host_memory[copy[known]] == vocabulary.PAGEABLE
    causes[known[direction == vocabulary.DTOH]] = TO_CPU
    causes[known[(direction == vocabulary.HTOD) & pageable]] = PAGEABLE
    causes[known[(direction == vocabulary.HTOD) & ~pageable]] = PINNED


def _refine_reads(trace: Trace, cause_op: Int32Array, causes: _Texts) -> None:
    """Replace the cause of reads by who reads, where the ops before show it: `print`, clipping, GradScaler."""
    reads = np.flatnonzero(np.isin(causes, (ITEM, IF, MASK)) & (cause_op >= 0))
    if not len(reads):
        return
    ops = trace.ops
    order = np.flatnonzero(ops.parent < 0)
    order = order[np.lexsort((ops.start_ns[order], ops.thread[order]))]
    position = np.full(len(ops), NONE)
    position[order] = np.arange(len(order))
    read_at = position[nesting.outermost(ops.parent, cause_op[reads])]
    for cause, patterns, max_ops_back in _READERS:
        matches = np.ones(len(reads), bool)
        for pattern in patterns:
            if not matches.any():
                break
            preceding = np.append(NONE, np.flatnonzero(trace.match_strings(ops, pattern)[ops.name[order]]))
            last = preceding[np.searchsorted(preceding, read_at, side="right") - 1]
            same_thread = ops.thread[order[last]] == ops.thread[order[read_at]]
            matches &= (last >= 0) & (read_at - last <= max_ops_back) & same_thread
        causes[reads[matches]] = cause


def name_cause(cause: str) -> str:
    """The cause as it is written in code; an op that is not in the table by its own name."""
    return str(read_texts("words")["syncs"].get(cause, cause))


def advise_on_cause(rank: Rank, cause: str) -> Advice:
    """What to do about a cause in this program."""
    situation = f"sync: {cause if cause in read_texts('words')['syncs'] else 'other'}"
    if cause == PAGEABLE and len(rank.loader_waits):
        situation += ", beside a DataLoader"
    return advise(situation, rank.context)
