"""Why each memory-bound GPU item moves data: one kind each, so that no two rules claim the same kernel.

An item gets the most specific kind that fits: the optimizer's step, zeroing of gradients, layout copies beside
convolutions, casts of weights, other copies, or pointwise work.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import orjson

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.launching_ops import (
    find_outermost_ops,
    launching_op_names,
    launching_ranges,
    match_each_launching_op,
    match_op_names,
)
from perfdoctor.analysis.optimizer_steps import optimizer_steps_of
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import KernelClass, classify_op
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.recorded_inputs import FLOAT_TYPES, RecordedInputs, UnusableInputsError
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.model import KERNEL, MEMSET, Trace

TRAFFIC_KINDS = ("optimizer", "zeroing", "layout", "weight-cast", "copy", "pointwise")
OPTIMIZER, ZEROING, LAYOUT, WEIGHT_CAST, COPY, POINTWISE = range(len(TRAFFIC_KINDS))

_CONVOLUTION = re.compile(r"^aten::\w*conv(olution|\d|_|$)")
_LAYOUT_RULE = "A2"  # of gpu/data/kernel_rules.csv: kernels of libraries that change the layout
# Ops that pack tensors into a bucket or for another rank: these copies are necessary.
_PACKS = re.compile(
    r"(?i)c10d|reduce|all_?2_?all|all_to_all|all_?gather|redistribute|fsdp|flatten_dense|AccumulateGrad"
)
COPY_OPS = re.compile(r"^aten::(contiguous|clone|reshape|cat|_cat|stack|repeat|repeat_interleave|tile|concat)$")
_CASTS = re.compile(r"^aten::(_to_copy|to|type|type_as|half|float|bfloat16)$")
_MULTIPLIES = re.compile(
    r"^aten::(linear|matmul|addmm|mm|bmm|baddbmm|einsum|conv[123]d|conv_transpose[123]d|_convolution)$"
)


@frozen_dataclass(eq=False)
class TrafficKinds:
    """Why each GPU item moves data.

    Attributes:
        kind: For each GPU item an index into TRAFFIC_KINDS; -1 for items of none, and outside the window.
        optimizer_step: For each GPU item the optimizer step that launched it, a row of `trace.ranges`, or -1. What a
            closure in the step launches is not the optimizer's.
        is_compiled: For each GPU item whether compiled code launched it, or it is generated.
    """

    kind: Int8Array
    optimizer_step: Int32Array
    is_compiled: BoolArray

    def match_rows(self, kind: int) -> BoolArray:
        """For each GPU item whether it is of that kind."""
        result: BoolArray = self.kind == kind
        return result


def traffic_kinds_of(classes: KernelClasses, in_window: BoolArray) -> TrafficKinds:
    """Why each GPU item of the window moves data."""
    trace = classes.trace
    gpu = trace.gpu
    kind = np.full(len(gpu), NONE, np.int8)
    category = {
        name: classes.match_rows(lambda k, name=name: k.category == name and k.tensor_core == "na")
        for name in ("elementwise", "random", "copy")
    }
    pointwise = category["elementwise"] | category["random"]
    copies = category["copy"] | copy_kinds_of(trace).matches(vocabulary.DTOD)
    compiled, accumulating, packing, casting, copying, convolving = match_each_launching_op(
        trace, (vocabulary.COMPILED_OP, vocabulary.ACCUMULATE_GRAD, _PACKS, _CASTS, COPY_OPS, _CONVOLUTION)
    )
    compiled |= trace.match_rows(gpu, vocabulary.TRITON_KERNEL)
    kind[pointwise & ~accumulating & ~_launched_by_matrix_op(trace)] = POINTWISE
    moving = copies & ~packing
    kind[category["copy"] & moving & casting] = POINTWISE
    kind[moving & ~casting & copying] = COPY
    kind[_casts_of_weights(trace, np.flatnonzero(copies & casting))] = WEIGHT_CAST
    kind[_layout_copies(classes, copies, convolving & ~casting)] = LAYOUT
    zeroing = launching_ranges(trace, vocabulary.ZERO_GRAD) >= 0
    kind[
        zeroing & (pointwise | (gpu.kind == MEMSET) | classes.match_rows(lambda kernel: kernel.category == "optimizer"))
    ] = ZEROING
    optimizer_step = _launching_optimizer_steps(trace)
    kind[(optimizer_step >= 0) & (gpu.kind == KERNEL) & ~classes.match_rows(_is_matrix_or_collective)] = OPTIMIZER
    kind[~in_window] = NONE
    return TrafficKinds(kind, optimizer_step, compiled)


def _launching_optimizer_steps(trace: Trace) -> Int32Array:
    """For each GPU item the optimizer step whose own code launched it, a row of `trace.ranges`, or -1."""
    gpu, calls = trace.gpu, trace.calls
    found = np.full(len(gpu), NONE, np.int32)
    rows = np.flatnonzero(gpu.call >= 0)
    steps = optimizer_steps_of(trace)
    if len(steps.rows) and len(rows):
        call = gpu.call[rows]
        found[rows] = steps.around(calls.start_ns[call], calls.thread[call])
    return found


def _launched_by_matrix_op(trace: Trace) -> BoolArray:
    """For each GPU item whether an op that multiplies or convolves launched it itself: a helper of a library."""
    matrix_ops = match_op_names(trace, lambda name: classify_op(name) in MATRIX_CATEGORIES)
    result: BoolArray = np.append(matrix_ops, False)[launching_op_names(trace)]
    return result


def _is_matrix_or_collective(kernel: KernelClass) -> bool:
    return kernel.tensor_core != "na" or kernel.category == "communication"


def _layout_copies(classes: KernelClasses, copies: BoolArray, convolving: BoolArray) -> BoolArray:
    """Copies for the layout that a convolution needs: launched inside of one, or by a library that records no op."""
    trace = classes.trace
    by_library = classes.match_rows(lambda k: k.rule == _LAYOUT_RULE) & (trace.gpu.op < 0)
    convolves = classes.match_rows(lambda k: k.category == "convolution" and k.tensor_core != "na").any()
    result: BoolArray = copies & ((convolving & (trace.gpu.kind == KERNEL)) | (by_library & convolves))
    return result & ~trace.match_rows(trace.gpu, r"im2col|col2im|im2d2col|im3d2col|vol2col")


def _casts_of_weights(trace: Trace, rows: Int64Array) -> Int64Array:
    """Of kernels that cast, those that cast a weight (an argument after the first of a matrix op), or its gradient."""
    ops = trace.ops
    rows = rows[trace.gpu.op[rows] >= 0]
    rows = rows[(ops.dims[trace.gpu.op[rows]] >= 0) & (ops.types[trace.gpu.op[rows]] >= 0)]
    if not len(rows):
        return rows
    op = trace.gpu.op[rows]
    _, consumer = find_outermost_ops(trace, op, lambda name: name == "aten::copy_" or bool(_CASTS.search(name)))
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


class _Cast(NamedTuple):
    """One kind of cast.

    Attributes:
        sizes: Sizes of the tensor.
        source: Its element type.
        to: The element type that it is cast to.
        of_weight: Whether it is the weight of a matrix op.
        backward: Whether the cast belongs to the backward pass.
    """

    sizes: tuple[int, ...]
    source: str
    to: str
    of_weight: bool
    backward: bool

    @classmethod
    def read(
        cls, name: str | None, dims: str | None, types: str | None, consumer: str | None, inputs: str | None
    ) -> _Cast | None:
        """The cast in the recorded inputs of a `copy_` and of the op around it; None where floats are not cast."""
        if name != "aten::copy_" or dims is None or types is None:
            return None
        try:
            recorded = RecordedInputs.parse(dims, types, None, None)
            to, source = recorded.tensor(0), recorded.tensor(1)
        except UnusableInputsError:
            return None
        if to.dtype == source.dtype or not {to.dtype, source.dtype} <= FLOAT_TYPES:
            return None
        weight = consumer is not None and bool(_MULTIPLIES.search(consumer)) and _is_later_input(source.sizes, inputs)
        return cls(
            source.sizes, source.dtype, to.dtype, weight, consumer is not None and vocabulary.CAST_BACKWARD in consumer
        )

    def belongs_to(self, weights: set[tuple[tuple[int, ...], str, str]]) -> bool:
        """Whether it casts a weight, or the gradient of one back."""
        return self.of_weight or (self.backward and (self.sizes, self.to, self.source) in weights)


def _is_later_input(sizes: tuple[int, ...], inputs: str | None) -> bool:
    """Whether an op's recorded inputs have these sizes at a later position, and not at the first."""
    if inputs is None:
        return False
    try:
        arguments = orjson.loads(inputs)
    except orjson.JSONDecodeError:
        return False
    return isinstance(arguments, list) and list(sizes) in arguments[1:] and arguments[0] != list(sizes)
