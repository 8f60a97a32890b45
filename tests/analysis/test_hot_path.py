"""What a thread did in some time: inclusive time, the deepest activity, the user's line, the kind of work."""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.host.hot_path import DOMINATING_SHARE, HotPath, find_hot_path, find_pause_path
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import activity_kinds as kinds
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.model import Ops, Trace

US = 1000


def hot_path(trace: TraceBuilder, *spans_us: tuple[float, float], thread: int = 0) -> HotPath:
    """The hot path of a thread in some spans of microseconds."""
    return find_hot_path(trace.trace(), intervals(*spans_us), thread)


def intervals(*spans_us: tuple[float, float]) -> iv.Intervals:
    return np.array([(round(US * a), round(US * b)) for a, b in spans_us], np.int64).reshape(-1, 2)


def names(path: HotPath) -> list[str]:
    return [activity.name for activity in path.activities]


def preprocessing() -> TraceBuilder:
    """100 us of which a function takes 90, in which an op runs at the middle."""
    trace = TraceBuilder(device=None)
    main = trace.frame("train.py(3): main", 0, 100)
    load = trace.frame("train.py(30): load", 5, 90, parent=main)
    trace.frame("/x/site-packages/lib/images.py(8): resize", 10, 80, parent=load)
    return trace.op("aten::mul", 49, 3)


def test_the_deepest_activity_that_takes_most_of_the_time_is_named_not_the_op_in_its_middle() -> None:
    path = hot_path(preprocessing(), (0, 100))
    assert names(path)[-1] == "/x/site-packages/lib/images.py(8): resize"
    assert path.deepest is not None
    assert (path.deepest.table, path.deepest.time_ns, path.deepest.runs) == ("frame", 80 * US, 1)
    assert names(path) == ["train.py(3): main", "train.py(30): load", "/x/site-packages/lib/images.py(8): resize"]


@pytest.mark.parametrize("name", ["@data.py:7 crop", "perfdoctor::forward", "ProfilerStep#3"])
def test_a_recorded_line_or_part_of_a_step_is_no_activity(name: str) -> None:
    assert name not in names(hot_path(preprocessing().range(name, 8, 85), (0, 100)))


@pytest.mark.parametrize(("length_us", "found"), [(60, ["op"]), (59, [])])
def test_sixty_percent_are_most_of_the_time(length_us: float, found: list[str]) -> None:
    assert names(hot_path(TraceBuilder(device=None).op("op", 10, length_us), (0, 100))) == found


def test_many_short_runs_of_one_name_count_together() -> None:
    trace = TraceBuilder(device=None)
    for at in range(0, 100, 10):
        trace.op(f"parent{at}", at, 9).op("aten::empty", at + 1, 7)
    (activity,) = hot_path(trace, (0, 100)).activities
    assert (activity.name, activity.time_ns, activity.runs) == ("aten::empty", 70 * US, 10)


def test_a_function_that_calls_itself_counts_once() -> None:
    trace = TraceBuilder(device=None).op("narrow", 0, 50).op("narrow", 5, 40)
    assert names(hot_path(trace, (0, 100))) == []
    (activity,) = hot_path(trace, (0, 60)).activities
    assert (activity.time_ns, activity.runs) == (50 * US, 1)


def test_activities_that_take_most_of_the_time_elsewhere_are_not_on_the_path() -> None:
    trace = TraceBuilder(device=None).op("other", 0, 62).op("hot", 40, 22).op("hot", 62, 38)
    assert names(hot_path(trace, (0, 100))) == ["hot"]
    assert names(hot_path(trace.op("loop", 0, 100), (0, 100))) == ["loop", "hot"]


def test_objects_of_one_class_are_one_name() -> None:
    trace = TraceBuilder(device=None)
    for at in range(4):
        trace.frame(f"<built-in method read of _io.FileIO object at 0x7f{at}>", 20 * at, 18)
    path = hot_path(trace, (0, 80))
    assert names(path) == ["<built-in method read of _io.FileIO>"]
    assert (path.kind, iv.total(path.kind_time)) == (kinds.FILE_OR_SOCKET, 72 * US)


def test_only_the_asked_thread_and_time_count() -> None:
    trace = TraceBuilder(device=None).op("a", 0, 100, thread=1).op("b", 0, 100, thread=2)
    assert names(hot_path(trace, (0, 50), thread=1)) == ["b"]
    assert names(hot_path(trace.op("c", 60, 30), (60, 90))) == ["a", "c"]
    assert hot_path(trace) == HotPath()


