"""PD702: the logits of a large vocabulary, and copies of them, fill the memory."""

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
    format_bytes,
    memory_categories,
    read_advice,
    shrink,
)

_LOSS = "_log_softmax|_log_softmax_backward_data|log_softmax"
# Eight pieces: one of them is there at a time, and products of a piece are still large.
_CHUNKS = 8
# Logits have as many elements as their log-softmax, in half or single precision, or those of a position more.
_SIZES = (0.5, 1.0)
_TOLERANCE = 0.02


class LargeLogits(RankAnalyzer):
    """The logits over a large vocabulary, and what the loss makes of them, are in memory several times."""

    rule = "PD702"
    name = "large-logits"
    needs = frozenset({"memory"})
    # min_share: of the peak. Less is no reason to rewrite a loss.
    defaults = {"min_share": 0.05}
    references = ("https://arxiv.org/abs/2411.09009",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each device of whose peak the loss holds a good part."""
        for number, memory in devices_of(rank):
            large = memory.large
            is_loss = large.made_by(_LOSS)
            if not is_loss.any() or rank.context.is_forward_only:
                continue
            whole = int(large.bytes[is_loss].max())
            alike = np.isclose(large.bytes[:, None], whole * np.array(_SIZES), rtol=_TOLERANCE).any(axis=1)
            # Smaller softmaxes are those of attention and gates.
            is_loss &= alike
            chosen = Selection(
                memory,
                large.places[
                    is_loss | (alike & large.is_for(memory_categories.ACTIVATIONS, memory_categories.TEMPORARIES))
                ],
            )
            assert memory.peak is not None
            held_bytes = bytes_at_peak(memory, chosen.places)
            if held_bytes < self.settings["min_share"] * memory.peak.allocated_bytes:
                continue
            share = 1 - 1 / _CHUNKS
            edit = shrink(memory, number, chosen.places, share)
            edit = replace(edit, at_least=shrink(memory, number, large.places[is_loss], share))
            yield self.finding(
                rank,
                title=f"Logits and copies of them hold {format_bytes(held_bytes)} at the peak of {name_device(memory)}",
                advice=read_advice("large logits"),
                location=line_of(Selection(memory, large.places[is_loss])),
                evidence=peak_evidence(memory, ("of it logits and copies", held_bytes), ("a log-softmax", whole)),
                subject=name_device(memory),
                memory_edit=edit,
            )
