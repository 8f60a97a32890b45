"""What is known of time in which the GPU was idle: which gaps, what ended them, what the CPU did, what is missing."""

from __future__ import annotations

import re

import numpy as np

from perfdoctor.analysis.host.compile_time import compile_time
from perfdoctor.analysis.host.hot_path import Activity, HotPath, find_hot_path
from perfdoctor.analysis.timeline.queue_stalls import StallCause
from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL
from perfdoctor.unexplained.name_work import (
    Rows,
    count_events,
    explain_calls,
    find_gaps_in,
    format_unprofiled,
    name_calls,
    name_gpu_items,
    name_launchers,
    name_ops,
)
from perfdoctor.units import format_count

# Parts of the idle time from this share of it on are described: smaller ones would not change what to think of it.
_MIN_PART = 0.2
# The longest gap is described where it is this share of the time.
_LONGEST_SHARE = 0.25


def explain_dataloader(rank: Rank, time: Intervals) -> str:
    """How often and how long the loop waits for a batch."""
    waits = rank.loader_waits
    rows = np.flatnonzero(iv.overlap(waits.start_ns, waits.end_ns, time))
    dur_ns = (waits.end_ns - waits.start_ns)[rows]
    name = rank.trace.strings[waits.name[rows[np.argmax(dur_ns)]]] if len(rows) else "a DataLoader"
    found = re.search(rf"{vocabulary.SINGLE_PROCESS_LOADER}|{vocabulary.MULTI_PROCESS_LOADER}", name)
    median = format_unprofiled(rank, float(np.median(dur_ns))) if len(rows) else "nothing"
    batches = count_events(rank, len(rows), "batch", "batches")
    return f"The loop waits for {batches}, {median} each in the median ({found[0] if found else name})."


def explain_sync(rank: Rank, time: Intervals) -> str:
    """In which calls the queue ran empty, from which op and line."""
    if rank.device_kind == "cpu":
        return explain_calls(rank, time)
    calls = rank.trace.calls
    rows, inside = find_gaps_in(rank, time)
    sync = rank.gaps.sync[rows]
    known = sync >= 0
    if not known.any():
        return f"{_describe_gaps(rank, rows, inside)}."
    sync, inside = sync[known], inside[known]
    waits = len(np.unique(sync, return_index=True)[0])
    op = name_ops(rank, calls.op[sync], inside)
    location = rank.locations.of_calls(sync)
    where = f", from {op}" if op else ""
    line = f" at {location}" if location else ""
    return (
        f"The queue runs empty in {count_events(rank, waits, 'wait')} of the CPU, {name_calls(rank, sync, inside)}"
        f"{where}{line}; {format_unprofiled(rank, float(np.median(inside)))} of idle time after each in the median, "
        f"{format_unprofiled(rank, int(inside.max()))} at most."
    )


def explain_allocator(rank: Rank, time: Intervals) -> str:
    """Which calls allocate and free device memory, and from which op."""
    calls = rank.trace.calls
    rows = np.flatnonzero(rank.trace.match_rows(calls, vocabulary.ALLOCATOR_CALL))
    inside = iv.overlap(calls.start_ns[rows], calls.end_ns[rows], time)
    rows, inside = rows[inside > 0], inside[inside > 0]
    op = name_ops(rank, calls.op[rows], inside)
    return (
        f"{count_events(rank, len(rows), 'call')} to allocate or free memory ({name_calls(rank, rows, inside, 2)})"
        f"{f', from {op}' if op else ''}."
    )


def explain_idle_communication(rank: Rank, time: Intervals) -> str:
    """What waited for an event of another stream, or for other ranks."""
    rows, inside = find_gaps_in(rank, time)
    waits = rank.gaps.stall[rows] == StallCause.EVENT_WAIT
    said = []
    if waits.any():
        item = rank.gaps.next_item[rows[waits]]
        said.append(
            f"{_describe_gaps(rank, rows[waits], inside[waits])}, waiting for an event of another stream before "
            f"{name_gpu_items(rank, item)}"
        )
    ranges = rank.trace.ranges
    waiting = np.flatnonzero(rank.trace.match_rows(ranges, vocabulary.COLLECTIVE_WAIT))
    waiting_ns = iv.overlap(ranges.start_ns[waiting], ranges.end_ns[waiting], time)
    if waiting_ns.sum() >= _MIN_PART * iv.total(time):
        longest = rank.trace.strings[ranges.name[waiting[np.argmax(waiting_ns)]]]
        said.append(
            f"the CPU waits for other ranks in {count_events(rank, int((waiting_ns > 0).sum()), 'call')} of {longest}"
        )
    if not said:
        said.append(_describe_gaps(rank, rows, inside))
    return f"{'; '.join(said)}."


