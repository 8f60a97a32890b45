"""Rules for what looks like matrix maths on Tensor Cores and is not: helpers of gemms, and CUDA-core kernels.

The order is the argument. Helpers come first, because a split-K tail carries the name of its gemm. Marks of CUDA-core
maths come next, before any mark of a matrix instruction is looked for: `sm80_xmma_gemm_..._ffma_...` is the ordinary
float32 gemm, although `xmma` is widely taken for a Tensor Core mark.
"""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Family, Rule, words

HELPERS = Family(
    gate=(),
    rules=(
        Rule(
            "A1",
            "reduction",
            "na",
            words("splitkreduce splitk_reduce split_k_reduce reducesplitk reduce_1block gemm_reduce reduce_wgrad"),
            "adds up the partial results of a split-K gemm",
        ),
        Rule(
            "A1b",
            "matrix",
            "na",
            words("split_k_kernel"),
            "the split-K tail of an xmma kernel carries the name of its gemm",
        ),
        Rule(
            "A1c",
            "elementwise",
            "na",
            words("cublaslt::epilogue epilogue::impl::globalkernel postgsu _finalize_matmul"),
            "bias and activation after a gemm",
        ),
        Rule(
            "A2",
            "copy",
            "na",
            words(
                "nchwtonhwc nhwctonchw nchw2nhwc nhwc2nchw nhwctofoldednhwc foldednhwctonhwc nchw2cnhw cnhw2nchw "
                "nhwcaddpadding tensortransform batched_transpose transpose_readwrite ::transpose< "
                "converttensor_kernel"
            ),
            "changes the layout beside a convolution or gemm; a finding of its own, not missing Tensor Cores",
            none_of=words("884 1688 scudnn hcudnn 16816"),
        ),
        Rule(
            "A2b",
            "copy",
            "na",
            words("im2col im2d2col im3d2col col2im vol2col"),
            "unfolds the input of a convolution",
        ),
        Rule(
            "A3",
            "convolution",
            "na",
            words("winograd_nonfused generatewinogradtiles winogradforward winogradwgrad flip_filter"),
            "transform of a Winograd convolution",
        ),
        Rule(
            "A3c",
            "convolution",
            "na",
            words("fft1d_ fft2d_"),
            "transform of an FFT convolution",
            pattern=r"fft[12]d_[cr]2[cr]_",
        ),
        Rule(
            "A3d",
            "other",
            "na",
            words(
                "offsetskernel offsets_kernel kernel_helper_stage kern_precompute compute_gemm_pointers _prepare_kernel"
            ),
            "works out offsets for a convolution or grouped gemm",
        ),
        Rule(
            "A3e",
            "reduction",
            "na",
            words("pointwise_mult_and_sum"),
            "multiplies and adds in the frequency domain of an FFT convolution",
        ),
        Rule(
            "A3f",
            "elementwise",
            "na",
            words("subtensorop optensor op_tensor scalepackedtensor scaletensor"),
            "`SubTensorOpWithScalar1d` contains TensorOp but fills or scales a tensor",
        ),
        Rule(
            "A3g",
            "norm",
            "na",
            words("miopenbatchnorm miopenlayernorm cudnn::bn_ rmsnorm2d"),
            "normalisation of cuDNN, MIOpen or CK",
        ),
        Rule(
            "A4",
            "attention",
            "na",
            words(
                "dot_do_o flash_bwd_convert clear_dkv bwd_preprocess bwdpreprocess bwdpostprocess "
                "backwardpreprocess backwardpostprocess splitkv_combine splitkvcombine attncombine attnfwdcombine "
                "fwd_combine ograddoto convertqgrad prepare_varlen mergestates merge_attn_states mla_reduce"
            ),
            "before or after an attention kernel: row sums, casts, merging of splits",
        ),
        Rule(
            "A4b",
            "attention",
            "na",
            words("paged_attention pa_reduce"),
            "merges the partitions of paged attention",
            pattern=r"(?:attention|pa)_\w{0,60}reduce",
        ),
    ),
)

