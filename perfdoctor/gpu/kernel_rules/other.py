"""Rules for what is no matrix maths: collectives, generated kernels, PyTorch's own kernels, other libraries.

Their verdict is `na`: to call a norm or a copy "not using Tensor Cores" would drown the true findings.
"""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Family, Rule, words

_NORM_WORDS = words(
    "layer_norm layernorm batch_norm batchnorm group_norm groupnorm instance_norm instancenorm rms_norm rmsnorm "
    "weight_norm"
)

INDUCTOR = Family(
    gate=words("triton_"),
    rules=(
        Rule(
            "I0",
            "other",
            "na",
            words("triton_"),
            "anonymous Triton name: only the launching op can tell",
            pattern=r"^triton_+(?:\d+d|$)",
        ),
        Rule(
            "U1",
            "matrix",
            "unknown",
            words("triton_tem_ triton_mm triton_bmm triton_addmm triton_baddbmm triton_conv triton_flex"),
            "an Inductor template calls tl.dot, which runs on Tensor Cores or not according to the operand type",
            pattern=r"^triton_(?:tem|mm|bmm|addmm|baddbmm|conv|flex)",
        ),
        Rule(
            "I1",
            "norm",
            "na",
            _NORM_WORDS,
            "generated kernel around a normalisation",
            pattern=r"^triton_(?:poi|red|per|for|spl|split|mix)_",
        ),
        Rule(
            "I2",
            "softmax",
            "na",
            words("softmax"),
            "generated kernel around a softmax",
            pattern=r"^triton_(?:poi|red|per|spl|split|mix)_",
        ),
        Rule(
            "I3",
            "random",
            "na",
            words("inductor_random inductor_seeds"),
            "generated random numbers",
            pattern=r"^triton_(?:poi|red|per)_",
        ),
        Rule(
            "I4",
            "indexing",
            "na",
            words("_index _embedding _gather _scatter"),
            "generated kernel that reads or writes through indices",
            pattern=r"^triton_poi_",
        ),
        Rule(
            "I5",
            "optimizer",
            "na",
            words("triton_for_"),
            "horizontally fused foreach op: a compiled optimizer",
            pattern=r"^triton_for_",
        ),
        Rule(
            "I6",
            "other",
            "na",
            words("_scan"),
            "generated scan",
            pattern=r"^triton_(?:spl|split)_",
        ),
        Rule(
            "I7",
            "reduction",
            "na",
            words("triton_red_ triton_per_"),
            "generated reduction",
            pattern=r"^triton_(?:red|per)_",
        ),
        Rule(
            "I8",
            "elementwise",
            "na",
            words("triton_poi_ triton_mix_"),
            "generated pointwise kernel; `triton_poi_fused_addmm_gelu` names the op whose epilogue it is",
            pattern=r"^triton_(?:poi|mix)_",
        ),
    ),
)

# Anchored: PyTorch's own kernels carry thrust::pair and cub functors among their template arguments, and the reverse.
_PRIMITIVE = r"^(?:void )?(?:\w{1,40}::)?(?:_zn\d{1,2})?(?:cub|thrust|rocprim|hipcub|moderngpu)"

PRIMITIVES = Family(
    gate=words("cub:: thrust:: rocprim hipcub moderngpu 3cub"),
    rules=(
        Rule(
            "P10",
            "reduction",
            "na",
            words("devicereduce reduce_kernel"),
            "reduction primitive",
            pattern=_PRIMITIVE,
            none_of=words("reducebykey reduce_by_key"),
        ),
        Rule(
            "P11",
            "indexing",
            "na",
            words("deviceselect devicecompact"),
            "compaction: nonzero and masked_select",
            pattern=_PRIMITIVE,
            none_of=words("bykey by_key unique"),
        ),
        Rule(
            "P12",
            "elementwise",
            "na",
            words("parallel_for transform_kernel"),
            "pointwise primitive",
            pattern=_PRIMITIVE,
        ),
        Rule(
            "P13",
            "other",
            "na",
            words("cub thrust:: rocprim moderngpu"),
            "sort or scan primitive",
            pattern=_PRIMITIVE,
        ),
    ),
)