def explain_launch(rank: Rank, time: Intervals) -> str:
    """Whether launches came late, or the device took its few microseconds between queued items."""
    if rank.device_kind == "cpu":
        return _explain_cpu_breaks(rank, time)
    gaps = rank.gaps
    rows, inside = find_gaps_in(rank, time)
    if not len(rows):
        return "Launching, by the CPU events of the file."
    unlinked, late = gaps.launch[rows] < 0, gaps.late_launch[rows]
    queued = ~unlinked & ~late
    min_ns = max(_MIN_PART * int(inside.sum()), 1)
    said = []
    if inside[late].sum() >= min_ns:
        said.append(_describe_late(rank, rows[late], inside[late], time))
    if inside[queued].sum() >= min_ns:
        said.append(_describe_queued(rank, rows[queued], inside[queued]))
    if inside[unlinked].sum() >= min_ns:
        said.append(_describe_unlinked(rank, rows[unlinked], inside[unlinked]))
    longest = int(np.argmax(inside))
    if inside[longest] >= _LONGEST_SHARE * inside.sum() and len(rows) > 1:
        said.append(_describe_longest(rank, rows[[longest]], time))
    return f"{'; '.join(text for text in said if text)}."


def _explain_cpu_breaks(rank: Rank, time: Intervals) -> str:
    compiling = iv.intersect(compile_time(rank.trace), time)
    breaks = iv.subtract(time, compiling)
    said = []
    if iv.total(compiling) >= _MIN_PART * iv.total(time):
        said.append(f"torch.compile compiles for {format_unprofiled(rank, iv.total(compiling))}")
    calls = rank.trace.calls
    in_calls = iv.intersect(iv.union(calls.start_ns, calls.end_ns), breaks)
    if iv.total(in_calls) >= _MIN_PART * iv.total(time):
        said.append(explain_calls(rank, in_calls).rstrip("."))
        breaks = iv.subtract(breaks, in_calls)
    if len(breaks):
        median = format_unprofiled(rank, float(np.median(breaks[:, 1] - breaks[:, 0])))
        said.append(
            f"{count_events(rank, len(breaks), 'break')} between ops, {median} each in the median, in which Python and "
            "the framework run and nothing computes"
        )
    return f"{'; '.join(said)}."


def _describe_gaps(rank: Rank, rows: Rows, inside: Int64Array) -> str:
    """How many gaps there are, and how long: "540 gaps a step, 6.2 us in the median, 98 us at most"."""
    if len(rows) == 1:
        return f"One gap of {format_unprofiled(rank, int(inside[0]))}"
    median, longest = format_unprofiled(rank, float(np.median(inside))), format_unprofiled(rank, int(inside.max()))
    return f"{count_events(rank, len(rows), 'gap')}, {median} in the median, {longest} at most"


def _describe_late(rank: Rank, rows: Rows, inside: Int64Array, time: Intervals) -> str:
    """Gaps that end with a launch which came too late."""
    gpu = rank.trace.gpu
    item = rank.gaps.next_item[rows]
    launch_ns = _time_between_launches(rank)
    kernels = (gpu.kind == KERNEL) & iv.contains(rank.window, gpu.start_ns)
    costs = ""
    if launch_ns is not None and kernels.any():
        costs = (
            f": the CPU launches every {format_unprofiled(rank, launch_ns)}, and a kernel takes "
            f"{format_unprofiled(rank, float(np.median(gpu.dur_ns[kernels])))} in the median"
        )
    op = name_ops(rank, gpu.op[item], inside, 2)
    path = _find_path(rank, rows, time)
    before = f"; mostly before {op}" if op else ""
    doing = ""
    if path.deepest is not None:
        doing = f"; for {path.deepest.time_ns / max(path.time_ns, 1):.0%} of it the CPU is in {_name(path.deepest)}"
    location = path.location or rank.locations.of_items(item.astype(np.int64))
    line = f", from {location}" if location else ""
    return f"{_describe_gaps(rank, rows, inside)}, in which the launch came too late{costs}{before}{doing}{line}"


def _find_path(rank: Rank, rows: Rows, time: Intervals) -> HotPath:
    """What the launching thread did in the part of some gaps that lies in `time`."""
    gaps, calls = rank.gaps, rank.trace.calls
    launch = gaps.launch[rows]
    if not (launch >= 0).any():
        return HotPath()
    thread = int(np.bincount(calls.thread[launch[launch >= 0]]).argmax())
    return find_hot_path(rank.trace, iv.intersect(iv.union(gaps.start_ns[rows], gaps.end_ns[rows]), time), thread)


def _name(activity: Activity) -> str:
    """The name of an activity, of a Python function without the folders of its file."""
    return activity.name.rpartition("/")[2] if activity.table == "frame" else activity.name


