"""What a kernel does and whether it used Tensor Cores, by its name.

The name is most of what a trace says about a kernel. It is classified once per distinct name: a million launches have
a few hundred names. Where the name leaves the use of Tensor Cores open (`unknown`), achieved FLOP/s or the operand type
decide later (analysis); nothing is guessed here.
"""

from __future__ import annotations

import functools

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES, Category, Rule, Verdict, read_rule_families
from perfdoctor.gpu.operand_types import elements_per_access
from perfdoctor.gpu.parse_kernel_name import decodes_tokens, parse_kernel_name

MAX_NAME_CHARS = 2048
"""Longer names are cut here: what counts stands in front (of the longest real name seen, of 5160 characters, the first
300 decide). A name of megabytes would otherwise cost that much in every rule, and stay in the cache."""

_ATTENTION_WORDS = ("fmha", "attention", "attn", "sdpa", "flash", "mha_", "flex_", "mla_", "dot_product")
_CONVOLUTION_WORDS = ("conv", "fprop", "dgrad", "wgrad", "cudnn", "implicit_gemm", "igemm_", "bwd_weight", "bwd_data")


@frozen_dataclass
class KernelClass:
    """What the name of a kernel says about it.

    Attributes:
        category: What it does.
        tensor_core: Did it use Tensor Cores; `na` for what multiplies no matrices, `unknown` where the name does
            not say.
        instruction: Such as `HMMA.16816`, `wgmma`, `tcgen05`, `MFMA`, `FFMA`; None if unknown.
        operand: Operand type (fp64, fp32, tf32, bf16, fp16, fp8, fp4, int8, int4); None if unknown.
        accumulate: Accumulator type; None if unknown.
        arch: Architecture the code was written for, such as `sm80` or `gfx942`; it may be older than the GPU's.
            None if unknown.
        alignment: Elements that one memory access must be aligned to, from `align4` or `ldg8`; None if not named.
        tile: Rows and columns of the output that a block of a product computes; None if not named.
        rule: Id of the rule that decided.
        gemv_like: Bandwidth-bound small shape: never a Tensor Core fault.
        depthwise: Depthwise convolution: never a Tensor Core fault.
        decodes: Attention of one new token a sequence: it reads the key-value cache, and waits for the memory.
    """

    category: Category
    tensor_core: Verdict
    instruction: str | None = None
    operand: str | None = None
    accumulate: str | None = None
    arch: str | None = None
    alignment: int | None = None
    tile: tuple[int, int] | None = None
    rule: str = "-"
    gemv_like: bool = False
    depthwise: bool = False
    decodes: bool = False

    @property
    def streams_weights(self) -> bool:
        """Whether the memory bounds it by its name alone: products of few rows, and attention that decodes.

        Libraries choose a tile with a side of 16 or less, which the smallest instructions have, for products with a
        side about as small: each byte of the other operand is used for that many operations at most, and GPUs do from
        110 to 400 in the time of a byte (half precision).
        """
        skinny = self.category == "gemm" and self.tile is not None and min(self.tile) <= _SKINNY_TILE
        return self.gemv_like or self.decodes or skinny

    @property
    def slow_path(self) -> bool:
        """Whether it uses Tensor Cores with memory accesses under 16 bytes, as `alignN` kernels do.

        Libraries choose them for dimensions that are not a multiple of 16 bytes. Such kernels ran 2.9 to 4.1 times
        slower than the roofline on an H100 (bf16, a dimension of 3137).
        """
        if self.tensor_core != "yes" or self.alignment is None or self.operand is None:
            return False
        elements = elements_per_access(self.operand)
        return elements is not None and self.alignment < elements


_SKINNY_TILE = 16

_UNRECOGNIZED = KernelClass(category="other", tensor_core="na")


def classify_kernel(name: str) -> KernelClass:
    """Return what the kernel's name says about it.

    Any text is accepted: a name that no rule matches is of category `other`, verdict `na`. Only the first
    `MAX_NAME_CHARS` characters count, whatever the name's length. Classes of recent names are cached.
    """
    return _classify(name[:MAX_NAME_CHARS])


@functools.lru_cache(maxsize=16384)
def _classify(name: str) -> KernelClass:
    text = name.lower()
    rule = _find_rule(text)
    if rule is None:
        return _UNRECOGNIZED
    category = _matrix_category(text) if rule.category == "matrix" else rule.category
    if category not in MATRIX_CATEGORIES or rule.tensor_core == "na":
        return KernelClass(category, rule.tensor_core, rule=rule.id, gemv_like=rule.gemv_like, depthwise=rule.depthwise)
    fields = parse_kernel_name(name, text, rule)
    return KernelClass(
        category=category,
        tensor_core=rule.tensor_core,
        instruction=fields.instruction,
        operand=fields.operand,
        accumulate=fields.accumulate,
        arch=fields.arch,
        alignment=fields.alignment,
        tile=fields.tile if category == "gemm" else None,
        rule=rule.id,
        gemv_like=rule.gemv_like,
        depthwise=rule.depthwise,
        decodes=category == "attention" and decodes_tokens(text),
    )


def _find_rule(text: str) -> Rule | None:
    for family in read_rule_families():
        rule = family.find_rule(text)
        if rule is not None:
            return rule
    return None


def _matrix_category(text: str) -> Category:
    """Return gemm, convolution or attention, for a rule that matches names of all three."""
    if any(word in text for word in _ATTENTION_WORDS):
        return "attention"
    if any(word in text for word in _CONVOLUTION_WORDS):
        return "convolution"
    return "gemm"


def is_collective(name: str) -> bool:
    """Return whether the kernel is a collective or other communication between ranks: category `communication`.

    More kernels than those whose name contains nccl or rccl: one-shot all-reduces in shared memory and expert-parallel
    dispatch count, too.
    """
    return classify_kernel(name).category == "communication"


def clear_kernel_cache() -> None:
    """Forget the classes of all names, so that a benchmark measures the rules and not a dictionary."""
    _classify.cache_clear()
