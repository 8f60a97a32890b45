"""cuBLAS and cuBLASLt: gemms, products with a vector, and the helpers of a split-K gemm.

Letters before `gemm` are BLAS's: s float32, d float64, h half, c and z complex.
"""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Rule
from perfdoctor.gpu.word_table import words

HELPERS: tuple[Rule, ...] = (
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
)
"""What runs after a gemm, CUTLASS and Tensile included; it carries the name of the gemm that it helps."""

BANDWIDTH_BOUND: tuple[Rule, ...] = (
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
            "gemmk1_kernel gemmsn_ kgemm_4bit cudacoregemm cuda_core_gemm sgemm_largek gemm_kernel1x1 mul_mat_vec "
            "weight_only::kernel wvsplitk"
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
)
"""Products with a vector and other products of which a dimension is tiny, those of other libraries included."""

CUDA_CORES: tuple[Rule, ...] = (
    Rule(
        "N3",
        "matrix",
        "no",
        words("gemm_"),
        "cuBLAS kernel of letter s, d, h, c or z without an instruction shape; `fp16_sgemm_fp16` has half "
        "operands and FFMA maths",
        pattern=r"(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_(?:fp16_|bf16_|fp32_)?(?:[sdhcz]|gc)gemm_",
    ),
)
"""The architecture and the BLAS letter, without the shape of a matrix instruction between them."""

NVJET: tuple[Rule, ...] = (
    Rule("J1", "gemm", "yes", words("nvjet_"), "cuBLAS from 12.6 on; none of the known names runs on CUDA cores"),
)
"""`nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT`: the letters are types, see `parse_kernel_name`."""
