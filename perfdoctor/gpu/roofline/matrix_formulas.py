"""FLOPs and bytes of gemms, convolutions and attention, by op name.

A multiply-add counts as two FLOPs. Argument positions are those of PyTorch's op schemas. The counts agree with
`torch.utils.flop_counter` where it has the op, except that causal attention over equal lengths is halved here: half of
the scores are never computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.roofline.op_cost import BACKWARD_PASSES, BackwardPass, CostFormula, OpCost
from perfdoctor.gpu.roofline.recorded_inputs import (
    FLOAT_TYPES,
    RecordedInputs,
    Shape,
    TensorInput,
    UnusableInputsError,
    require_consistent,
)

_HALF_BYTES = 2
_SCALED_TYPES = FLOAT_TYPES | {"fp4"}
_VALUES_PER_ITEM = {"fp4": 2}  # two values share a byte, and the recorded sizes count bytes
_SCALED_MM_OUT_DTYPE = 6  # position of the argument
_SCALED_MM_V2_OUT_DTYPE = 9
_SCALAR_TYPE_BYTES = {5: 2, 6: 4, 7: 8, 15: 2, 23: 1, 24: 1}  # by the number of c10::ScalarType
_LSE_BYTES = 4  # one float32 log-sum-exp for each row of scores
_MAX_MASK_TYPE = 2  # greatest custom_mask_type of _efficient_attention_forward: causal from the bottom right corner


def _common_dtype(*tensors: TensorInput, allowed: frozenset[str] = FLOAT_TYPES) -> str:
    """Return the type that all tensors have; raises UnusableInputsError if they differ or it is not allowed."""
    dtypes = {tensor.dtype for tensor in tensors}
    require_consistent(len(dtypes) == 1 and dtypes <= allowed)
    return dtypes.pop()


# Gemms ----------------------------------------------------------------------------------------------------------------


# `a`, `b` and `addend` are positions of arguments: addmm has the matrix that it adds in front of the two factors.
def _mm(inputs: RecordedInputs, a: int = 0, b: int = 1, addend: int | None = None) -> OpCost:
    left, right = inputs.tensor(a, 2), inputs.tensor(b, 2)
    return _gemm_cost(inputs, left, right, 1, addend)


def _bmm(inputs: RecordedInputs, a: int = 0, b: int = 1, addend: int | None = None) -> OpCost:
    left, right = inputs.tensor(a, 3), inputs.tensor(b, 3)
    require_consistent(left.sizes[0] == right.sizes[0])
    return _gemm_cost(inputs, left, right, left.sizes[0], addend)


def _gemm_cost(inputs: RecordedInputs, left: TensorInput, right: TensorInput, batch: int, addend: int | None) -> OpCost:
    (m, k), (k_of_right, n) = left.sizes[-2:], right.sizes[-2:]
    require_consistent(k == k_of_right)
    bias = inputs.optional_tensor(addend) if addend is not None else None
    total_bytes = left.bytes + right.bytes + batch * m * n * left.item_bytes + (bias.bytes if bias else 0)
    return OpCost("gemm", 2 * batch * m * n * k, total_bytes, _common_dtype(left, right), m, n, k, batch)


# `out` is the position of the output where the op is given one, `out_dtype` that of its type where the op makes it.
def _scaled_mm(
    inputs: RecordedInputs, a: int = 0, b: int = 1, out: int | None = None, out_dtype: int | None = None
) -> OpCost:
    left, right = inputs.tensor(a, 2), inputs.tensor(b, 2)
    (m, k), (k_of_right, n) = left.sizes, right.sizes
    require_consistent(k == k_of_right)
    dtype = _common_dtype(left, right, allowed=_SCALED_TYPES | {"int8"})
    k *= _VALUES_PER_ITEM.get(dtype, 1)
    out_bytes = inputs.tensor(out).item_bytes if out is not None else _out_item_bytes(inputs, out_dtype)
    return OpCost("gemm", 2 * m * n * k, left.bytes + right.bytes + m * n * out_bytes, dtype, m, n, k, 1)


def _out_item_bytes(inputs: RecordedInputs, out_dtype: int | None) -> int:
    """Return the bytes of an element of the output, by the argument that gives its type; half precision by default."""
    if out_dtype is None or inputs.is_omitted(out_dtype):
        return _HALF_BYTES
    item_bytes = _SCALAR_TYPE_BYTES.get(inputs.int_value(out_dtype), 0)
    require_consistent(item_bytes > 0)
    return item_bytes


# `offsets` is the position of the ends of the groups, which pack them along a dimension of the operands. Their values
# are not recorded: the groups are taken to fill that dimension, as those of a mixture of experts do.
def _grouped_mm(inputs: RecordedInputs, offsets: int) -> OpCost:
    left, right = inputs.tensor(0), inputs.tensor(1)
    dtype = _common_dtype(left, right, allowed=_SCALED_TYPES)
    require_consistent(len(left.sizes) in (2, 3) and len(right.sizes) in (2, 3))
    (m, k), (k_of_right, n) = left.sizes[-2:], right.sizes[-2:]
    require_consistent(k == k_of_right)
    k *= _VALUES_PER_ITEM.get(dtype, 1)
    groups = {size for tensor in (left, right) for size in tensor.sizes[:-2]}
    packed = len(left.sizes) == 2 or len(right.sizes) == 2
    if packed:
        groups.add(math.prod(inputs.tensor(offsets, 1).sizes))
    require_consistent(len(groups) == 1)
    count = groups.pop()
    batch = 1 if packed else count
    # Packed rows or columns are in the sizes already; packed inner dimensions give one product a group.
    out_numel = m * n * (1 if len(left.sizes) != len(right.sizes) else count)
    total_bytes = left.bytes + right.bytes + out_numel * _HALF_BYTES
    return OpCost("gemm", 2 * batch * m * n * k, total_bytes, dtype, m, n, k, batch)


def _int_mm(inputs: RecordedInputs) -> OpCost:
    left, right = inputs.tensor(0, 2), inputs.tensor(1, 2)
    (m, k), (k_of_right, n) = left.sizes, right.sizes
    require_consistent(k == k_of_right)
    dtype = _common_dtype(left, right, allowed=frozenset({"int8"}))
    return OpCost("gemm", 2 * m * n * k, left.bytes + right.bytes + 4 * m * n, dtype, m, n, k, 1)


def _mv(inputs: RecordedInputs, a: int = 0, x: int = 1) -> OpCost:
    matrix, vector = inputs.tensor(a, 2), inputs.tensor(x, 1)
    m, k = matrix.sizes
    require_consistent(vector.sizes == (k,))
    total_bytes = matrix.bytes + vector.bytes + m * matrix.item_bytes
    return OpCost("gemm", 2 * m * k, total_bytes, _common_dtype(matrix, vector), m, 1, k, 1)


def _linear(inputs: RecordedInputs) -> OpCost:
    x, weight, bias = inputs.tensor(0), inputs.tensor(1, 2), inputs.optional_tensor(2)
    n, k = weight.sizes
    require_consistent(bool(x.sizes) and x.sizes[-1] == k)
    m = math.prod(x.sizes[:-1])
    total_bytes = x.bytes + weight.bytes + m * n * x.item_bytes + (bias.bytes if bias else 0)
    return OpCost("gemm", 2 * m * n * k, total_bytes, _common_dtype(x, weight), m, n, k, 1)


# Convolutions ---------------------------------------------------------------------------------------------------------


@frozen_dataclass
class _ConvolutionFormula:
    """The cost formula of a convolution op: positions of its arguments, None for those that it does not have."""

    stride: int
    padding: int
    dilation: int | None
    groups: int | None = None
    transposed: int | None = None
    output_padding: int | None = None
    always_transposed: bool = False
    depthwise: bool = False

    def __call__(self, inputs: RecordedInputs) -> OpCost:
        x, weight = inputs.tensor(0), inputs.tensor(1)
        spatial = len(x.sizes) - 2
        require_consistent(spatial >= 1 and len(weight.sizes) == len(x.sizes))
        transposed = self.always_transposed or (self.transposed is not None and inputs.bool_value(self.transposed))
        groups = self._groups(inputs, x)
        out_sizes = self._output_sizes(inputs, x, weight, transposed)
        channels_out = weight.sizes[1] * groups if transposed else weight.sizes[0]
        _check_channels(x, weight, groups, transposed)
        out_numel = x.sizes[0] * channels_out * math.prod(out_sizes)
        flops = 2 * (x.numel if transposed else out_numel) * math.prod(weight.sizes[1:])
        return OpCost(
            "convolution",
            flops,
            x.bytes + weight.bytes + out_numel * x.item_bytes,
            _common_dtype(x, weight),
            groups=groups,
            channels_in=x.sizes[1] // groups,
            channels_out=channels_out,
        )

    def _groups(self, inputs: RecordedInputs, x: TensorInput) -> int:
        if self.depthwise:
            return x.sizes[1]
        return 1 if self.groups is None else inputs.int_value(self.groups)

    def _output_sizes(self, inputs: RecordedInputs, x: TensorInput, weight: TensorInput, transposed: bool) -> Shape:
        """Return the spatial sizes of the output, by the formulas in the documentation of torch.nn.Conv2d."""
        spatial = len(x.sizes) - 2
        stride = inputs.int_list(self.stride, spatial, 1)
        padding = inputs.int_list(self.padding, spatial)
        dilation = (1,) * spatial if self.dilation is None else inputs.int_list(self.dilation, spatial, 1)
        extents = [d * (k - 1) for d, k in zip(dilation, weight.sizes[2:], strict=True)]
        dimensions = zip(x.sizes[2:], stride, padding, extents, strict=True)
        if transposed:
            out_padding = (
                (0,) * spatial if self.output_padding is None else inputs.int_list(self.output_padding, spatial)
            )
            sizes = tuple(
                (n - 1) * s - 2 * p + e + 1 + o for (n, s, p, e), o in zip(dimensions, out_padding, strict=True)
            )
        else:
            sizes = tuple((n + 2 * p - e - 1) // s + 1 for n, s, p, e in dimensions)
        require_consistent(min(sizes) >= 1)
        return sizes


def _check_channels(x: TensorInput, weight: TensorInput, groups: int, transposed: bool) -> None:
    require_consistent(groups >= 1 and weight.sizes[0] % groups == 0)
    require_consistent(x.sizes[1] == (weight.sizes[0] if transposed else weight.sizes[1] * groups))


# Positions of arguments of aten::convolution_backward.
_BACKWARD_TRANSPOSED, _BACKWARD_GROUPS, _BACKWARD_OUTPUT_MASK = 7, 9, 10


def _convolution_backward(inputs: RecordedInputs) -> OpCost:
    dy, x, weight = inputs.tensor(0), inputs.tensor(1), inputs.tensor(2)
    require_consistent(len(dy.sizes) == len(x.sizes) == len(weight.sizes) >= 3 and dy.sizes[0] == x.sizes[0])
    transposed, groups = inputs.bool_value(_BACKWARD_TRANSPOSED), inputs.int_value(_BACKWARD_GROUPS)
    _check_channels(x, weight, groups, transposed)
    require_consistent(dy.sizes[1] == (weight.sizes[1] * groups if transposed else weight.sizes[0]))
    flops = 2 * (x if transposed else dy).numel * math.prod(weight.sizes[1:])
    # Either gradient reads two of the three and writes as much as the third one.
    total_bytes = dy.bytes + x.bytes + weight.bytes
    mask = inputs.bool_list(_BACKWARD_OUTPUT_MASK)
    require_consistent(len(mask) == 3)
    # The gradient of the bias is left out: numel(dy) additions in a separate reduction.
    passes = tuple(
        BackwardPass(name, flops, total_bytes) for name, wanted in zip(BACKWARD_PASSES, mask, strict=False) if wanted
    )
    return OpCost(
        "convolution",
        flops * len(passes),
        total_bytes * len(passes),
        _common_dtype(dy, x, weight),
        groups=groups,
        channels_in=x.sizes[1] // groups,
        channels_out=dy.sizes[1],
        backward_passes=passes,
    )


def _convolution_backward_input(inputs: RecordedInputs) -> OpCost:
    """Return the cost of `cudnn_convolution_backward_input` (PyTorch up to 1.10).

    The size of dx was not recorded: its bytes are left out.
    """
    dy, weight = inputs.tensor(1), inputs.tensor(2)
    require_consistent(len(dy.sizes) == len(weight.sizes) >= 3 and dy.sizes[1] == weight.sizes[0])
    flops = 2 * dy.numel * math.prod(weight.sizes[1:])
    return OpCost("convolution", flops, dy.bytes + weight.bytes, _common_dtype(dy, weight), channels_out=dy.sizes[1])


# Attention ------------------------------------------------------------------------------------------------------------


@frozen_dataclass
class _AttentionFormula:
    """The cost formula of an attention op: positions of its arguments.

    Attributes:
        causal: Whether the recorded inputs ask for a causal mask.
        query: Position of the query; key and value follow.
        heads_inside: Whether tensors are [B, S, H, D] rather than [B, H, S, D].
        bias: Position of the attention bias.
        offsets: Positions of tensors that pack sequences of different lengths, or select a part of the keys. Their
            contents are not recorded: they must be absent.
        windows: Positions of the sides of a sliding window, which must be absent, too.
        backward: Whether the op computes the gradients.
    """

    causal: Callable[[RecordedInputs], bool]
    query: int = 0
    heads_inside: bool = False
    bias: int | None = None
    offsets: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    backward: bool = False

    def __call__(self, inputs: RecordedInputs) -> OpCost:
        require_consistent(not any(inputs.has_elements(position) for position in self.offsets))
        require_consistent(all(inputs.is_omitted(position, "-1") for position in self.windows))
        q, k, v = (inputs.tensor(self.query + i, 4) for i in range(3))
        batch, heads, rows, size = self._dimensions(q)
        batch_k, heads_k, columns, size_k = self._dimensions(k)
        batch_v, heads_v, columns_v, size_v = self._dimensions(v)
        require_consistent(batch == batch_k == batch_v and columns == columns_v and size == size_k)
        require_consistent(heads_k == heads_v and heads_k > 0 and heads % heads_k == 0)
        causal = self.causal(inputs)
        # Where the lengths differ, it depends on the kernel in which corner the causal mask starts.
        require_consistent(not causal or rows == columns)
        per_score = 2 * (3 * size + 2 * size_v) if self.backward else 2 * (size + size_v)
        flops = batch * heads * rows * columns * per_score
        out_bytes = batch * heads * rows * size_v * q.item_bytes
        total_bytes = q.bytes + k.bytes + v.bytes + out_bytes + _LSE_BYTES * batch * heads * rows
        if self.backward:  # also reads the gradient of the output and writes three gradients
            total_bytes += out_bytes + q.bytes + k.bytes + v.bytes
        bias = inputs.optional_tensor(self.bias) if self.bias is not None else None
        total_bytes += bias.bytes if bias else 0
        return OpCost(
            "attention",
            flops // 2 if causal else flops,
            total_bytes,
            _common_dtype(q, k, v),
            batch=batch,
            heads=heads,
            queries=rows,
            keys=columns,
            head_size=size,
            causal=causal,
        )

    def _dimensions(self, tensor: TensorInput) -> tuple[int, int, int, int]:
        """Return batch, heads, sequence length, and the size of a head."""
        batch, second, third, size = tensor.sizes
        return (batch, third, second, size) if self.heads_inside else (batch, second, third, size)


def _bool_at(position: int) -> Callable[[RecordedInputs], bool]:
    """Return a function that reads the bool argument at a position."""
    return lambda inputs: inputs.bool_value(position)


def _is_causal_by_mask_type(inputs: RecordedInputs) -> bool:
    """Return whether `custom_mask_type` is causal.

    Its position changed between versions of PyTorch: it stands before the first bool.
    """
    for position in range(8, len(inputs.concrete or ())):
        if inputs.scalar_text(position) in ("True", "False"):
            mask_type = inputs.int_value(position - 1)
            require_consistent(0 <= mask_type <= _MAX_MASK_TYPE)
            return mask_type > 0
    raise UnusableInputsError


# Names ----------------------------------------------------------------------------------------------------------------

_SDPA = "aten::_scaled_dot_product_"

MATRIX_FORMULAS: Mapping[str, CostFormula] = {
    "aten::mm": _mm,
    "aten::addmm": partial(_mm, a=1, b=2, addend=0),
    "aten::_addmm_activation": partial(_mm, a=1, b=2, addend=0),
    "aten::bmm": _bmm,
    "aten::baddbmm": partial(_bmm, a=1, b=2, addend=0),
    "aten::_scaled_mm": partial(_scaled_mm, out_dtype=_SCALED_MM_OUT_DTYPE),
    "aten::_scaled_mm_v2": partial(_scaled_mm, out_dtype=_SCALED_MM_V2_OUT_DTYPE),
    "_C::cutlass_scaled_mm": partial(_scaled_mm, a=1, b=2, out=0),
    "sgl_kernel::fp8_scaled_mm": _scaled_mm,
    "sgl_kernel::int8_scaled_mm": _scaled_mm,
    "sgl_kernel::fp8_blockwise_scaled_mm": _scaled_mm,
    "aten::_grouped_mm": partial(_grouped_mm, offsets=2),
    "aten::_scaled_grouped_mm": partial(_grouped_mm, offsets=4),
    "aten::_int_mm": _int_mm,
    "aten::mv": _mv,
    "aten::addmv": partial(_mv, a=1, x=2),
    "aten::addmv_": partial(_mv, a=1, x=2),
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "aten::convolution": _ConvolutionFormula(3, 4, 5, 8, transposed=6, output_padding=7),
    "aten::_convolution": _ConvolutionFormula(3, 4, 5, 8, transposed=6, output_padding=7),
    "aten::convolution_overrideable": _ConvolutionFormula(3, 4, 5, 8, transposed=6, output_padding=7),
    "aten::cudnn_convolution": _ConvolutionFormula(3, 2, 4, 5),
    "aten::cudnn_convolution_relu": _ConvolutionFormula(3, 4, 5, 6),
    "aten::cudnn_convolution_transpose": _ConvolutionFormula(4, 2, 5, 6, output_padding=3, always_transposed=True),
    "aten::miopen_convolution": _ConvolutionFormula(4, 3, 5, 6),
    "aten::miopen_depthwise_convolution": _ConvolutionFormula(4, 3, 5, 6),
    "aten::miopen_convolution_transpose": _ConvolutionFormula(5, 3, 6, 7, output_padding=4, always_transposed=True),
    "aten::mkldnn_convolution": _ConvolutionFormula(4, 3, 5, 6),
    "aten::_slow_conv2d_forward": _ConvolutionFormula(4, 5, None),
    "aten::_conv_depthwise2d": _ConvolutionFormula(4, 5, 6, depthwise=True),
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward_input": _convolution_backward_input,
    f"{_SDPA}flash_attention": _AttentionFormula(_bool_at(4)),
    f"{_SDPA}efficient_attention": _AttentionFormula(_bool_at(6), bias=3),
    f"{_SDPA}cudnn_attention": _AttentionFormula(_bool_at(6), bias=3),
    f"{_SDPA}flash_attention_backward": _AttentionFormula(_bool_at(11), query=1, offsets=(6, 7), backward=True),
    f"{_SDPA}efficient_attention_backward": _AttentionFormula(_bool_at(11), query=1, bias=4, backward=True),
    f"{_SDPA}cudnn_attention_backward": _AttentionFormula(
        _bool_at(14), query=1, bias=8, offsets=(9, 10), backward=True
    ),
    "aten::_cudnn_attention_forward": _AttentionFormula(_bool_at(10), bias=3, offsets=(4, 5)),
    "aten::_flash_attention_forward": _AttentionFormula(
        _bool_at(8), heads_inside=True, offsets=(3, 4, 13), windows=(11, 12)
    ),
    "aten::_flash_attention_backward": _AttentionFormula(
        _bool_at(11), query=1, heads_inside=True, offsets=(6, 7), windows=(15, 16), backward=True
    ),
    "aten::_efficient_attention_forward": _AttentionFormula(
        _is_causal_by_mask_type, heads_inside=True, bias=3, offsets=(4, 5, 12), windows=(13,)
    ),
    "aten::_efficient_attention_backward": _AttentionFormula(
        lambda inputs: inputs.int_value(14) > 0, query=1, heads_inside=True, bias=4, offsets=(6, 7), backward=True
    ),
    "flash_attn::_flash_attn_backward": _AttentionFormula(
        _bool_at(11), query=1, heads_inside=True, windows=(12, 13), backward=True
    ),
    "flash_attn::_flash_attn_forward": _AttentionFormula(_bool_at(5), heads_inside=True, windows=(6, 7)),
}
"""The formula of each op."""
