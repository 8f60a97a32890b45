"""The account by place: it adds up both ways on any trace, and time stands at the line that it is for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_traces import read_once

from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.errors import PerfdoctorError
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.places.place import PlaceName
from perfdoctor.places.placed_window import Cells, apportion, move_to_lines, weigh_places
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.split_ranks import split_ranks
from perfdoctor.trace.vocabulary import SINGLE_PROCESS_LOADER, dataloader_next_name

LOADER = dataloader_next_name(SINGLE_PROCESS_LOADER)
NODE = "autograd::engine::evaluate_function: "
RECORDER = "perfdoctor/capture/inject/_perfdoctor_inject/source_lines.py(47): __torch_function__"


def check_sums(rank: Rank) -> None:
    """Window and step are the places' time, by cause and by place; so is each step of several by itself."""
    places = rank.places
    by_cause = Counter[str]()
    for causes in places.window_ns.values():
        by_cause.update(causes)
    assert {name: by_cause[name] for name in DETAILS} == {name: rank.account.detail[name] for name in DETAILS}
    for number in range(len(places.timed.steps)):
        analysed = iv.intersect(rank.window, places.timed.steps[number : number + 1])
        assert sum(sum(causes.values()) for causes in places.of_step(number).values()) == iv.total(analysed)
    for most in (1, 3, 40):
        rows = places.rows(most)
        assert len(rows) <= most + 1
        assert sum(row.ns for row in rows) == rank.mean_step_ns
        assert all(sum(row.causes.values()) == row.ns >= row.backward_ns >= 0 for row in rows)
        step_by_cause = apportion(rank.mean_step_ns, [by_cause[name] for name in DETAILS])
        assert [sum(row.causes[name] for row in rows) for name in DETAILS] == step_by_cause


def time_by_name(rank: Rank) -> dict[str, int]:
    """The time of the window by place, in us."""
    return {place.short: sum(causes.values()) // 1000 for place, causes in rank.places.window_ns.items()}


# --- it adds up ------------------------------------------------------------------------------------------------------

spans = st.tuples(st.integers(0, 1900), st.integers(1, 300))
ops = st.tuples(st.sampled_from(["aten::mm", f"{NODE}AddmmBackward0", "aten::add_"]), spans, st.integers(-1, 3))
marks = st.tuples(
    st.sampled_from(["@train.py:7 main", "@/x/site-packages/lib.py:3 run", LOADER, "Optimizer.step#SGD.step", "mine"]),
    spans,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(ops, max_size=12), st.lists(marks, max_size=6), st.lists(spans, max_size=6), st.booleans())
def test_places_and_causes_add_up_to_the_account(
    ops: list[tuple[str, tuple[int, int], int]],
    marks: list[tuple[str, tuple[int, int]]],
    kernels: list[tuple[int, int]],
    on_gpu: bool,
) -> None:
    trace = TraceBuilder(device="NVIDIA A100-SXM4-40GB" if on_gpu else None).step(0, 1000).step(1000, 1000)
    for number, (name, (at, length), sequence) in enumerate(ops):
        trace.op(name, at, length, thread=number % 3, sequence=sequence if sequence >= 0 else None)
    for name, (at, length) in marks:
        trace.range(name, at, length)
    for number, (at, length) in enumerate(kernels if on_gpu else ()):
        trace.kernel("gemm" if number % 2 else "ncclDevKernel_AllReduce", at, length, launch_us=at / 2)
    check_sums(Rank(trace.trace()))


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_whole_is_apportioned_without_rest(whole: int, weights: list[int]) -> None:
    parts = apportion(whole, weights)
    total = sum(weights)
    assert sum(parts) == whole
    assert all(abs(part - whole * weight / total) <= 1 for part, weight in zip(parts, weights, strict=True) if total)


PLACES = [PlaceName("line", "a.py", number) for number in range(3)]
cells = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 2), st.sampled_from(["", "mm", "add"]), st.sampled_from(["", "mm"])),
        st.integers(0, 3),
        st.sampled_from(PLACES),
        st.integers(0, 10**6),
    ),
    max_size=12,
)


