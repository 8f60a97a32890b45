"""The ops that TorchInductor fused into a kernel, by its name: `triton_poi_fused_add_relu_0` is add and relu."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from perfdoctor.gpu.word_table import words

_NAME = re.compile(r"^triton_(?P<kind>[a-z]+)_fused_(?P<ops>(?!\d+$)\w+?)(?:_\d+)?(?:_\d+d\w*)?$")
_KINDS = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "reduction",
    "spl": "scan",
    "split": "scan",
    "for": "foreach",
    "tem": "template",
    "mm": "template",
    "mix": "mixed",
}
# What Triton itself appends in older versions: an argument each, with what is known of it.
_SIGNATURE = re.compile(r"_\d+(?:d|c)(?:e|c)?\d+(?:d|c|e)")
# Ops whose names have underscores inside: a kernel's name joins the names of its ops by underscores, too.
_LONG_NAMES = frozenset(
    words(
        """
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_div
        _foreach_lerp _foreach_mul _foreach_norm _foreach_sqrt _fused_adam _fused_adamw _grouped_mm _local_scalar_dense
        _log_softmax _log_softmax_backward_data _native_batch_norm_legit _native_batch_norm_legit_functional
        _prelu_kernel _safe_softmax _scaled_dot_product_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_flash_attention _scaled_mm _softmax _softmax_backward_data _to_copy _trilinear
        _unsafe_index _unsafe_index_put _unsafe_view _weight_norm avg_pool2d avg_pool2d_backward
        adaptive_avg_pool2d as_strided as_strided_scatter binary_cross_entropy binary_cross_entropy_backward
        binary_cross_entropy_with_logits bitwise_and bitwise_not bitwise_or bitwise_xor
        clamp_max clamp_min constant_pad_nd convert_element_type convolution_backward cross_entropy
        div_tensor_mode elu_backward embedding_bag embedding_dense_backward empty_like floor_divide full_like
        fused_moving_avg_obs_fake_quant gelu_backward grid_sampler_2d hardsigmoid_backward hardswish_backward
        hardtanh_backward huber_loss huber_loss_backward index_add index_copy index_fill index_put index_select
        inductor_force_stride_order inductor_lookup_seed inductor_random inductor_seeds layer_norm leaky_relu
        leaky_relu_backward lift_fresh_copy linalg_vector_norm log_sigmoid_backward log_sigmoid_forward log_softmax
        logical_and logical_not logical_or logical_xor masked_fill masked_scatter masked_select
        max_pool2d_with_indices max_pool2d_with_indices_backward mse_loss mse_loss_backward native_batch_norm
        native_batch_norm_backward native_dropout native_dropout_backward native_group_norm native_group_norm_backward
        native_layer_norm native_layer_norm_backward new_empty new_full new_ones new_zeros nll_loss_backward
        nll_loss_forward nll_loss2d_backward nll_loss2d_forward ones_like pixel_shuffle pixel_unshuffle
        prod_dim_int rand_like randn_like reflection_pad1d reflection_pad2d relu_backward repeat_interleave
        replication_pad2d rms_norm rsub_scalar scalar_tensor scatter_add scatter_reduce select_backward
        select_scatter sigmoid_backward silu_backward slice_backward slice_scatter smooth_l1_loss
        smooth_l1_loss_backward soft_margin_loss softmax_backward_data softplus_backward split_with_sizes
        tanh_backward threshold_backward unfold_backward upsample_bicubic2d upsample_bilinear2d
        upsample_bilinear2d_backward upsample_nearest2d upsample_nearest2d_backward var_mean view_as_complex
        view_as_real where_self zeros_like
        """
    )
)


def is_triton_kernel(name: str) -> bool:
    """Whether Triton compiled a kernel: one that TorchInductor generated, or an older version's of somebody."""
    return name.startswith("triton_") or bool(_SIGNATURE.search(name))


def kind_of_triton_kernel(name: str) -> str:
    """What a kernel of Triton is: "pointwise", "reduction", "template", ...

    A generated one that is named by its arguments alone is "unnamed", and one that is not generated "written by hand".
    """
    found = re.match(r"triton_+([a-z]+)_", name)
    if found is None:
        return "unnamed" if name.startswith("triton_") else "written by hand"
    return _KINDS.get(found[1], "other")


@lru_cache(maxsize=4096)
def fused_ops(name: str, known: Collection[str] = frozenset()) -> tuple[str, ...]:
    """The ops that a generated kernel does, as its name has them, which is in the order of the alphabet.

    For example "triton_red_fused__to_copy_add_native_layer_norm_3" is ("_to_copy", "add", "native_layer_norm"). Empty
    for a kernel whose name does not say, as where inductor names kernels by number alone. `known` are further names of
    ops with underscores inside, without "aten::", such as those of a trace.
    """
    found = _NAME.match(name)
    if found is None:
        return ()
    rest, ops = found["ops"], []
    while rest.strip("_"):
        op = _longest_op(rest, known)
        ops.append(op)
        rest = rest[len(op) :].removeprefix("_")
    return tuple(dict.fromkeys(ops))


def _longest_op(text: str, known: Collection[str]) -> str:
    """The longest name of an op that a text begins with, up to an underscore; its first word where none is known."""
    ends = [place for place in range(1, len(text) + 1) if place == len(text) or text[place] == "_"]
    for end in reversed(ends):
        if text[:end] in _LONG_NAMES or text[:end] in known:
            return text[:end]
    # A name that begins with an underscore has a word behind it.
    return next(text[:end] for end in ends if text[:end].strip("_"))
