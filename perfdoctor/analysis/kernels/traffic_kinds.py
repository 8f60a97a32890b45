"""Which one story each memory-bound GPU item belongs to, so that no two rules tell of the same kernel.

The most specific story has it: the optimizer's step, zeroing of gradients, layout copies beside convolutions, casts of
weights, other copies, and what is left of pointwise work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson

from perfdoctor.analysis.kernels.kernel_costs import op_names, ops_where
from perfdoctor.analysis.kernels.tensor_core_verdicts import MATRIX_CATEGORIES
from perfdoctor.gpu import KernelClass, classify_op
from perfdoctor.gpu.roofline.recorded_inputs import FLOAT_TYPES, RecordedInputs, UnusableInputsError
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.model import KERNEL, MEMCPY, MEMSET, Trace

if TYPE_CHECKING:
    from perfdoctor.rank import Rank

STORIES = ("optimizer", "zeroing", "layout", "weight-cast", "copy", "pointwise")
OPTIMIZER, ZEROING, LAYOUT, WEIGHT_CAST, COPY, POINTWISE = range(len(STORIES))

STEP_RANGE = r"^Optimizer\.step#"
ZERO_RANGE = r"^Optimizer\.zero_grad#"
GENERATED = re.compile(r"^_*triton_")
ACCUMULATES = re.compile(r"AccumulateGrad")
_COMPILED = re.compile(r"Torch-Compiled Region|CompiledF|CompiledAutograd|TorchDynamo")
_CONVOLUTION = re.compile(r"^aten::\w*conv(olution|\d|_|$)")
_LAYOUT_RULE = "A2"  # of gpu/kernel_rules/cudnn.py: kernels of libraries that change the layout
# What gathers tensors for another rank or a bucket has to copy them.
_PACKS = re.compile(
    r"(?i)c10d|reduce|all_?2_?all|all_to_all|all_?gather|redistribute|fsdp|flatten_dense|AccumulateGrad"
)
COPIES = re.compile(r"^aten::(contiguous|clone|reshape|cat|_cat|stack|repeat|repeat_interleave|tile|concat)$")
_CASTS = re.compile(r"^aten::(_to_copy|to|type|type_as|half|float|bfloat16)$")
_MULTIPLIES = re.compile(
    r"^aten::(linear|matmul|addmm|mm|bmm|baddbmm|einsum|conv[123]d|conv_transpose[123]d|_convolution)$"
)
_CAST_BACKWARD = "ToCopyBackward0"


class Traffic(NamedTuple):
    """The story of each GPU item.

    Attributes:
        story: For each GPU item an index into STORIES; -1 for items without one, and outside the window.
        optimizer: For each GPU item the row in `trace.ranges` of the optimizer step that launched it, or -1.
        compiled: For each GPU item whether generated code launched it, or it is generated.
    """

    story: Int8Array
    optimizer: Int32Array
    compiled: BoolArray

    def rows_of(self, story: int) -> BoolArray:
        """For each GPU item whether it belongs to that story."""
        result: BoolArray = self.story == story
        return result


def traffic_kinds_of(rank: Rank) -> Traffic:
    """The story of each GPU item of the window."""
    trace = rank.trace
    gpu = trace.gpu
    story = np.full(len(gpu), NONE, np.int8)
    category = {
        name: rank.kernels_where(lambda k, name=name: k.category == name and k.tensor_core == "na")
        for name in ("elementwise", "random", "copy")
    }
    pointwise = category["elementwise"] | category["random"]
    copies = category["copy"] | ((gpu.kind == MEMCPY) & trace.match_rows(gpu, "DtoD"))
    compiled, accumulates, packs, casting, copying, convolves = launched_inside_each(
        trace, (_COMPILED, ACCUMULATES, _PACKS, _CASTS, COPIES, _CONVOLUTION)
    )
    compiled |= trace.match_rows(gpu, GENERATED)
    story[pointwise & ~accumulates & ~_epilogue(trace)] = POINTWISE
    moving = copies & ~packs
    story[category["copy"] & moving & casting] = POINTWISE
    story[moving & ~casting & copying] = COPY
    story[_casts_of_weights(trace, np.flatnonzero(copies & casting))] = WEIGHT_CAST
    story[_layout(rank, copies, convolves & ~casting)] = LAYOUT
    zeroed = launched_in(trace, ZERO_RANGE) >= 0
    story[zeroed & (pointwise | (gpu.kind == MEMSET) | rank.kernels_where(_many_tensors))] = ZEROING
    optimizer = launched_in(trace, STEP_RANGE)
    story[(optimizer >= 0) & (gpu.kind == KERNEL) & ~rank.kernels_where(_multiplies)] = OPTIMIZER
    story[~rank.in_window] = NONE
    return Traffic(story, optimizer, compiled)


def _epilogue(trace: Trace) -> BoolArray:
    """For each GPU item whether an op that multiplies or convolves launched it itself: a helper of a library."""
    used = ops_where(trace, lambda name: classify_op(name) in MATRIX_CATEGORIES)
    result: BoolArray = np.append(used, False)[op_names(trace)]
    return result


def _many_tensors(kernel: KernelClass) -> bool:
    return kernel.category == "optimizer"


def _multiplies(kernel: KernelClass) -> bool:
    return kernel.tensor_core != "na" or kernel.category == "communication"


def launched_in(trace: Trace, pattern: str) -> Int32Array:
    """For each GPU item the row in `trace.ranges` of the innermost range of such a name that launched it, or -1."""
    gpu, calls, ranges = trace.gpu, trace.calls, trace.ranges
    found = np.full(len(gpu), NONE, np.int32)
    wanted = np.flatnonzero(trace.match_rows(ranges, pattern))
    rows = np.flatnonzero(gpu.call >= 0)
    if not len(wanted) or not len(rows):
        return found
    call = gpu.call[rows]
    start, end, thread = ranges.start_ns[wanted], ranges.end_ns[wanted], ranges.thread[wanted]
    inside = nesting.innermost(start, end, thread, calls.start_ns[call], calls.thread[call])
    found[rows] = np.where(inside >= 0, wanted[inside], NONE)
    return found


def launched_inside(trace: Trace, pattern: re.Pattern[str]) -> BoolArray:
    """For each GPU item whether the op that launched it, or an op around that one, has such a name."""
    return launched_inside_each(trace, (pattern,))[0]


def launched_inside_each(trace: Trace, patterns: Sequence[re.Pattern[str]]) -> list[BoolArray]:
    """The same for up to eight patterns: a climb through the ops tells of all of them."""
    gpu, ops = trace.gpu, trace.ops
    fits = np.zeros(len(trace.strings), np.uint8)  # a bit a pattern
    for i, pattern in enumerate(patterns):
        fits[trace.match_strings(ops, pattern)] |= np.uint8(1 << i)
    met = np.zeros(len(gpu), np.uint8)
    rows = np.flatnonzero(gpu.op >= 0) if fits.any() else np.zeros(0, np.int64)
    at = gpu.op[rows]
    while len(rows):
        met[rows] |= fits[ops.name[at]]
        at = ops.parent[at]
        climbs = at >= 0
        at, rows = at[climbs], rows[climbs]
    return [(met & np.uint8(1 << i)) != 0 for i in range(len(patterns))]


def _layout(rank: Rank, copies: BoolArray, inside: BoolArray) -> BoolArray:
    """Layout copies beside convolutions: launched inside of one, or of a library where no op is recorded."""
    trace = rank.trace
    library = rank.kernels_where(lambda k: k.rule == _LAYOUT_RULE)
    convolves = rank.kernels_where(lambda k: k.category == "convolution" and k.tensor_core != "na").any()
    result: BoolArray = copies & ((inside & (trace.gpu.kind == KERNEL)) | (library & (trace.gpu.op < 0) & convolves))
    return result & ~trace.match_rows(trace.gpu, r"im2col|col2im|im2d2col|im3d2col|vol2col")


def _casts_of_weights(trace: Trace, rows: Int64Array) -> Int64Array:
    """Of kernels that cast, those that cast an argument behind the first of an op that multiplies, or its gradient."""
    ops = trace.ops
    rows = rows[trace.gpu.op[rows] >= 0]
    rows = rows[(ops.dims[trace.gpu.op[rows]] >= 0) & (ops.types[trace.gpu.op[rows]] >= 0)]
    if not len(rows):
        return rows
    op = trace.gpu.op[rows]
    _, consumer = climb(trace, op, lambda name: name == "aten::copy_" or bool(_CASTS.search(name)))
    around = np.where(consumer >= 0, consumer, 0)
    columns = (
        *(column[op] for column in (ops.name, ops.dims, ops.types)),
        *(np.where(consumer >= 0, column[around], NONE).astype(np.int32) for column in (ops.name, ops.dims)),
    )
    which, first = distinct_rows(columns, len(trace.strings))
    kinds = [_Cast.read(*(trace.text(int(column[i])) for column in columns)) for i in first]
    weights = {(cast.sizes, cast.source, cast.to) for cast in kinds if cast is not None and cast.of_weight}
    wanted = [cast is not None and cast.belongs_to(weights) for cast in kinds]
    chosen: Int64Array = rows[np.array(wanted, bool)[which]]
    return chosen


def climb(trace: Trace, op: Int32Array, through: Callable[[str], bool]) -> tuple[Int32Array, Int32Array]:
    """Climb from each op outwards as long as names pass.

    Returns:
        For each op the outermost one reached (-1 if its own name does not pass), and the one around that (-1 if none;
        the op itself where its own name does not pass).
    """
    ops = trace.ops
    passes = ops_where(trace, through)
    last, at = np.full(len(op), NONE, np.int32), op.copy()
    while True:
        rises = np.flatnonzero((at >= 0) & passes[ops.name[at]]) if len(ops) else np.zeros(0, np.int64)
        if not len(rises):
            return last, at
        last[rises] = at[rises]
        at[rises] = ops.parent[at[rises]]


class _Cast(NamedTuple):
    """One kind of cast: sizes, both types, whether of a weight, whether of a gradient."""

    sizes: tuple[int, ...]
    source: str
    to: str
    of_weight: bool
    backward: bool

    @classmethod
    def read(
        cls, name: str | None, dims: str | None, types: str | None, consumer: str | None, inputs: str | None
    ) -> _Cast | None:
        """From the recorded inputs of a `copy_` and of the op around it; None where it is no cast between floats."""
        if name != "aten::copy_" or dims is None or types is None:
            return None
        try:
            recorded = RecordedInputs.parse(dims, types, None, None)
            to, source = recorded.tensor(0), recorded.tensor(1)
        except UnusableInputsError:
            return None
        if to.dtype == source.dtype or not {to.dtype, source.dtype} <= FLOAT_TYPES:
            return None
        weight = consumer is not None and bool(_MULTIPLIES.search(consumer)) and _behind_first(source.sizes, inputs)
        return cls(source.sizes, source.dtype, to.dtype, weight, consumer is not None and _CAST_BACKWARD in consumer)

    def belongs_to(self, weights: set[tuple[tuple[int, ...], str, str]]) -> bool:
        """Whether it casts a weight, or the gradient of one back."""
        return self.of_weight or (self.backward and (self.sizes, self.to, self.source) in weights)


def _behind_first(sizes: tuple[int, ...], inputs: str | None) -> bool:
    """Whether an op's recorded inputs have these sizes at a position behind the first, and not at the first."""
    if inputs is None:
        return False
    try:
        arguments = orjson.loads(inputs)
    except orjson.JSONDecodeError:
        return False
    return isinstance(arguments, list) and list(sizes) in arguments[1:] and arguments[0] != list(sizes)
