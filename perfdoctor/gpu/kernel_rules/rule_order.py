"""The order in which the rules are tried: the first rule that matches a name decides.

The order is the argument. A name often fits several rules, and the rules further up are the surer ones: a namespace or
a prefix says more than a word within the name, a helper carries the name of the kernel that it helps, and a mark of
CUDA cores says more than the name of a kernel generator.
"""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules import (
    attention_libraries,
    cublas,
    cudnn,
    cutlass,
    other_libraries,
    rocm,
    serving_engines,
    xmma,
)
from perfdoctor.gpu.kernel_rules.cub_thrust import PRIMITIVES
from perfdoctor.gpu.kernel_rules.fbgemm import EMBEDDINGS
from perfdoctor.gpu.kernel_rules.nccl import COLLECTIVES
from perfdoctor.gpu.kernel_rules.pytorch_native import AT_NATIVE
from perfdoctor.gpu.kernel_rules.rule import RuleFamily
from perfdoctor.gpu.kernel_rules.triton import INDUCTOR

# Before all marks of matrix instructions: a split-K tail carries the name of its gemm.
_HELPERS = RuleFamily(any_of=(), rules=(*cublas.HELPERS, *cudnn.HELPERS, *rocm.HELPERS, *attention_libraries.HELPERS))

# Before Tensor Cores: `sm80_xmma_gemm_..._ffma_...` is the ordinary float32 gemm, although `xmma` is widely taken for a
# mark of Tensor Cores.
_CUDA_CORES = RuleFamily(
    any_of=(),
    rules=(
        *cublas.BANDWIDTH_BOUND,
        *cutlass.SIMT,
        *xmma.FMA,
        *cublas.CUDA_CORES,
        *cudnn.CUDA_CORES,
        *other_libraries.PLAIN_FMA,
        *rocm.VECTOR_UNITS,
        *xmma.FLOAT32,
        *attention_libraries.CUDA_CORES,
        *cudnn.PERSISTENT_RNN,
    ),
)

# The newest architecture first: names of Hopper and Blackwell kernels may also hold the marks of older instructions.
_TENSOR_CORES = RuleFamily(
    any_of=(),
    rules=(
        *cutlass.TCGEN05,
        *serving_engines.TENSORRT_LLM,
        *cutlass.CUTE_DSL,
        *cublas.NVJET,
        *cutlass.CUTLASS_3X,
        *xmma.TENSOR_CORES,
        *cutlass.INSTRUCTION_SHAPES,
        *attention_libraries.TENSOR_CORES,
        *serving_engines.QUANTIZED_WEIGHTS,
        *serving_engines.LOW_PRECISION,
        *cudnn.FIRST_LAYER,
    ),
)

# No matrix multiplication, so the verdict is `na`: to call a norm or a copy "not using Tensor Cores" would drown the
# true findings.
_LIBRARIES = RuleFamily(
    any_of=(), rules=(*other_libraries.NORMS_AND_OPTIMIZERS, *serving_engines.BOOKKEEPING, *other_libraries.POINTWISE)
)

RULE_FAMILIES: tuple[RuleFamily, ...] = (
    # A prefix or a namespace decides at once.
    INDUCTOR,
    PRIMITIVES,
    AT_NATIVE,
    rocm.TENSILE,
    # Names of collectives hold words of other kernels, such as reduce and scatter.
    COLLECTIVES,
    _HELPERS,
    # `fbgemm` contains gemm.
    EMBEDDINGS,
    _CUDA_CORES,
    rocm.MATRIX_CORES,
    _TENSOR_CORES,
    _LIBRARIES,
    # From here on nothing is certain: the words of an operation, wherever they stand.
    other_libraries.UNNAMED_INSTRUCTIONS,
    other_libraries.SINGLE_WORDS,
)
"""Every rule, in the order in which the rules are tried."""