CUDA_CORES = Family(
    gate=(),
    rules=(
        Rule(
            "A8",
            "reduction",
            "no",
            words("dot_kernel nrm2 asum_kernel"),
            "vector times vector",
            pattern=r"(?:^|[ :])(?:dot|nrm2|asum)_kernel|nrm2",
            instruction="FFMA",
            gemv_like=True,
        ),
        Rule(
            "A8b",
            "elementwise",
            "no",
            words("scal_kernel axpy_kernel"),
            "BLAS level 1",
            pattern=r"(?:^|[ :])(?:scal|axpy)_kernel",
            gemv_like=True,
        ),
        Rule(
            "A9",
            "gemm",
            "no",
            words(
                "gemmk1_kernel gemmsn_ kgemm_4bit cudacoregemm cuda_core_gemm sgemm_largek gemm_kernel1x1 mul_mat_vec"
            ),
            "one dimension is tiny, so the kernel waits for memory and Tensor Cores would not help",
            instruction="FFMA",
            gemv_like=True,
        ),
        Rule(
            "A8c",
            "gemm",
            "no",
            words("gemv"),
            "matrix times vector: waits for memory, Tensor Cores do not apply",
            instruction="FFMA",
            gemv_like=True,
        ),
        Rule(
            "N1",
            "matrix",
            "no",
            words("_simt_ opclasssimt mmasimt threadmapsimt simtpolicy warpsimt universalfma _simt_sgemm"),
            "CUTLASS names its CUDA-core class SIMT",
        ),
        Rule(
            "N2",
            "matrix",
            "no",
            words("_ffma _dfma _hfma"),
            "xmma variant built from FMA instructions",
            pattern=r"_[fdh]fma2?(?:_|$)",
        ),
        Rule(
            "N3",
            "matrix",
            "no",
            words("gemm_"),
            "cuBLAS kernel of letter s, d, h, c or z without an instruction shape; `fp16_sgemm_fp16` has half "
            "operands and FFMA maths",
            pattern=r"(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_(?:fp16_|bf16_|fp32_)?(?:[sdhcz]|gc)gemm_",
        ),
        Rule(
            "N4",
            "convolution",
            "no",
            words("cudnn_"),
            "cuDNN kernel of letter s, d, h or c without an instruction shape, Winograd included",
            pattern=r"(?:maxwell|pascal|volta|turing|ampere)_(?:fp16_|bf16_|fp32_)?[sdhc]cudnn_",
        ),
        Rule(
            "N5c",
            "convolution",
            "no",
            words(
                "conv_depthwise depthwiseconv depthwise_conv spatialdepthwise depthwise_fprop depthwise_dgrad "
                "depthwise_wgrad dwconv _c1_k1 causal_conv1d"
            ),
            "depthwise convolution: one channel a group, nothing to contract",
            instruction="FFMA",
            depthwise=True,
        ),
        Rule(
            "N5",
            "convolution",
            "no",
            words(
                "convolve_sgemm convolve_hgemm convolve_dgemm convolvend_ convolve_common_engine dgrad_engine "
                "dgrad_alg dgrad2d_alg wgrad_alg wgrad2d_alg grouped_direct winograd3x3 naive_conv "
                "miopensp3asmconv sp3asmconv gcnasmconv miopenconvuni miopencv"
            ),
            "hand-written convolution of cuDNN or MIOpen on plain FMA",
        ),
        Rule(
            "N5b",
            "gemm",
            "no",
            words("gcgemm cgemm_ zgemm_ pluscgemm magma_ sgemmex gemm_half_q_half"),
            "complex, MAGMA or half2 gemm on plain FMA",
            pattern=r"gcgemm|[cz]gemm_|pluscgemm|magma_\w{0,40}gemm|sgemmex|gemm_half_q_half",
        ),
        Rule(
            "N7",
            "gemm",
            "no",
            words("gridwisegemmdl _dl_ wmmadl"),
            "CK kernel on dot instructions",
            pattern=r"gridwisegemm\w{0,40}dl(?:_|i|<)|kernel_gemm_dl",
        ),
        Rule(
            "N6",
            "matrix",
            "no",
            words("f32f32_f32f32_f32"),
            "float32 operands, float32 maths and no matrix instruction",
            pattern=r"xmma_\w{0,80}f32f32_f32f32_f32",
            none_of=words("tensor1 tensor8 hgmma warpgroupsize gmma tf32"),
            instruction="FFMA",
        ),
        Rule(
            "F1",
            "attention",
            "no",
            words("fmha_cutlass"),
            "memory-efficient attention falls back to SIMT: float32 before sm80, half before sm70",
            pattern=r"fmha_cutlass[fb]_(?:f32_\w{0,60}sm(?:50|70|75)(?!\d)|(?:f16|bf16)_\w{0,60}sm50)",
            instruction="FFMA",
        ),
        Rule(
            "F7",
            "attention",
            "no",
            words("paged_attention_v1 paged_attention_v2 batchdecodewith singledecodewith"),
            "decoding one token: a matrix times vector on plain FMA, waits for the key-value cache",
            instruction="FFMA",
            gemv_like=True,
        ),
        Rule(
            "RN",
            "gemm",
            "no",
            words("rnn_blockpersist persistrnn"),
            "persistent float32 RNN of cuDNN",
            none_of=words("hmma"),
            instruction="FFMA",
        ),
    ),
)
