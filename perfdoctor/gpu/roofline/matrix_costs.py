"""FLOPs and bytes of products, convolutions and attention, by op name.

A multiply-add counts as two. Formulas and argument positions are those of the op schemas of PyTorch; the counts agree
with `torch.utils.flop_counter` where it has the op, except that causal attention over equal lengths is halved here:
half of the scores are never computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from perfdoctor.gpu.roofline.op_cost import FLOATS, PASSES, Inputs, OpCost, Pass, Shape, Tensor, require, unknown

Formula: TypeAlias = Callable[[Inputs], OpCost]

_HALF_BYTES = 2
_SCALED_OUT = 6  # out_dtype of _scaled_mm
_SCALAR_TYPES = {5: 2, 6: 4, 7: 8, 15: 2, 23: 1, 24: 1}  # numbers of c10::ScalarType: bytes
_LSE_BYTES = 4  # log-sum-exp, float32, one a row of scores
_BOTTOM_RIGHT = 2  # greatest custom_mask_type of _efficient_attention_forward


def _same_dtype(*tensors: Tensor, allowed: frozenset[str] = FLOATS) -> str:
    dtypes = {tensor.dtype for tensor in tensors}
    require(len(dtypes) == 1 and dtypes <= allowed)
    return dtypes.pop()


# Products of matrices -------------------------------------------------------------------------------------------------


def _mm(inputs: Inputs, a: int = 0, b: int = 1, added: int | None = None) -> OpCost:
    left, right = inputs.tensor(a, 2), inputs.tensor(b, 2)
    return _product(inputs, left, right, 1, added)


def _bmm(inputs: Inputs, a: int = 0, b: int = 1, added: int | None = None) -> OpCost:
    left, right = inputs.tensor(a, 3), inputs.tensor(b, 3)
    require(left.sizes[0] == right.sizes[0])
    return _product(inputs, left, right, left.sizes[0], added)


def _product(inputs: Inputs, left: Tensor, right: Tensor, batch: int, added: int | None) -> OpCost:
    (m, k), (k_too, n) = left.sizes[-2:], right.sizes[-2:]
    require(k == k_too)
    extra = inputs.optional(added) if added is not None else None
    moved = left.bytes + right.bytes + batch * m * n * left.item_bytes + (extra.bytes if extra else 0)
    return OpCost("gemm", 2 * batch * m * n * k, moved, _same_dtype(left, right), m, n, k, batch)


def _scaled_mm(inputs: Inputs) -> OpCost:
    left, right = inputs.tensor(0, 2), inputs.tensor(1, 2)
    (m, k), (k_too, n) = left.sizes, right.sizes
    require(k == k_too)
    item_bytes = _HALF_BYTES
    if not inputs.left_out(_SCALED_OUT):
        item_bytes = _SCALAR_TYPES.get(inputs.whole(_SCALED_OUT)) or unknown()
    moved = left.bytes + right.bytes + m * n * item_bytes
    return OpCost("gemm", 2 * m * n * k, moved, _same_dtype(left, right), m, n, k, 1)


def _int_mm(inputs: Inputs) -> OpCost:
    left, right = inputs.tensor(0, 2), inputs.tensor(1, 2)
    (m, k), (k_too, n) = left.sizes, right.sizes
    require(k == k_too)
    dtype = _same_dtype(left, right, allowed=frozenset({"int8"}))
    return OpCost("gemm", 2 * m * n * k, left.bytes + right.bytes + 4 * m * n, dtype, m, n, k, 1)


def _mv(inputs: Inputs, a: int = 0, x: int = 1) -> OpCost:
    matrix, vector = inputs.tensor(a, 2), inputs.tensor(x, 1)
    m, k = matrix.sizes
    require(vector.sizes == (k,))
    moved = matrix.bytes + vector.bytes + m * matrix.item_bytes
    return OpCost("gemm", 2 * m * k, moved, _same_dtype(matrix, vector), m, 1, k, 1)


def _linear(inputs: Inputs) -> OpCost:
    x, weight, bias = inputs.tensor(0), inputs.tensor(1, 2), inputs.optional(2)
    n, k = weight.sizes
    require(bool(x.sizes) and x.sizes[-1] == k)
    m = math.prod(x.sizes[:-1])
    moved = x.bytes + weight.bytes + m * n * x.item_bytes + (bias.bytes if bias else 0)
    return OpCost("gemm", 2 * m * n * k, moved, _same_dtype(x, weight), m, n, k, 1)


# Convolutions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Where a convolution op has its arguments; None for what it has not."""

    stride: int
    padding: int
    dilation: int | None
    groups: int | None = None
    transposed: int | None = None
    output_padding: int | None = None
    always_transposed: bool = False
    depthwise: bool = False

    def __call__(self, inputs: Inputs) -> OpCost:
        x, weight = inputs.tensor(0), inputs.tensor(1)
        spatial = len(x.sizes) - 2
        require(spatial >= 1 and len(weight.sizes) == len(x.sizes))
        transposed = self.always_transposed or (self.transposed is not None and inputs.truth(self.transposed))
        groups = self._groups(inputs, x)
        out = self._output(inputs, x, weight, transposed)
        channels_out = weight.sizes[1] * groups if transposed else weight.sizes[0]
        _check_channels(x, weight, groups, transposed)
        numel = x.sizes[0] * channels_out * math.prod(out)
        flops = 2 * (x.numel if transposed else numel) * math.prod(weight.sizes[1:])
        return OpCost(
            "convolution",
            flops,
            x.bytes + weight.bytes + numel * x.item_bytes,
            _same_dtype(x, weight),
            groups=groups,
            channels_in=x.sizes[1] // groups,
            channels_out=channels_out,
        )

    def _groups(self, inputs: Inputs, x: Tensor) -> int:
        if self.depthwise:
            return x.sizes[1]
        return 1 if self.groups is None else inputs.whole(self.groups)

    def _output(self, inputs: Inputs, x: Tensor, weight: Tensor, transposed: bool) -> Shape:
        spatial = len(x.sizes) - 2
        stride = inputs.wholes(self.stride, spatial, 1)
        padding = inputs.wholes(self.padding, spatial)
        dilation = (1,) * spatial if self.dilation is None else inputs.wholes(self.dilation, spatial, 1)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.sizes[2:], strict=True)]
        sides = zip(x.sizes[2:], stride, padding, reach, strict=True)
        if transposed:
            added = (0,) * spatial if self.output_padding is None else inputs.wholes(self.output_padding, spatial)
            out = tuple((n - 1) * s - 2 * p + r + 1 + a for (n, s, p, r), a in zip(sides, added, strict=True))
        else:
            out = tuple((n + 2 * p - r - 1) // s + 1 for n, s, p, r in sides)
        require(min(out) >= 1)
        return out


def _check_channels(x: Tensor, weight: Tensor, groups: int, transposed: bool) -> None:
    require(groups >= 1 and weight.sizes[0] % groups == 0)
    require(x.sizes[1] == (weight.sizes[0] if transposed else weight.sizes[1] * groups))


_TRANSPOSED_OF_BACKWARD, _GROUPS_OF_BACKWARD, _MASK_OF_BACKWARD = 7, 9, 10


def _convolution_backward(inputs: Inputs) -> OpCost:
    dy, x, weight = inputs.tensor(0), inputs.tensor(1), inputs.tensor(2)
    require(len(dy.sizes) == len(x.sizes) == len(weight.sizes) >= 3 and dy.sizes[0] == x.sizes[0])
    transposed, groups = inputs.truth(_TRANSPOSED_OF_BACKWARD), inputs.whole(_GROUPS_OF_BACKWARD)
    _check_channels(x, weight, groups, transposed)
    require(dy.sizes[1] == (weight.sizes[1] * groups if transposed else weight.sizes[0]))
    flops = 2 * (x if transposed else dy).numel * math.prod(weight.sizes[1:])
    moved = dy.bytes + x.bytes + weight.bytes  # either gradient: two of them read, the third's size written
    mask = inputs.truths(_MASK_OF_BACKWARD)
    require(len(mask) == 3)
    # The bias gradient, numel(dy) additions in a reduction of its own, is left out.
    passes = tuple(Pass(name, flops, moved) for name, wanted in zip(PASSES, mask, strict=False) if wanted)
    return OpCost(
        "convolution",
        flops * len(passes),
        moved * len(passes),
        _same_dtype(dy, x, weight),
        groups=groups,
        channels_in=x.sizes[1] // groups,
        channels_out=dy.sizes[1],
        passes=passes,
    )


def _backward_input(inputs: Inputs) -> OpCost:
    """`cudnn_convolution_backward_input` of PyTorch up to 1.10: the size of dx was not recorded, so it is left out."""
    dy, weight = inputs.tensor(1), inputs.tensor(2)
    require(len(dy.sizes) == len(weight.sizes) >= 3 and dy.sizes[1] == weight.sizes[0])
    flops = 2 * dy.numel * math.prod(weight.sizes[1:])
    return OpCost("convolution", flops, dy.bytes + weight.bytes, _same_dtype(dy, weight), channels_out=dy.sizes[1])


# Attention ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Attention:
    """Where an attention op has its arguments.

    `first` is the position of the query; key and value follow. `heads_inside` tells [B, S, H, D] from [B, H, S, D].
    `offsets` are positions of tensors that pack sequences of different length, or use only a part of the keys; their
    contents are not recorded. `unbounded` are positions of windows that must be absent.
    """

    causal: Callable[[Inputs], bool]
    first: int = 0
    heads_inside: bool = False
    bias: int | None = None
    offsets: tuple[int, ...] = ()
    unbounded: tuple[int, ...] = ()
    backward: bool = False

    def __call__(self, inputs: Inputs) -> OpCost:
        require(not any(inputs.has(position) for position in self.offsets))
        require(all(inputs.left_out(position, "-1") for position in self.unbounded))
        q, k, v = (inputs.tensor(self.first + i, 4) for i in range(3))
        batch, heads, rows, size = self._sides(q)
        batch_k, heads_k, columns, size_k = self._sides(k)
        batch_v, heads_v, columns_v, size_v = self._sides(v)
        require(batch == batch_k == batch_v and columns == columns_v and size == size_k)
        require(heads_k == heads_v and heads_k > 0 and heads % heads_k == 0)
        causal = self.causal(inputs)
        # With lengths that differ it depends on the kernel which corner the mask starts from.
        require(not causal or rows == columns)
        per_score = 2 * (3 * size + 2 * size_v) if self.backward else 2 * (size + size_v)
        flops = batch * heads * rows * columns * per_score
        out = batch * heads * rows * size_v * q.item_bytes
        moved = q.bytes + k.bytes + v.bytes + out + _LSE_BYTES * batch * heads * rows
        if self.backward:  # the gradient of the output is read too; three gradients are written
            moved += out + q.bytes + k.bytes + v.bytes
        bias = inputs.optional(self.bias) if self.bias is not None else None
        moved += bias.bytes if bias else 0
        return OpCost("attention", flops // 2 if causal else flops, moved, _same_dtype(q, k, v))

    def _sides(self, tensor: Tensor) -> tuple[int, int, int, int]:
        """Batch, heads, length, size of a head."""
        batch, second, third, size = tensor.sizes
        return (batch, third, second, size) if self.heads_inside else (batch, second, third, size)


def _flag(position: int) -> Callable[[Inputs], bool]:
    return lambda inputs: inputs.truth(position)


def _mask_type(inputs: Inputs) -> bool:
    """Causal by `custom_mask_type`, which stands before the first bool; its position changed between versions."""
    for position in range(8, len(inputs.concrete or ())):
        if inputs.text(position) in ("True", "False"):
            mask = inputs.whole(position - 1)
            require(0 <= mask <= _BOTTOM_RIGHT)
            return mask > 0
    return unknown()


# Names ----------------------------------------------------------------------------------------------------------------

_SDPA = "aten::_scaled_dot_product_"

MATRIX_COSTS: Mapping[str, Formula] = MappingProxyType(
    {
        "aten::mm": _mm,
        "aten::addmm": partial(_mm, a=1, b=2, added=0),
        "aten::_addmm_activation": partial(_mm, a=1, b=2, added=0),
        "aten::bmm": _bmm,
        "aten::baddbmm": partial(_bmm, a=1, b=2, added=0),
        "aten::_scaled_mm": _scaled_mm,
        "aten::_int_mm": _int_mm,
        "aten::mv": _mv,
        "aten::addmv": partial(_mv, a=1, x=2),
        "aten::addmv_": partial(_mv, a=1, x=2),
        "aten::linear": _linear,
        "aten::mkldnn_linear": _linear,
        "aten::convolution": _Convolution(3, 4, 5, 8, transposed=6, output_padding=7),
        "aten::_convolution": _Convolution(3, 4, 5, 8, transposed=6, output_padding=7),
        "aten::convolution_overrideable": _Convolution(3, 4, 5, 8, transposed=6, output_padding=7),
        "aten::cudnn_convolution": _Convolution(3, 2, 4, 5),
        "aten::cudnn_convolution_relu": _Convolution(3, 4, 5, 6),
        "aten::cudnn_convolution_transpose": _Convolution(4, 2, 5, 6, output_padding=3, always_transposed=True),
        "aten::miopen_convolution": _Convolution(4, 3, 5, 6),
        "aten::miopen_depthwise_convolution": _Convolution(4, 3, 5, 6),
        "aten::miopen_convolution_transpose": _Convolution(5, 3, 6, 7, output_padding=4, always_transposed=True),
        "aten::mkldnn_convolution": _Convolution(4, 3, 5, 6),
        "aten::_slow_conv2d_forward": _Convolution(4, 5, None),
        "aten::_conv_depthwise2d": _Convolution(4, 5, 6, depthwise=True),
        "aten::convolution_backward": _convolution_backward,
        "aten::cudnn_convolution_backward_input": _backward_input,
        f"{_SDPA}flash_attention": _Attention(_flag(4)),
        f"{_SDPA}efficient_attention": _Attention(_flag(6), bias=3),
        f"{_SDPA}cudnn_attention": _Attention(_flag(6), bias=3),
        f"{_SDPA}flash_attention_backward": _Attention(_flag(11), 1, offsets=(6, 7), backward=True),
        f"{_SDPA}efficient_attention_backward": _Attention(_flag(11), 1, bias=4, backward=True),
        f"{_SDPA}cudnn_attention_backward": _Attention(_flag(14), 1, bias=8, offsets=(9, 10), backward=True),
        "aten::_cudnn_attention_forward": _Attention(_flag(10), bias=3, offsets=(4, 5)),
        "aten::_flash_attention_forward": _Attention(
            _flag(8), heads_inside=True, offsets=(3, 4, 13), unbounded=(11, 12)
        ),
        "aten::_flash_attention_backward": _Attention(
            _flag(11), 1, heads_inside=True, offsets=(6, 7), unbounded=(15, 16), backward=True
        ),
        "aten::_efficient_attention_forward": _Attention(
            _mask_type, heads_inside=True, bias=3, offsets=(4, 5, 12), unbounded=(13,)
        ),
        "aten::_efficient_attention_backward": _Attention(
            lambda inputs: inputs.whole(14) > 0, 1, heads_inside=True, bias=4, offsets=(6, 7), backward=True
        ),
        "flash_attn::_flash_attn_forward": _Attention(_flag(5), heads_inside=True, unbounded=(6, 7)),
    }
)
"""The formula of each op."""
