"""AMD's libraries: Tensile (behind hipBLASLt and rocBLAS), Composable Kernel (CK), MIOpen, AITER."""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Rule, RuleFamily
from perfdoctor.gpu.word_table import words

# Tensile spells the indices of C, A and B: Cijk_Alik_Bljk.
_TENSILE = r"(?:^|_)c[ijklmn]{3,4}_a[ijklmn]{3,4}_b[ijklmn]{3,4}_"

TENSILE = RuleFamily(
    any_of=words("cij"),
    rules=(
        Rule(
            "M1",
            "gemm",
            "yes",
            words("_mi"),
            "Tensile kernel with a MatrixInstruction",
            pattern=_TENSILE + r"\w{1,400}_mi\d{1,3}x\d{1,3}x\d",
            instruction="MFMA",
        ),
        Rule(
            "M2",
            "gemm",
            "no",
            words("_a"),
            "Tensile kernel without a MatrixInstruction: vector units",
            pattern=_TENSILE,
            instruction="FMA",
        ),
    ),
)
"""The complete name of a Tensile kernel begins with its indices."""

HELPERS: tuple[Rule, ...] = (
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
)
"""Tensor arithmetic and norms of MIOpen; some of cuDNN and CK are spelled alike."""

VECTOR_UNITS: tuple[Rule, ...] = (
    Rule(
        "N7",
        "gemm",
        "no",
        words("gridwisegemmdl _dl_ wmmadl"),
        "CK kernel on dot instructions",
        pattern=r"gridwisegemm\w{0,40}dl(?:_|i|<)|kernel_gemm_dl",
    ),
)
"""CK names its dot-product kernels `dl`."""

MATRIX_CORES = RuleFamily(
    any_of=words("xdl mfma gtcx ck_tile ck:: 2ck16 aiter wmma fmha_"),
    rules=(
        Rule(
            "M4b",
            "other",
            "na",
            words("aiter ck_tile"),
            "sorting and quantisation helpers of AITER and CK",
            pattern=r"quant|sort|topk(?!softmax)|permute|moe_sum|_sum_|cache_kernel",
            none_of=words("fmha norm softmax gemm activation"),
        ),
        Rule(
            "M3",
            "matrix",
            "yes",
            words("xdlops _xdl mfma gtcx"),
            "CK and MIOpen name matrix cores xdl, mfma or gtc",
            instruction="MFMA",
        ),
        Rule(
            "M3b",
            "gemm",
            "yes",
            words("gridwisemoegemm"),
            "CK has its mixture-of-experts gemm for matrix cores only",
            none_of=words("wmma"),
            instruction="MFMA",
        ),
        Rule(
            "M4",
            "matrix",
            "yes",
            words("ck_tile aiter fmha_"),
            "CK-tile and AITER attention and gemm are written for MFMA",
            pattern=(
                r"ck_tile.{0,40}kentry.{0,80}(?:fmha|gemm)|aiter.{0,60}(?:fmha|gemm|flatmm|mla_|fmoe|pa_)|"
                r"fmha_(?:fwd|bwd)_hd\d+_(?:bf16|fp16|fp8)"
            ),
            none_of=words("norm softmax"),
            instruction="MFMA",
        ),
        Rule(
            "M5",
            "matrix",
            "yes",
            words("_wmma_cshuffle wmma"),
            "matrix instructions of RDNA 3 and 4",
            pattern=r"wmma_cshuffle|gridwisegemm\w{0,40}wmma|wmma\w{0,40}gfx1[12]",
            instruction="WMMA",
        ),
    ),
)
"""CK, MIOpen and AITER on MFMA (CDNA) and WMMA (RDNA), and the helpers that share their namespaces."""
