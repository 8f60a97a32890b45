"""What is known of time in which the GPU worked (or the CPU, in a program without one): a sentence or two a detail."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.communication.collectives import CollectiveTotal
from perfdoctor.analysis.timeline.copy_groups import CopyGroup, copy_limit_bytes_per_s, group_copies
from perfdoctor.gpu.roofline.kernel_bounds import LATENCY
from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, MEMSET
from perfdoctor.trace.tables.nesting import own_durations
from perfdoctor.trace.tables.quantiles import quantiles
from perfdoctor.unexplained.name_work import Rows, count_events, explain_calls, find_items_in, name_launchers, name_ops
from perfdoctor.units import format_bytes, format_count, format_rate, format_time

NEAR_ROOF_SHARE = 0.4
"""A kernel that reaches this share of its roof is near it and needs no excuse (knowledge of causes, section 4)."""
FULL_RATE_SHARE = 0.8
"""Copies at this share of what large pinned copies reach do what the link does."""
# So many groups of copies, and kinds of collectives, are named.
_MAX_NAMED = 2
_WORDS_OF_MEMORY = {
    vocabulary.PAGEABLE: "pageable memory",
    vocabulary.PINNED: "pinned memory",
    vocabulary.HOST: "host memory (the file does not say whether it is pinned)",
    vocabulary.UNKNOWN_MEMORY: "host memory of an unrecorded kind",
}


def find_time_below_roof(rank: Rank, time: Intervals) -> Intervals:
    """The part of compute or bandwidth time whose kernels are not known to be near their roof."""
    if rank.device_kind == "cpu":
        return time
    gpu, doubtful = rank.trace.gpu, _match_doubtful(rank)
    return iv.intersect(iv.union(gpu.start_ns[doubtful], gpu.end_ns[doubtful]), time)


def _match_computing(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a kernel and no collective."""
    return rank.kernel_classes.match_rows(lambda kernel: kernel.category != "communication")


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
    doubtful: BoolArray = _match_computing(rank) & (rank.roof_classes != LATENCY) & ~near
    return doubtful


def explain_kernels(rank: Rank, time: Intervals) -> str:
    """What is known of compute or bandwidth time that is not known to be near its roof."""
    if rank.device_kind == "cpu":
        return _explain_cpu_ops(rank, time, "op")
    rows = find_items_in(rank, time, _match_doubtful(rank))
    if not len(rows):
        return "Each of its kernels ran beside others for most of its time."
    efficiency = rank.bounds.efficiency[rows]
    known = ~np.isnan(efficiency)
    sentences = []
    if not known.all():
        sentences.append(_describe_unjudged(rank, rows[~known]))
    if known.any():
        (median,) = quantiles(efficiency[known], (0.5,))
        sentences.append(
            f"{count_events(rank, int(known.sum()), 'kernel')} at {median:.0%} of the roof in the "
            f"median, mostly {name_launchers(rank, rows[known])}."
        )
    return " ".join(sentences)


def _describe_unjudged(rank: Rank, rows: Rows) -> str:
    """Kernels whose roof is unknown, and why it is."""
    unlinked = rank.trace.gpu.op[rows] < 0
    if rank.hardware.device is None:
        is_named = rank.hardware.source != "kernels" and rank.hardware.label
        why = f"the peaks of {rank.hardware.label if is_named else 'this GPU'} are not known (--device names another)"
    elif "shapes" not in rank.available_data:
        why = "no input shapes were recorded (record_shapes=True)"
    elif unlinked.mean() > 0.5:
        why = "most of them are joined to no op"
    else:
        why = "their work does not follow from the inputs of their ops"
    return (
        f"{count_events(rank, len(rows), 'kernel')}, mostly {name_launchers(rank, rows)}: their limit is not known, "
        f"because {why}."
    )


