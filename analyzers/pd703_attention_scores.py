"""PD703: the scores of attention that is written out fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._memory_of_rank import bytes_at_peak, devices_of, line_of, name_device, peak_evidence
from perfdoctor.rules import (
    Finding,
    Rank,
    RankAnalyzer,
    Selection,
    distinct,
    format_bytes,
    memory_categories,
    read_advice,
    shrink,
)

_PRODUCT = "bmm|baddbmm|matmul|einsum"
_SOFTMAX = "_softmax|softmax|exp"


class AttentionScores(RankAnalyzer):
    """Attention that is written out keeps a score for each pair of positions, in each head and layer."""

    rule = "PD703"
    name = "attention-scores"
    needs = frozenset({"memory"})
    # min_share: of the peak.
    defaults = {"min_share": 0.1}
    references = (
        "https://arxiv.org/abs/2205.14135",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each device of whose peak scores hold a good part."""
        for number, memory in devices_of(rank):
            large = memory.large
            product, softmax = large.made_by(_PRODUCT), large.made_by(_SOFTMAX)
            # With autocast products are of half precision, and softmaxes are not.
            of_product = distinct(large.bytes[product])
            of_softmax = large.bytes[softmax]
            sizes = of_softmax[np.isin(of_softmax, np.concatenate((of_product, 2 * of_product)))]
            sizes = np.concatenate((sizes, of_product[np.isin(2 * of_product, sizes)]))
            is_score = np.isin(large.bytes, sizes) & large.is_for(
                memory_categories.ACTIVATIONS, memory_categories.TEMPORARIES
            )
            chosen = Selection(memory, large.places[is_score])
            assert memory.peak is not None
            held_bytes = bytes_at_peak(memory, chosen.places)
            if held_bytes < self.settings["min_share"] * memory.peak.allocated_bytes:
                continue
            core = is_score & (product | softmax)
            edit = shrink(memory, number, chosen.places)
            edit = replace(edit, at_least=shrink(memory, number, large.places[core]))
            yield self.finding(
                rank,
                title=f"Scores of attention hold {format_bytes(held_bytes)} at the peak of {name_device(memory)}",
                advice=read_advice("attention scores"),
                location=line_of(Selection(memory, large.places[core])),
                evidence=peak_evidence(memory, ("of it scores", held_bytes), ("one of them", int(sizes.max()))),
                subject=name_device(memory),
                topics=("attention",),
                memory_edit=edit,
            )
