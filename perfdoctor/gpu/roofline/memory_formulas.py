"""Bytes of ops that only move data: elementwise, copies, softmax, norms, reductions, embeddings.

Bytes are compulsory: each input is read once by its true size (a broadcast dimension of stride 0 is one element), each
output is written once. Where two arguments are the same tensor, it counts twice: the trace does not show that they are.
FLOPs are rough (1 to 8 an element): they are never the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from perfdoctor.gpu.roofline.op_cost import CostFormula, OpCost
from perfdoctor.gpu.roofline.recorded_inputs import FLOAT_TYPES, RecordedInputs, Shape, TensorInput, require_consistent
from perfdoctor.gpu.word_table import words

_SOFTMAX_FLOPS, _NORM_FLOPS = 5, 8

_UNARY = words(
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square sin cos tan tanh sinh cosh asin acos atan sigmoid "
    "relu gelu silu mish elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus reciprocal floor ceil round "
    "trunc frac sign erf erfc clamp clamp_min clamp_max threshold logit nan_to_num isnan isinf logical_not bitwise_not "
    "log_sigmoid_forward"
)
_BINARY = words(
    "add sub mul div rsub pow remainder fmod floor_divide true_divide maximum minimum fmax fmin atan2 eq ne lt le gt "
    "ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor xlogy threshold_backward tanh_backward "
    "sigmoid_backward gelu_backward silu_backward hardtanh_backward hardswish_backward leaky_relu_backward "
    "softplus_backward mish_backward masked_fill"
)
_TERNARY = words("addcmul addcdiv lerp where")
_RETURN_BOOL = frozenset(words("eq ne lt le gt ge isnan isinf logical_not logical_and logical_or logical_xor"))
_PROMOTE_TO_FLOAT = frozenset(
    words(
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sinh cosh asin acos atan atan2 sigmoid "
        "reciprocal erf erfc div true_divide logit"
    )
)
_NOT_IN_PLACE = frozenset(words("isnan isinf where log_sigmoid_forward rsub"))
_REDUCTIONS = words("sum mean prod amax amin argmax argmin max min all any norm linalg_vector_norm var std var_mean")


def _elementwise(inputs: RecordedInputs, name: str, arity: int, in_place: bool) -> OpCost:
    tensors = [tensor for i in range(arity) if (tensor := inputs.optional_tensor(i)) is not None]
    require_consistent(bool(tensors))
    read_bytes = sum(tensor.bytes for tensor in tensors)
    values = tensors[1:] if name == "where" and len(tensors) > 1 else tensors  # the condition of `where` is not a value
    sizes = _broadcast_shape(tensors)
    if in_place:
        target = inputs.tensor(0)
        require_consistent(target.sizes == sizes)
        numel, written_bytes = target.numel, target.bytes
    else:
        numel = math.prod(sizes)
        written_bytes = numel * (1 if name in _RETURN_BOOL else _promoted_item_bytes(values, name in _PROMOTE_TO_FLOAT))
    return OpCost("memory", numel, read_bytes + written_bytes, _dtype_of_largest(tensors))


def _broadcast_shape(tensors: Sequence[TensorInput]) -> Shape:
    """Return the shape that all tensors have together, by the rules of broadcasting."""
    first, *others = (tensor.sizes for tensor in tensors)
    if all(other == first for other in others):
        return first
    shape: list[int] = []
    for tensor in tensors:
        sizes = [1] * (len(shape) - len(tensor.sizes)) + list(tensor.sizes)
        shape = [1] * (len(sizes) - len(shape)) + shape
        require_consistent(all(a == b or 1 in (a, b) for a, b in zip(shape, sizes, strict=True)))
        shape = [b if a == 1 else a for a, b in zip(shape, sizes, strict=True)]
    return tuple(shape)


def _promoted_item_bytes(tensors: Sequence[TensorInput], to_float: bool) -> int:
    """Return the bytes of an element of the result, by PyTorch's type promotion.

    Floats win over integers, and tensors over tensors without dimensions.
    """
    dimensioned = [tensor for tensor in tensors if tensor.sizes] or list(tensors)
    floats = _floats(dimensioned) or _floats(tensors)
    if not floats:
        return 4 if to_float else max(tensor.item_bytes for tensor in dimensioned)
    if {tensor.dtype for tensor in floats} >= {"fp16", "bf16"}:
        return max(4, *(tensor.item_bytes for tensor in floats))
    return max(tensor.item_bytes for tensor in floats)


def _floats(tensors: Sequence[TensorInput]) -> list[TensorInput]:
    return [tensor for tensor in tensors if tensor.dtype in FLOAT_TYPES]


def _dtype_of_largest(tensors: Sequence[TensorInput]) -> str:
    return max(tensors, key=lambda tensor: tensor.bytes).dtype


def _copy(inputs: RecordedInputs) -> OpCost:
    target, source = inputs.tensor(0), inputs.tensor(1)
    require_consistent(_broadcast_shape((target, source)) == target.sizes)
    return OpCost("memory", 0, source.bytes + target.bytes, target.dtype)


def _fill(inputs: RecordedInputs) -> OpCost:
    target = inputs.tensor(0)
    return OpCost("memory", 0, target.bytes, target.dtype)


def _softmax(inputs: RecordedInputs) -> OpCost:
    x = inputs.tensor(0)
    to_float = not inputs.is_omitted(2) and inputs.scalar_text(2) == "True"
    written_bytes = x.numel * (4 if to_float else x.item_bytes)
    return OpCost("memory", _SOFTMAX_FLOPS * x.numel, x.bytes + written_bytes, x.dtype)


def _softmax_backward(inputs: RecordedInputs) -> OpCost:
    dy, y = inputs.tensor(0), inputs.tensor(1)
    require_consistent(dy.sizes == y.sizes)
    return OpCost("memory", _SOFTMAX_FLOPS * y.numel, dy.bytes + 2 * y.bytes, y.dtype)


def _norm(inputs: RecordedInputs) -> OpCost:
    x = inputs.tensor(0)
    return OpCost("memory", _NORM_FLOPS * x.numel, x.bytes + x.numel * x.item_bytes, x.dtype)


def _norm_backward(inputs: RecordedInputs) -> OpCost:
    dy, x = inputs.tensor(0), inputs.tensor(1)
    require_consistent(dy.sizes == x.sizes)
    return OpCost("memory", _NORM_FLOPS * x.numel, dy.bytes + x.bytes + x.numel * x.item_bytes, x.dtype)


def _batch_norm(inputs: RecordedInputs) -> OpCost:
    """Return the cost of a batch norm: in training it reads its input twice, for the statistics and to normalise.

    Kernels that read it once need less.
    """
    x = inputs.tensor(0)
    reads = 2 if inputs.bool_value(5) else 1
    return OpCost("memory", _NORM_FLOPS * x.numel, (reads + 1) * x.numel * x.item_bytes, x.dtype)


def _batch_norm_backward(inputs: RecordedInputs) -> OpCost:
    """Return the cost of the gradient of a batch norm: it reads both inputs twice, for two sums and for the result."""
    first, second = inputs.tensor(0), inputs.tensor(1)
    require_consistent(first.sizes == second.sizes)
    total_bytes = 2 * (first.bytes + second.bytes) + first.numel * first.item_bytes
    return OpCost("memory", _NORM_FLOPS * first.numel, total_bytes, first.dtype)


def _reduce(inputs: RecordedInputs) -> OpCost:
    """Return the cost of a reduction without its output, whose size is not recorded."""
    x = inputs.tensor(0)
    return OpCost("memory", x.numel, x.bytes, x.dtype)


def _embedding(inputs: RecordedInputs) -> OpCost:
    weight, indices = inputs.tensor(0, 2), inputs.tensor(1)
    require_consistent(indices.dtype in ("int64", "int32"))
    row_bytes = indices.numel * weight.sizes[1] * weight.item_bytes
    return OpCost("memory", 0, indices.bytes + 2 * row_bytes, weight.dtype)


def _embedding_backward(inputs: RecordedInputs) -> OpCost:
    dy, indices = inputs.tensor(0), inputs.tensor(1)
    require_consistent(indices.dtype in ("int64", "int32"))
    return OpCost("memory", dy.numel, indices.bytes + 2 * dy.numel * dy.item_bytes, dy.dtype)


_INDEX_TYPES = ("int64", "int32")


def _index_select(inputs: RecordedInputs) -> OpCost:
    """Return the cost of reading rows by their indices; what equal indices share is counted each time."""
    x, indices = inputs.tensor(0), inputs.tensor(2)
    require_consistent(indices.dtype in _INDEX_TYPES)
    dimension = inputs.int_value(1)
    require_consistent(-len(x.sizes) <= dimension < len(x.sizes) and x.sizes[dimension] > 0)
    read_bytes = x.numel // x.sizes[dimension] * indices.numel * x.item_bytes
    return OpCost("memory", 0, indices.bytes + 2 * read_bytes, x.dtype)


def _gather(inputs: RecordedInputs) -> OpCost:
    x, indices = inputs.tensor(0), inputs.tensor(2)
    require_consistent(indices.dtype in _INDEX_TYPES)
    return OpCost("memory", 0, indices.bytes + 2 * indices.numel * x.item_bytes, x.dtype)


def _scatter_add(inputs: RecordedInputs) -> OpCost:
    """Return the cost of adding values at indices: each value is read, and what it is added to read and written."""
    target, indices, values = inputs.tensor(0), inputs.tensor(2), inputs.tensor(3)
    require_consistent(indices.dtype in _INDEX_TYPES and values.dtype == target.dtype)
    return OpCost("memory", values.numel, indices.bytes + 3 * values.bytes, target.dtype)


def _dropout(inputs: RecordedInputs) -> OpCost:
    x = inputs.tensor(0)
    mask_bytes = x.numel
    return OpCost("memory", x.numel, x.bytes + x.numel * x.item_bytes + mask_bytes, x.dtype)


def _elementwise_formulas() -> dict[str, CostFormula]:
    """Return the formulas of elementwise ops, in place (`aten::add_`) and not, by name."""
    table: dict[str, CostFormula] = {}
    for arity, names in ((1, _UNARY), (2, _BINARY), (3, _TERNARY)):
        for name in names:
            table[f"aten::{name}"] = partial(_elementwise, name=name, arity=arity, in_place=False)
            if name not in _NOT_IN_PLACE and not name.endswith("_backward"):
                table[f"aten::{name}_"] = partial(_elementwise, name=name, arity=arity, in_place=True)
    return table


MEMORY_FORMULAS: Mapping[str, CostFormula] = MappingProxyType(
    _elementwise_formulas()
    | {f"aten::{name}": _reduce for name in _REDUCTIONS}
    | {
        "aten::copy_": _copy,
        "aten::fill_": _fill,
        "aten::zero_": _fill,
        "aten::_softmax": _softmax,
        "aten::_log_softmax": _softmax,
        "aten::_softmax_backward_data": _softmax_backward,
        "aten::_log_softmax_backward_data": _softmax_backward,
        "aten::native_layer_norm": _norm,
        "aten::_fused_rms_norm": _norm,
        "aten::native_group_norm": _norm,
        "aten::native_layer_norm_backward": _norm_backward,
        "aten::_fused_rms_norm_backward": _norm_backward,
        "aten::native_group_norm_backward": _norm_backward,
        "aten::native_batch_norm": _batch_norm,
        "aten::cudnn_batch_norm": _batch_norm,
        "aten::miopen_batch_norm": _batch_norm,
        "aten::native_batch_norm_backward": _batch_norm_backward,
        "aten::cudnn_batch_norm_backward": _batch_norm_backward,
        "aten::miopen_batch_norm_backward": _batch_norm_backward,
        "aten::embedding": _embedding,
        "aten::embedding_dense_backward": _embedding_backward,
        "aten::index_select": _index_select,
        "aten::gather": _gather,
        "aten::index_add_": _scatter_add,
        "aten::scatter_add_": _scatter_add,
        "aten::native_dropout": _dropout,
    }
)
"""The formula of each op."""