def test_each_interval_may_have_its_own_thread() -> None:
    trace = TraceBuilder(device=None).op("a", 0, 40, thread=1).op("a", 60, 40, thread=2).op("b", 0, 100, thread=3)
    found = find_hot_path(trace.trace(), intervals((0, 40), (60, 100)), np.array([0, 1], np.int32))
    assert [(each.name, each.time_ns, each.runs) for each in found.activities] == [("a", 80 * US, 2)]


def test_steps_are_no_activities() -> None:
    trace = TraceBuilder(device=None).step(0, 100).range("step 12", 0, 100).range("epoch", 0, 100)
    assert names(hot_path(trace, (0, 100))) == ["epoch"]


def test_without_frames_the_op_or_call_is_named() -> None:
    trace = TraceBuilder(device=None).op("aten::embedding", 0, 100).op("aten::index", 1, 98)
    trace.call("cudaMemcpyAsync", 2, 90)
    path = hot_path(trace, (0, 100))
    assert names(path) == ["aten::embedding", "aten::index", "cudaMemcpyAsync"]
    assert path.outermost_op is not None
    assert path.outermost_op.name == "aten::embedding"


KIND_CASES = {
    "json/encoder.py(277): _iterencode_list": kinds.LOGGING,
    "json/__init__.py(120): dump": kinds.LOGGING,
    "<built-in function dump>": kinds.FILE_OR_SOCKET,
    "numpy/lib/_npyio_impl.py(1401): savetxt": kinds.FILE_OR_SOCKET,
    "<built-in function compress>": kinds.FILE_OR_SOCKET,
    "<built-in function decompress>": None,
    "<built-in method decompress of zlib.Decompress object at 0x7f>": kinds.ARCHIVE,
    "zipfile.py(1361): _RealGetContents": kinds.ARCHIVE,
    "zipfile/__init__.py(1048): _read2": kinds.ARCHIVE,
    "tarfile.py(2400): next": kinds.ARCHIVE,
    "zipfile.py(1180): write": None,
    "gzip.py(280): write": None,
    "bundles/myzipfile.py(9): read": None,
    "<built-in method decompress of codec.Frames object at 0x7f>": None,
    "torchvision/utils.py(120): save_image": kinds.FILE_OR_SOCKET,
    "<built-in function sleep>": kinds.SLEEP,
    "<built-in method sleep of module object at 0x7f>": kinds.SLEEP,
    "<built-in method collect of module object at 0x7f>": kinds.GARBAGE_COLLECTION,
    "<built-in function collect>": kinds.GARBAGE_COLLECTION,
    "<built-in method acquire of _thread.lock object at 0x7f>": kinds.LOCK_WAIT,
    "threading.py(359): wait": kinds.LOCK_WAIT,
    "queue.py(154): get": kinds.LOCK_WAIT,
    "<built-in method recv_into of _socket.socket object at 0x7f>": kinds.FILE_OR_SOCKET,
    "socket.py(692): readinto": kinds.FILE_OR_SOCKET,
    "<built-in method tensor of type object at 0x7f>": kinds.LISTS_TO_TENSORS,
    "torch/serialization.py(810): save": kinds.CHECKPOINT,
    "train.py(8): save_checkpoint": kinds.CHECKPOINT,
    "<built-in function print>": kinds.LOGGING,
    "logging/__init__.py(1479): info": kinds.LOGGING,
    "transformers/tokenization_utils_base.py(2800): __call__": kinds.TOKENIZING,
    "PIL/ImageFile.py(163): load": kinds.IMAGE_DECODING,
    "<built-in method decode of ImagingDecoder object at 0x7f>": kinds.IMAGE_DECODING,
    "<built-in function imread>": kinds.IMAGE_DECODING,
    "torchvision/transforms/transforms.py(93): __call__": kinds.PREPROCESSING,
    "transformers/models/videomae/image_processing_videomae.py(235): preprocess": kinds.PREPROCESSING,
    "torch/cuda/graphs.py(71): capture_begin": kinds.GRAPH_CAPTURE,
    "torch/_inductor/compile_fx.py(600): compile_fx_inner": kinds.COMPILATION,
    "torch/_dynamo/convert_frame.py(400): _convert_frame_assert": kinds.COMPILATION,
    # What only sounds alike.
    "train.py(8): sleepless": None,
    "model.py(4): forward": None,
    "torch/_dynamo/eval_frame.py(574): _fn": None,
    "torch/utils/data/dataloader.py(630): __next__": None,
    "<built-in method run_backward of torch._C._EngineBase object at 0x7f>": None,
    "<built-in method tensordot of type object at 0x7f>": None,
    "reader.py(4): recollect": None,
    "nn.Module: Tokenizer_0": None,
    "checkpoint.py(4): checkpoint": None,
    "<built-in method acquires of Land object at 0x7f>": None,
}


