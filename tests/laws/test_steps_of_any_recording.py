"""The steps of any recording: what comes back is found, by marks or by the kernels, and what does not is no step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_once
from recordings import SHARED, list_recordings, name_recording

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace
from perfdoctor.trace.tables import kernel_cycle, steps
from perfdoctor.trace.tables.kernel_cycle import find_cycle
from perfdoctor.trace.tables.model import Frames, Ranges
from perfdoctor.trace.tables.steps import find_steps

FILES = tuple(path for path in list_recordings() if path.is_file())
NODE = "autograd::engine::evaluate_function: MulBackward0"
# Counted in the raw files: marks with work, ranges of the engine, frames of a camera, steps of a denoising loop.
COUNTS = {
    "recordings/gb10-vllm-flashinfer.json.gz": (10, "annotated"),
    "recordings/h100-streams0-pinned0.json.gz": (1, "annotated"),
    "recordings/h100-streams0-pinned1.json.gz": (1, "annotated"),
    "recordings/mi-replay.json.gz": (10, "annotated"),
    "recordings/rtx4060-default.json.gz": (10, "inferred"),
    "recordings/rtx4090d-break.json.gz": (3, "inferred"),
    "traces/gtx1650-clock-skew.json.gz": (100, "inferred"),
    "traces/mi250-minitoy.json.gz": (1, "annotated"),
    "traces/pg509-vit-graph-ns.json.gz": (5, "annotated"),
    "nsight/mfu_2gpu_before.sqlite": (16, "inferred"),
    "nsight/orin-report1.sqlite": (56, "inferred"),
}
# One pass through layers that are alike, one batch, one first run: nothing comes back.
WITHOUT = (
    *("traces/b300-decode-graph.json.gz", "traces/mi300x-decode-graph.json.gz", "traces/b200-eager.json.gz"),
    *("traces/a100-sam-fp32.json.gz", "traces/a100-sam-bf16.json.gz", "traces/mi210-gpu-only.json.gz"),
    *("recordings/l40-triforce-prefill.json.gz", "recordings/mi300x-sglang-prefilldecode.json.gz"),
    *("recordings/t4-vgg16.json.gz", "recordings/a4000-trace.json.gz", "traces/a4000-no-cpu-op.json.gz"),
)


@pytest.mark.corpus
@pytest.mark.parametrize("path", FILES, ids=map(name_recording, FILES))
def test_steps_are_in_turn_and_none_at_the_edge_is_empty(path: Path) -> None:
    trace = read_once(path)
    found = find_steps(trace)
    assert (found.durations_ns > 0).all()
    assert (found.intervals[1:, 0] >= found.intervals[:-1, 1]).all()
    assert (found.source == "none") == (found.count == 0)
    assert len(found.numbers) in (0, found.count)
    if len(trace.gpu) and found.count > 1:
        launched = trace.calls.start_ns[trace.gpu.call[trace.gpu.call >= 0]]
        at = np.concatenate((found.at(trace.gpu.start_ns), found.at(launched)))
        work = np.bincount(at[at >= 0], minlength=found.count)
        assert work[[0, -1]].all() or not work[1:-1].all()


@pytest.mark.corpus
@pytest.mark.parametrize("name", [*COUNTS, *WITHOUT])
def test_as_many_steps_are_found_as_the_raw_file_has(name: str) -> None:
    found = find_steps(read_once(SHARED / name))
    assert (found.count, found.source) == COUNTS.get(name, (0, "none"))


@pytest.mark.corpus
@pytest.mark.parametrize("path", FILES, ids=map(name_recording, FILES))
def test_kernels_alone_say_the_same_as_the_marks_or_nothing(path: Path) -> None:
    """What the profiler marks is the truth for what the cycle of the kernels finds without the marks."""
    trace = read_once(path)
    marked = find_steps(trace)
    bare = find_steps(replace(trace, ranges=Ranges(), gpu_ranges=Ranges(), frames=Frames()))
    assert bare.source in ("inferred", "none")
    if bare.count:
        assert marked.median_ns is not None
        assert bare.median_ns == pytest.approx(marked.median_ns, rel=0.1)
        assert abs(bare.count - marked.count) <= 1


# --- generated loops --------------------------------------------------------------------------------------------------

PASS = ("embedding", *("gemm", "norm", "gemm", "act") * 3, "head", "argmax")
GAP_US, KERNEL_US = 4, 10


class Loop:
    """A program that launches kernels one after the other; each is done before the next one is launched."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.now_us = 0.0

    def launch(self, names: Sequence[str], thread: int = 1) -> None:
        for name in names:
            op = NODE if thread == 2 else "aten::mm"
            self.builder.op(op, self.now_us, 3, thread=thread)
            self.builder.kernel(name, self.now_us + 3, KERNEL_US, launch_us=self.now_us + 1, thread=thread)
            self.now_us += KERNEL_US + GAP_US

    def wait(self, dur_us: float = 20) -> None:
        self.builder.call("cudaDeviceSynchronize", self.now_us, dur_us)
        self.now_us += dur_us

    def span(self, name: str, run: Callable[[], None]) -> None:
        start_us = self.now_us
        run()
        self.builder.range(name, start_us, self.now_us - start_us)

    def train(self, times: int) -> None:
        for _ in range(times):
            self.launch(PASS)
            self.launch([f"{name}_backward" for name in reversed(PASS)], thread=2)

    def infer(self, times: int) -> None:
        for _ in range(times):
            self.launch(PASS)
            self.wait()


