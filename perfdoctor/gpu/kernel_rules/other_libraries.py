"""What no other file knows: MAGMA, Apex, DeepSpeed, Liger, kernels of users; at the end by single words."""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import NORM_WORDS, Rule, RuleFamily
from perfdoctor.gpu.word_table import words

PLAIN_FMA: tuple[Rule, ...] = (
    Rule(
        "N5b",
        "gemm",
        "no",
        words("gcgemm cgemm_ zgemm_ pluscgemm magma_ sgemmex gemm_half_q_half"),
        "complex, MAGMA or half2 gemm on plain FMA",
        pattern=r"gcgemm|[cz]gemm_|pluscgemm|magma_\w{0,40}gemm|sgemmex|gemm_half_q_half",
    ),
)
"""Gemms that no architecture runs on Tensor Cores."""

NORMS_AND_OPTIMIZERS: tuple[Rule, ...] = (
    Rule(
        "L0",
        "norm",
        "na",
        NORM_WORDS
        + words(
            "layer_norm:: ln_fwd ln_bwd bn_fw_ bn_bw_ qknorm qk_norm cucomputegrad cuapplylayernorm l2norm _norm_kernel"
        ),
        "normalisation of another library",
    ),
    Rule(
        "L1",
        "optimizer",
        "na",
        words("multi_tensor_apply adamfunctor fused_adam fusedadam koptimizer adamw lamb_stage adam_kernel adam_cuda"),
        "optimizer step of Apex, DeepSpeed, Transformer Engine or bitsandbytes",
    ),
)
"""Before the pointwise words: fused norms and optimizers hold those, too."""

POINTWISE: tuple[Rule, ...] = (
    Rule(
        "L6",
        "softmax",
        "na",
        words("softmax topk_gating"),
        "softmax of another library",
        none_of=words("fmha flash attention"),
    ),
    Rule(
        "L7",
        "random",
        "na",
        words("dropout philox curand hiprand rocrand generate_seed"),
        "random numbers",
        none_of=words("flash fmha attn"),
    ),
    Rule(
        "L8",
        "elementwise",
        "na",
        words(
            "rotary _rope_ rope_kernel ropekernel act_and_mul silu swiglu geglu gelu elementwise vectorized "
            "op_tensor optensor subtensorop scalepackedtensor clamp_ add_tensor scale_swizzle "
            "activation_kernel bias_add addbias fill_kernel mish pointwise"
        ),
        "pointwise kernel of another library",
        none_of=words("gemm matmul fmha flash_attn conv attention"),
    ),
)
"""Softmax, random numbers, activations and rotary embeddings."""

UNNAMED_INSTRUCTIONS = RuleFamily(
    any_of=(),
    rules=(
        Rule(
            "U2a",
            "attention",
            "unknown",
            words(
                "attn_fwd attn_bwd _attn_ attention sage_fwd sage_bwd fmha flash_ mmha sdpa bwd_kernel_dk_dv "
                "bwd_kernel_dq mla_ chunk_fwd chunk_bwd chunk_gated _attn retention"
            ),
            "attention written in Triton or otherwise, without a word on its instructions",
            none_of=words("indices metadata prepare"),
        ),
        Rule(
            "U2b",
            "attention",
            "unknown",
            words("_fwd_kernel _bwd_kernel _fwd_grouped_kernel"),
            "the name of Triton's attention tutorial",
            pattern=r"^_(?:fwd|bwd)_(?:grouped_)?kernel",
        ),
        Rule(
            "U2c",
            "convolution",
            "unknown",
            words(
                "implicit_gemm convolve _conv2d _conv3d _conv1d conv2d_ conv3d_ convfwd convdgrad convwgrad "
                "_fprop _dgrad _wgrad igemm_ convolution"
            ),
            "convolution without a word on its instructions",
            none_of=words("helper offsets"),
        ),
        Rule(
            "U2d",
            "gemm",
            "unknown",
            words(
                "gemm matmul _bmm mm_kernel fused_moe moe_kernel mul_mat cutlass::device_kernel "
                "7cutlass13device_kernel cutlass::kernel kernel_mm dot_scaled linear_kernel"
            ),
            "gemm without a word on its instructions",
            none_of=words("_align repack metadata"),
        ),
    ),
)
"""Matrix multiplication whose name does not say how it is done: achieved FLOP/s or the operand type decide later."""

SINGLE_WORDS = RuleFamily(
    any_of=(),
    rules=(
        Rule(
            "R0",
            "copy",
            "na",
            words("transpose memcpy memset copy_kernel batched_copy converttensor _cat_kernel"),
            "moves data",
        ),
        Rule(
            "R1",
            "indexing",
            "na",
            words("gather scatter index_select index_put embedding nonzero"),
            "reads or writes through indices",
        ),
        Rule(
            "R2",
            "reduction",
            "na",
            words("reduce reduction nll cross_entropy crossentropy topk_sum _sum_kernel mean_kernel"),
            "reduction of another library",
        ),
        Rule(
            "R3",
            "elementwise",
            "na",
            words("_add_kernel _mul_kernel cast_kernel _act_kernel _relu"),
            "pointwise kernel of another library",
        ),
    ),
)
"""The weakest rules: one word of the name, whatever stands around it."""