@pytest.mark.parametrize(("name", "kind"), KIND_CASES.items())
def test_the_name_of_a_function_says_what_kind_of_work_it_is(name: str, kind: str | None) -> None:
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 100)
    trace.frame(name, 10, 85)
    assert hot_path(trace, (0, 100)).kind == kind


def test_functions_of_one_kind_count_together() -> None:
    trace = TraceBuilder(device=None)
    trace.frame("PIL/Image.py(3200): open", 0, 35)
    trace.frame("PIL/ImageFile.py(163): load", 40, 35)
    path = hot_path(trace, (0, 100))
    assert (path.kind, iv.total(path.kind_time), path.deepest) == (kinds.IMAGE_DECODING, 70 * US, None)


def test_a_checkpoint_that_writes_a_file_is_a_checkpoint() -> None:
    trace = TraceBuilder(device=None)
    trace.frame("torch/serialization.py(810): save", 0, 100)
    trace.frame("<built-in method write of _io.BufferedWriter object at 0x7f>", 5, 90)
    assert hot_path(trace, (0, 100)).kind == kinds.CHECKPOINT


@pytest.mark.parametrize(
    ("call", "dur_us", "kind"),
    [
        ("cudaLaunchKernel", 2000, kinds.MODULE_LOAD),
        ("hipLaunchKernel", 2000, kinds.MODULE_LOAD),
        ("cuLibraryLoadData", 900, kinds.MODULE_LOAD),
        ("cudaLaunchKernel", 900, None),
        ("cudaMemcpyAsync", 2000, None),
        ("cudaGraphLaunch", 2000, kinds.GRAPH_LAUNCH),
        ("cudaMalloc", 2000, kinds.ALLOCATION),
    ],
)
def test_a_call_says_what_kind_of_work_it_is(call: str, dur_us: float, kind: str | None) -> None:
    trace = TraceBuilder(device=None)
    trace.call(call, 10, dur_us)
    assert hot_path(trace, (0, dur_us + 20)).kind == kind


def captures(op_us: float) -> TraceBuilder:
    """An op in which a capture of 10 us begins at 80."""
    trace = TraceBuilder(device=None).op("CompiledFunction", 0, op_us)
    trace.call("cudaStreamBeginCapture", 80, 1)
    trace.call("cudaStreamEndCapture", 89, 1)
    return trace


def test_the_op_that_captures_a_graph_is_capture() -> None:
    path = hot_path(captures(100), (0, 100))
    assert (path.kind, iv.total(path.kind_time)) == (kinds.GRAPH_CAPTURE, 100 * US)


def test_without_an_op_only_the_time_between_the_calls_is_capture() -> None:
    assert hot_path(captures(10), (0, 100)).kind is None
    assert hot_path(captures(10), (80, 92)).kind == kinds.GRAPH_CAPTURE