def count_ms(trace: Trace) -> tuple[int, float | None]:
    found = find_steps(trace)
    return found.count, found.median_ns and found.median_ns / 1000


@given(times=st.integers(3, 12), cold=st.lists(st.sampled_from(("load", "fill", "gemm")), max_size=40))
def test_training_without_marks_has_the_cycle_of_its_kernels(times: int, cold: list[str]) -> None:
    loop = Loop()
    loop.launch([f"{name}{index}" for index, name in enumerate(cold)])
    loop.train(times)
    assert count_ms(loop.builder.trace()) == (times, 2 * len(PASS) * (KERNEL_US + GAP_US))


@given(times=st.integers(3, 12))
def test_inference_that_waits_for_each_result_has_steps(times: int) -> None:
    loop = Loop()
    loop.infer(times)
    count, median_us = count_ms(loop.builder.trace())
    assert count == times
    assert median_us == pytest.approx(len(PASS) * (KERNEL_US + GAP_US) + 20, abs=20)


def loop_on_cpu(*ops: str, times: int, head: int = 0, tail: int = 0) -> Trace:
    """Ops of 100 us, `times` over, with other ones before and behind."""
    names = [f"aten::cold{index}" for index in range(head)] + [*ops] * times + [f"aten::end{n}" for n in range(tail)]
    trace = TraceBuilder(device=None)
    for number, name in enumerate(names):
        trace.op(name, 110 * number, 100).op("aten::empty", 110 * number + 5, 5)
    return trace.trace()


@given(times=st.integers(3, 12), head=st.integers(0, 40), maker=st.sampled_from(("aten::randn", "aten::lift_fresh")))
def test_a_loop_on_the_cpu_has_the_cycle_of_its_ops(times: int, head: int, maker: str) -> None:
    passes = (maker, "aten::linear", "aten::relu", "aten::linear")
    training = loop_on_cpu(*passes, NODE, NODE, times=times, head=head)
    # Half of all ops at least repeat, and a whole cycle lies before the first border that is seen.
    enough = 6 * times >= head
    assert count_ms(training) == ((times, 660) if enough else (0, None))
    assert count_ms(loop_on_cpu(*passes, times=times)) == (times, 440)


@given(batches=st.lists(st.integers(1, 9), min_size=4, max_size=9))
def test_an_evaluation_has_a_step_for_each_batch(batches: list[int]) -> None:
    """Its loop asks once more, for the batch that does not come."""
    trace = TraceBuilder(device=None)
    for number, ops in enumerate([*batches, 0]):
        trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 2000 * number, 300)
        for op in range(ops):
            trace.op("aten::addmm", 2000 * number + 310 + 100 * op, 90)
    assert count_ms(trace.trace()) == (len(batches), 2000)


@given(layers=st.integers(3, 40), head=st.integers(1, 6), tail=st.integers(0, 6), noise=st.booleans())
def test_layers_of_one_pass_on_the_cpu_are_no_steps(layers: int, head: int, tail: int, noise: bool) -> None:
    layer = ("aten::randn" if noise else "aten::layer_norm", "aten::linear", "aten::gelu", "aten::add")
    assert count_ms(loop_on_cpu(*layer, times=layers, head=head, tail=tail + noise)) == (0, None)


@given(layers=st.integers(3, 40), head=st.integers(1, 6), tail=st.integers(0, 6), waits=st.booleans())
def test_layers_of_one_pass_are_no_steps(layers: int, head: int, tail: int, waits: bool) -> None:
    loop = Loop()
    loop.launch([f"embed{index}" for index in range(head)])
    for _ in range(layers):
        loop.launch(("norm", "qkv", "attention", "proj", "norm", "up", "act", "down"))
        if waits:
            loop.wait()
    loop.launch([f"head{index}" for index in range(tail)])
    assert count_ms(loop.builder.trace()) == (0, None)


@given(times=st.integers(3, 10))
def test_layers_within_one_op_or_one_forward_range_are_no_steps(times: int) -> None:
    loop = Loop()
    loop.span("Model_Forward", lambda: loop.infer(times))
    assert count_ms(loop.builder.trace())[0] == 0


@given(names=st.lists(st.integers(0, 10**6), min_size=20, max_size=200, unique=True))
def test_kernels_without_a_cycle_have_no_steps(names: list[int]) -> None:
    loop = Loop()
    loop.launch([f"k{name}" for name in names])
    assert count_ms(loop.builder.trace()) == (0, None)
    assert find_cycle(np.array(names, np.int32)) is None


