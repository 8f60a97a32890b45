"""Kernels that TorchInductor generates in Triton.

Names start with `triton_` and the kind of kernel: `poi` pointwise, `red` and `per` reductions (looped, persistent),
`for` foreach, `tem` a template with `tl.dot`; the fused ops follow (`triton_poi_fused_addmm_gelu_0`).
"""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import NORM_WORDS, Rule, RuleFamily
from perfdoctor.gpu.word_table import words

INDUCTOR = RuleFamily(
    any_of=words("triton_"),
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
            "U1s",
            "gemm",
            "yes",
            words("_scaled_mm _grouped_mm _scaled_grouped_mm"),
            "aten::_scaled_mm takes fp8 and aten::_grouped_mm takes bf16: tl.dot of both is a matrix instruction",
            pattern=r"^triton_(?:tem|mm)_",
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
            NORM_WORDS,
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
        Rule("I6", "other", "na", words("_scan"), "generated scan", pattern=r"^triton_(?:spl|split)_"),
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
"""The prefix decides: what follows it are names of ops, not of what the kernel does."""
