"""What a kernel is: its category, and whether it used Tensor Cores, read from its name.

The name is most of what a trace says about a kernel. It is read once per distinct name: a million launches have a few
hundred names. Where the name is not the last word (`unknown`), achieved FLOP/s or the operand type decide later; this
module never guesses.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from perfdoctor.gpu.kernel_rules.helpers import CUDA_CORES, HELPERS
from perfdoctor.gpu.kernel_rules.matrix import AMD, TENSILE, TENSOR_CORES, UNNAMED
from perfdoctor.gpu.kernel_rules.name_details import describe
from perfdoctor.gpu.kernel_rules.other import (
    COMMUNICATION,
    EMBEDDING,
    INDUCTOR,
    LIBRARIES,
    NATIVE,
    PRIMITIVES,
    REMAINDER,
)
from perfdoctor.gpu.kernel_rules.rule import Category, Family, Rule, RuleCategory, Verdict

FAMILIES: tuple[Family, ...] = (
    INDUCTOR,
    PRIMITIVES,
    NATIVE,
    TENSILE,
    COMMUNICATION,
    HELPERS,
    EMBEDDING,
    CUDA_CORES,
    AMD,
    TENSOR_CORES,
    LIBRARIES,
    UNNAMED,
    REMAINDER,
)
"""Every rule, in the order in which they are tried."""

MAX_NAME_CHARS = 2048
"""Longer names are cut here: what tells stands in front (the longest real name seen, of 5160 characters, is told by its
first 300), and a name of megabytes would else cost that much in every rule, and stay in the cache."""

_MATRIX: frozenset[Category] = frozenset(("gemm", "convolution", "attention"))
_ATTENTION_WORDS = ("fmha", "attention", "attn", "sdpa", "flash", "mha_", "flex_", "mla_", "dot_product")
_CONVOLUTION_WORDS = ("conv", "fprop", "dgrad", "wgrad", "cudnn", "implicit_gemm", "igemm_", "bwd_weight", "bwd_data")


_OPERAND_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_FULL_ACCESS_BYTES = 16


@dataclass(frozen=True, slots=True)
class KernelClass:
    """What a kernel name says.

    Attributes:
        category: What it does.
        tensor_core: Did it use Tensor Cores; `na` for what is no matrix maths, `unknown` where the name does not say.
        instruction: Such as `HMMA.16816`, `wgmma`, `tcgen05`, `MFMA`, `FFMA`; None if unknown.
        operand: Operand type (fp64, fp32, tf32, bf16, fp16, fp8, fp4, int8, int4); None if unknown.
        accumulate: Accumulator type; None if unknown.
        arch: Architecture the code was written for, such as `sm80` or `gfx942`; it may be older than the GPU's.
            None if unknown.
        alignment: Elements that one memory access must be aligned to, from `align4` or `ldg8`; None if not named.
        rule: Id of the rule that decided.
        gemv_like: Bandwidth-bound small shape: never a Tensor Core fault.
        depthwise: Depthwise convolution: never a Tensor Core fault.
    """

    category: Category
    tensor_core: Verdict
    instruction: str | None = None
    operand: str | None = None
    accumulate: str | None = None
    arch: str | None = None
    alignment: int | None = None
    rule: str = "-"
    gemv_like: bool = False
    depthwise: bool = False

    @property
    def slow_path(self) -> bool:
        """Whether it uses Tensor Cores with memory accesses under 16 bytes, as `alignN` kernels for odd dimensions do.

        Such kernels ran 2.9 to 4.1 times slower than the roofline on an H100 (bf16, a dimension of 3137).
        """
        if self.tensor_core != "yes" or self.alignment is None or self.operand not in _OPERAND_BYTES:
            return False
        return self.alignment * _OPERAND_BYTES[self.operand] < _FULL_ACCESS_BYTES


_NOTHING = KernelClass(category="other", tensor_core="na")


def classify_kernel(name: str) -> KernelClass:
    """Return what the kernel's name says about it.

    Any text is accepted: a name that tells nothing is category `other`, verdict `na`. Only the first `MAX_NAME_CHARS`
    characters are read, whatever the name's length. The answer is remembered for names seen lately.

    Args:
        name: Kernel name as the profiler gives it, demangled or not.

    Returns:
        The class; see KernelClass.
    """
    return _classify(name[:MAX_NAME_CHARS])


@functools.lru_cache(maxsize=16384)
def _classify(name: str) -> KernelClass:
    text = name.lower()
    rule = _find_rule(text)
    if rule is None:
        return _NOTHING
    category = _resolve(rule.category, text)
    if category not in _MATRIX or rule.tensor_core == "na":
        return KernelClass(category, rule.tensor_core, rule=rule.id, gemv_like=rule.gemv_like, depthwise=rule.depthwise)
    details = describe(name, text, rule)
    return KernelClass(
        category=category,
        tensor_core=rule.tensor_core,
        instruction=details.instruction,
        operand=details.operand,
        accumulate=details.accumulate,
        arch=details.arch,
        alignment=details.alignment,
        rule=rule.id,
        gemv_like=rule.gemv_like,
        depthwise=rule.depthwise,
    )


def _find_rule(text: str) -> Rule | None:
    for family in FAMILIES:
        rule = family.find(text)
        if rule is not None:
            return rule
    return None


def _resolve(category: RuleCategory, text: str) -> Category:
    if category != "matrix":
        return category
    if any(word in text for word in _ATTENTION_WORDS):
        return "attention"
    if any(word in text for word in _CONVOLUTION_WORDS):
        return "convolution"
    return "gemm"


def is_collective(name: str) -> bool:
    """True if the kernel is a collective or other communication between ranks: exactly category `communication`.

    Wider than "contains nccl or rccl": one-shot all-reduces in shared memory and expert-parallel dispatch count too.
    """
    return classify_kernel(name).category == "communication"


def forget_names() -> None:
    """Empty the memory of classified names; for benchmarks, which would else measure a dictionary."""
    _classify.cache_clear()
