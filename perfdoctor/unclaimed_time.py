"""The slices of a rank's account that no finding claims: where each is, what runs there, and why no more is known."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.analysis.timeline.queue_stalls import StallCause
from perfdoctor.gpu.kernel_names import short_kernel_name
from perfdoctor.gpu.roofline.kernel_bounds import LATENCY
from perfdoctor.places.place import OUTSIDE, PlaceName
from perfdoctor.rank import Rank
from perfdoctor.report.report import UnexplainedSlice
from perfdoctor.report.unexplained import MIN_SHARE
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.quantiles import quantiles
from perfdoctor.units import format_count, format_time

NEAR_ROOF_SHARE = 0.4
"""A kernel that reaches this share of its roof is near it and needs no excuse (knowledge of causes, section 4)."""
_MAX_NAMED = 2
# A place with less of a slice is not named.
_MIN_PART = 0.1
_NOUNS = {
    "compute": "kernel",
    "bandwidth": "kernel",
    "memcpy": "copy",
    "communication": "collective",
    "latency": "kernel",
}
_CPU_NOUNS = {"compute": "op", "bandwidth": "op", "latency": "op"}


def find_unexplained(rank: Rank, claimed: Iterable[Intervals]) -> tuple[UnexplainedSlice, ...]:
    """The slices of a rank's account over MIN_SHARE of the window that no finding claims, the largest first.

    Compute and memory time counts only as far as its kernels are not known to be near their roof: what is near needs no
    excuse.

    Args:
        rank: The rank.
        claimed: The time that its findings claim, a set of intervals each.
    """
    window_ns = rank.window_ns
    taken = iv.union_of(claimed)
    slices = []
    for detail in DETAILS:
        part = rank.account.parts.get(detail, iv.EMPTY)
        if iv.total(part) <= MIN_SHARE * window_ns:
            continue
        left = iv.subtract(part, taken)
        if detail in ("compute", "bandwidth") and iv.total(left) > MIN_SHARE * window_ns:
            left = _find_time_below_roof(rank, left)
        left_ns = iv.total(left)
        if left_ns > MIN_SHARE * window_ns:
            sentence = _describe(rank, detail, left)
            slices.append(UnexplainedSlice(rank.rank, detail, left_ns, left_ns / window_ns, sentence))
    return tuple(sorted(slices, key=lambda each: (-each.ns, each.detail)))


def _find_time_below_roof(rank: Rank, time: Intervals) -> Intervals:
    """The part of compute or bandwidth time whose kernels are not known to be near their roof."""
    if rank.device_kind == "cpu":
        return time
    gpu, doubtful = rank.trace.gpu, _match_doubtful(rank)
    return iv.intersect(iv.union(gpu.start_ns[doubtful], gpu.end_ns[doubtful]), time)


def _match_doubtful(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a kernel that is not known to be near its roof.

    A helper, such as the transform of a convolution, counts as the kernel of its op whose work is known.
    """
    op, efficiency = rank.trace.gpu.op, rank.bounds.efficiency
    with np.errstate(invalid="ignore"):
        near: BoolArray = efficiency >= NEAR_ROOF_SHARE
    near_op = np.zeros(len(rank.trace.ops) + 1, bool)  # the last entry is for items without an op
    near_op[op[near]] = True
    near_op[-1] = False
    near |= np.isnan(efficiency) & near_op[op]
    computing = rank.kernel_classes.match_rows(lambda kernel: kernel.category != "communication")
    doubtful: BoolArray = computing & (rank.roof_classes != LATENCY) & ~near
    return doubtful


def _describe(rank: Rank, detail: str, time: Intervals) -> str:
    """How many stretches of time it is, where it is, what runs there, and why no more is known of it."""
    if rank.device_kind == "gpu_not_recorded" and detail == "idle_unexplained":
        return (
            "The program launched work on a GPU, or the file names one, but the file has no GPU event: whether the GPU "
            "worked is not known. Record with ProfilerActivity.CUDA (nsys: --trace=cuda)."
        )
    pieces = rank.places.timed.pieces
    rows = pieces.within(time)
    rows = rows[pieces.cause[rows] == DETAILS.index(detail)]
    parts = [_count(rank, detail, time, rows), _name_places(rank, rows)]
    why = _explain_limit(rank, rows) if detail in ("compute", "bandwidth") else _explain_idle(rank, detail, time)
    return f"{'; '.join(part for part in (': '.join(filter(None, parts)), why) if part)}."