@given(
    cycle=st.lists(st.integers(0, 5), min_size=2, max_size=60),
    times=st.integers(3, 20),
    head=st.lists(st.integers(100, 200), max_size=30, unique=True),
)
def test_a_cycle_covers_what_repeats_and_no_more(cycle: list[int], times: int, head: list[int]) -> None:
    cycle = [7, *cycle, 8, 9]  # symbols of a borders' own: the cycle is primitive
    symbols = np.array(head + cycle * times, np.int32)
    found = find_cycle(symbols)
    assert found is not None
    assert (found.start, found.length, found.end) == (len(head), len(cycle), len(symbols))


RANGES = ("execute_context_0(0)_generation_4({})", "[iteration {}]", "train step", "forward", "decode {}", "batch")


@given(
    name=st.sampled_from(RANGES),
    times=st.integers(3, 8),
    noise_us=st.lists(st.integers(0, 4), min_size=8, max_size=8),
    on_gpu=st.booleans(),
)
def test_ranges_that_repeat_are_steps(name: str, times: int, noise_us: list[int], on_gpu: bool) -> None:
    loop = Loop()
    for index in range(times):
        start_us = loop.now_us
        loop.launch(("a", "b", "c", "d"))
        if on_gpu and "iteration" not in name:
            loop.builder.gpu_range(name.format(index), start_us + 3, 4 * (KERNEL_US + GAP_US) - GAP_US)
        else:
            loop.builder.range(name.format(index), start_us, loop.now_us - start_us)
        loop.now_us += noise_us[index]
    count, median_us = count_ms(loop.builder.trace())
    assert count == times
    assert median_us == pytest.approx(4 * (KERNEL_US + GAP_US), abs=5)


@given(times=st.integers(3, 12), name=st.sampled_from(("TransformerLayer_{}", "Attention_Forward", "nccl:all_reduce")))
def test_ranges_around_parts_are_no_steps(times: int, name: str) -> None:
    loop = Loop()
    for index in range(times):
        loop.span(name.format(index), lambda: loop.launch(("a", "b", "c", "d")))
    assert count_ms(loop.builder.trace())[0] == 0


def test_a_forward_range_lasts_until_the_next_one() -> None:
    loop = Loop()
    for _ in range(4):
        loop.span("forward", lambda: loop.launch(PASS))
        loop.launch([f"{name}_backward" for name in PASS], thread=2)
    assert count_ms(loop.builder.trace()) == (4, 2 * len(PASS) * (KERNEL_US + GAP_US))


def test_ranges_that_launch_unlike_amounts_are_no_steps() -> None:
    loop = Loop()
    for size in (1, 9, 2, 14, 3):
        loop.span("forward", lambda size=size: loop.launch([f"k{size}"] * size))
    assert count_ms(loop.builder.trace())[0] == 0


# --- empty heads and tails --------------------------------------------------------------------------------------------


def marked(works: Sequence[int]) -> Trace:
    """Steps of the profiler, each with so many kernels."""
    loop = Loop()
    for number, work in enumerate(works):
        start_us = loop.now_us
        loop.launch(["k"] * work)
        loop.now_us += 15
        loop.builder.step(start_us, loop.now_us - start_us, number)
    return loop.builder.trace()


@given(head=st.integers(0, 1), whole=st.integers(2, 6), tail=st.integers(0, 1), work=st.integers(4, 9))
def test_empty_steps_at_the_edges_are_left_out(head: int, whole: int, tail: int, work: int) -> None:
    found = find_steps(marked([0] * head + [work] * whole + [0] * tail))
    assert found.numbers == tuple(range(head, head + whole))
    assert set(found.durations_ns.tolist()) == {1000 * (work * (KERNEL_US + GAP_US) + 15)}


@given(whole=st.integers(3, 6), work=st.integers(8, 20), piece=st.integers(1, 3), in_front=st.booleans())
def test_a_step_that_is_cut_at_an_edge_is_left_out(whole: int, work: int, piece: int, in_front: bool) -> None:
    works = [piece, *[work] * whole] if in_front else [*[work] * whole, piece]
    assert find_steps(marked(works)).count == whole


@given(works=st.lists(st.integers(10, 18), min_size=1, max_size=8))
def test_whole_steps_are_all_kept(works: list[int]) -> None:
    assert find_steps(marked(works)).count == len(works)


@given(works=st.lists(st.sampled_from((0, 9)), min_size=1, max_size=8).filter(lambda works: 0 in works))
def test_steps_without_work_in_the_middle_show_that_such_steps_are_whole(works: list[int]) -> None:
    assert find_steps(marked([0, 9, *works, 9, 0])).count == len(works) + 4


# --- the laws bite ----------------------------------------------------------------------------------------------------


def test_without_the_law_of_fragments_an_empty_tail_halves_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_leave_out_fragments", lambda _trace, found: found)
    with pytest.raises(AssertionError):
        test_empty_steps_at_the_edges_are_left_out.hypothesis.inner_test(0, 2, 1, 5)  # type: ignore[attr-defined]


def test_without_the_law_of_borders_layers_pass_for_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cycle, "_find_border", lambda cycle, *_: cycle.start)
    with pytest.raises(AssertionError):
        test_layers_of_one_pass_are_no_steps.hypothesis.inner_test(5, 3, 0, False)  # type: ignore[attr-defined]
