"""Every irregularity of real traces on a small one: what is read from it, and what is left alone beside it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.testing import TraceBuilder, collective
from perfdoctor.trace import KERNEL, MEMCPY, MEMSET, Trace, parse, read

pytestmark = pytest.mark.usefixtures("each_reader")

Rows = Callable[[Trace, str], list[dict[str, Any]]]
Content = Callable[[Trace], dict[str, Any]]


def ordinary() -> TraceBuilder:
    """Two steps with everything in them that a profiler records."""
    b = TraceBuilder(rank=1, world_size=4)
    b.step(0, 1000).step(1000, 900.5)
    b.op("aten::linear", 10, 50, shapes=[[8, 16], [4, 16]], types=["float", "float"])
    b.op("aten::addmm", 15, 40, strides=[[16, 1]], concrete=["", "1"])
    b.range("Optimizer.step#SGD.step", 600, 100)
    b.kernel("ampere_sgemm_128x64_nn", 100, 400.125, launch_us=20)
    b.memcpy("HtoD", 500, 10, size_bytes=4096, stream=20, launch_us=70)
    b.memset(520, 1.001, launch_us=80)
    b.call("cudaStreamSynchronize", 90, 430)
    b.gpu_range("ProfilerStep#0", 100, 421)
    b.sync("Stream Sync", 500, 20, stream=7, correlation=4)
    caller = b.frame("train.py(3): main", 0, 2000)
    b.frame("train.py(9): step", 5, 900, parent=caller)
    return b


def one(event: dict[str, Any], **top: Any) -> Trace:
    """The trace of one event beside an ordinary range."""
    return TraceBuilder().range("there", 0, 1).header(**top).event(**event).trace()


def kernel(**changes: Any) -> dict[str, Any]:
    """A kernel as the profiler writes it."""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 5,
        "dur": 2,
        "args": {"device": 0, "stream": 7, "correlation": 9},
    } | changes


def test_an_ordinary_trace_is_read_whole(rows: Rows) -> None:
    trace = ordinary().trace()
    assert [len(table) for table in trace.tables] == [3, 4, 2, 3, 1, 2, 1]
    assert trace.events == 16
    gpu = rows(trace, "gpu")
    assert [(item["name"], item["kind"], item["start_ns"], item["end_ns"]) for item in gpu] == [
        ("ampere_sgemm_128x64_nn", KERNEL, 100_000, 500_125),
        ("Memcpy HtoD (Pageable -> Device)", MEMCPY, 500_000, 510_000),
        ("Memset (Device)", MEMSET, 520_000, 521_001),
    ]
    assert [(item["device"], item["stream"], item["call"], item["op"], item["bytes"]) for item in gpu] == [
        (0, 7, 0, 1, -1),
        (0, 20, 1, -1, 4096),
        (0, 7, 2, -1, 1 << 20),
    ]
    assert [call["op"] for call in rows(trace, "calls")] == [1, -1, -1, -1]
    linear, addmm = rows(trace, "ops")
    assert (linear["parent"], addmm["parent"]) == (-1, 0)
    assert (linear["dims"], linear["types"], linear["strides"]) == ("[[8,16],[4,16]]", '["float","float"]', None)
    assert (addmm["dims"], addmm["strides"], addmm["concrete"]) == (None, "[[16,1]]", '["","1"]')
    assert [frame["parent"] for frame in rows(trace, "frames")] == [-1, 0]
    assert rows(trace, "syncs")[0]["correlation"] == 4
    assert trace.device.name == "NVIDIA A100-SXM4-80GB"
    assert (trace.device.capability, trace.device.sm_count, trace.device.memory_bytes) == ((8, 0), 108, 85_000_000_000)
    assert (trace.vendor, trace.rank, trace.world_size, trace.base_ns) == ("nvidia", 1, 4, 0)
    assert (trace.complete, trace.dropped, trace.warnings) == (True, 0, ())


def test_sequence_numbers_join_forward_ops_and_backward_nodes(rows: Rows) -> None:
    b = TraceBuilder().op("aten::linear", 0, 9, sequence=5).op("aten::empty", 10, 1)
    b.op("autograd::engine::evaluate_function: AddmmBackward0", 20, 9, thread=2, sequence=5)
    legacy = {"sequence number": 6, "Fwd thread id": 0}
    b.event(ph="X", cat="Operator", name="aten::mul", pid=1, tid=1, ts=30, dur=1, args=legacy)
    assert [op["sequence"] for op in rows(b.trace(), "ops")] == [5, -1, 5, 6]


@pytest.mark.parametrize("value", [None, "x", 1.5, [1], {}, True])
def test_a_sequence_number_that_is_none_is_left_out(rows: Rows, value: object) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 1, "tid": 1, "ts": 3, "dur": 1}
    assert [op["sequence"] for op in rows(one({**event, "args": {"Sequence number": value}}), "ops")] == [-1]


def test_the_number_of_a_collective_is_no_sequence_number_of_autograd(rows: Rows) -> None:
    comm = collective("allreduce", sequence=17)
    trace = TraceBuilder().op("record_param_comms", 0, 9, comm=comm, sequence=3).op("aten::mul", 20, 1).trace()
    assert [op["sequence"] for op in rows(trace, "ops")] == [3, -1]
    assert rows(trace, "comms")[0]["sequence"] == 17


def test_a_trace_cannot_be_changed() -> None:
    trace = ordinary().trace()
    for table in trace.tables:
        with pytest.raises(ValueError, match="read-only"):
            table.start_ns[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            table.name[0] = 1


def test_tables_are_sorted_by_start_and_then_longest_first(rows: Rows) -> None:
    trace = TraceBuilder().op("inner", 5, 2).op("later", 9, 1).op("outer", 5, 3).trace()
    assert [op["name"] for op in rows(trace, "ops")] == ["outer", "inner", "later"]


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_the_place_of_the_events_and_white_space_change_nothing(
    content: Content, place: str, indent: int | None
) -> None:
    whole = ordinary().to_dict()
    events = {"traceEvents": whole.pop("traceEvents")}
    device = {"deviceProperties": whole.pop("deviceProperties")}
    order = {"first": events | device | whole, "middle": device | events | whole, "last": device | whole | events}
    text = json.dumps(order[place], indent=indent).encode()
    assert content(parse(text, "x")) == content(ordinary().trace())


def test_a_bare_list_is_a_trace_without_device(content: Content) -> None:
    events = ordinary().to_dict()["traceEvents"]
    bare = content(parse(json.dumps(events).encode(), "x"))
    whole = content(ordinary().trace())
    assert bare.pop("device").name is None
    assert (bare.pop("rank"), bare.pop("world_size")) == (None, None)
    assert bare == {key: value for key, value in whole.items() if key in bare}


def test_legacy_categories_and_spellings_are_read_alike(content: Content) -> None:
    text = ordinary().to_bytes().decode()
    for now, then in {
        '"cat": "cpu_op"': '"cat": "Operator"',
        '"cat": "kernel"': '"cat": "Kernel"',
        '"cat": "gpu_memcpy"': '"cat": "Memcpy"',
        '"cat": "gpu_memset"': '"cat": "Memset"',
        '"cat": "cuda_runtime"': '"cat": "Runtime"',
        '"External id"': '"external id"',
        '"Input Dims"': '"Input dims"',
        '"tid": 7,': '"tid": "stream 7",',
    }.items():
        assert now in text
        text = text.replace(now, then)
    trace, legacy = ordinary().trace(), parse(text.encode(), "x")
    expected = content(trace)
    # The thread of the GPU's own annotations is the only place where the row's name shows.
    expected["gpu_ranges"][0]["thread"] = "0/stream 7"
    assert content(legacy) == expected


def test_a_legacy_stream_is_read_from_the_row(rows: Rows) -> None:
    items = rows(one(kernel(tid="stream 13", args={"device": 2})), "gpu")
    assert [(item["stream"], item["device"]) for item in items] == [(13, 2)]
    items = rows(one(kernel(pid=3, tid=13, args={})), "gpu")
    assert [(item["stream"], item["device"], item["correlation"]) for item in items] == [(13, 3, -1)]


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#12",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.step#Adam.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        "nccl:all_reduce",
    ],
)
def test_annotations_among_the_operators_become_ranges(rows: Rows, name: str) -> None:
    trace = TraceBuilder().op("aten::mm", 1, 1).op(name, 0, 5).trace()
    assert [each["name"] for each in rows(trace, "ranges")] == [name]
    assert [(each["name"], each["parent"]) for each in rows(trace, "ops")] == [("aten::mm", -1)]


@pytest.mark.parametrize("name", ["aten::mm", "detach", "AddmmBackward0", "my::Optimizer.step", "c10d::allreduce_"])
def test_operators_stay_operators(rows: Rows, name: str) -> None:
    trace = TraceBuilder().op("aten::mm", 1, 1).op(name, 0, 5).range("mine", 0, 9).trace()
    assert [each["name"] for each in rows(trace, "ops")] == [name, "aten::mm"]
    assert [each["name"] for each in rows(trace, "ranges")] == ["mine"]


def test_a_trace_without_operators_has_kernels_without_operators(rows: Rows) -> None:
    trace = TraceBuilder().kernel("k", 10, 5, launch_us=1).trace()
    assert [(item["call"], item["op"]) for item in rows(trace, "gpu")] == [(0, -1)]
    assert trace.warnings == ()


def test_gpu_items_without_a_launch_are_kept_and_counted(rows: Rows) -> None:
    trace = TraceBuilder().kernel("before", 0, 5).kernel("within", 10, 5, launch_us=1).trace()
    assert [item["call"] for item in rows(trace, "gpu")] == [-1, 0]
    assert trace.warnings == (
        "1 of 2 GPU items have no launching call in the file: "
        "they were launched before the recording began, or launches were not recorded",
    )


def test_kernels_that_start_before_their_launch_stay_linked(rows: Rows) -> None:
    trace = TraceBuilder().kernel("skewed", 5, 5, launch_us=10).trace()
    assert [item["call"] for item in rows(trace, "gpu")] == [0]
    assert trace.warnings == ("1 of 1 launched GPU item start before their launch: the clocks of CPU and GPU disagree",)


def test_one_graph_launch_starts_many_kernels(rows: Rows) -> None:
    b = TraceBuilder().op("model", 0, 9)
    graph = b.call("cudaGraphLaunch", 1)
    for start in (10, 12, 14):
        b.kernel("k", start, 5, correlation=graph)
    trace = b.trace()
    assert [(item["call"], item["op"]) for item in rows(trace, "gpu")] == [(0, 0)] * 3
    assert trace.warnings == ()


def test_of_several_calls_with_one_id_the_latest_before_the_item_is_taken(rows: Rows) -> None:
    b = TraceBuilder()
    for start in (0, 100, 200):
        b.call("cudaLaunchKernel", start, correlation=5)
    b.kernel("k", 150, 5, correlation=5).kernel("k", 250, 5, correlation=5).kernel("k", 0, 5, correlation=5)
    assert [item["call"] for item in rows(b.trace(), "gpu")] == [0, 1, 2]


def test_an_id_of_zero_or_none_links_nothing(rows: Rows) -> None:
    b = TraceBuilder()
    b.call("cudaLaunchKernel", 0, correlation=0)
    b.kernel("k", 10, 5, correlation=0).event(**kernel(args={"stream": 7}))
    assert [item["call"] for item in rows(b.trace(), "gpu")] == [-1, -1]


def test_numbers_in_arguments_may_be_texts(rows: Rows) -> None:
    trace = one(kernel(cat="gpu_memcpy", args={"device": "1", "stream": "0x10", "correlation": "12", "bytes": "128"}))
    item = rows(trace, "gpu")[0]
    assert (item["device"], item["stream"], item["correlation"], item["bytes"]) == (1, 16, 12, 128)


def test_arguments_that_are_no_numbers_are_unknown(rows: Rows) -> None:
    trace = one(kernel(cat="gpu_memcpy", args={"device": [], "stream": None, "correlation": "x", "bytes": 1.5}))
    item = rows(trace, "gpu")[0]
    assert (item["device"], item["stream"], item["correlation"], item["bytes"]) == (0, 7, -1, -1)


@pytest.mark.parametrize("args", [None, [], "text", 3])
def test_arguments_of_another_kind_are_as_good_as_none(rows: Rows, args: object) -> None:
    assert len(rows(one(kernel(args=args)), "gpu")) == 1


def test_an_operator_is_found_by_its_external_id_when_the_launch_is_missing(rows: Rows) -> None:
    b = TraceBuilder().op("aten::mm", 0, 5).op("aten::add", 5, 5)
    b.event(**kernel(args={"correlation": 900, "External id": 2}))
    assert [item["op"] for item in rows(b.trace(), "gpu")] == [1]


def test_an_external_id_that_repeats_the_correlation_names_no_operator(rows: Rows) -> None:
    b = TraceBuilder().op("aten::mm", 0, 5).op("aten::add", 5, 5)
    b.event(**kernel(args={"correlation": 2, "External id": 2}))
    assert [item["op"] for item in rows(b.trace(), "gpu")] == [-1]


def _launched_by_external_id(kernel_id: int, *, correlation: int | None = None) -> TraceBuilder:
    """Two ops, a launch in the second one that calls its id an external id, and a kernel with such an id."""
    b = TraceBuilder().op("aten::mm", 0, 5).op("aten::add", 5, 5)
    b.event(ph="X", cat="cuda_runtime", name="hipExtModuleLaunchKernel", pid=1000, tid=1000, ts=6, dur=1,
            args={"External id": 81} | ({} if correlation is None else {"correlation": correlation}))  # fmt: skip
    return b.event(**kernel(ts=20, args={"External id": kernel_id}))


def test_launches_are_found_by_external_ids_where_no_event_has_a_correlation(rows: Rows) -> None:
    (item,) = rows(_launched_by_external_id(81).trace(), "gpu")
    assert (item["call"], item["op"]) == (0, 1)


@pytest.mark.parametrize(("kernel_id", "correlation"), [(80, None), (1, None), (81, 81)])
def test_an_external_id_that_is_no_launch_or_an_op_or_beside_correlations_launches_nothing(
    rows: Rows, kernel_id: int, correlation: int | None
) -> None:
    (item,) = rows(_launched_by_external_id(kernel_id, correlation=correlation).trace(), "gpu")
    assert item["call"] == -1


def test_an_operator_of_another_thread_is_not_the_caller(rows: Rows) -> None:
    trace = TraceBuilder().op("aten::mm", 0, 50, thread=2).kernel("k", 10, 5, launch_us=1, thread=1).trace()
    assert rows(trace, "calls")[0]["op"] == -1
    trace = TraceBuilder().op("aten::mm", 0, 50, thread=2).kernel("k", 10, 5, launch_us=1, thread=2).trace()
    assert rows(trace, "calls")[0]["op"] == 0


def merged(*ranks: int) -> Trace:
    b = TraceBuilder(device=None)
    for rank in ranks:
        pid = rank * 10**8 + 500
        b.event(ph="X", cat="cpu_op", name=f"op{rank}", pid=pid, tid=1, ts=0, dur=9, args={"External id": 1})
        b.event(
            ph="X", cat="cuda_runtime", name="cudaLaunchKernel", pid=pid, tid=1, ts=1, dur=2, args={"correlation": 3}
        )
        b.event(**kernel(name=f"k{rank}", pid=rank * 10**8, ts=10 + rank, args={"stream": 7, "correlation": 3}))
    return b.trace()


def test_ranks_merged_into_one_file_are_linked_each_for_itself(rows: Rows) -> None:
    trace = merged(0, 1, 2)
    calls, ops = rows(trace, "calls"), rows(trace, "ops")
    for rank, item in enumerate(rows(trace, "gpu")):
        assert calls[item["call"]]["thread"] == f"{rank * 10**8 + 500}/1"
        assert ops[item["op"]]["name"] == f"op{rank}"
    assert trace.warnings == ("the file holds 3 ranks merged into one; they are analysed as one",)


@pytest.mark.parametrize("rank", [0, 3])
def test_one_rank_is_not_merged(rank: int) -> None:
    trace = merged(rank)
    assert trace.gpu.call.tolist() == [0]
    assert trace.warnings == ()


def test_a_file_without_gpu_events_keeps_what_it_says_of_the_device() -> None:
    trace = TraceBuilder().op("aten::mm", 0, 5).trace()
    assert len(trace.gpu) == 0
    assert trace.device.name == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize("listed", [[], None, {}, "x", [None], [3]])
def test_device_properties_that_say_nothing_are_unknown(listed: object) -> None:
    device = TraceBuilder(device=None).header(deviceProperties=listed).op("aten::mm", 0, 5).trace().device
    assert (device.name, device.capability, device.sm_count, device.memory_bytes) == (None, None, None, None)


def test_the_device_is_the_one_that_most_items_ran_on() -> None:
    listed = [{"id": i, "name": f"NVIDIA H{i}00"} for i in range(3)]
    b = TraceBuilder().header(deviceProperties=listed)
    b.kernel("k", 0, 1, device=2).kernel("k", 1, 1, device=2).kernel("k", 2, 1, device=1)
    assert b.trace().device.name == "NVIDIA H200"
    assert (
        TraceBuilder().header(deviceProperties=listed).kernel("k", 0, 1, device=9).trace().device.name == "NVIDIA H000"
    )


@pytest.mark.parametrize(
    ("device", "call", "kernel_name", "vendor"),
    [
        ("AMD Instinct MI300X", "cudaLaunchKernel", "k", "amd"),
        ("AMD Radeon Graphics", "hipLaunchKernel", "k", "amd"),
        ("", "hipExtModuleLaunchKernel", "k", "amd"),
        ("Graphics Device", "cudaLaunchKernel", "k", "nvidia"),
        ("", "cuLaunchKernel", "k", "nvidia"),
        ("Tesla V100-SXM2-16GB", "INVALID", "k", "nvidia"),
        ("", "INVALID", "Cijk_Ailk_Bljk_SB_MT64x64x16", "amd"),
        ("", "INVALID", "k", None),
    ],
)
def test_the_vendor_is_told_by_name_then_calls_then_kernels(
    device: str, call: str, kernel_name: str, vendor: str | None
) -> None:
    b = TraceBuilder(device=device, capability=(9, 4))
    correlation = b.call(call, 0)
    trace = b.kernel(kernel_name, 10, 1, correlation=correlation).trace()
    assert trace.vendor == vendor
    assert trace.device.name == (device or None)
    assert trace.device.capability == (9, 4)


@pytest.mark.parametrize(
    ("info", "rank", "world_size"),
    [
        ({"rank": 3, "world_size": 8}, 3, 8),
        ({"rank": "3"}, 3, None),
        ({"rank": -1, "world_size": None}, None, None),
        ({"rank": 2**62, "world_size": 1e300}, None, None),
        ([], None, None),
        (None, None, None),
    ],
)
def test_the_rank_is_what_the_file_says(info: object, rank: int | None, world_size: int | None) -> None:
    trace = TraceBuilder().header(distributedInfo=info).op("aten::mm", 0, 1).trace()
    assert (trace.rank, trace.world_size) == (rank, world_size)


def test_the_base_time_is_kept_and_not_added() -> None:
    trace = TraceBuilder().header(baseTimeNanoseconds=1_700_000_000_000_000_000).op("aten::mm", 5, 1).trace()
    assert (trace.base_ns, trace.ops.start_ns.tolist()) == (1_700_000_000_000_000_000, [5000])
    assert TraceBuilder().header(displayTimeUnit="ns").op("aten::mm", 5, 1).trace().ops.start_ns.tolist() == [5000]


def test_nothing_unknown_is_kept_of_the_file() -> None:
    secret = "hunter2"
    b = TraceBuilder(rank=0).header(environment={"AWS_SECRET": secret}, traceName=secret, host_name=secret)
    b.event(ph="X", cat="kernel", name="k", pid=0, tid=7, ts=0, dur=1, args={"cmdline": secret})
    b.event(ph="M", name="process_labels", pid=0, tid=0, ts=0, args={"labels": secret})
    b.op("aten::mm", 0, 1)
    b.header(distributedInfo={"rank": 0, "token": secret})
    trace = b.trace()
    assert len(trace.gpu) == 1
    assert secret not in repr(trace)


def test_frames_are_linked_by_their_ids(rows: Rows) -> None:
    b = TraceBuilder()
    outer = b.frame("a.py(1): f", 0, 10)
    b.frame("a.py(5): g", 2, 3, parent=outer)
    # Times of frames can lie outside the caller's; the ids know better.
    b.frame("a.py(9): h", 20, 3, parent=outer)
    assert [frame["parent"] for frame in rows(b.trace(), "frames")] == [-1, 0, 0]


def test_frames_without_ids_are_linked_by_their_times(rows: Rows) -> None:
    b = TraceBuilder()
    for start, dur in ((0, 10), (2, 3), (20, 3)):
        b.event(ph="X", cat="python_function", name="f", pid=1, tid=1, ts=start, dur=dur)
    assert [frame["parent"] for frame in rows(b.trace(), "frames")] == [-1, 0, -1]


def test_begin_and_end_become_one_event(rows: Rows) -> None:
    where = {"pid": 1, "tid": 1}
    b = TraceBuilder()
    b.event(ph="B", cat="user_annotation", name="outer", ts=1.5, **where)
    b.event(ph="B", cat="user_annotation", name="inner", ts=2, **where)
    b.event(ph="E", ts=3, **where).event(ph="E", ts=10, **where)
    trace = b.trace()
    assert [(r["name"], r["start_ns"], r["end_ns"]) for r in rows(trace, "ranges")] == [
        ("outer", 1500, 10_000),
        ("inner", 2000, 3000),
    ]
    assert trace.dropped == 0


def test_begin_without_end_and_end_without_begin_are_dropped(rows: Rows) -> None:
    b = TraceBuilder().range("there", 0, 1)
    b.event(ph="E", ts=3, pid=1, tid=1).event(ph="B", cat="user_annotation", name="open", ts=5, pid=1, tid=1)
    b.event(ph="B", cat="user_annotation", name="untimed", ts=None, pid=1, tid=1)
    trace = b.trace()
    assert [r["name"] for r in rows(trace, "ranges")] == ["there"]
    assert trace.dropped == 3


@pytest.mark.parametrize("ts", [None, "x", True, [], {}, 1e300, 10**40, "NaN"])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_an_event_without_usable_times_is_dropped_and_counted(key: str, ts: object) -> None:
    trace = one(kernel(**{key: ts}))
    assert (len(trace.gpu), trace.dropped) == (0, 1)
    assert trace.warnings == ("left out because they cannot be read: 1 event",)
    assert trace.complete


@pytest.mark.parametrize("ts", [0, -5, "7.25", 1e3, "1e3", 4_000_000_000_000_000])
def test_times_in_any_notation_are_kept(ts: object) -> None:
    trace = one(kernel(ts=ts))
    assert (len(trace.gpu), trace.dropped, trace.warnings[1:]) == (1, 0, ())


@pytest.mark.parametrize("missing", ["ts", "dur"])
def test_an_event_without_times_is_dropped(missing: str) -> None:
    event = kernel()
    del event[missing]
    assert one(event).dropped == 1


@pytest.mark.parametrize("missing", ["name", "pid", "tid", "args"])
def test_an_event_without_anything_else_is_kept(rows: Rows, missing: str) -> None:
    event = kernel()
    del event[missing]
    trace = one(event)
    assert (len(trace.gpu), trace.dropped) == (1, 0)
    assert rows(trace, "gpu")[0]["name"] == ("" if missing == "name" else "k")


@pytest.mark.parametrize("value", [None, 3, "text", [], [{"ph": "X"}], True])
def test_what_is_no_event_is_dropped(value: object) -> None:
    text = json.dumps([{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1}, value])
    trace = parse(text.encode(), "x")
    assert (len(trace.ops), trace.dropped) == (1, 1)


@pytest.mark.parametrize("value", [{"ph": ["X"]}, {"cat": {}}, {"ph": {}}])
def test_an_event_of_no_phase_or_category_that_can_be_is_dropped(value: dict[str, Any]) -> None:
    trace = one(kernel(**value))
    assert (len(trace.gpu), trace.dropped) == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"ph": "i"},
        {"ph": "M"},
        {"ph": "C"},
        {"ph": "s"},
        {"cat": "overhead"},
        {"cat": "Trace"},
        {"cat": None},
        {"cat": 3},
    ],
)
def test_events_of_other_kinds_are_passed_over_in_silence(other: dict[str, Any]) -> None:
    trace = one(kernel(**other))
    assert (len(trace.gpu), trace.dropped, trace.warnings) == (0, 0, ())


def test_a_negative_duration_is_taken_as_none_and_said() -> None:
    trace = TraceBuilder().op("aten::mm", 5, -3).trace()
    assert (trace.ops.start_ns.tolist(), trace.ops.end_ns.tolist()) == ([5000], [5000])
    assert trace.warnings == ("taken to have no duration because theirs is negative: 1 event",)


def test_no_duration_at_all_is_nothing_odd() -> None:
    trace = TraceBuilder().op("aten::mm", 5, 0).trace()
    assert (trace.ops.end_ns.tolist(), trace.warnings) == ([5000], ())


def test_of_duplicate_keys_the_last_wins() -> None:
    event = '{"ph": "X", "cat": "cpu_op", "ts": 1, "name": "first", "name": "last", "dur": 1, "ts": 5.5}'
    trace = parse(f'{{"traceEvents": [{event}]}}'.encode(), "x")
    assert (trace.strings, trace.ops.start_ns.tolist()) == (("last",), [5500])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"caf\xc3\xa9 \xe2\x9c\x93", "caf\u00e9 \u2713"),
        (b"bad \xff byte", "bad \ufffd byte"),
        (b"lone \\ud800 half", "lone ? half"),
        (b"pair \\ud83d\\ude00", "pair \U0001f600"),
        (b"tab\there \x00", "tab\there \x00"),
        (b'},{\\"ph\\": [', '},{"ph": ['),
        (b'[bold]x[/] <b> & "'.replace(b'"', b'\\"'), '[bold]x[/] <b> & "'),
    ],
)
def test_names_are_read_as_text_that_can_be_written(name: bytes, expected: str) -> None:
    text = ordinary().to_bytes().replace(b"aten::addmm", name)
    trace = parse(text, "x")
    assert trace.dropped == 0
    assert expected in trace.strings
    assert [string.encode() for string in trace.strings]


def test_the_same_name_written_in_two_ways_has_one_code() -> None:
    text = TraceBuilder().op("aten::mm", 0, 1).op("aten::XX", 2, 1).to_bytes().replace(b"XX", b"\\u006d\\u006d")
    assert parse(text, "x").ops.name.tolist() == [0, 0]


def test_not_a_number_costs_its_own_event_only() -> None:
    text = TraceBuilder().op("a", 0, 1).op("b", 77, 1).op("c", 2, 1).to_bytes()
    for value in (b"NaN", b"Infinity", b"-Infinity"):
        trace = parse(text.replace(b"77", value), "x")
        assert (len(trace.ops), trace.dropped, trace.complete) == (2, 1, True)


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"inf", b"-nan", b"nan(ind)"])
def test_not_a_number_among_the_arguments_costs_nothing(value: bytes) -> None:
    b = TraceBuilder().kernel('say \\": inf, "', 0, 5, launch_us=1, **{"blocks per SM": 77.5, "warps per SM": 88})
    text = b.to_bytes().replace(b"77.5", value).replace(b"88", value)
    trace = parse(text, "x")
    assert (trace.gpu.call.tolist(), trace.dropped) == ([0], 0)
    assert 'say \\": inf, "' in trace.strings


def test_times_of_the_epoch_are_exact_to_the_nanosecond() -> None:
    # float64 would give ...123.250 for all three.
    text = TraceBuilder().op("a", 111, 1).op("b", 222, 1).op("c", 333, 1).to_bytes()
    for key, fraction in ((b"111", b"249"), (b"222", b"250"), (b"333", b"251")):
        text = text.replace(b'"ts": ' + key, b'"ts": 1700000000000123.' + fraction)
    assert parse(text, "x").ops.start_ns.tolist() == [1_700_000_000_000_123_000 + n for n in (249, 250, 251)]
    escaped = text.replace(b'"ts"', b'"t\\u0073"')
    assert parse(escaped, "x").ops.start_ns.tolist() == [1_700_000_000_000_123_000 + n for n in (249, 250, 251)]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.txt", "t"])
def test_compression_is_told_by_the_content(tmp_path: Path, content: Content, name: str) -> None:
    for data in (ordinary().to_bytes(), gzip.compress(ordinary().to_bytes())):
        path = tmp_path / name
        path.write_bytes(data)
        trace = read(path)
        assert trace.path == str(path)
        assert content(trace) == content(ordinary().trace())


def test_members_padding_and_a_byte_order_mark_are_read_through(tmp_path: Path, content: Content) -> None:
    text = ordinary().to_bytes()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text[:100]) + gzip.compress(text[100:]) + bytes(512))
    assert content(read(path)) == content(ordinary().trace())


def test_a_trailing_comma_is_read_over(content: Content) -> None:
    text = ordinary().to_bytes().replace(b"\n]}", b",\n]}")
    assert content(parse(text, "x")) == content(ordinary().trace())