def _count(rank: Rank, detail: str, time: Intervals, rows: Int64Array) -> str:
    """How many events or stretches a slice consists of: "540 gaps a step, 6.2 us each in the median, 98 us at most"."""
    pieces, is_cpu = rank.places.timed.pieces, rank.device_kind == "cpu"
    noun = (_CPU_NOUNS if is_cpu else _NOUNS).get(detail, "stretch" if is_cpu else "gap")
    dur_ns = time[:, 1] - time[:, 0]
    if noun in _NOUNS.values():
        items = distinct(pieces.item[rows])
        dur_ns = rank.trace.gpu.dur_ns[items[items >= 0]]
    elif noun == "op":
        dur_ns = pieces.time_ns[rows]
    elif noun == "gap":
        inside_ns = iv.overlap(rank.gaps.start_ns, rank.gaps.end_ns, time)
        dur_ns = inside_ns[inside_ns > 0] if inside_ns.any() else dur_ns
    count = len(dur_ns)
    plural = {"copy": "copies", "stretch": "stretches"}.get(noun)
    each = count / max(rank.steps.count, 1)
    steps = f" in {rank.steps.count} steps" if rank.steps.count and each < 1 else " a step" if rank.steps.count else ""
    number = format_count(count if each < 1 else round(each), noun, plural)
    if not count:
        return number
    factor = rank.profiler_factor or 1
    median, longest = format_time(float(np.median(dur_ns)) / factor), format_time(int(dur_ns.max()) / factor)
    return (
        f"{number}{steps} of {median}" if count == 1 else f"{number}{steps}, {median} in the median, {longest} at most"
    )


def _name_places(rank: Rank, rows: Int64Array) -> str:
    """The places with most of some pieces, and what runs there: "58% at train.py:41 (conv2d)"."""
    places = rank.places
    found = places.places_of(rows)
    whole_ns = sum(ns for _, ns in found)
    named = [(place, ns) for place, ns in found if ns >= _MIN_PART * whole_ns][:_MAX_NAMED]
    runs = places.ops_of(rows)
    op = runs[0][0] if runs and 2 * runs[0][1] >= whole_ns else ""
    mostly = f", mostly {short_kernel_name(op)}" if op and all(place.function != op for place, _ in named) else ""
    return ", ".join(f"{ns / whole_ns:.0%} {_say_where(place)}" for place, ns in named) + mostly


def _say_where(place: PlaceName) -> str:
    if place.kind == "op":
        return f"in {short_kernel_name(place.short)}"
    return "outside of all lines, ops and ranges of the file" if place == OUTSIDE else f"at {place.short}"


def _explain_limit(rank: Rank, rows: Int64Array) -> str:
    """How near kernels are to their roof, or why that is not known."""
    if rank.device_kind == "cpu":
        return "how fast this CPU can be is not known"
    items = distinct(rank.places.timed.pieces.item[rows])
    efficiency = rank.bounds.efficiency[items]
    known = ~np.isnan(efficiency)
    if known.any() and 2 * known.sum() >= len(known):
        (median,) = quantiles(efficiency[known], (0.5,))
        return f"they reach {median:.0%} of their roof in the median"
    if rank.hardware.device is None:
        is_named = rank.hardware.source != "kernels" and rank.hardware.label
        why = f"the peaks of {rank.hardware.label if is_named else 'this GPU'} are not known (--device names another)"
    elif "shapes" not in rank.available_data:
        why = "no input shapes were recorded (record_shapes=True)"
    elif (rank.trace.gpu.op[items] < 0).mean() > 0.5:
        why = "most of them are joined to no op"
    else:
        why = "their work does not follow from the inputs of their ops"
    return f"their limit is not known, because {why}"


def _explain_idle(rank: Rank, detail: str, time: Intervals) -> str:
    """Why the cause of idle time is not known, or what to record; "" where the places say all."""
    if detail == "idle_launch" and rank.device_kind == "gpu":
        gaps = rank.gaps
        inside_ns = iv.overlap(gaps.start_ns, gaps.end_ns, time)
        queued = (gaps.launch >= 0) & ~gaps.late_launch
        if 2 * inside_ns[queued].sum() > inside_ns.sum():
            return "before work that was queued already: this is what the device takes from one item to the next"
        return (
            "the launches of this work are not in the file"
            if 2 * inside_ns[gaps.launch < 0].sum() > inside_ns.sum()
            else ""
        )
    if detail != "idle_unexplained":
        return ""
    stacks = "" if "stacks" in rank.available_data else "Python stacks (with_stack=True) would show what the CPU did"
    if rank.device_kind == "cpu":
        return stacks.replace("what the CPU did", "what it is")
    if rank.is_subsampled:
        return "most events were taken out of the file, so the GPU may have worked; record again, in full"
    if 2 * iv.total(iv.intersect(rank.missing_kernels, time)) > iv.total(time):
        return "CUDA graphs lack kernels in the file, so the GPU may have worked; record again, with all kernels"
    if "cpu" not in rank.available_data:
        return "the file has no CPU events (ProfilerActivity.CPU), so what the CPU did is not known"
    inside_ns = iv.overlap(rank.gaps.start_ns, rank.gaps.end_ns, time)
    if 2 * inside_ns[rank.gaps.stall == StallCause.UNKNOWN].sum() > inside_ns.sum():
        return (
            "the work had been launched already, and what it waited for is not in the file (a callback on the host, "
            "another process on this GPU)"
        )
    return stacks