@given(cells, cells)
def test_other_windows_say_where_and_never_how_long(timed: list, lined: list) -> None:
    def columns(rows: list) -> Cells:
        return Cells(*map(list, zip(*rows, strict=True))) if rows else Cells([], [], [], [])

    def sums(found: Cells) -> Counter[tuple[object, int]]:
        total = Counter[tuple[object, int]]()
        for what, cause, _, ns in zip(*found, strict=True):
            total[what, cause] += ns
        return +total

    before, moved = columns(timed), move_to_lines(columns(timed), weigh_places(columns(lined)))
    assert sums(moved) == sums(before)


@pytest.mark.corpus
def test_every_real_recording_adds_up(shared: Path) -> None:
    files = [
        path
        for folder in ("traces", "recordings", "nsight")
        for path in sorted((shared / folder).rglob("*"))
        if path.is_file() and path.name.endswith((".json", ".json.gz", ".sqlite"))
    ]
    counted = 0
    for path in files:
        try:
            trace = read_once(path)
        except PerfdoctorError:  # what is no trace has tests of its own
            continue
        for part in split_ranks(trace):
            check_sums(Rank(part))
            counted += 1
    assert counted >= 70


# --- time stands where it belongs ------------------------------------------------------------------------------------


def test_lines_have_the_time_in_which_they_ran() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).range(LOADER, 0, 200)
    trace.range("@train.py:7 main", 0, 200).range("@train.py:8 main", 200, 300).op("aten::linear", 200, 300)
    trace.range("@/x/site-packages/lightning/loop.py:3 run", 800, 150)
    rank = Rank(trace.trace())
    found = time_by_name(rank)
    assert (found["train.py:7"], found["train.py:8"], found["loop.py:3"]) == (200, 300, 150)
    assert [row.kind for row in rank.places.rows() if row.file and row.file.endswith("loop.py")] == ["outside"]
    assert rank.places.in_phase("loader") == [(PlaceName("line", "train.py", 7, "main"), 200_000)]


def backward(thread: int) -> TraceBuilder:
    """Two forward ops at two lines, and their nodes in `backward()` at a third, with 100 us between the nodes."""
    trace = TraceBuilder(device=None).step(0, 1000)
    trace.range("@model.py:4 forward", 0, 100).op("aten::addmm", 0, 100, sequence=7)
    trace.range("@model.py:5 forward", 100, 100).op("aten::tanh", 100, 100, sequence=8)
    trace.range("@train.py:9 main", 200, 800)
    trace.op(f"{NODE}TanhBackward0", 250, 150, thread=thread, sequence=8)
    trace.op(f"{NODE}AddmmBackward0", 500, 400, thread=thread, sequence=7)
    return trace


def test_work_of_the_backward_pass_belongs_to_the_line_of_its_forward_op() -> None:
    assert time_by_name(Rank(backward(2).trace())) == {"model.py:4": 500, "model.py:5": 250, "train.py:9": 250}


def test_what_the_engine_does_before_a_node_belongs_to_that_node() -> None:
    rank = Rank(backward(1).trace())
    assert time_by_name(rank) == {"model.py:4": 600, "model.py:5": 250, "train.py:9": 150}
    assert {row.line: row.backward_ns for row in rank.places.rows()} == {4: 500_000, 5: 150_000, 9: 0}


def test_ops_inside_an_op_are_charged_to_it_and_its_line() -> None:
    trace = TraceBuilder(device=None).step(0, 1000)
    trace.range("@model.py:13 forward", 0, 600).op("aten::embedding", 0, 600).op("aten::embedding_renorm_", 10, 580)
    for at in range(20, 580, 10):
        trace.op("aten::norm", at, 5)
    trace.range("@model.py:20 forward", 600, 300)
    for at in range(600, 900, 3):
        trace.op("aten::select", at, 2)
    first, second = Rank(trace.trace()).places.rows()[:2]
    assert (first.line, first.ns, second.line) == (13, 600_000, 20)
    assert [(each.name, each.calls, each.inner_ops) for each in first.within[:1]] == [("embedding", 1, 57)]
    assert [(each.name, each.calls) for each in second.within[:1]] == [("select", 100)]


def test_idle_time_of_a_gpu_belongs_to_the_line_that_the_cpu_was_at() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.range("@train.py:8 main", 0, 100).op("aten::mm", 0, 50).kernel("gemm", 60, 100, launch_us=10)
    trace.range("@train.py:9 load", 100, 700)
    trace.range("@train.py:10 main", 800, 100).op("aten::mm", 800, 50).kernel("gemm", 860, 100, launch_us=810)
    rank = Rank(trace.trace())
    places = {row.line: row for row in rank.places.rows()}
    assert places[8].causes["compute"] == places[10].causes["compute"] == 100_000
    assert places[9].causes["idle_launch"] > 500_000


