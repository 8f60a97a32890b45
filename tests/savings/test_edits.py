"""Edits: what a fix removes from a trace, and how long the step takes then."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import lawful_file, rank_of

from perfdoctor.rank import Rank
from perfdoctor.savings import edits
from perfdoctor.savings.apply_edits import LagChanges, apply_edits
from perfdoctor.savings.edits import Edit
from perfdoctor.savings.graph_edges import ACTIVITY, DEPENDENCY, SECOND_DEPENDENCY
from perfdoctor.savings.graph_nodes import BOUNDARY, CALL_END, CALL_START, ITEM_END, ITEM_START
from perfdoctor.savings.replay_graph import NEVER, Graph, graph_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.rows import CallRows, GpuRows

KERNEL, POINTWISE = "ampere_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4>"


def step_us(trace: Trace, *changes: Edit, strength: float = 1.0) -> float:
    rank = Rank(trace)
    graph = graph_of(rank.trace, rank.window)
    return graph.span_ns(graph.node_times(apply_edits(graph, [(edit, strength) for edit in changes]))) / 1000


def gpu_bound() -> Trace:
    """Two kernels of 400 us that the CPU launches at once and waits for, from 10 to 810 us; it ends at 1000."""
    trace = TraceBuilder().step(0, 1000)
    trace.kernel(KERNEL, 10, 400, launch_us=0).kernel(POINTWISE, 410, 400, launch_us=6)
    trace.call("cudaStreamSynchronize", 20, 790)
    trace.call("cudaGetDevice", 995, 5)
    return trace.trace()


def cpu_bound() -> Trace:
    """Four kernels of 10 us, each launched from an op of 200 us of its own; the CPU waits for the last."""
    trace = TraceBuilder().step(0, 1000)
    for i in range(4):
        trace.op("aten::add", 200 * i, 200).kernel(POINTWISE, 200 * i + 110, 10, launch_us=200 * i + 100)
    trace.call("cudaStreamSynchronize", 800, 10)
    trace.call("cudaGetDevice", 995, 5)
    return trace.trace()


def test_a_step_that_waits_for_kernels_saves_what_the_kernels_save() -> None:
    trace = gpu_bound()
    assert step_us(trace, edits.scale_durations(GpuRows(trace.gpu, np.array([0, 1])), 0.5)) == 1000 - 400
    assert step_us(trace, edits.scale_durations(GpuRows(trace.gpu, np.array([True, False])), 0.5)) == 1000 - 200


def test_an_edit_of_half_strength_saves_half() -> None:
    trace = gpu_bound()
    assert step_us(trace, edits.scale_durations(GpuRows(trace.gpu, np.array([0])), 0.5), strength=0.5) == 1000 - 100


def test_kernels_never_get_slower() -> None:
    trace = gpu_bound()
    assert step_us(trace, edits.set_durations(GpuRows(trace.gpu, np.array([0])), 900_000.0)) == 1000
    assert (
        step_us(trace, edits.set_durations(GpuRows(trace.gpu, np.array([0, 1])), np.array([np.nan, 100_000.0])))
        == 1000 - 300
    )


def test_of_two_edits_of_one_kernel_the_shorter_duration_counts() -> None:
    trace = gpu_bound()
    slower, faster = (edits.scale_durations(GpuRows(trace.gpu, np.array([0])), share) for share in (0.25, 0.5))
    assert step_us(trace, slower, faster) == step_us(trace, faster, slower) == 1000 - 200
    assert step_us(trace, slower | faster) == 1000 - 200


def test_an_op_whose_only_item_is_removed_takes_no_time() -> None:
    trace = cpu_bound()
    assert step_us(trace, edits.remove_items(trace, GpuRows(trace.gpu, np.array([1])))) == 1000 - 200


def test_an_op_that_launches_other_items_remains() -> None:
    builder = TraceBuilder().step(0, 1000).op("aten::add", 0, 200)
    builder.kernel(POINTWISE, 20, 5, launch_us=10).kernel(POINTWISE, 120, 5, launch_us=110)
    builder.call("cudaStreamSynchronize", 200, 10)
    builder.call("cudaGetDevice", 995, 5)
    trace = builder.trace()
    assert step_us(trace, edits.remove_items(trace, GpuRows(trace.gpu, np.array([1])))) == 1000 - 5  # of the call


def test_fused_kernels_are_launched_once() -> None:
    trace = cpu_bound()
    assert (
        step_us(trace, edits.fuse(trace, GpuRows(trace.gpu, np.arange(4)), 0.5, GpuRows(trace.gpu, np.array([0]))))
        == 1000 - 3 * 200 + 15
    )
    # The wait of the CPU now begins before the last kernel ends, which starts 10 us after its launch and takes 5 us.


def test_without_a_wait_the_cpu_runs_ahead() -> None:
    trace = gpu_bound()
    sync = np.flatnonzero(trace.match_rows(trace.calls, "Synchronize"))
    # The call then takes as long as others, and the GPU ends at 810.
    assert step_us(trace, edits.remove_waits(CallRows(trace.calls, sync))) == 810


def test_removed_cpu_time_shortens_the_step_of_its_thread() -> None:
    builder = TraceBuilder().step(0, 1000)
    builder.kernel(KERNEL, 610, 200, launch_us=600)
    builder.call("cudaStreamSynchronize", 610, 200)
    builder.call("cudaGetDevice", 995, 5)
    builder.call("cudaGetDevice", 0, 5)
    trace = builder.trace()
    thread, spans = trace.calls.thread[:1], (np.array([100_000]), np.array([500_000]))
    gone = edits.remove_cpu_time(thread, spans, iv.window(0, 10**6))
    half = edits.remove_cpu_time(thread, spans, iv.window(0, 10**6), 0.5)
    assert step_us(trace, gone) == 600
    assert step_us(trace, half) == 800
    assert step_us(trace, gone, half) == 600  # no time is removed twice
    assert step_us(trace, edits.remove_cpu_time(thread + 1, spans, iv.window(0, 10**6))) == 1000


def test_shorter_launches_do_not_shorten_kernels() -> None:
    trace = cpu_bound()
    launches = np.flatnonzero(trace.match_rows(trace.calls, "Launch"))
    # The first call of the thread has nothing before it.
    assert (
        step_us(trace, edits.shorten_launches(CallRows(trace.calls, launches), iv.window(0, 10**6)))
        == 1000 - 3 * 200 - 5
    )
    assert (
        step_us(trace, edits.shorten_launches(CallRows(trace.calls, launches), iv.window(0, 10**6), 0.5))
        == 1000 - 302.5
    )


def test_copies_that_do_not_block_take_the_cpu_no_time() -> None:
    builder = TraceBuilder().step(0, 1000)
    builder.call("cudaGetDevice", 0, 5)
    builder.kernel(KERNEL, 20, 380, launch_us=10)
    builder.memcpy("HtoD", 402, 20, correlation=builder.call("cudaMemcpyAsync", 100, 305))
    builder.call("cudaStreamSynchronize", 410, 20)
    builder.call("cudaGetDevice", 995, 5)
    trace = builder.trace()
    copy = np.flatnonzero(trace.match_rows(trace.calls, "Memcpy"))
    assert step_us(trace, edits.remove_blocking(CallRows(trace.calls, copy), np.array([430_000]))) == 1000 - 330


def test_removed_calls_take_no_time() -> None:
    builder = TraceBuilder().step(0, 1000)
    builder.kernel(KERNEL, 10, 20, launch_us=0)
    builder.call("cudaMalloc", 100, 300)
    builder.kernel(KERNEL, 510, 20, launch_us=500)
    builder.call("cudaGetDevice", 995, 5)
    trace = builder.trace()
    assert step_us(trace, edits.remove_calls(CallRows(trace.calls, trace.match_rows(trace.calls, "Malloc")))) == 700


def test_rows_outside_the_window_change_nothing() -> None:
    builder = TraceBuilder().kernel(KERNEL, 0, 100, launch_us=0).step(1000, 1000)
    builder.kernel(KERNEL, 1010, 500, launch_us=1000)
    builder.call("cudaStreamSynchronize", 1020, 500)
    builder.call("cudaGetDevice", 1995, 5)
    trace = builder.trace()
    assert step_us(trace, edits.remove_items(trace, GpuRows(trace.gpu, np.array([0])))) == 1000


ONE_ITEM = GpuRows(gpu_bound().gpu, [1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"items": ONE_ITEM},
        {"items": ONE_ITEM, "dur_ns": np.array([-1])},
        {"removed_cpu_time": (edits.RemovedCpuTime(0, iv.EMPTY, 1.5),)},
    ],
)
def test_an_edit_that_cannot_be_applied_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"edit|items"):
        Edit(**wrong)


@st.composite
def _edits(draw: st.DrawFn, rank: Rank) -> Edit:
    trace = rank.trace
    begun = np.flatnonzero(iv.contains(rank.window, trace.gpu.start_ns)).tolist()
    called = np.flatnonzero(iv.contains(rank.window, trace.calls.start_ns)).tolist()
    items = np.array(draw(st.lists(st.sampled_from(begun), unique=True)) if begun else [], np.int64)
    calls = np.array(draw(st.lists(st.sampled_from(called), unique=True)) if called else [], np.int64)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return edits.scale_durations(GpuRows(trace.gpu, items), draw(st.floats(0, 1)))
    if kind == 1:
        return edits.remove_items(trace, GpuRows(trace.gpu, items))
    if kind == 2:
        return edits.fuse(trace, GpuRows(trace.gpu, items), draw(st.floats(0, 1)), GpuRows(trace.gpu, items[:1]))
    if kind == 3:
        return edits.remove_waits(CallRows(trace.calls, calls))
    if kind == 4:
        return edits.shorten_launches(CallRows(trace.calls, calls), rank.window, draw(st.floats(0, 1)))
    return edits.remove_blocking(CallRows(trace.calls, calls), trace.calls.end_ns[calls] + 1000)


@given(lawful_file(), st.data(), st.floats(0, 1))
def test_no_edit_and_no_greater_strength_makes_the_window_longer(
    file: dict[str, Any], data: st.DataObject, strength: float
) -> None:
    rank = rank_of(file)
    first, second = data.draw(_edits(rank)), data.draw(_edits(rank))
    graph = graph_of(rank.trace, rank.window)
    spans = [
        graph.span_ns(graph.node_times(apply_edits(graph, changes)))
        for changes in ([], [(first, strength)], [(first, 1.0)], [(first, 1.0), (second, strength)])
    ]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] == rank.window_ns


def lags_by_definition(graph: Graph, changes: list[tuple[Edit, float]]) -> list[list[int]]:
    """The lags after some edits, node by node, each edit looked up for each node: slow, and short enough to be read."""
    lags: list[list[int]] = graph.lag_ns.tolist()
    for node, lag in enumerate(lags):
        on_gpu = graph.nodes.kind[node] in (ITEM_START, ITEM_END)
        for edit, strength in changes:
            (shorten_item if on_gpu else unblock_call)(graph, node, lag, edit, strength)
        lag[ACTIVITY] -= min(removed_ns(graph, node, changes), max(lag[ACTIVITY], 0))
    return lags


def begins_inside(graph: Graph, node: int) -> bool:
    return bool(graph.nodes.time_ns[node] > graph.nodes.time_ns[graph.nodes.boundary[0]])


def shorten_item(graph: Graph, node: int, lag: list[int], edit: Edit, strength: float) -> None:
    nodes, row = graph.nodes, graph.nodes.row[node]
    recorded_ns = int(graph.lag_ns[node, ACTIVITY])
    if nodes.kind[node] == ITEM_END:
        for dur_ns in edit.dur_ns[edit.items.index == nodes.item[row]].tolist():
            lag[ACTIVITY] = min(lag[ACTIVITY], recorded_ns - int(max(recorded_ns - dur_ns, 0) * strength))
    dropped = nodes.launch[row] >= 0 and nodes.call[nodes.launch[row]] in edit.dropped_calls.index
    if dropped and strength == 1 and begins_inside(graph, nodes.item_start[row]):
        lag[:] = [min(each, 0) for each in lag]


def unblock_call(graph: Graph, node: int, lag: list[int], edit: Edit, strength: float) -> None:
    nodes = graph.nodes
    if nodes.kind[node] != CALL_END or not strength:
        return
    call = nodes.call[nodes.row[node]]
    if call in edit.dropped_calls.index or call in edit.unblocked_calls.index:
        lag[DEPENDENCY] = lag[SECOND_DEPENDENCY] = NEVER
    if call in edit.dropped_calls.index and strength == 1 and begins_inside(graph, node):
        lag[ACTIVITY] = min(lag[ACTIVITY], 0)


def removed_ns(graph: Graph, node: int, changes: list[tuple[Edit, float]]) -> int:
    """What edits take of an activity of the CPU: of each instant the largest share, summed share by share."""
    nodes, predecessor = graph.nodes, int(graph.predecessor[node, ACTIVITY])
    worker = predecessor if nodes.kind[node] == BOUNDARY else node
    if predecessor < 0 or nodes.kind[worker] not in (CALL_START, CALL_END):
        return 0
    since_ns = int(max(nodes.time_ns[predecessor], nodes.time_ns[nodes.boundary[0]]))
    until_ns = int(nodes.time_ns[node])
    removed = [
        ((1 - each.remaining_share) * strength, each.intervals.tolist())
        for edit, strength in changes
        for each in edit.removed_cpu_time
        if each.thread == nodes.thread[nodes.row[worker]]
    ]
    cuts = sorted({ns for _, spans in removed for span in spans for ns in span if since_ns < ns < until_ns})
    by_share: dict[float, int] = {}
    for start_ns, end_ns in pairwise([since_ns, *cuts, until_ns]):
        share = max((s for s, spans in removed if any(a <= start_ns and end_ns <= b for a, b in spans)), default=0.0)
        by_share[share] = by_share.get(share, 0) + max(end_ns - start_ns, 0)
    return int(sum(by_share[share] * share for share in sorted(by_share, reverse=True)))


@given(lawful_file(), st.data())
def test_the_lags_after_some_edits_are_those_of_the_definition(file: dict[str, Any], data: st.DataObject) -> None:
    rank = rank_of(file)
    graph = graph_of(rank.trace, rank.window)
    strengths = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)
    changes = [(data.draw(_edits(rank)), data.draw(strengths)) for _ in range(3)]
    edited = LagChanges(graph, changes)
    for numbers in data.draw(st.lists(st.permutations(range(3)), min_size=1, max_size=4)):
        for count in (1, 2, 3):
            some = numbers[:count]
            expected = lags_by_definition(graph, [changes[number] for number in some])
            assert edited.lag_ns(some).tolist() == expected


def test_a_variant_of_an_edit_is_an_edit_without_variants() -> None:
    rows = GpuRows(gpu_bound().gpu, np.array([0]))
    ranged = edits.set_duration_range(rows, *(np.array([ns], np.float64) for ns in (300_000, 200_000, 100_000)))
    assert [variant.dur_ns.tolist() for variant in ranged.variants()] == [[200_000], [300_000], [100_000]]
    with pytest.raises(ValueError, match="no variants of its own"):
        Edit(at_least=ranged)
    with pytest.raises(TypeError, match="is an Edit, not"):
        Edit(at_most=rows)  # type: ignore[arg-type]
