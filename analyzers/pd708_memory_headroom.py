"""PD708: how much larger a batch may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._memory_headroom import USABLE_SHARE, used_by_nvml
from perfdoctor.analyzers._memory_of_rank import devices_of, grows_with_batch, line_of, name_device, peak_evidence
from perfdoctor.analyzers._pd708_batch_growth import BatchGrowth
from perfdoctor.analyzers.pd509_batch_headroom import BatchHeadroom
from perfdoctor.analyzers.pd701_peak_owner import PeakOwner
from perfdoctor.rules import (
    BACKWARD,
    Advice,
    DeviceMemory,
    Evidence,
    Finding,
    Int64Array,
    MemoryEdit,
    Rank,
    RankAnalyzer,
    Selection,
    format_bytes,
    memory_categories,
)

# Farther a line through one recorded batch says nothing.
_MAX_RATIO = 100.0
_LEAST_GAIN = 1.25
_BATCHES = "https://arxiv.org/abs/1812.06162"


class MemoryHeadroom(RankAnalyzer):
    """The GPU has room for a larger batch."""

    rule = "PD708"
    name = "memory-headroom"
    needs = frozenset({"memory"})
    # min_ratio: below it nobody changes a batch.
    defaults = {"min_ratio": 1.5}
    references = (_BATCHES,)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """At most one finding, about the GPU with the highest peak."""
        source = rank.memory_source
        # What serves or evaluates may have a latency to keep. Of lengths that vary the longest may not be recorded.
        if (
            source is None
            or not source.steps.count
            or rank.context.phase != "training"
            or rank.breakdown.has_varying_shapes
        ):
            return
        for number, memory in devices_of(rank):
            capacity_bytes = rank.facts.memory.device_bytes or memory.capacity_bytes
            if not memory.is_cpu and capacity_bytes and (memory.phases.phase == BACKWARD).any():
                yield from self._judge(rank, number, memory, capacity_bytes)
                return

    def _judge(self, rank: Rank, number: int, memory: DeviceMemory, capacity_bytes: int) -> Iterator[Finding]:
        peak = memory.peak
        assert peak is not None
        used_bytes = max(peak.reserved_bytes or 0, peak.allocated_bytes, int(used_by_nvml(rank.facts.nvml) or 0))
        left_bytes = USABLE_SHARE * (capacity_bytes - used_bytes)
        reserved_share = max((peak.reserved_bytes or 0) / peak.allocated_bytes, 1.0)
        limit_bytes = peak.allocated_bytes + left_bytes / reserved_share
        places, large = grows_with_batch(memory), memory.large
        most = np.union1d(places, large.places[large.is_for(memory_categories.UNKNOWN)])
        low = BatchGrowth(memory, most).largest_ratio(limit_bytes)
        if low < self.settings["min_ratio"]:
            return
        growth = BatchGrowth(memory, places)
        yield self._report(
            rank,
            memory,
            capacity_bytes - used_bytes,
            (low, growth.largest_ratio(limit_bytes)),
            growth,
            _with_checkpoints(rank, number, most, limit_bytes),
        )

    def _report(
        self,
        rank: Rank,
        memory: DeviceMemory,
        free_bytes: int,
        ratios: tuple[float, float],
        growth: BatchGrowth,
        checkpointed: float | None,
    ) -> Finding:
        low, high = (min(each, _MAX_RATIO) for each in ratios)
        more = ""
        if BatchHeadroom.needs <= rank.available_data and any(True for _ in BatchHeadroom().analyze_rank(rank)):
            more = " PD509 says how much faster that is."
        if checkpointed is not None and checkpointed >= _LEAST_GAIN * low and low < _MAX_RATIO:
            more += f" With checkpoints (PD701) it may be {_times(checkpointed)}, for a forward pass more at most."
        free = f"{format_bytes(free_bytes)} of {name_device(memory)} are free at the peak"
        finding = self.finding(
            rank,
            title=f"A batch at least {_times(low)} fits: {free}",
            advice=Advice(f"Let the batch grow where that pays, and the learning rate with it.{more}", None, _BATCHES),
            confidence=0.6,
            location=line_of(Selection(memory, grows_with_batch(memory))),
            evidence=(
                *peak_evidence(
                    memory, ("free", free_bytes), ("grows with the batch", int(growth.growing_bytes.max(initial=0)))
                ),
                Evidence("times as large, at least", round(low, 2)),
                Evidence("times as large, at most", round(high, 2)),
            ),
            subject=name_device(memory),
        )
        return replace(finding, order_key_ns=-1e9)  # for information, behind all that is to be changed


def _times(ratio: float) -> str:
    ratio = min(ratio, _MAX_RATIO)
    return f"{ratio:.0f} times as large" if ratio >= 10 else f"{ratio:.2g} times as large"


def _with_checkpoints(rank: Rank, number: int, most: Int64Array, limit_bytes: float) -> float | None:
    """How many times as large a batch may be with the checkpoints that PD701 advises; None where it advises none."""
    edits: list[MemoryEdit] = [
        edit.at_least
        for found in PeakOwner().analyze_rank(rank)
        if (edit := found.memory_edit) is not None and edit.device == number and edit.costs_time and edit.at_least
    ]
    return BatchGrowth(rank.memory[number], most, *edits).largest_ratio(limit_bytes) if edits else None