def two_kinds_of_pauses() -> TraceBuilder:
    """Within a loop that is always there three pauses of a save, and two of something else."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 1000)
    for at, name in ((0, "save"), (200, "log"), (400, "save"), (600, "log"), (800, "save")):
        trace.frame(f"train.py(9): {name}", at, 100)
    return trace


def pause_path(trace: Trace, *spans_us: tuple[float, float], until_us: float = 1000) -> tuple[HotPath, int]:
    pauses = intervals(*spans_us)
    path, part = find_pause_path(trace, pauses, np.zeros(len(pauses), np.int32), intervals((0, until_us)))
    return path, int(part.sum())


def test_where_pauses_have_only_the_loop_in_common_the_longest_kind_of_them_is_named() -> None:
    spans = [(at, at + 100) for at in range(0, 1000, 200)]
    path, count = pause_path(two_kinds_of_pauses().trace(), *spans)
    assert (names(path)[-1], count) == ("train.py(9): save", 3)
    path, count = pause_path(two_kinds_of_pauses().trace(), *spans[:4])  # two of four each
    assert (names(path)[-1], path.time_ns, count) == ("train.py(9): save", 200 * US, 2)


def test_pauses_without_a_fifth_of_their_time_in_common_have_only_the_loop() -> None:
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 1500)
    for row in range(6):
        trace.frame(f"train.py(9): part{row}", 200 * row, 100)
    path, count = pause_path(trace.trace(), *[(at, at + 100) for at in range(0, 1200, 200)], until_us=1500)
    assert (names(path), count) == (["train.py(3): main"], 6)


def test_pauses_of_one_kind_are_told_apart_from_a_third_of_the_time_on() -> None:
    trace = TraceBuilder(device=None)
    for row, name in enumerate(("a", "aten::flatten_dense_tensors", "b", "aten::unflatten_dense_tensors", "a")):
        trace.op(name, 200 * row, 99)
    path, count = pause_path(trace.trace(), *[(at, at + 100) for at in range(0, 1000, 200)])
    assert (path.kind, count) == (kinds.BUFFER_BROADCAST, 2)
    path, count = pause_path(trace.trace(), *[(at, at + 100) for at in (0, 200, 400, 800)])
    assert (path.kind, names(path)[-1], count) == (None, "a", 2)


@pytest.mark.parametrize("early_in_the_file", [True, False])
def test_of_two_names_that_take_as_long_the_earlier_one_is_named(early_in_the_file: bool) -> None:
    runs = [("aten::item", 0), ("aten::add", 200)]
    trace = TraceBuilder(device=None)
    for name, start in runs if early_in_the_file else reversed(runs):
        trace.op(name, start, 100)
    path, count = pause_path(trace.trace(), (0, 100), (200, 300))
    assert (names(path), count) == (["aten::item"], 1)


def test_a_function_around_the_pauses_alone_explains_them() -> None:
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): validate", 100, 100)
    trace.frame("train.py(4): a", 100, 50)
    trace.frame("train.py(5): b", 150, 50)
    path, count = pause_path(trace.trace(), (100, 150), (150.5, 200))
    assert (names(path)[-1], count) == ("train.py(3): validate", 2)


def test_pauses_of_which_nothing_is_recorded_have_no_path() -> None:
    path, count = pause_path(TraceBuilder(device=None).op("a", 0, 10).trace(), (20, 60), (70, 90))
    assert (path.activities, path.kind, count) == ((), None, 2)


spans = st.tuples(st.integers(0, 40), st.integers(1, 20))
events = st.lists(
    st.tuples(spans, st.sampled_from("abc"), st.sampled_from(("op", "frame", "range"))), min_size=1, max_size=12
)


@given(events, st.lists(spans, min_size=1, max_size=4))
def test_inclusive_time_is_that_of_counting_instants(
    recorded: list[tuple[tuple[int, int], str, str]], asked: list[tuple[int, int]]
) -> None:
    trace = TraceBuilder(device=None)
    covered: dict[str, set[int]] = defaultdict(set)
    for (start, length), name, table in recorded:
        getattr(trace, table)(name, start, length)
        covered[name].update(range(start, start + length))
    at, length = np.array(asked, np.int64).T
    time_asked = iv.union(US * at, US * (at + length))
    instants = {us for start, end in (time_asked // US).tolist() for us in range(start, end)}
    expected = {name: US * len(inside & instants) for name, inside in covered.items()}
    found = find_hot_path(trace.trace(), time_asked, 0)
    min_ns = DOMINATING_SHARE * US * len(instants)
    assert found.time_ns == US * len(instants)
    assert all(activity.time_ns == expected[activity.name] >= min_ns for activity in found.activities)
    # Something is named exactly where something takes most of the time.
    assert bool(found.activities) == any(time_ns >= min_ns for time_ns in expected.values())


def test_a_query_takes_milliseconds_in_a_large_trace() -> None:
    """400,000 events, as a trace of 100 MB has: 5 ms when idle, some more on a machine that others use."""
    start = np.arange(400_000, dtype=np.int64) * US
    name = np.zeros(len(start), np.int32)
    ops = Ops(start_ns=start, end_ns=start + 900, name=name, thread=name, parent=name - 1)
    large = Trace("large.json", strings=("op",), threads=("1/1",), ops=ops)
    pauses = np.arange(40, dtype=np.int64)[:, None] * 10_000_000 + np.array([[500, 50_500]])
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        path = find_hot_path(large, pauses, 0)
        took.append(time.perf_counter() - begun)
    assert path.time_ns == 40 * 50_000
    assert min(took) < 0.02


@pytest.mark.parametrize("folder", ["/x/perfdoctor/capture/inject/_perfdoctor_inject", "_perfdoctor_inject"])
def test_what_a_recorder_puts_around_functions_of_the_program_is_named_by_them(folder: str) -> None:
    trace = TraceBuilder(device=None)
    main = trace.frame("train.py(10): main", 0, 100)
    inner = trace.frame("train.py(20): preprocess", 1, 98, parent=main)
    trace.frame(f"{folder}/torch_hooks.py(270): call_recorder", 2, 96, parent=inner)
    assert names(hot_path(trace, (0, 100))) == ["train.py(10): main", "train.py(20): preprocess"]
