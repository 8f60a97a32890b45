"""CUTLASS, and every kernel that names its instruction as CUTLASS does (cuBLAS, cuDNN).

`procedural_name` of CUTLASS (library/gemm_operation.py) puts a letter for the accumulator before the instruction shape:
`s16816gemm` accumulates in float32 over m16n8k16. The operator class is `tensorop`, `wmma_tensorop` or `simt`.
"""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Rule
from perfdoctor.gpu.word_table import words

SIMT: tuple[Rule, ...] = (
    Rule(
        "N1",
        "matrix",
        "no",
        words("_simt_ opclasssimt mmasimt threadmapsimt simtpolicy warpsimt universalfma _simt_sgemm"),
        "CUTLASS names its CUDA-core class SIMT",
    ),
)
"""The operator class for CUDA cores; the template arguments say the same in other words."""

TCGEN05: tuple[Rule, ...] = (
    Rule(
        "B1",
        "matrix",
        "yes",
        words(
            "fmhasm1 sm100_flash sm103_flash flashattention tcgen05 umma sm100_mma flashattnfwdsm1 "
            "flashattnbwdsm1 _sm100sm100"
        ),
        "fifth-generation Tensor Cores: tcgen05",
        pattern=(
            r"fmhasm1\d\d|flashatt\w{0,30}sm1[01]\d|sm10\d_flash|tcgen05|[tsu]umma|umma_|umma|sm100_mma|"
            r"sm100sm100\w{0,60}gemm"
        ),
        none_of=words("flash_bwd_dot"),
        instruction="tcgen05",
    ),
)
"""Blackwell, from any library: FlashAttention 4, TensorRT-LLM and cuDNN write for the same instruction."""

CUTE_DSL: tuple[Rule, ...] = (
    Rule(
        "B3",
        "matrix",
        "yes",
        words("kernel_cutlass_"),
        "CuTe DSL kernel for sm90 or newer",
        pattern=r"sm(?:90|1[0-2]\d)\w{0,80}(?:gemm|attention|fmha)|(?:gemm|attention|fmha)\w{0,80}sm(?:90|1[0-2]\d)",
    ),
)
"""Kernels written in Python; the name holds the architecture of the code."""

CUTLASS_3X: tuple[Rule, ...] = (
    Rule(
        "C3",
        "matrix",
        "yes",
        words("cutlass3x_sm"),
        "CUTLASS 3 with the tensor-op class",
        pattern=r"cutlass3x_sm\d+_\w{0,8}tensorop",
    ),
    Rule(
        "C3b",
        "matrix",
        "yes",
        words(
            "gmma sm90_64x flashattnfwdsm90 flashattnbwdsm90 sm90_flash flash::flashattn 5flash12flashattn "
            "fp8_gemm_kernel gemm_impl mainloopsm1 gemm_1d mqa_logits"
        ),
        "matrix instructions of Hopper and newer",
        pattern=(
            r"mainloopsm(?:90|1[0-2]\d)|gmma|sm90_64x\d+x\d|flashattn(?:fwd|bwd)?sm90|sm90_flash|flashattn(?:fwd|bwd)|"
            r"fp8_gemm_kernel|sm(?:90|1\d\d)_\w{0,60}(?:gemm_(?:1d[12]d_)?impl|mqa_logits)"
        ),
        none_of=words("xmma metadata"),
    ),
)
"""Hopper and newer; FlashAttention 3 and DeepGEMM spell the same instructions."""

INSTRUCTION_SHAPES: tuple[Rule, ...] = (
    Rule(
        "W1",
        "matrix",
        "yes",
        words("wmma"),
        "warp matrix instructions; the tiles are small",
        pattern=r"wmma_tensorop|wmma_\d+x\d|_wmma_",
    ),
    Rule(
        "T1",
        "matrix",
        "yes",
        words("884 dmma"),
        "float64 Tensor Cores",
        pattern=r"(?<![a-z])[dz]884|dmma",
        instruction="DMMA.884",
        operand="fp64",
    ),
    Rule(
        "T2",
        "matrix",
        "yes",
        words("8816 16832 16864 8832 168128"),
        "integer or fp8 Tensor Cores",
        pattern=r"(?<![a-z0-9])[hsi]?(?:8816|16832|16864|8832|168128)(?:\w{0,12}gemm|cudnn|fprop|dgrad|wgrad|_)",
    ),
    Rule("T3", "matrix", "yes", words("16816"), "HMMA of Ampere", pattern=r"(?<![a-z0-9])[hsc]16816|1681616"),
    Rule(
        "T4",
        "matrix",
        "yes",
        words("1688"),
        "HMMA of Turing; TF32 where no half type is named",
        pattern=r"(?<![a-z0-9])[hsc]1688",
    ),
    Rule("T5", "matrix", "yes", words("884 161616"), "HMMA of Volta", pattern=r"(?<![a-z0-9])[hsi]884|161616gemm"),
    Rule(
        "T6",
        "matrix",
        "yes",
        words("tensorop_ mmatensorop opclasstensorop _hmma imma sm70_ sm75_ sm80_ sm89_ sm120_"),
        "matrix instruction named in the template arguments",
        pattern=r"(?<!sub)tensorop_|mmatensorop|opclasstensorop|sm(?:70|75|80|89|120)_\d+x\d+x\d|_hmma|(?<![a-z])imma",
    ),
)
"""`mma.sync` and `wmma` from Volta on, by instruction shape or operator class, in any library."""