def _time_between_launches(rank: Rank) -> float | None:
    """The median time from one launch call in the window to the next on its thread, in ns; None without two."""
    gpu, calls = rank.trace.gpu, rank.trace.calls
    launches = np.flatnonzero(np.bincount(gpu.call[gpu.call >= 0], minlength=len(calls)))
    launches = launches[iv.contains(rank.window, calls.start_ns[launches])]
    if len(launches) < 2:
        return None
    order = np.lexsort((calls.start_ns[launches], calls.thread[launches]))
    start_ns, thread = calls.start_ns[launches][order], calls.thread[launches][order]
    between = np.diff(start_ns)[np.diff(thread) == 0]
    return float(np.median(between)) if len(between) else None


def _describe_queued(rank: Rank, rows: Rows, inside: Int64Array) -> str:
    """Gaps before work that was queued in time: the device itself takes them."""
    gpu, calls = rank.trace.gpu, rank.trace.calls
    launches_graph = rank.trace.match_rows(calls, vocabulary.GRAPH_LAUNCH_CALL)
    in_graph = float(launches_graph[gpu.call[rank.gaps.next_item[rows]]].mean())
    graph = ", most of them inside CUDA graphs" if in_graph > 0.5 else ""
    return (
        f"{_describe_gaps(rank, rows, inside)}, before work that was queued already: this is what the device takes "
        f"from one item to the next{graph}"
    )


def _describe_unlinked(rank: Rank, rows: Rows, inside: Int64Array) -> str:
    """Gaps before work whose launch is not in the file."""
    item = rank.gaps.next_item[rows]
    names = name_gpu_items(rank, item[item >= 0])
    before = f" before {names}" if names else ""
    return f"{_describe_gaps(rank, rows, inside)}{before}; the launches of this work are not in the file"


def _describe_longest(rank: Rank, row: Rows, time: Intervals) -> str:
    """The longest gap, and what the launching thread did most of the time in it."""
    path = _find_path(rank, row, time)
    doing = "most of it outside of all ops and calls of the CPU"
    if path.deepest is not None:
        doing = f"while the CPU was in {_name(path.deepest)}"
    gap_ns = int(iv.overlap(rank.gaps.start_ns[row], rank.gaps.end_ns[row], time).sum())
    return f"the longest gap takes {format_unprofiled(rank, gap_ns)}, {doing}"


def explain_unexplained(rank: Rank, time: Intervals) -> str:
    """How the gaps are spread, what ends them, and what would have to be recorded to know more."""
    if rank.device_kind == "gpu_not_recorded":
        return (
            "The program launched work on a GPU, or the file names one, but the file has no GPU event: whether the GPU "
            "worked is not known. Record with ProfilerActivity.CUDA (nsys: --trace=cuda)."
        )
    if rank.device_kind == "cpu":
        return _explain_cpu_gaps(rank, time)
    rows, inside = find_gaps_in(rank, time)
    if not len(rows):
        return "Nothing in the file says what the GPU waited for."
    item = rank.gaps.next_item[rows]
    names = name_launchers(rank, item[item >= 0])
    before = f", before {names}" if names else ", after the last work of the GPU"
    return f"{_describe_gaps(rank, rows, inside)}{before}: {_missing_evidence(rank, rows, inside, time)}."


def _explain_cpu_gaps(rank: Rank, time: Intervals) -> str:
    length = time[:, 1] - time[:, 0]
    more = "" if "stacks" in rank.available_data else "; Python stacks (with_stack=True) would name it"
    stretches, median = (
        format_count(len(time), "stretch", "stretches"),
        format_unprofiled(rank, float(np.median(length))),
    )
    return (
        f"{stretches}, {median} in the median, {format_unprofiled(rank, int(length.max()))} at most, in "
        f"which no op runs: Python, or a library that records none{more}."
    )


def _missing_evidence(rank: Rank, rows: Rows, inside: Int64Array, time: Intervals) -> str:
    """Why the cause of these gaps is not known."""
    whole = max(iv.total(time), 1)
    if rank.is_subsampled:
        return "most events were taken out of the file, so the GPU may have worked; record again, in full"
    if iv.total(iv.intersect(rank.missing_kernels, time)) > whole / 2:
        return "CUDA graphs lack kernels in the file, so the GPU may have worked; record again, with all kernels"
    if "cpu" not in rank.available_data:
        return "the file has no CPU events (ProfilerActivity.CPU), so what the CPU did is not known"
    queued = rank.gaps.stall[rows] == StallCause.UNKNOWN
    if inside[queued].sum() > whole / 2:
        return (
            "the work had been launched already, and what it waited for is not in the file (a callback on the host, "
            "another process on this GPU)"
        )
    if inside[rank.gaps.launch[rows] < 0].sum() > whole / 2:
        return "the launches of this work are not in the file, so what the CPU did first is not known"
    stacks = "Python stacks (with_stack=True)" if len(rank.trace.ops) else "samples of the CPU"
    more = "" if "stacks" in rank.available_data else f"; {stacks} would show what the CPU did"
    return f"no call, op or wait of the file covers this time{more}"
