"""Copies by what they are and what they are for, by what repeats and by who makes them, and the advice: PD109."""

from __future__ import annotations

import re

import numpy as np

from perfdoctor.rules import (
    MEMCPY,
    Advice,
    BoolArray,
    Int64Array,
    Intervals,
    KernelClasses,
    Rank,
    Steps,
    advise,
    copy_kinds_of,
    distinct,
    distinct_rows,
    frozen_dataclass,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Share of the steps with the same copies where each step copies again: the first and last may be cut.
_REPEATING_SHARE = 0.75
# Without steps: each size occurs so often where something is copied again and again.
_MIN_REPEATS = 3
# Sizes of fewer copies than this share are not recorded: then the rate is that of those that are.
_MIN_SIZED_SHARE = 0.9
# What copies are for, as situations in the table of advice.
COMPILED, PACKED, UNKNOWN = "copies by compiled code", "copies packed for collectives", "copies of unknown purpose"
MANY_SMALL, WITHIN = "many small copies", "copies within the GPU"
# A step copies its batch in a few pieces; weights come tensor by tensor.
_MIN_WEIGHTS = 8
# Of copies within the device, shorter ones than this last as long as any kernel: what they move hardly matters.
_SHORT_COPY_NS = 10_000
# From this share of the copies on they are what a name says.
_MIN_SHARE = 0.5
_OFFLOAD = re.compile(r"(?i)offload|swap_?(in|out)|hooks\.py\(\d+\): (pre|post)_forward|onload")
_KV_CACHE = re.compile(r"(?i)(kv|key_?value|paged|prefix|block)_?cache|cache_?(utils|engine|blocks)|_cache\b.*update")
_PACKS = re.compile(r"(?i)c10d|reducer|all_?gather|reduce_?scatter|all_?to_?all|flatten_dense|fsdp|AccumulateGrad")


@frozen_dataclass(eq=False)
class CopyGroup:
    """The copies of one direction and kind of host memory.

    Attributes:
        direction: Index into `vocabulary.COPY_DIRECTIONS`.
        host_memory: Index into `vocabulary.HOST_MEMORY`; of several kinds that with the most time.
        rows: Rows of `Trace.gpu`, by start.
        exposed: The time in which such copies ran and nothing computed.
        running_ns: Time in which one of them ran: of copies that overlap each other the time counts once.
        bytes: How much they copy together; None where sizes were not recorded.
        on_kernel_stream_share: The share (0 to 1) of their time on the stream that runs most of the kernels.
        repeats: Whether the same sizes are copied in each step, or again and again where there are no steps; None where
            the trace is too short to tell.
    """

    direction: int
    host_memory: int
    rows: Int64Array
    exposed: Intervals
    running_ns: int
    bytes: int | None
    on_kernel_stream_share: float
    repeats: bool | None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def exposed_ns(self) -> int:
        """Time in which such copies ran and nothing computed, in the window."""
        return iv.total(self.exposed)

    @property
    def bytes_per_s(self) -> float | None:
        """How fast they copy; None where sizes were not recorded."""
        return None if self.bytes is None else self.bytes / max(self.running_ns, 1) * 1e9


def group_copies(
    classes: KernelClasses, steps: Steps, copies: BoolArray, exposed: Intervals, by_memory: bool = True
) -> tuple[CopyGroup, ...]:
    """The copies by direction and kind of host memory, the longest exposed first; groups that are hidden are left out.

    `exposed` is the time of the window in which only copies ran (`Account.parts`), or a part of it; `by_memory` makes
    pageable and pinned copies groups of their own.
    """
    trace = classes.trace
    gpu, kinds = trace.gpu, copy_kinds_of(trace)
    rows = np.flatnonzero(copies & (gpu.kind == MEMCPY))
    if not len(rows) or not len(exposed):
        return ()
    on_kernel_stream = _match_kernel_streams(classes)
    direction, memory = kinds.direction[rows].astype(np.int64), kinds.host_memory[rows].astype(np.int64)
    number, first = distinct_rows((direction, memory) if by_memory else (direction,), len(trace.strings) + 8)
    groups = []
    for group, row in enumerate(first.tolist()):
        some = rows[number == group]
        start_ns, end_ns, dur_ns = gpu.start_ns[some], gpu.end_ns[some], gpu.dur_ns[some]
        running = iv.union(start_ns, end_ns)
        groups.append(
            CopyGroup(
                direction=int(direction[row]),
                host_memory=int(np.bincount(memory[number == group] + 1, weights=dur_ns).argmax()) - 1,
                rows=some,
                exposed=iv.intersect(running, exposed),
                running_ns=iv.total(running),
                bytes=_total_bytes(gpu.bytes[some]),
                on_kernel_stream_share=float(dur_ns[on_kernel_stream[some]].sum() / max(dur_ns.sum(), 1)),
                repeats=_match_repeats(steps, start_ns, gpu.bytes[some]),
            )
        )
    groups = [each for each in groups if len(each.exposed)]
    return tuple(sorted(groups, key=lambda each: (-each.exposed_ns, each.direction, each.host_memory)))


def _match_kernel_streams(classes: KernelClasses) -> BoolArray:
    """For each GPU item whether its stream runs most of the kernels of its device; collectives do not count."""
    gpu = classes.trace.gpu
    computing = classes.match_rows(lambda kernel: kernel.category != "communication")
    result = np.zeros(len(gpu), bool)
    for device in distinct(gpu.device[computing]).tolist():
        on_device = gpu.device == device
        rows = on_device & computing
        streams, which = np.unique(gpu.stream[rows], return_inverse=True)
        busiest = streams[np.argmax(np.bincount(which, weights=gpu.dur_ns[rows]))]
        result |= on_device & (gpu.stream == busiest)
    return result


def _total_bytes(size_bytes: Int64Array) -> int | None:
    known = size_bytes >= 0
    if not len(size_bytes) or known.mean() < _MIN_SIZED_SHARE:
        return None
    return int(size_bytes[known].sum())


def _match_repeats(steps: Steps, start_ns: Int64Array, size_bytes: Int64Array) -> bool | None:
    """Whether the same sizes are copied again and again: as many copies and bytes in most steps."""
    if (size_bytes < 0).any():
        return None
    if steps.count < 2:
        sizes = len(np.unique(size_bytes, return_index=True)[0])
        return len(size_bytes) >= _MIN_REPEATS * sizes if len(size_bytes) > 1 else None
    step = steps.at(start_ns)
    inside = step >= 0
    count = np.bincount(step[inside], minlength=steps.count)
    total = np.bincount(step[inside], weights=size_bytes[inside], minlength=steps.count)
    usual = (count == np.median(count)) & (total == np.median(total)) & (count > 0)
    return bool(usual.mean() >= _REPEATING_SHARE)


def is_sent_back(groups: tuple[CopyGroup, ...]) -> bool:
    """Whether about as many bytes go to the host as come from it: state that is moved out and in again."""
    totals = {vocabulary.HTOD: 0, vocabulary.DTOH: 0}
    for group in groups:
        if group.direction in totals:
            totals[group.direction] += group.bytes or 0
    smaller, larger = sorted(totals.values())
    return smaller > 0 and smaller >= larger / 2


def find_purpose(rank: Rank, group: CopyGroup, *, sent_back: bool) -> str:
    """What the copies of a group are for: a situation in the table of advice, and a row of the words for copies.

    Args:
        rank: The rank.
        group: The copies.
        sent_back: Whether about as much goes to the host as comes from it.
    """
    rows = group.rows
    if _share_of_time(rank, rows, _match_launchers(rank, _KV_CACHE)) > _MIN_SHARE:
        return "copies of a cache"
    if group.direction == vocabulary.PTOP:
        return "copies between GPUs"
    if group.direction == vocabulary.DTOD:
        return _purpose_within(rank, group)
    if sent_back:
        return "copies of swapped state"
    if group.direction == vocabulary.DTOH:
        return "copies of results"
    if group.direction != vocabulary.HTOD:
        return UNKNOWN
    if _share_of_time(rank, rows, _match_launchers(rank, _OFFLOAD)) > _MIN_SHARE:
        return "copies of weights"
    is_many = len(group) >= _MIN_WEIGHTS * max(rank.steps.count, 1)
    if is_many and _is_interleaved(rank, rows):
        return "copies of weights" if group.repeats else UNKNOWN
    return "copies of input" if rank.steps.count else UNKNOWN


def _is_interleaved(rank: Rank, rows: Int64Array) -> bool:
    """Whether kernels start between most copies and the next: a batch is copied at once, weights layer by layer."""
    gpu = rank.trace.gpu
    kernels_ns = np.sort(gpu.start_ns[rank.kernels.mask])
    before = np.searchsorted(kernels_ns, np.sort(gpu.start_ns[rows]))
    return bool((np.diff(before) > 0).mean() > _MIN_SHARE)


def _purpose_within(rank: Rank, group: CopyGroup) -> str:
    rows = group.rows
    if _share_of_time(rank, rows, rank.traffic.is_compiled) > _MIN_SHARE:
        return COMPILED
    if _share_of_time(rank, rows, _match_launchers(rank, _PACKS)) > _MIN_SHARE:
        return PACKED
    if np.median(rank.trace.gpu.dur_ns[rows]) < _SHORT_COPY_NS and len(group) >= _MIN_WEIGHTS:
        return MANY_SMALL
    return WITHIN


def _share_of_time(rank: Rank, rows: Int64Array, which: BoolArray) -> float:
    """The share (0 to 1) of the time of some copies that a mask of GPU items selects."""
    dur_ns = rank.trace.gpu.dur_ns[rows]
    return float(dur_ns[which[rows]].sum() / max(dur_ns.sum(), 1))


def _match_launchers(rank: Rank, pattern: re.Pattern[str]) -> BoolArray:
    """For each GPU item whether an op, a range or a Python frame with a matching name was open at its launch."""
    trace, gpu, calls = rank.trace, rank.trace.gpu, rank.trace.calls
    found = rank.ops.named(pattern).kernels.mask
    for table in (trace.ranges, trace.frames):
        matching = trace.match_rows(table, pattern)
        if not matching.any():
            continue
        linked = np.flatnonzero((gpu.call >= 0) & ~found)
        for thread in np.flatnonzero(np.bincount(table.thread[matching])).tolist():
            rows = matching & (table.thread == thread)
            starts, ends = np.sort(table.start_ns[rows]), np.sort(table.end_ns[rows])
            on_thread = linked[calls.thread[gpu.call[linked]] == thread]
            at_ns = calls.start_ns[gpu.call[on_thread]]
            # At an instant as many of the spans are open as have begun and not ended.
            is_open = np.searchsorted(starts, at_ns, "right") > np.searchsorted(ends, at_ns, "right")
            found[on_thread[is_open]] = True
    return found


def advice_for(rank: Rank, purpose: str, group: CopyGroup, hidden_share: float) -> Advice:
    """What to do about copies.

    Args:
        rank: The rank.
        purpose: What the copies are for.
        group: The copies.
        hidden_share: Which share (0 to 1) of their exposed time kernels could hide.
    """
    situation = purpose
    if purpose == COMPILED and rank.trace.match_rows(rank.trace.gpu, vocabulary.TRITON_KERNEL).any():
        situation = "copies by generated code"
    stream = "Issue the copies earlier: they have a stream of their own, but the kernels wait for them"
    limit = f" The kernels can hide only {hidden_share:.0%} of this time, so copy less."
    if group.on_kernel_stream_share > _MIN_SHARE:
        stream = "Issue the copies on a stream of their own, ahead of the kernels that need them"
    if hidden_share > _MIN_SHARE:
        limit = ""
    if not len(rank.kernels):
        stream, limit = "Copy less: the GPU runs no kernel that could hide the copies", ""
    return advise(situation, rank.context, stream=stream, limit=limit)
