"""What a CPU op does, by its name.

Used for CPU-only traces, and for GPU kernels whose name says nothing.
"""

from __future__ import annotations

import functools
import re

from perfdoctor.gpu.classify_kernels import MAX_NAME_CHARS, classify_kernel
from perfdoctor.gpu.kernel_rules import Category
from perfdoctor.gpu.word_table import words

_WRAPPERS = (
    "autograd::engine::evaluate_function: ",
    "torch::autograd::",
    "torch.distributed.ddp.reducer::",
    "torch::distributed::",
)
_BACKWARD_SUFFIX = r"_?backward\d*$"
_COMMUNICATION_PREFIXES = (
    "c10d::",
    "c10d_functional::",
    "_c10d_functional::",
    "gloo:",
    "nccl:",
    "mpi:",
    "ucc:",
    "xccl:",
    "symm_mem::",
)

# Words that occur inside longer names, in the order in which they are looked for.
_PARTS_OF_NAMES: tuple[tuple[Category, tuple[str, ...]], ...] = (
    (
        "communication",
        words(
            "record_param_comms all_reduce allreduce all_gather allgather reduce_scatter reducescatter "
            "all_to_all alltoall all2all wait_tensor nccl"
        ),
    ),
    ("optimizer", words("optimizer.step _foreach_ _fused_adam _fused_sgd _fused_adagrad")),
    ("attention", words("attention flash_attn custom_flash sdpa")),
    ("softmax", words("softmax")),
    (
        "norm",
        words(
            "batch_norm batchnorm layer_norm layernorm group_norm groupnorm instance_norm rms_norm rmsnorm weight_norm"
        ),
    ),
    ("random", words("dropout bernoulli multinomial randperm")),
    ("convolution", words("convolution conv1d conv2d conv3d conv_transpose conv_depthwise conv_tbc")),
    (
        "indexing",
        words(
            "index gather scatter embedding nonzero masked_select topk bounds_check permute_2d_sparse "
            "permute_sparse reshape_and_cache store_cache dense_representation"
        ),
    ),
    ("gemm", words("addmm matmul _mm _linear mkldnn_rnn grouped_mm moe_forward")),
    ("reduction", words("nll_loss nllloss cross_entropy vector_norm matrix_norm logsumexp linalg_norm")),
    ("other", words("cumsum cumprod pool upsample sort quantized to_dense unflatten as_strided")),
)

# Whole names, without namespace, trailing underscore and `_backward`.
_WHOLE_NAMES: dict[Category, str] = {
    "other": "is_nonzero",
    "gemm": (
        "mm bmm baddbmm addbmm linear einsum mv addmv dot vdot ger addr tensordot inner chain_matmul lstm gru "
        "rnn_tanh rnn_relu"
    ),
    "convolution": ("conv thnn_conv slow_conv"),
    "random": ("rand randn randint rand_like randn_like normal uniform random exponential geometric log_normal cauchy"),
    "reduction": (
        "sum mean max min amax amin aminmax argmax argmin prod any all norm var std var_mean std_mean nansum "
        "nanmean count_nonzero median mode trace convex_sum value_selecting_reduction grad_sum_to_size"
    ),
    "copy": (
        "copy to _to_copy tocopy _cat contiguous clone cat concat stack hstack vstack pin_memory _pin_memory repeat "
        "pad constant_pad_nd roll flip im2col col2im pixel_shuffle type_as channel_shuffle resolve_conj resolve_neg "
        "copy_bucket_to_grad flatten_dense_tensors narrow_copy"
    ),
    "indexing": ("take put select_backward slice_backward slice_scatter select_scatter fast_gather"),
    "elementwise": (
        "add sub mul div rsub addcmul addcdiv lerp pow sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p sin "
        "cos tan tanh sinh cosh asin acos atan atan2 abs neg sign sgn reciprocal floor ceil round trunc frac "
        "remainder fmod floor_divide true_divide clamp clamp_min clamp_max relu relu6 gelu silu mish elu selu celu "
        "leaky_relu prelu rrelu hardtanh hardswish hardsigmoid softplus softshrink hardshrink tanhshrink sigmoid "
        "log_sigmoid log_sigmoid_forward logsigmoid logit threshold glu where masked_fill fill zero zeros ones "
        "full zeros_like ones_like full_like eq ne lt le gt ge isnan isinf isfinite isclose logical_and logical_or "
        "logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__ __iand__ "
        "__ior__ __ixor__ maximum minimum fmax fmin nan_to_num erf erfc erfinv lgamma digamma arange linspace tril "
        "triu mse_loss mseloss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits hypot copysign "
        "heaviside addcdiv_ xlogy _amp_update_scale _amp_foreach_non_finite_check_and_unscale mul_out "
        "rotary_embedding silu_and_mul gelu_and_mul _transform_bias_rescale_qkv complex polar view_as_complex_copy "
        "convert_element_type broadcast_add new_zeros new_ones new_full"
    ),
}
_CATEGORY_OF_NAME: dict[str, Category] = {
    name: category for category, names in _WHOLE_NAMES.items() for name in names.split()
}


@functools.lru_cache(maxsize=16384)
def _classify(name: str) -> Category:
    text = name.lower()
    if text.startswith("triton_"):
        return classify_kernel(name).category
    if text.startswith(_COMMUNICATION_PREFIXES):
        return "communication"
    base_name = _base_name(text)
    # Whole names first: "sum" and "all" are too short to be looked for inside others.
    if base_name in _CATEGORY_OF_NAME:
        return _CATEGORY_OF_NAME[base_name]
    for category, parts in _PARTS_OF_NAMES:
        for part in parts:
            if part in text:
                return category
    return "other"


def _base_name(text: str) -> str:
    """Return `add` for `aten::add_`, `tanh` for `aten::tanh_backward`, `addmm` for `autograd::...: AddmmBackward0`."""
    for wrapper in _WRAPPERS:
        text = text.removeprefix(wrapper)
    text = text.rpartition("::")[2]
    if text in _CATEGORY_OF_NAME:
        return text
    if "backward" in text:
        text = re.sub(_BACKWARD_SUFFIX, "", text)
    return text if text in _CATEGORY_OF_NAME else text.rstrip("_")


def classify_op(name: str) -> Category:
    """Return the category of a CPU op by its name, in the words of `KernelClass.category`.

    Views and allocations compute nothing and are `other`, as are names of unknown meaning.
    """
    return _classify(name[:MAX_NAME_CHARS])