def test_the_innermost_frame_counts_where_a_line_calls_code_of_the_user() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).range("@train.py:80 main", 0, 1000)
    main = trace.frame("train.py(70): main", 0, 1000)
    trace.frame("sampler.py(30): __iter__", 200, 500, parent=main)
    assert time_by_name(Rank(trace.trace())) == {"train.py:80": 500, "sampler.py:30": 500}


def test_what_a_line_calls_is_named_without_those_that_wrap_it() -> None:
    trace = TraceBuilder(device=None).step(0, 1000)
    main = trace.frame("train.py(70): main", 0, 1000)
    wrapper = trace.frame(
        "perfdoctor/capture/inject/_perfdoctor_inject/host_call_hooks.py(9): watched", 0, 800, parent=main
    )
    for at in (10, 300):
        trace.frame("copy.py(128): deepcopy", at, 250, parent=wrapper)
    (place,) = Rank(trace.trace()).places.rows()
    assert [(each.name, each.kind, each.calls) for each in place.within] == [("copy.deepcopy", "function", 2)]


# --- a window with lines beside one that is timed --------------------------------------------------------------------


def capture(*, recorder_us: int = 0) -> Rank:
    """A timed step of 1000 us without lines, and an evidence window with them in which all but one op takes twice."""
    timed = TraceBuilder(device=None).step(0, 1000).range(LOADER, 0, 400)
    timed.op("aten::linear", 400, 500)
    lined = TraceBuilder(device=None).step(0, 3000).range(LOADER, 0, 800)
    lined.range("@data.py:5 __getitem__", 0, 600).range("@data.py:6 __getitem__", 600, 200)
    lined.range("@model.py:3 forward", 800, 1000).op("aten::linear", 800, 1000)
    lined.range("@train.py:9 main", 1800, 1200)
    if recorder_us:
        main = lined.frame("train.py(1): main", 0, 3000)
        lined.frame(RECORDER, 100, recorder_us, parent=main)
    return Rank(timed.trace(), evidence_trace=lined.trace())


def test_the_timed_window_says_how_long_and_the_other_one_where() -> None:
    rank = capture()
    check_sums(rank)
    assert time_by_name(rank) == {"data.py:5": 300, "data.py:6": 100, "model.py:3": 500, "train.py:9": 100}


def test_what_the_recorder_does_is_no_time_of_the_line_it_runs_at() -> None:
    assert time_by_name(capture(recorder_us=400)) == {
        "data.py:5": 200,
        "data.py:6": 200,
        "model.py:3": 500,
        "train.py:9": 100,
    }


def test_python_between_two_ops_is_the_same_code_however_long_it_takes() -> None:
    """A callback of 50 us, a short gap, takes 600 us with stacks, where it is a long one; the loop's own gap stays."""
    timed = TraceBuilder(device=None).step(0, 300)
    timed.op("aten::linear", 0, 100).op("aten::item", 150, 50).op("aten::mean", 250, 50)
    lined = TraceBuilder(device=None).step(0, 900)
    lined.range("@train.py:9 main", 0, 100).op("aten::linear", 0, 100)
    lined.range("@bar.py:38 update", 100, 600).op("aten::item", 700, 50)
    lined.range("@train.py:12 main", 700, 200).op("aten::mean", 810, 90)
    rank = Rank(timed.trace(), evidence_trace=lined.trace())
    check_sums(rank)
    assert time_by_name(rank) == {"train.py:9": 100, "bar.py:38": 50, "train.py:12": 150}


# --- Python: loops, functions of the program's own that the engine runs -----------------------------------------------


def python_loop(calls: int, *, op: bool = False) -> dict[str, int]:
    """The time by place of a function whose lines 10 to 12 run so often, each for 5 us, with a call or an op in two."""
    trace, at = TraceBuilder(device=None).step(0, 1000).range("@train.py:70 main", 0, 1000), 0
    for _ in range(calls):
        for line, name in ((10, "get of dict"), (11, None), (12, "append of list")):
            trace.range(f"@wer.py:{line} distance", at, 5)
            if name and op:
                trace.op("aten::add", at + 1, 3)
            elif name:
                caller = trace.frame("wer.py(5): distance", at, 5)
                trace.frame(f"<built-in method {name} object at 0x7f286cea40>", at + 1, 2, parent=caller)
            at += 5
    trace.range("@wer.py:20 distance", at, 100)
    return time_by_name(Rank(trace.trace()))


