"""PD706: the allocator holds memory that no request can use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._memory_of_rank import command_with, devices_of, name_device, peak_evidence
from perfdoctor.rules import (
    Action,
    Advice,
    AllocatorReplay,
    AllocatorSettings,
    DeviceMemory,
    Evidence,
    Finding,
    MemoryEdit,
    Rank,
    RankAnalyzer,
    Slack,
    SourceLocation,
    change_settings,
    format_bytes,
    is_full,
    slack_at,
)

_MIB = 1 << 20
_MAX_SPLIT_MIB = (512, 256, 128)
# Sizes of a line vary where it asks for so many, and for most of them once or twice.
_MIN_SIZES, _MAX_REPEATS = 8, 2
_SETTINGS = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
_STREAMS = "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html"
_POOLS = "https://docs.pytorch.org/docs/stable/notes/cuda.html#graph-memory-management"
_SNAPSHOTS = "https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"
_NAMES = {
    "fragmented_bytes": "free beside blocks in use",
    "cached_bytes": "free segments that fit no request",
    "other_streams_bytes": "free for other streams",
    "private_pools_bytes": "free in private pools",
    "rounding_bytes": "rounding of requests",
}


class Fragmentation(RankAnalyzer):
    """The allocator holds memory of the GPU that no request can use."""

    rule = "PD706"
    name = "fragmentation"
    needs = frozenset({"memory"})
    # min_share: of what is reserved at most; more than twice what a trusted replay may be off by. min_bytes: less is
    # no reason to change a setting where there is room.
    defaults = {"min_share": 0.05, "min_bytes": 256e6}
    references = (_SETTINGS,)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """At most one finding for each GPU."""
        for number, memory in devices_of(rank):
            allocator = rank.allocators[number]
            assert memory.peak is not None
            if memory.peak.reserved_bytes is None:
                continue
            reserved_bytes, is_scarce = int(allocator.recorded_bytes.max()), is_full(memory)
            least = max(self.settings["min_share"] * reserved_bytes, 0 if is_scarce else self.settings["min_bytes"])
            # No setting reserves less than what is allocated: of less than this there is nothing to replay.
            if reserved_bytes - memory.peak.allocated_bytes < least:
                continue
            if allocator.distrust is not None:
                if is_scarce and memory.peak.reserved_bytes - memory.peak.allocated_bytes >= least:
                    yield self._ask_for_snapshot(rank, memory, allocator.distrust)
                continue
            slack = slack_at(allocator, memory.peak.place)
            assert slack is not None
            better = _better_settings(allocator, least)
            if better is not None:
                yield self._report_settings(rank, number, memory, slack, better)
            elif slack.other_streams_bytes + slack.private_pools_bytes >= least:
                yield self._report_pools(rank, memory, slack)

    def _report_settings(
        self, rank: Rank, number: int, memory: DeviceMemory, slack: Slack, better: AllocatorSettings
    ) -> Finding:
        varying = _line_of_varying_sizes(memory)
        pads = "" if varying is None else " Sizes at this line vary: pad its inputs to a few of them."
        if better.expandable_segments:
            advice = Advice(
                "Let segments grow page by page: what requests of other sizes leave over is then used by the next "
                f"ones.{pads}",
                command_with(better),
                _SETTINGS,
                (Action("allocator", "expandable_segments"),),
            )
        else:
            advice = Advice(
                f"Leave large blocks whole, so that small requests do not cut them up.{pads}",
                command_with(better),
                _SETTINGS,
            )
        edit = change_settings(number, better)
        return self._report(rank, memory, slack, advice, edit, varying)

    def _report_pools(self, rank: Rank, memory: DeviceMemory, slack: Slack) -> Finding:
        if slack.private_pools_bytes > slack.other_streams_bytes:
            advice = Advice(
                "Let the CUDA graphs share one pool, where they never run at the same time: what is free in a pool is "
                "for its own graphs alone.",
                "with torch.cuda.graph(second, pool=first.pool()):",
                _POOLS,
            )
        else:
            advice = Advice(
                "Make tensors on the stream that uses them: what is free belongs to the stream on which it was made, "
                "and no other stream gets it.",
                "with torch.cuda.stream(stream):   # around the allocation as well as the use",
                _STREAMS,
            )
        return self._report(rank, memory, slack, advice)

    def _ask_for_snapshot(self, rank: Rank, memory: DeviceMemory, reason: str) -> Finding:
        advice = Advice(
            "Record a snapshot, which says why that is so and which setting helps.",
            "torch.cuda.memory._record_memory_history()   # and at the end\n"
            'torch.cuda.memory._dump_snapshot("snapshot.pickle")',
            _SNAPSHOTS,
        )
        found = self._report(rank, memory, None, advice)
        return replace(found, evidence=(*found.evidence, Evidence("why the cause is not known", reason)))

    def _report(
        self,
        rank: Rank,
        memory: DeviceMemory,
        slack: Slack | None,
        advice: Advice,
        edit: MemoryEdit | None = None,
        location: SourceLocation | None = None,
    ) -> Finding:
        peak = memory.peak
        assert peak is not None
        reserved_bytes = int(memory.trace.memory.reserved_bytes[memory.allocations.rows].max())
        causes = [] if slack is None else [(label, int(getattr(slack, name))) for name, label in _NAMES.items()]
        figures = peak_evidence(memory, ("reserved then", peak.reserved_bytes or 0))
        causes = sorted((each for each in causes if each[1]), key=lambda each: -each[1])
        return self.finding(
            rank,
            title=f"{format_bytes(reserved_bytes)} are reserved on {name_device(memory)}, and at most "
            f"{format_bytes(peak.allocated_bytes)} of it allocated",
            advice=advice,
            location=location,
            evidence=(*figures, *(Evidence(f"of it {label}", size, "bytes") for label, size in causes)),
            subject=name_device(memory),
            memory_edit=edit,
        )


def _better_settings(allocator: AllocatorReplay, least_bytes: float) -> AllocatorSettings | None:
    """The first settings with which so much less is reserved; None where none is known."""
    now = allocator.settings
    if now.expandable_segments:
        return None
    tried = [replace(now, expandable_segments=True)]
    if now.max_split_bytes is None:
        tried += [replace(now, max_split_bytes=size * _MIB) for size in _MAX_SPLIT_MIB]
    own_bytes = allocator.replay().peak_reserved_bytes
    for settings in tried:
        left_bytes = allocator.what_if(settings=settings).peak_reserved_bytes
        if left_bytes is not None and own_bytes - left_bytes >= least_bytes:
            return settings
    return None


def _line_of_varying_sizes(memory: DeviceMemory) -> SourceLocation | None:
    """The line that asks for most memory in sizes that hardly repeat; None where sizes do."""
    large = memory.large
    locations, line = large.lines
    rows = np.flatnonzero((line >= 0) & (large.bytes > _MIB))
    keys = np.stack((line[rows].astype(np.int64), large.evidence.op_name[rows], large.bytes[rows]))
    sizes, count = np.unique(keys, axis=1, return_counts=True)
    groups, of_size = np.unique(sizes[:2], axis=1, return_inverse=True)
    of_size = of_size.reshape(-1)
    total = np.bincount(of_size, sizes[2] * count)
    distinct, asked = np.bincount(of_size), np.bincount(of_size, count)
    varies = (distinct >= _MIN_SIZES) & (asked <= _MAX_REPEATS * distinct)
    return locations[int(groups[0, int(np.where(varies, total, 0).argmax())])] if varies.any() else None
