"""Parallel primitives: CUB and Thrust, on AMD rocPRIM and hipCUB."""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Rule, RuleFamily
from perfdoctor.gpu.word_table import words

# Anchored: PyTorch's own kernels carry thrust::pair and cub functors among their template arguments, and the reverse.
_NAMESPACE = r"^(?:void )?(?:\w{1,40}::)?(?:_zn\d{1,2})?(?:cub|thrust|rocprim|hipcub|moderngpu)"

PRIMITIVES = RuleFamily(
    any_of=words("cub:: thrust:: rocprim hipcub moderngpu 3cub"),
    rules=(
        Rule(
            "P10",
            "reduction",
            "na",
            words("devicereduce reduce_kernel"),
            "reduction primitive",
            pattern=_NAMESPACE,
            none_of=words("reducebykey reduce_by_key"),
        ),
        Rule(
            "P11",
            "indexing",
            "na",
            words("deviceselect devicecompact"),
            "compaction: nonzero and masked_select",
            pattern=_NAMESPACE,
            none_of=words("bykey by_key unique"),
        ),
        Rule(
            "P12",
            "elementwise",
            "na",
            words("parallel_for transform_kernel"),
            "pointwise primitive",
            pattern=_NAMESPACE,
        ),
        Rule(
            "P13", "other", "na", words("cub thrust:: rocprim moderngpu"), "sort or scan primitive", pattern=_NAMESPACE
        ),
    ),
)
"""The namespace decides: functors of other libraries stand among the template arguments."""
