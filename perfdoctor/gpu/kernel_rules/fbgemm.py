"""FBGEMM and TorchRec: embedding tables and sparse features of recommendation models."""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Rule, RuleFamily
from perfdoctor.gpu.word_table import words

EMBEDDINGS = RuleFamily(
    any_of=words(
        "fbgemm embedding _indices linearize_index recat_ permute_pooled bucketize jagged dense_representation"
    ),
    rules=(
        Rule(
            "E0",
            "indexing",
            "na",
            words(
                "split_embedding embedding_ bounds_check permute_2d permute_1d permute_indices permute_sparse "
                "linearize_index recat_ index_select jagged dense_representation"
            ),
            "embedding tables and sparse features: rows fetched by index",
            none_of=words("rotary gemm< grouped_gemm"),
        ),
        Rule(
            "E1",
            "other",
            "na",
            words("bucketize permute_pooled fp8 _offsets_range quantiz cumsum to_float"),
            "sparse-feature bookkeeping",
            none_of=words("gemm< grouped_gemm scaled_mm"),
        ),
    ),
)
"""Before all gemms: `fbgemm` itself contains gemm."""