def test_the_lines_of_a_loop_of_python_are_one_place() -> None:
    assert python_loop(40) == {"wer.py:10": 600, "wer.py:20": 100, "train.py:70": 300}


@pytest.mark.parametrize("calls", [{"calls": 20}, {"calls": 40, "op": True}])
def test_lines_that_run_seldom_or_call_ops_are_places_by_themselves(calls: dict) -> None:
    assert {"wer.py:10", "wer.py:11", "wer.py:12", "wer.py:20"} < python_loop(**calls).keys()


def own_function(name: str) -> Rank:
    """A step in which an op of 900 us runs two functions of the program, for 600 and 300 us."""
    trace = TraceBuilder(device=None).step(0, 1000)
    main = trace.frame("train.py(60): main", 0, 1000)
    trace.op(name, 0, 900)
    forward = trace.frame("loss.py(40): forward", 0, 900, parent=main)
    trace.frame("loss.py(5): distances", 0, 600, parent=forward)
    return Rank(trace.trace())


def test_an_autograd_function_of_the_program_is_python_at_its_lines() -> None:
    rank = own_function("SoftDTWFunction")
    assert time_by_name(rank) == {"loss.py:5": 600, "loss.py:40": 300, "train.py:60": 100}
    assert rank.account.detail["bandwidth"] == 0
    check_sums(rank)


@pytest.mark.parametrize("name", ["aten::cdist", "MulBackward0"])
def test_ops_of_torch_are_work(name: str) -> None:
    assert own_function(name).account.detail["bandwidth"] == 900_000


# --- workers of a loader ----------------------------------------------------------------------------------------------


def waits_for_workers(**fetch: Any) -> dict[str, int]:
    """The time by place of a loop that waits 600 us of 1000 for a worker that was captured."""
    location = {"file": "train.py", "line": 7, "function": "main"}
    loader = {"num_workers": 1, "location": location, "fetch": {"where": "worker", "median_ns": 1000, **fetch}}
    loader["items_location"] = {"file": "data.py", "line": 29, "function": "__getitem__"}
    trace = TraceBuilder(device=None).step(0, 1000).range("@train.py:7 main", 0, 600).range(LOADER, 0, 600)
    trace.range("@train.py:8 main", 600, 400)
    facts = CapturedFacts.parse({"schema": "perfdoctor.facts/1", "loaders": [loader]})
    rank = Rank(trace.trace(), facts=facts)
    check_sums(rank)
    return time_by_name(rank)


def test_a_wait_for_a_worker_belongs_to_what_the_worker_does() -> None:
    found = waits_for_workers(items_ns=800, collate_ns=100)
    assert found == {"data.py:29": 480, "train.py:7": 120, "train.py:8": 400}


@pytest.mark.parametrize("fetch", [{"where": "main", "items_ns": 800}, {"median_ns": None}])
def test_without_times_of_a_worker_a_wait_is_at_the_line_that_waits(fetch: dict) -> None:
    assert waits_for_workers(**fetch) == {"train.py:7": 600, "train.py:8": 400}


def test_an_optimizer_is_said_to_be_made_at_its_line() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).range("@train.py:9 main", 0, 1000)
    main = trace.frame("train.py(3): main", 0, 1000)
    trace.frame("torch/optim/adamw.py(80): step", 100, 800, parent=main)
    places = [{"file": "train.py", "line": line, "function": "main"} for line in (9, 5)]
    optimizer = {"class": "AdamW", "location": places[0], "created": places[1]}
    facts = CapturedFacts.parse({"schema": "perfdoctor.facts/1", "optimizers": [optimizer]})
    for captured, name in ((facts, "adamw.step (made at train.py:5)"), (CapturedFacts(), "adamw.step")):
        (place,) = Rank(trace.trace(), facts=captured).places.rows()
        assert [each.name for each in place.within] == [name]


# --- lines for rules --------------------------------------------------------------------------------------------------


