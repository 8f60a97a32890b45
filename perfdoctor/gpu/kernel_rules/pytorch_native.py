"""PyTorch's own kernels: everything in the namespace `at::native`."""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import NORM_WORDS, Rule, RuleFamily
from perfdoctor.gpu.word_table import words

AT_NATIVE = RuleFamily(
    any_of=words("at::native at6native"),
    rules=(
        Rule(
            "N5d",
            "convolution",
            "no",
            words("conv_depthwise depthwiseconv spatialdepthwise"),
            "depthwise convolution: one channel a group, nothing to contract",
            instruction="FFMA",
            depthwise=True,
        ),
        Rule("T7", "gemm", "yes", words("tinygemm_"), "int4 weight-only gemm on mma.sync", instruction="HMMA.16816"),
        Rule("P0", "random", "na", words("distribution_ dropout_kernel philox randperm bernoulli"), "random numbers"),
        Rule(
            "P1",
            "norm",
            "na",
            NORM_WORDS + words("rowwisemoments gammabeta fusedparams internalgradients welford cucompute"),
            "normalisation of at::native, statistics included",
        ),
        Rule("P2", "softmax", "na", words("softmax"), "softmax of at::native"),
        Rule(
            "P3",
            "optimizer",
            "na",
            words("multi_tensor_apply fusedadam fused_adam fused_sgd fused_adagrad"),
            "foreach and fused optimizers are all multi_tensor_apply",
        ),
        Rule(
            "P4",
            "copy",
            "na",
            words(
                "copy_kernel catarray copy_device_to_device split_with_sizes chunk_cat transpose_kernel im2col "
                "col2im vol2col roll_cuda flip_ reflection_pad replication_pad padded_tensor"
            ),
            "moves or casts data and computes nothing",
            none_of=words("index_copy"),
        ),
        Rule(
            "P5",
            "other",
            "na",
            words(
                "pool upsample grid_sampler sort scan unique histogram reverse_indices fill_index ctc_loss "
                "withinkcounts kthvalue kthcounts cdist"
            ),
            "pooling, resampling, sorting, scanning",
            none_of=words("gathertopk"),
        ),
        Rule(
            "P6",
            "indexing",
            "na",
            words(
                "index_elementwise index_kernel indexselect indexfunc indexing_backward index_put index_copy "
                "index_fill index_add scatter gather embedding write_indices masked_select take_kernel put_kernel "
                "nonzero compute_grad_weight krn_partial"
            ),
            "reads or writes through indices",
        ),
        Rule(
            "P7",
            "reduction",
            "na",
            words("reduce_kernel reduceop nll_loss classnll segment_reduce _reduce_cuda reduce_single"),
            "reduction of at::native",
        ),
        Rule(
            "P8",
            "elementwise",
            "na",
            words("elementwise functor triu_tril transform_bias amp_update fused_ kernel_impl gelu silu _cuda_kernel"),
            "pointwise kernel of at::native",
        ),
        Rule(
            "P9",
            "other",
            "na",
            words("at::native at6native"),
            "a kernel of at::native that no rule names",
            none_of=words("cutlass gemm"),
        ),
    ),
)
"""The namespace decides; within it the more specific kernels come first."""
