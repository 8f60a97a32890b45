"""PD301 on the CPU alone: passes over tensors that no cache holds. A model that runs on some rows at a time saves them.

Measured on a CPU with AVX2 (AMD EPYC, 32 MB of shared cache, torch 2.13, one thread, CPU time), forward passes over all
rows against passes over 2,048 or 8,192 rows at a time: layers of 20, 64, 256 and 1,024 features with relu took 0.16,
0.34, 0.51 and 0.72 of the time, ten element-wise ops 0.27. That is 0.73 to 0.84 of the time of the element-wise ops and
copies. Two convolutions with relu gained nothing (1.1 to 1.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import name_longest, project, rank_with_shapes, time_of_ops
from perfdoctor.rules import Intervals, Rank, RecordedInputs, Saving, SourceLocation, UnusableInputsError, distinct_rows
from perfdoctor.rules import intervals as iv

# Ops whose arithmetic takes no time beside reading and writing.
_PASS = (
    r"^aten::(copy|add|sub|rsub|mul|div|neg|abs|relu|clamp|clamp_min|clamp_max|threshold|leaky_relu|hardtanh|where|maximum"
    r"|minimum|square)_?$"
)
_CONVOLUTION = r"conv"
_MAX_CONVOLUTION_SHARE = 0.1
# As large as the caches of large servers; smaller tensors may still be in one when the next op reads them.
_MIN_BYTES = 64e6
# Fewer rows are no table of independent ones: sequences, images, heads.
_MIN_ROWS = 8192
_MIN_PASSES, _MIN_SHARE = 3, 0.2
# The most that went of the time of these ops.
_MAX_SAVED = 0.85
# What a chunk of rows holds in one tensor: a core's own cache.
_CHUNK_BYTES = 1 << 20


class LargePasses(NamedTuple):
    """Element-wise ops and copies on tensors larger than the caches.

    Attributes:
        time: When they run.
        number: How many there are in the window.
        longest: The op that takes most time of them.
        tensor_bytes: The size of the tensor that takes most time.
        chunk_rows: So many rows of it fit into a core's cache, a power of two.
        saving: What chunks save of a step.
        location: The user's line.
    """

    time: Intervals
    number: int
    longest: str
    tensor_bytes: int
    chunk_rows: int
    saving: Saving
    location: SourceLocation | None


def find_large_passes(rank: Rank) -> LargePasses | None:
    """The passes over large tensors of a program that runs forward only on the CPU; None without enough of them."""
    shaped = rank_with_shapes(rank)
    if shaped is None or rank.context.phase not in ("inference", "evaluation"):
        return None
    trace, ops = shaped.trace, shaped.trace.ops
    rows = np.flatnonzero(trace.match_rows(ops, _PASS) & (ops.dims >= 0) & (ops.types >= 0))
    which, first = distinct_rows((ops.dims[rows], ops.types[rows]), len(trace.strings))
    texts = ((trace.text(int(ops.dims[row])), trace.text(int(ops.types[row]))) for row in rows[first])
    sizes = np.array([_rows_and_bytes(*each) for each in texts], np.int64).reshape(-1, 2)
    is_large = (sizes[:, 0] >= _MIN_ROWS) & (sizes[:, 1] >= _MIN_BYTES)
    large = rows[is_large[which]]
    marks = np.zeros(len(ops), bool)
    marks[large] = True
    marks = project(rank, shaped, marks)
    marks &= ~np.append(marks, False)[rank.trace.ops.parent]
    number, time = int(marks.sum()), time_of_ops(rank, marks)
    convolving = time_of_ops(rank, rank.trace.match_rows(rank.trace.ops, _CONVOLUTION))
    if number < _MIN_PASSES or iv.total(time) < _MIN_SHARE * rank.window_ns:
        return None
    if iv.total(convolving) > _MAX_CONVOLUTION_SHARE * rank.window_ns:
        return None
    count, size_bytes = sizes[(np.bincount(which, ops.dur_ns[rows]) * is_large).argmax()].tolist()
    return LargePasses(
        time=time,
        number=number,
        longest=name_longest(rank.trace, np.flatnonzero(marks)).removeprefix("aten::"),
        tensor_bytes=size_bytes,
        chunk_rows=int(2 ** np.clip(np.round(np.log2(_CHUNK_BYTES * count / size_bytes)), 8, 16)),
        saving=Saving(0, None, rank.per_step(round(_MAX_SAVED * iv.total(time))), "bounded"),
        location=rank.places.line_of_ops(marks),
    )


def _rows_and_bytes(dims: str | None, types: str | None) -> tuple[int, int]:
    """Rows and bytes of the first argument of an op; 0 where it is no tensor of rows."""
    try:
        tensor = RecordedInputs.parse(dims or "", types or "", None, None).tensor(0)
    except UnusableInputsError:
        return 0, 0
    return (tensor.sizes[0], tensor.bytes) if tensor.sizes else (0, 0)
