"""xmma: the kernels that NVIDIA generates for cuBLAS, cuDNN and TensorRT.

Names hold the types of operands and accumulator and the instruction shape, or how else the maths is done:
`sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_..._tensor16x8x16_...` runs on Tensor Cores, `..._ffma_...` on CUDA cores.
"""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Rule
from perfdoctor.gpu.word_table import words

FMA: tuple[Rule, ...] = (
    Rule(
        "N2",
        "matrix",
        "no",
        words("_ffma _dfma _hfma"),
        "xmma variant built from FMA instructions",
        pattern=r"_[fdh]fma2?(?:_|$)",
    ),
)
"""CUDA cores by the name of the instruction."""

FLOAT32: tuple[Rule, ...] = (
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
)
"""CUDA cores by the types: tf32 would be named."""

TENSOR_CORES: tuple[Rule, ...] = (
    Rule(
        "X1",
        "matrix",
        "yes",
        words("warpgroupsize"),
        "xmma on warp groups",
        pattern=r"xmma_\w{0,200}warpgroupsize",
        instruction="wgmma",
    ),
    Rule(
        "X2",
        "matrix",
        "yes",
        words("f64f64"),
        "float64 Tensor Cores",
        pattern=r"xmma_\w{0,120}f64f64\w{0,120}tensor",
        instruction="DMMA",
        operand="fp64",
    ),
    Rule(
        "X3",
        "matrix",
        "yes",
        words("xmma_"),
        "xmma with an instruction shape or a type that only Tensor Cores take",
        pattern=r"xmma_\w{0,200}(?:tensor\d+x\d+x\d|tf32|f16f16|bf16bf16|bf16f32|f16f32|e[45]m[23]|[isu]8[isu]8)",
    ),
    Rule(
        "X4",
        "matrix",
        "unknown",
        words("xmma_gemm xmma_"),
        "xmma without an instruction",
        pattern=r"xmma_(?:gemm|\w{0,40}implicit_gemm|sparse|warp_special)",
    ),
)
"""Tensor Cores by warp groups, instruction shape or types; the rest stays unknown."""
