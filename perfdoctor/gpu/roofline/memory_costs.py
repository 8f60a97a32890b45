"""Bytes of ops that only move data: elementwise, copies, softmax, norms, reductions, look-ups.

Bytes are compulsory: each input once by its true size (a broadcast dimension of stride 0 is one element), each output
once. Two arguments that are the same tensor cannot be told apart and count twice. FLOPs are rough (1 to 8 an element):
they never are the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from perfdoctor.gpu.kernel_rules.rule import words
from perfdoctor.gpu.roofline.matrix_costs import Formula
from perfdoctor.gpu.roofline.op_cost import FLOATS, Inputs, OpCost, Shape, Tensor, require

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
_TO_BOOL = frozenset(words("eq ne lt le gt ge isnan isinf logical_not logical_and logical_or logical_xor"))
_TO_FLOAT = frozenset(
    words(
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sinh cosh asin acos atan atan2 sigmoid "
        "reciprocal erf erfc div true_divide logit"
    )
)
_NOT_IN_PLACE = frozenset(words("isnan isinf where log_sigmoid_forward rsub"))
_REDUCTIONS = words("sum mean prod amax amin argmax argmin max min all any norm linalg_vector_norm var std var_mean")


def _elementwise(inputs: Inputs, name: str, arity: int, in_place: bool) -> OpCost:
    tensors = [tensor for i in range(arity) if (tensor := inputs.optional(i)) is not None]
    require(bool(tensors))
    read = sum(tensor.bytes for tensor in tensors)
    values = tensors[1:] if name == "where" and len(tensors) > 1 else tensors
    sizes = _broadcast(tensors)
    if in_place:
        first = inputs.tensor(0)
        require(first.sizes == sizes)
        numel, written = first.numel, first.bytes
    else:
        numel = _numel(sizes)
        written = numel * (1 if name in _TO_BOOL else _promoted_bytes(values, name in _TO_FLOAT))
    return OpCost("memory", numel, read + written, _widest(tensors))


def _broadcast(tensors: Sequence[Tensor]) -> Shape:
    """The shape of all of them together, by the rules of broadcasting."""
    first, *others = (tensor.sizes for tensor in tensors)
    if all(other == first for other in others):
        return first
    sizes: list[int] = []
    for tensor in tensors:
        own = [1] * (len(sizes) - len(tensor.sizes)) + list(tensor.sizes)
        sizes = [1] * (len(own) - len(sizes)) + sizes
        require(all(a == b or 1 in (a, b) for a, b in zip(sizes, own, strict=True)))
        sizes = [b if a == 1 else a for a, b in zip(sizes, own, strict=True)]
    return tuple(sizes)


def _numel(sizes: Shape) -> int:
    return Tensor(sizes, "", 0).numel


def _promoted_bytes(tensors: Sequence[Tensor], to_float: bool) -> int:
    """Bytes an element of the result: floats win over integers, tensors over single values."""
    real = [tensor for tensor in tensors if tensor.sizes] or list(tensors)
    floats = [tensor for tensor in real if tensor.dtype in FLOATS] or [t for t in tensors if t.dtype in FLOATS]
    if not floats:
        return 4 if to_float else max(tensor.item_bytes for tensor in real)
    if {tensor.dtype for tensor in floats} >= {"fp16", "bf16"}:
        return max(4, *(tensor.item_bytes for tensor in floats))
    return max(tensor.item_bytes for tensor in floats)


def _widest(tensors: Sequence[Tensor]) -> str:
    return max(tensors, key=lambda tensor: tensor.bytes).dtype


def _copy(inputs: Inputs) -> OpCost:
    to, source = inputs.tensor(0), inputs.tensor(1)
    require(_broadcast((to, source)) == to.sizes)
    return OpCost("memory", 0, source.bytes + to.bytes, to.dtype)


def _fill(inputs: Inputs) -> OpCost:
    to = inputs.tensor(0)
    return OpCost("memory", 0, to.bytes, to.dtype)


def _softmax(inputs: Inputs) -> OpCost:
    x = inputs.tensor(0)
    to_float = not inputs.left_out(2) and inputs.text(2) == "True"
    written = x.numel * (4 if to_float else x.item_bytes)
    return OpCost("memory", _SOFTMAX_FLOPS * x.numel, x.bytes + written, x.dtype)


def _softmax_backward(inputs: Inputs) -> OpCost:
    dy, y = inputs.tensor(0), inputs.tensor(1)
    require(dy.sizes == y.sizes)
    return OpCost("memory", _SOFTMAX_FLOPS * y.numel, dy.bytes + 2 * y.bytes, y.dtype)


def _norm(inputs: Inputs) -> OpCost:
    x = inputs.tensor(0)
    return OpCost("memory", _NORM_FLOPS * x.numel, x.bytes + x.numel * x.item_bytes, x.dtype)


def _norm_backward(inputs: Inputs) -> OpCost:
    dy, x = inputs.tensor(0), inputs.tensor(1)
    require(dy.sizes == x.sizes)
    return OpCost("memory", _NORM_FLOPS * x.numel, dy.bytes + x.bytes + x.numel * x.item_bytes, x.dtype)


def _batch_norm(inputs: Inputs) -> OpCost:
    """Training reads the input twice: once for the statistics; a single-read kernel does with less."""
    x = inputs.tensor(0)
    reads = 2 if inputs.truth(5) else 1
    return OpCost("memory", _NORM_FLOPS * x.numel, (reads + 1) * x.numel * x.item_bytes, x.dtype)


def _batch_norm_backward(inputs: Inputs) -> OpCost:
    """Both inputs are read twice: for the two sums, and for the gradient."""
    first, second = inputs.tensor(0), inputs.tensor(1)
    require(first.sizes == second.sizes)
    moved = 2 * (first.bytes + second.bytes) + first.numel * first.item_bytes
    return OpCost("memory", _NORM_FLOPS * first.numel, moved, first.dtype)


def _reduce(inputs: Inputs) -> OpCost:
    """The output, whose size is not recorded, is left out."""
    x = inputs.tensor(0)
    return OpCost("memory", x.numel, x.bytes, x.dtype)


def _embedding(inputs: Inputs) -> OpCost:
    weight, indices = inputs.tensor(0, 2), inputs.tensor(1)
    require(indices.dtype in ("int64", "int32"))
    rows = indices.numel * weight.sizes[1] * weight.item_bytes
    return OpCost("memory", 0, indices.bytes + 2 * rows, weight.dtype)


def _embedding_backward(inputs: Inputs) -> OpCost:
    dy, indices = inputs.tensor(0), inputs.tensor(1)
    require(indices.dtype in ("int64", "int32"))
    return OpCost("memory", dy.numel, indices.bytes + 2 * dy.numel * dy.item_bytes, dy.dtype)


def _dropout(inputs: Inputs) -> OpCost:
    x = inputs.tensor(0)
    return OpCost("memory", x.numel, x.bytes + x.numel * (x.item_bytes + 1), x.dtype)  # a mask of one byte an element


def _elementwise_names() -> dict[str, Formula]:
    table: dict[str, Formula] = {}
    for arity, names in ((1, _UNARY), (2, _BINARY), (3, _TERNARY)):
        for name in names:
            table[f"aten::{name}"] = partial(_elementwise, name=name, arity=arity, in_place=False)
            if name not in _NOT_IN_PLACE and not name.endswith("_backward"):
                table[f"aten::{name}_"] = partial(_elementwise, name=name, arity=arity, in_place=True)
    return table


MEMORY_COSTS: Mapping[str, Formula] = MappingProxyType(
    _elementwise_names()
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
        "aten::native_dropout": _dropout,
    }
)
"""The formula of each op."""