def _explain_cpu_ops(rank: Rank, time: Intervals, noun: str) -> str:
    ops = rank.trace.ops
    own_ns = own_durations(ops.parent, iv.overlap(ops.start_ns, ops.end_ns, time))
    rows = np.flatnonzero(own_ns > 0)
    names = name_ops(rank, rows, own_ns[rows], 3)
    return (
        f"{count_events(rank, len(rows), noun)} on the CPU, most of the time in {names}; how fast this CPU can be is "
        "not known."
    )


def explain_latency(rank: Rank, time: Intervals) -> str:
    """What is known of kernels that are short, or leave most of the GPU empty."""
    if rank.device_kind == "cpu":
        return _explain_cpu_ops(rank, time, "short op")
    gpu = rank.trace.gpu
    rows = find_items_in(rank, time, _match_computing(rank))
    if not len(rows):
        return "Each of its kernels ran beside others for most of its time."
    median = format_time(float(np.median(gpu.dur_ns[rows])))
    graphs = " in graphs" if _match_graph_launches(rank)[rows].mean() > 0.5 else ""
    said = [
        f"{count_events(rank, len(rows), 'kernel')}{graphs}, {median} each in the median, mostly "
        f"{name_launchers(rank, rows)}"
    ]
    said += [text for text in (_describe_grids(rank, rows), _describe_roof_share(rank, rows)) if text]
    return f"{'; '.join(said)}."


def _match_graph_launches(rank: Rank) -> BoolArray:
    """For each GPU item whether a graph launched it."""
    gpu, calls = rank.trace.gpu, rank.trace.calls
    launches_graph = np.append(rank.trace.match_rows(calls, vocabulary.GRAPH_LAUNCH_CALL), False)
    result: BoolArray = launches_graph[gpu.call]
    return result


def _describe_grids(rank: Rank, rows: Rows) -> str:
    """How much of the GPU their thread blocks fill; an empty text where that was not recorded."""
    blocks, processors = rank.trace.gpu.blocks[rows], rank.hardware.sm_count
    blocks = blocks[blocks > 0]
    if processors is None or not len(blocks):
        return ""
    if blocks.max() < processors:
        return f"{int(blocks.max()):,} thread blocks at most for the GPU's {processors} multiprocessors"
    small = float((blocks < processors).mean())
    fewer = f"{small:.0%} of them have fewer thread blocks than the GPU's {processors} multiprocessors"
    return fewer if small >= 0.05 else ""


def _describe_roof_share(rank: Rank, rows: Rows) -> str:
    """Which share of their roof they reach on the whole, where it is known for most of their time."""
    share, dur_ns = rank.bounds.roof_share[rows], rank.trace.gpu.dur_ns[rows]
    known = ~np.isnan(share)
    if 2 * dur_ns[known].sum() <= dur_ns.sum():
        return ""
    return f"together at {(share[known] * dur_ns[known]).sum() / max(dur_ns[known].sum(), 1):.0%} of their roof"


def explain_communication(rank: Rank, time: Intervals) -> str:
    """Which collectives take the time, how many and how large."""
    totals = sorted((each for each in rank.collectives.totals if each.exposed_ns), key=lambda each: -each.exposed_ns)
    if not totals:
        return f"{format_count(len(time), 'stretch', 'stretches')} of collectives with nothing computed beside them."
    named = "; ".join(_describe_collectives(rank, each) for each in totals[:_MAX_NAMED])
    others = len(totals) - _MAX_NAMED
    more = f"; and {format_count(others, 'other kind')}" if others > 0 else ""
    return f"{named}{more}."


def _describe_collectives(rank: Rank, total: CollectiveTotal) -> str:
    mean = " on average" if total.count > 1 else ""
    size = "" if total.bytes is None else f" of {format_bytes(total.bytes / max(total.count, 1))}{mean}"
    group = "" if total.group is None else f" in group {total.group}"
    ranks = "" if total.group_size is None else f" of {total.group_size} ranks"
    exposed = total.exposed_ns / max(rank.steps.count, 1)
    each = " a step" if rank.steps.count else ""
    rate = "" if total.bus_bytes_per_s is None else f" at {format_rate(total.bus_bytes_per_s)} of bus bandwidth"
    return (
        f"{count_events(rank, total.count, f'{total.kind} collective')}{size}{group}{ranks}{rate}: nothing computes "
        f"during {format_time(exposed)}{each} of them"
    )