NATIVE = Family(
    gate=words("at::native at6native"),
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
        Rule(
            "T7",
            "gemm",
            "yes",
            words("tinygemm_"),
            "int4 weight-only gemm on mma.sync",
            instruction="HMMA.16816",
        ),
        Rule(
            "P0",
            "random",
            "na",
            words("distribution_ dropout_kernel philox randperm bernoulli"),
            "random numbers",
        ),
        Rule(
            "P1",
            "norm",
            "na",
            _NORM_WORDS + words("rowwisemoments gammabeta fusedparams internalgradients welford cucompute"),
            "normalisation of at::native, statistics included",
        ),
        Rule(
            "P2",
            "softmax",
            "na",
            words("softmax"),
            "softmax of at::native",
        ),
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

COMMUNICATION = Family(
    gate=(),
    rules=(
        Rule(
            "C0",
            "communication",
            "na",
            words("nccl rccl"),
            "collective of NCCL or RCCL",
        ),
        Rule(
            "C1",
            "communication",
            "na",
            words(
                "cross_device_reduce all_reduce allreduce all_gather allgather reduce_scatter reducescatter "
                "all_to_all alltoall all2all multimem_ lamport mscclpp nvshmem rocshmem gloo:: c10d:: deep_ep:: "
                "deepep ::ep:: internode:: intranode:: quickreduce quick_reduce symm_mem"
            ),
            "collective written for one node, or for expert parallelism, that does not go through NCCL",
        ),
    ),
)

EMBEDDING = Family(
    gate=words("fbgemm embedding _indices linearize_index recat_ permute_pooled bucketize jagged dense_representation"),
    rules=(
        Rule(
            "E0",
            "indexing",
            "na",
            words(
                "split_embedding embedding_ bounds_check permute_2d permute_1d permute_indices permute_sparse "
                "linearize_index recat_ index_select jagged dense_representation"
            ),
            "embedding tables and sparse features: rows fetched by index",
            none_of=words("rotary gemm< grouped_gemm"),
        ),
        Rule(
            "E1",
            "other",
            "na",
            words("bucketize permute_pooled fp8 _offsets_range quantiz cumsum to_float"),
            "sparse-feature bookkeeping",
            none_of=words("gemm< grouped_gemm scaled_mm"),
        ),
    ),
)

LIBRARIES = Family(
    gate=(),
    rules=(
        Rule(
            "L0",
            "norm",
            "na",
            _NORM_WORDS
            + words(
                "layer_norm:: ln_fwd ln_bwd bn_fw_ bn_bw_ qknorm qk_norm cucomputegrad cuapplylayernorm l2norm "
                "_norm_kernel"
            ),
            "normalisation of another library",
        ),
        Rule(
            "L1",
            "optimizer",
            "na",
            words(
                "multi_tensor_apply adamfunctor fused_adam fusedadam koptimizer adamw lamb_stage adam_kernel adam_cuda"
            ),
            "optimizer step of Apex, DeepSpeed, Transformer Engine or bitsandbytes",
        ),
        Rule(
            "L2",
            "indexing",
            "na",
            words(
                "reshape_and_cache store_kv storekv concat_and_cache set_kv_buffer append_paged copy_blocks "
                "gather_cache"
            ),
            "writes the key-value cache through a block table",
            none_of=words("_rope_"),
        ),
        Rule(
            "L3",
            "other",
            "na",
            words("kv_indices page_indices page_table future_token compute_position routingindices moesorting sorting"),
            "bookkeeping of a serving engine: page tables, routing, sorting tokens by expert",
        ),
        Rule(
            "L4",
            "other",
            "na",
            words(
                "moe_align count_and_sort permute_kernel topk_ids topk_idx expert_offset finalizekernel finalize_moe"
            ),
            "routing of tokens to experts",
            none_of=words("topk_sum"),
        ),
        Rule(
            "L5",
            "other",
            "na",
            words("_quant_ quant_kernel quantize kquant cast_to_fp8 cast_back _to_fp8 fp8_quant scaled_quant dequant"),
            "quantisation: a cast with a scale per block",
            none_of=words("gemm matmul cast_and_transpose"),
        ),
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
    ),
)

REMAINDER = Family(
    gate=(),
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
