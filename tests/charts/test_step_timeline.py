"""The timeline of the median step: nothing is missing, idle gaps are those of the account, order changes nothing."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from real_traces import read_once
from trace_strategies import ALL_REDUCE, POINTWISE, TENSOR_GEMM, File, any_file, lawful_file, rank_of

from perfdoctor.charts.step_timeline import step_timeline_of
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import StepTimeline, Track
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.model import Trace

US = 1_000
relaxed = settings(suppress_health_check=[HealthCheck.too_slow])
Row = tuple[str, str, str, int, int, int]


def timeline_of(trace: TraceBuilder, **options: int) -> StepTimeline:
    timeline = step_timeline_of(Rank(trace.trace()), **options)
    assert timeline is not None
    return timeline


def track(timeline: StepTimeline, name: str) -> Track:
    return next(each for each in timeline.tracks if each.name == name)


def rows(timeline: StepTimeline) -> list[Row]:
    """Every item: track, name, colour, start, duration, depth."""
    return [
        (each.name, timeline.names[name], timeline.categories[colour], start, dur, depth)
        for each in timeline.tracks
        for name, colour, start, dur, depth in zip(
            *(getattr(each, column).tolist() for column in ("name_id", "category", "start_ns", "dur_ns", "depth")),
            strict=True,
        )
    ]


def training() -> TraceBuilder:
    """Three steps of 100, 120 and 110 us with a product each, launched by an op."""
    trace = TraceBuilder()
    for at, length in ((0, 100), (100, 120), (220, 110)):
        trace.step(at, length)
        frame = trace.frame("train.py(3): step", at + 1, 50)
        trace.frame("train.py(9): forward", at + 2, 30, parent=frame)
        trace.op("aten::mm", at + 5, 20).kernel(TENSOR_GEMM, at + 40, length - 60, launch_us=at + 10)
    return trace


def test_the_step_of_median_length_is_shown_with_everything_in_it() -> None:
    timeline = timeline_of(training())
    assert (timeline.step, timeline.start_ns, timeline.span_ns) == (3, 220 * US, 110 * US)
    assert [(each.name, each.kind) for each in timeline.tracks] == [
        ("phases", "phases"),
        ("idle gaps", "gaps"),
        ("stream 7", "stream"),
        ("steps of the CPU", "phases"),
        ("thread 1000, which launches", "thread"),
    ]
    on_thread = [row[1:] for row in rows(timeline) if row[0] == "thread 1000, which launches"]
    assert on_thread == [
        ("train.py(3): step", "python", 1 * US, 50 * US, 0),
        ("train.py(9): forward", "python", 2 * US, 30 * US, 1),
        ("aten::mm", "op", 5 * US, 20 * US, 2),
        ("cudaLaunchKernel", "call", 10 * US, 5 * US, 3),
    ]
    steps = [row[1:] for row in rows(timeline) if row[0] == "steps of the CPU"]
    assert steps == [("ProfilerStep#2", "annotation", 0, 110 * US, 0)]
    assert [row[1:] for row in rows(timeline) if row[0] == "stream 7"] == [(TENSOR_GEMM, "gemm", 40 * US, 50 * US, 0)]
    assert timeline.left_out == 0


def test_of_an_even_number_of_steps_the_shorter_of_the_middle_is_shown() -> None:
    trace = TraceBuilder().step(0, 30).step(30, 10).step(40, 40).step(80, 20).kernel(POINTWISE, 0, 100)
    assert timeline_of(trace).step == 4


def test_an_arrow_leads_from_each_launch_to_what_it_launched() -> None:
    timeline = timeline_of(training())
    assert timeline.links is not None
    ((from_track, from_item, to_track, to_item),) = zip(
        *(getattr(timeline.links, name).tolist() for name in ("from_track", "from_item", "to_track", "to_item")),
        strict=True,
    )
    source, target = timeline.tracks[from_track], timeline.tracks[to_track]
    assert timeline.names[source.name_id[from_item]] == "cudaLaunchKernel"
    assert timeline.names[target.name_id[to_item]] == TENSOR_GEMM


def test_one_launch_of_a_graph_has_an_arrow_to_each_of_its_kernels() -> None:
    trace = TraceBuilder().step(0, 100)
    launch = trace.call("cudaGraphLaunch", 0, 20)
    for at in range(30, 60, 10):
        trace.kernel(POINTWISE, at, 8, correlation=launch)
    timeline = timeline_of(trace)
    assert timeline.links is not None
    assert timeline.links.to_item.tolist() == [0, 1, 2]
    assert timeline.links.from_item.tolist() == [0, 0, 0]


def test_a_kernel_that_was_launched_in_another_step_has_no_arrow() -> None:
    trace = TraceBuilder().step(0, 100).step(100, 100).step(200, 100)
    trace.kernel(POINTWISE, 150, 20, correlation=trace.call("cudaLaunchKernel", 20, 5))
    assert timeline_of(trace).links is None


def test_items_that_reach_into_the_step_are_cut_at_its_ends() -> None:
    trace = TraceBuilder().range("epoch", 0, 400).kernel(POINTWISE, 90, 20).op("aten::add", 195, 50)
    timeline = timeline_of(trace.step(0, 100).step(100, 100).step(200, 100))
    assert (timeline.start_ns, timeline.span_ns) == (100 * US, 100 * US)
    spans = {name: (start, dur) for _, name, _, start, dur, _ in rows(timeline)}
    assert spans["epoch"] == (0, 100 * US)
    assert spans[POINTWISE] == (0, 10 * US)
    assert spans["aten::add"] == (95 * US, 5 * US)


def test_kernels_that_overlap_on_a_stream_lie_side_by_side() -> None:
    trace = TraceBuilder().kernel(POINTWISE, 0, 20).kernel(TENSOR_GEMM, 10, 20).kernel(POINTWISE, 25, 5)
    assert track(timeline_of(trace), "stream 7").depth.tolist() == [0, 1, 0]


def test_streams_of_several_devices_are_told_apart() -> None:
    trace = TraceBuilder().kernel(POINTWISE, 0, 20).kernel(POINTWISE, 0, 20, device=1).memset(30, 5)
    names = [each.name for each in timeline_of(trace).tracks if each.kind == "stream"]
    assert names == ["GPU 0, stream 7", "GPU 1, stream 7"]


def test_copies_and_sets_have_colours_of_their_own() -> None:
    trace = TraceBuilder().memcpy("HtoD", 0, 20).memset(30, 5).kernel("unheard of", 40, 5)
    colours = [row[2] for row in rows(timeline_of(trace)) if row[0] == "stream 7"]
    assert colours == ["memcpy", "memset", "other"]


def test_a_program_on_the_cpu_has_threads_and_no_streams() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 600).op("aten::mul", 100, 200, thread=2)
    timeline = timeline_of(trace)
    assert [each.kind for each in timeline.tracks] == ["phases", "gaps", "phases", "thread", "thread"]
    assert timeline.links is None


def test_frames_that_old_files_keep_on_a_thread_of_their_own_belong_to_the_launching_thread() -> None:
    trace = TraceBuilder().step(1, 100).kernel(POINTWISE, 20, 20, launch_us=5)
    trace.frame("train.py(3): main", 0, 40, thread=-999)
    (thread,) = (each for each in timeline_of(trace).tracks if each.kind == "thread")
    assert thread.depth.tolist() == [0, 1]


def test_a_trace_of_one_item_has_a_timeline_of_it() -> None:
    timeline = timeline_of(TraceBuilder().kernel(POINTWISE, 5, 7))
    assert (timeline.step, timeline.span_ns) == (None, 7 * US)
    assert [row[1:] for row in rows(timeline) if row[0] == "stream 7"] == [(POINTWISE, "elementwise", 0, 7 * US, 0)]


@pytest.mark.parametrize("trace", [Trace("empty.json"), TraceBuilder().kernel(POINTWISE, 5, 0).trace()])
def test_without_any_time_there_is_no_timeline(trace: Trace) -> None:
    assert step_timeline_of(Rank(trace)) is None


def test_joined_items_say_how_many_they_are_and_have_no_arrows() -> None:
    trace = TraceBuilder()
    for at in range(0, 40, 4):
        trace.kernel(POINTWISE, at, 2, correlation=trace.call("cudaLaunchKernel", at, 1))
    trace.kernel(TENSOR_GEMM, 40, 900_000, launch_us=39)
    whole, joined = timeline_of(trace), timeline_of(trace, max_items=16)
    assert sum(len(each.start_ns) for each in joined.tracks) <= 16
    for before, after in zip(whole.tracks, joined.tracks, strict=True):
        assert after.merged.sum() == len(before.merged)
    assert joined.left_out == sum(int(each.merged[each.merged > 1].sum()) for each in joined.tracks) > 0
    assert whole.links is not None
    assert joined.links is None or len(joined.links.to_item) < len(whole.links.to_item)


def check_nothing_is_missing(rank: Rank, timeline: StepTimeline) -> None:
    """Idle gaps and phases are those of the account in the step; each stream and thread has all that is recorded."""
    span = iv.window(timeline.start_ns, timeline.start_ns + timeline.span_ns)
    parts = rank.account.parts
    for name in parts:
        if name.startswith("idle_"):
            shown = sum(dur for _, _, colour, _, dur, _ in rows(timeline) if colour == name)
            assert shown == iv.total(iv.intersect(parts[name], span))
    gpu, trace = rank.trace.gpu, rank.trace
    start, end = timeline.start_ns, timeline.start_ns + timeline.span_ns
    # What happens once in the step is not analysed, and has no phase.
    analysed_ns = iv.total(iv.intersect(rank.window, iv.window(start, end)))
    assert sum(int(each.dur_ns.sum()) for each in timeline.tracks if each.name == "phases") == analysed_ns
    for tables, kind in (((gpu,), "stream"), ((trace.frames, trace.ranges, trace.ops, trace.calls), "thread")):
        inside = [(t.start_ns < end) & ((t.end_ns > start) | (t.start_ns >= start)) for t in tables]
        kinds = (kind, "steps of the CPU") if kind == "thread" else (kind,)
        shown = [int(each.merged.sum()) for each in timeline.tracks if each.kind in kinds or each.name in kinds]
        assert sum(shown) == sum(int(mask.sum()) for mask in inside)


@relaxed
@given(any_file())
def test_nothing_is_missing_whatever_the_trace(file: File) -> None:
    rank = rank_of(file)
    timeline = step_timeline_of(rank)
    if timeline is None:
        assert not rank.window_ns
    else:
        check_nothing_is_missing(rank, timeline)


@relaxed
@given(any_file())
def test_items_at_one_depth_of_a_track_never_overlap(file: File) -> None:
    timeline = step_timeline_of(rank_of(file))
    for each in timeline.tracks if timeline else ():
        for depth in set(each.depth.tolist()):
            start, dur = each.start_ns[each.depth == depth], each.dur_ns[each.depth == depth]
            assert (start[1:] >= (start + dur)[:-1]).all()


def three_kernels_launched_at_once() -> File:
    """A file rounded to microseconds: three kernels with one start and one time of launch, the last a collective."""
    trace = TraceBuilder().step(0, 3000)
    for name in (TENSOR_GEMM, TENSOR_GEMM, ALL_REDUCE):
        trace.kernel(name, 30, 30, launch_us=0)
    return trace.to_dict()


def two_threads_that_launch_as_much() -> File:
    """Two threads with one launch each, the first of which the file may name last."""
    trace = TraceBuilder().step(0, 3000)
    trace.kernel(TENSOR_GEMM, 30, 30, correlation=trace.call("cudaLaunchKernel", 0, 2))
    trace.kernel(ALL_REDUCE, 90, 60, correlation=trace.call("cudaLaunchKernel", 61, 2, thread=2))
    return trace.to_dict()


# Rows that are at the same time in another order: the cause of the idle time before them is the same.
@relaxed
@example(two_threads_that_launch_as_much(), Random(0))
@example(two_threads_that_launch_as_much(), Random(5))
@example(three_kernels_launched_at_once(), Random(1))
@example(three_kernels_launched_at_once(), Random(2))
@given(lawful_file(), st.randoms(use_true_random=False))
def test_neither_the_order_of_events_nor_the_time_of_day_changes_the_timeline(file: File, random: st.Random) -> None:
    timeline = step_timeline_of(rank_of(file))
    shuffled = file | {"traceEvents": random.sample(file["traceEvents"], len(file["traceEvents"]))}
    again, later = step_timeline_of(rank_of(shuffled)), step_timeline_of(rank_of(file, shift_us=10_000_000))
    if timeline is None:
        assert (again, later) == (None, None)
        return
    assert again is not None
    assert later is not None
    # Of items at the same time on a stream the first in the file has the first lane.
    without_depth = [sorted(row[:-1] for row in rows(each)) for each in (timeline, again, later)]
    assert without_depth[0] == without_depth[1] == without_depth[2]
    assert (again.step, again.start_ns) == (timeline.step, timeline.start_ns)
    assert later.start_ns == timeline.start_ns + 10_000_000 * US


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name",
    ["v100-legacy-workers0", "h100-transformer-steps", "b200-eager", "pg509-vit-graph-ns", "mi300x-resnet18-ddp"],
)
def test_streams_of_a_real_trace_have_as_many_items_as_the_file(corpus: Path, name: str) -> None:
    path = corpus / f"{name}.json.gz"
    rank = Rank(read_once(path))
    timeline = step_timeline_of(rank)
    assert timeline is not None
    check_nothing_is_missing(rank, timeline)
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, strict=False)["traceEvents"]
    kinds = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if str(e.get("cat", "")).lower() in kinds and "dur" in e]
    start = timeline.start_ns - rank.clock_shift.shift_ns
    inside = sum(b * 1000 > start and a * 1000 < start + timeline.span_ns for a, b in spans)
    shown = [int(each.merged.sum()) for each in timeline.tracks if each.kind == "stream"]
    assert sum(shown) == inside
    assert np.all([each.start_ns.min() >= 0 for each in timeline.tracks])