def explain_copies(rank: Rank, time: Intervals) -> str:
    """Which copies take the time: direction, memory, rate, stream, how many, and which ops make them."""
    if rank.device_kind == "cpu":
        return explain_calls(rank, time)
    gpu = rank.trace.gpu
    part = rank.account.parts["memcpy"]
    # Copies whose exposed time a finding claims are none of these; copies that kernels hide are.
    claimed_ns = iv.overlap(gpu.start_ns, gpu.end_ns, iv.subtract(part, time))
    unclaimed = claimed_ns <= iv.overlap(gpu.start_ns, gpu.end_ns, time)
    groups = group_copies(rank.kernel_classes, rank.steps, unclaimed & iv.contains(rank.window, gpu.start_ns), time)
    said = [describe_copies(rank, each) for each in groups[:_MAX_NAMED]]
    sets = np.flatnonzero(gpu.kind == MEMSET)
    sets = sets[iv.overlap(gpu.start_ns[sets], gpu.end_ns[sets], time) > 0]
    set_ns = iv.total(iv.intersect(iv.union(gpu.start_ns[sets], gpu.end_ns[sets]), time))
    if len(sets) and (not groups or 4 * set_ns > groups[0].exposed_ns):
        said.append(
            f"{count_events(rank, len(sets), 'memset')}, {format_time(float(np.median(gpu.dur_ns[sets])))} each in the "
            f"median, from {name_launchers(rank, sets)}"
        )
    return f"{'; '.join(said)}."


def describe_copies(rank: Rank, group: CopyGroup) -> str:
    """One group of copies, as a clause."""
    gpu = rank.trace.gpu
    limit = copy_limit_bytes_per_s(group.direction, rank.facts, rank.hardware.device)
    stream = (
        "on the stream of the kernels, so nothing computes meanwhile"
        if group.on_kernel_stream_share > 0.5
        else "on another stream than the kernels, but no kernel runs meanwhile"
    )
    if not (gpu.kind == KERNEL).any():
        stream = "and the GPU runs no kernel at all"
    size = "" if group.bytes is None else f" of {format_bytes(group.bytes / len(group))} in the mean"
    again = ", the same sizes again and again" if group.repeats else ""
    ops = f", from {name_launchers(rank, group.rows)}" if (gpu.op[group.rows] >= 0).any() else ""
    copies = count_events(rank, len(group), "copy", "copies")
    return f"{copies} {describe_way(group)}{size}{again}, {describe_rate(group, limit)}, {stream}{ops}"


def describe_way(group: CopyGroup) -> str:
    """Where copies go: "from pinned memory to the GPU"."""
    memory = _WORDS_OF_MEMORY.get(group.host_memory, "host memory")
    return {
        vocabulary.HTOD: f"from {memory} to the GPU",
        vocabulary.DTOH: f"from the GPU to {memory}",
        vocabulary.DTOD: "from device to device",
        vocabulary.PTOP: "from one GPU to another",
        vocabulary.HTOH: "within host memory",
    }.get(group.direction, "in a direction that is not recorded")


def describe_rate(group: CopyGroup, limit_bytes_per_s: float | None) -> str:
    """How fast copies are, against what their link does: "at 27.7 GB/s, which is what this link does"."""
    rate = group.bytes_per_s
    if rate is None:
        return "of unrecorded size"
    achieved = f"at {format_rate(rate)}"
    what = "this memory" if group.direction == vocabulary.DTOD else "this link"
    if limit_bytes_per_s is None:
        return f"{achieved} (the rate of {what} is not known)"
    if rate >= FULL_RATE_SHARE * limit_bytes_per_s:
        return f"{achieved}, which is what {what} does"
    return f"{achieved} of the {format_rate(limit_bytes_per_s)} that large copies reach on {what}"