def test_rules_ask_for_the_line_of_ops_and_of_time_with_the_backward_pass() -> None:
    rank = Rank(backward(1).trace())
    ops, places = rank.trace.ops, rank.places
    assert str(places.line_of_ops(rank.trace.match_rows(ops, "Addmm"))) == "model.py:4"
    assert str(places.line_of_ops(np.flatnonzero(rank.trace.match_rows(ops, "tanh")))) == "model.py:5"
    assert str(places.line_in(iv.window(910_000, 1_000_000))) == "train.py:9"
    assert places.line_in(iv.EMPTY) is None
    assert str(places.line_of_named("^aten::tanh$")) == "model.py:5"


def test_rules_ask_for_the_line_that_launched_kernels() -> None:
    trace = TraceBuilder().step(0, 1000).range("@train.py:8 main", 0, 100).range("@train.py:9 main", 100, 300)
    trace.op("aten::mm", 10, 50).kernel("gemm", 60, 100, launch_us=20)
    trace.op("aten::mm", 110, 50).kernel("gemm", 300, 400, launch_us=120)
    rank = Rank(trace.trace())
    assert str(rank.places.line_of_items(rank.trace.gpu.start_ns >= 0)) == "train.py:9"  # by time
    assert list(map(str, rank.places.lines_of_items(np.arange(2)))) == ["train.py:8", "train.py:9"]
    assert str(rank.places.line_of_calls(np.array([0]))) == "train.py:8"


def test_ops_of_a_window_without_lines_have_those_of_the_other_window() -> None:
    rank = capture()
    assert str(rank.places.line_of_ops(np.array([0]))) == "model.py:3"
    assert str(rank.places.line_in(iv.window(0, 400_000))) == "data.py:5"
    alone = Rank(rank.raw_trace)
    assert alone.places.line_of_ops(np.array([0])) is None


# --- without lines ---------------------------------------------------------------------------------------------------


def test_without_lines_the_best_name_counts() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.range("my phase 12", 0, 100).op("aten::mm", 0, 50).kernel("gemm", 60, 100, launch_us=10)
    trace.op("aten::conv2d", 200, 50).kernel("conv", 300, 500, launch_us=210)
    kinds = {row.name.short: row.kind for row in Rank(trace.trace()).places.rows()}
    assert kinds["conv2d"] == "op"
    assert kinds["my phase #"] == "annotation"


def test_without_anything_all_is_outside() -> None:
    (place,) = Rank(
        TraceBuilder(device=None).step(0, 10).range("@/x/site-packages/a.py:1 f", 0, 0).trace()
    ).places.rows()
    assert (place.kind, place.ns, place.share) == ("outside", 10_000, 1.0)


# --- questions ------------------------------------------------------------------------------------------------------


def answers_at(count: int, *, inside: str = "", frame: str = "model.py(12): forward", op: str = "norm") -> list[str]:
    """What is answered of a line that runs so many ops of 4 us, within one op or in a function of its own."""
    trace = TraceBuilder(device=None).step(0, 1000).range("@model.py:13 forward", 0, 900)
    trace.frame(frame, 0, 900, parent=trace.frame("model.py(12): forward", 0, 900))
    if inside:
        trace.op(inside, 0, 900)
    for number in range(count):
        trace.op(f"aten::{op}", 5 * number, 4)
    return [answer.sentence for answer in Rank(trace.trace()).places.rows()[0].answers]


def test_one_call_with_a_loop_inside_is_told_from_many_calls() -> None:
    (loop,) = answers_at(120, inside="aten::lstm")
    assert loop.startswith("one call of lstm runs 120 ops inside")
    (calls,) = answers_at(120)
    assert calls.startswith("120 calls of norm of 4 us each")
    assert answers_at(20, inside="aten::lstm") == answers_at(20) == []


def test_compiled_code_and_what_one_call_of_a_library_calls_are_no_loop_of_the_users() -> None:
    assert answers_at(120, inside="CompiledFunction") == []
    assert answers_at(120, frame="torch/nn/modules/container.py(250): forward") == []


def test_layers_one_after_another_are_no_loop() -> None:
    assert answers_at(120, op="linear") == []


def test_calls_of_a_recording_without_steps_are_those_of_all_of_it() -> None:
    trace = TraceBuilder(device=None).op("aten::mm", 0, 100).op("aten::mm", 200, 100).trace()
    rank = Rank(trace)
    assert [each.calls for each in rank.places.rows()[0].within] == [2]
