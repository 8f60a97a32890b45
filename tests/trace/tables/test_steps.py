"""Where steps begin and end: marked, inferred, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.steps import Steps, find_steps, leave_out_steps

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#SGD.step"


def spans_us(steps: Steps) -> list[list[float]]:
    return (steps.intervals / 1000).tolist()


def test_marked_steps_are_taken_as_they_stand() -> None:
    steps = find_steps(TraceBuilder().step(0, 100).step(110, 90).step(200, 110).trace())
    assert steps.source == "annotated"
    assert spans_us(steps) == [[0, 100], [110, 200], [200, 310]]
    assert (steps.count, steps.durations_ns.tolist()) == (3, [100_000, 90_000, 110_000])
    assert steps.median_ns == 100_000
    assert steps.variation == pytest.approx(0.0816, abs=1e-4)
    assert (steps.window / 1000).tolist() == [[0, 100], [110, 310]]


@pytest.mark.parametrize(
    ("without", "left"),
    [
        ((), (30, 31, 32, 33)),
        ((5, 40), (30, 31, 32, 33)),  # before and after this window
        ((30,), (31, 32, 33)),
        ((33,), (30, 31, 32)),
        ((31,), (32, 33)),
        ((31, 32), (33,)),
        ((30, 31, 32, 33), (30, 31, 32, 33)),  # better these than none
    ],
)
def test_steps_that_are_left_out_leave_steps_in_a_row(without: tuple[int, ...], left: tuple[int, ...]) -> None:
    trace = TraceBuilder()
    for number in range(30, 34):
        trace.range(f"ProfilerStep#{number}", 100 * number, 100).op("aten::mm", 100 * number + 10, 50)
    assert find_steps(leave_out_steps(trace.trace(), without)).numbers == left


def test_a_trace_without_marks_has_no_steps() -> None:
    steps = find_steps(TraceBuilder().range("ProfilerStepper", 0, 5).op("aten::mm", 0, 5).trace())
    assert (steps.source, steps.count, steps.median_ns, steps.variation) == ("none", 0, None, None)
    assert (steps.durations_ns.tolist(), steps.window.tolist()) == ([], [])


def test_one_step_has_a_median_and_no_variation() -> None:
    steps = find_steps(TraceBuilder().step(0, 100).trace())
    assert (steps.count, steps.median_ns, steps.variation) == (1, 100_000, None)


def test_a_step_lasts_until_the_gpu_has_done_what_it_launched() -> None:
    b = TraceBuilder().step(0, 100).step(100, 100)
    b.kernel("k", 50, 100, launch_us=20).kernel("k", 150, 100, launch_us=120)
    assert spans_us(find_steps(b.trace())) == [[0, 150], [150, 250]]


def test_a_step_ends_with_its_mark_when_the_gpu_is_done_before() -> None:
    b = TraceBuilder().step(0, 100).step(100, 100)
    b.kernel("k", 50, 20, launch_us=20).kernel("k", 150, 20, launch_us=120)
    assert spans_us(find_steps(b.trace())) == [[0, 100], [100, 200]]


def test_what_another_thread_launches_during_a_step_belongs_to_it() -> None:
    b = TraceBuilder().step(0, 100).step(100, 100)
    b.kernel("backward", 50, 100, launch_us=20, thread=2).kernel("k", 160, 10, launch_us=120)
    assert spans_us(find_steps(b.trace())) == [[0, 150], [150, 200]]


def test_what_is_launched_between_steps_belongs_to_none() -> None:
    b = TraceBuilder().step(0, 100).step(200, 100)
    b.kernel("k", 10, 10, launch_us=5).kernel("between", 160, 20, launch_us=150).kernel("k", 210, 10, launch_us=205)
    assert spans_us(find_steps(b.trace())) == [[0, 100], [200, 300]]


def test_the_backlog_of_the_step_before_is_no_part_of_the_first() -> None:
    b = TraceBuilder().step(100, 100).step(200, 100)
    b.kernel("backlog", 50, 90, launch_us=10)
    b.kernel("k", 150, 90, launch_us=110).kernel("k", 250, 90, launch_us=210)
    assert spans_us(find_steps(b.trace())) == [[140, 240], [240, 340]]


def test_a_backlog_that_outlasts_every_step_hides_none() -> None:
    b = TraceBuilder().kernel("backlog", 50, 900, launch_us=10).step(100, 100)
    assert spans_us(find_steps(b.trace())) == [[100, 200]]


def test_items_launched_before_the_recording_are_backlog() -> None:
    b = TraceBuilder().step(100, 100)
    launch = b.call("cudaLaunchKernel", 110, correlation=50)
    b.kernel("k", 160, 90, correlation=launch).kernel("backlog", 120, 30, correlation=7)
    assert spans_us(find_steps(b.trace())) == [[150, 250]]


def test_items_whose_launch_is_lost_later_are_none() -> None:
    b = TraceBuilder().step(100, 100)
    launch = b.call("cudaLaunchKernel", 110, correlation=50)
    b.kernel("k", 160, 90, correlation=launch).kernel("lost", 120, 30, correlation=70)
    assert spans_us(find_steps(b.trace())) == [[100, 250]]


def test_clocks_that_disagree_say_nothing_about_ends() -> None:
    b = TraceBuilder().step(0, 100).step(100, 100)
    for start in (20, 40, 60, 120):
        b.kernel("k", start - 15, 200, launch_us=start)
    assert spans_us(find_steps(b.trace())) == [[0, 100], [100, 200]]


def test_a_mark_repeated_or_inside_another_makes_no_further_step() -> None:
    steps = find_steps(TraceBuilder().step(0, 100, 1).step(0, 100, 1).step(20, 10, 2).step(100, 50, 3).trace())
    assert spans_us(steps) == [[0, 100], [100, 150]]


def test_of_several_threads_the_one_with_most_marks_counts() -> None:
    b = TraceBuilder().step(0, 500, 1, thread=2)
    b.step(0, 100, 1).step(100, 100, 2)
    assert spans_us(find_steps(b.trace())) == [[0, 100], [100, 200]]


def test_marks_on_the_gpu_row_serve_where_the_cpu_has_none() -> None:
    b = TraceBuilder()
    b.gpu_range("ProfilerStep#1", 0, 90, stream=7).gpu_range("ProfilerStep#1", 10, 90, stream=20)
    b.gpu_range("ProfilerStep#2", 100, 80, stream=7)
    steps = find_steps(b.trace())
    assert (steps.source, spans_us(steps)) == ("annotated", [[0, 100], [100, 180]])


def test_marks_on_the_gpu_row_are_passed_over_beside_those_of_the_cpu() -> None:
    b = TraceBuilder().gpu_range("ProfilerStep#1", 0, 500).step(0, 100)
    assert spans_us(find_steps(b.trace())) == [[0, 100]]


def loop(count: int, batches: int = 1, optimizer: str = OPTIMIZER, thread: int = 1) -> TraceBuilder:
    """A loop of 100 us a step that asks for batches at its start and steps the optimizer at its end."""
    b = TraceBuilder()
    for i in range(count):
        for batch in range(batches):
            b.range(LOADER, i * 100 + batch * 20, 10, thread)
        b.range(optimizer, i * 100 + 80, 15, thread)
    return b


def test_steps_are_inferred_from_one_request_for_a_batch_to_the_next() -> None:
    steps = find_steps(loop(5).trace())
    # The first step holds the start-up, the last may be cut.
    assert (steps.source, spans_us(steps)) == ("inferred", [[100, 200], [200, 300], [300, 400]])


def test_accumulated_batches_make_one_step() -> None:
    assert spans_us(find_steps(loop(4, batches=3).trace())) == [[100, 200], [200, 300]]


def test_a_loop_without_an_optimizer_has_no_steps() -> None:
    b = TraceBuilder()
    for i in range(9):
        b.range(LOADER, i * 100, 10)
    assert find_steps(b.trace()).source == "none"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_two_whole_steps_are_the_least_to_infer_from(count: int) -> None:
    assert find_steps(loop(count).trace()).source == "none"
    assert find_steps(loop(4).trace()).source == "inferred"


def test_marks_are_preferred_to_what_could_be_inferred() -> None:
    assert find_steps(loop(9).step(0, 400).trace()).source == "annotated"


def test_inferred_steps_last_until_the_gpu_is_done_too() -> None:
    b = loop(4)
    for i in range(4):
        b.kernel("k", i * 100 + 50, 90, launch_us=i * 100 + 40)
    assert spans_us(find_steps(b.trace())) == [[140, 240], [240, 340]]


def optimizers(*names: str, thread: int = 1) -> TraceBuilder:
    b = TraceBuilder()
    for i, name in enumerate(names):
        b.range(f"Optimizer.step#{name}.step", i * 100, 10, thread)
    return b


def test_without_a_loader_steps_end_with_those_of_the_optimizer() -> None:
    assert spans_us(find_steps(optimizers("SGD", "SGD", "SGD").trace())) == [[10, 110], [110, 210]]


def test_of_several_optimizers_the_rarest_closes_the_step() -> None:
    b = optimizers("Critic", "Critic", "Generator", "Critic", "Critic", "Generator", "Critic", "Critic", "Generator")
    assert spans_us(find_steps(b.trace())) == [[210, 510], [510, 810]]


def test_an_optimizer_that_steps_twice_marks_no_loop() -> None:
    assert find_steps(optimizers("SGD", "SGD").trace()).source == "none"


def test_optimizers_on_several_threads_cannot_be_told_apart() -> None:
    b = optimizers("SGD", "SGD", "SGD")
    for i in range(3):
        b.range("Optimizer.step#SGD.step", i * 100 + 50, 10, thread=2)
    assert find_steps(b.trace()).source == "none"


TIMES = st.integers(0, 60)


@given(
    st.lists(st.tuples(TIMES, st.integers(1, 40)), max_size=6),
    st.lists(st.tuples(TIMES, TIMES, st.integers(0, 40)), max_size=8),
)
def test_steps_are_sorted_disjoint_and_never_empty(
    marks: list[tuple[int, int]], launches: list[tuple[int, int, int]]
) -> None:
    b = TraceBuilder().range("there", 0, 1)
    for start, dur in marks:
        b.step(start, dur)
    for launch, delay, dur in launches:
        b.kernel("k", launch + delay, dur, launch_us=launch)
    steps = find_steps(b.trace())
    assert (steps.durations_ns > 0).all()
    assert (steps.intervals[1:, 0] >= steps.intervals[:-1, 1]).all()
    assert min(len(marks), 1) <= steps.count <= len(marks)
    assert steps.source == ("annotated" if marks else "none")


def numbered(*names: str, every: float = 100, last: float = 90, thread: int = 1) -> TraceBuilder:
    b = TraceBuilder()
    for row, name in enumerate(names):
        b.range(name, every * row, last, thread)
    return b


@pytest.mark.parametrize(
    "names",
    [
        ["step 0", "step 1", "step 2"],
        ["Iteration 7", "Iteration 8", "Iteration 10"],
        ["iter_1", "iter_2", "iter_3"],
        ["train_step#98", "train_step#99", "train_step#100"],
        ["global step: 4", "global step: 5", "global step: 6"],
        ["step=1", "step=2", "step=3"],
    ],
)
def test_ranges_that_count_steps_are_steps(names: list[str]) -> None:
    steps = find_steps(numbered(*names).trace())
    assert steps.source == "annotated"
    assert spans_us(steps) == [[0, 90], [100, 190], [200, 290]]


@pytest.mark.parametrize(
    "names",
    [
        ["step 0", "step 1"],
        ["step 0", "step 2", "step 1"],
        ["step 0", "step 0", "step 0"],
        ["layer 0", "layer 1", "layer 2"],
        ["epoch 0", "epoch 1", "epoch 2"],
        ["substep 0", "substep 1", "substep 2"],
        ["optimizer step 0", "optimizer step 1", "optimizer step 2"],
        ["step 0 forward", "step 1 forward", "step 2 forward"],
        ["step", "step", "step"],
        ["step 0", "iter 1", "step_2"],
    ],
)
def test_ranges_that_count_no_steps_are_none(names: list[str]) -> None:
    assert find_steps(numbered(*names).trace()).source == "none"


def test_counting_ranges_that_overlap_or_lie_on_several_threads_are_no_steps() -> None:
    assert find_steps(numbered("step 0", "step 1", "step 2", last=150).trace()).source == "none"
    b = TraceBuilder()
    for number in range(3):
        b.range(f"step {number}", 100 * number, 90, thread=number + 1)
    assert find_steps(b.trace()).source == "none"


def test_the_longest_series_counts() -> None:
    b = numbered("step 0", "step 1", "step 2", "step 3")
    for number in range(3):
        b.range(f"iter {number}", 500 + 100 * number, 20)
    assert find_steps(b.trace()).count == 4


def test_marks_of_the_profiler_come_before_ranges_that_count() -> None:
    b = numbered("step 0", "step 1", "step 2").step(0, 150).step(150, 150)
    assert spans_us(find_steps(b.trace())) == [[0, 150], [150, 300]]


def test_ranges_that_count_come_before_what_loader_and_optimizer_imply() -> None:
    b = numbered("step 0", "step 1", "step 2")
    for number in range(4):
        b.range(LOADER, 100 * number, 5).range(OPTIMIZER, 100 * number + 50, 10)
    steps = find_steps(b.trace())
    assert (steps.source, steps.count) == ("annotated", 3)


def test_a_counted_step_lasts_until_the_gpu_has_done_what_it_launched() -> None:
    b = numbered("step 0", "step 1", "step 2").kernel("k", 30, 120, launch_us=20)
    assert spans_us(find_steps(b.trace())) == [[0, 150], [150, 190], [200, 290]]


def requests(calls: int, name: str = "search", work_outside: int = 0) -> TraceBuilder:
    """Four ranges of 100 us, in which a model is called so often, and calls outside of them after the last."""
    trace = TraceBuilder(device=None)
    for number in range(4):
        trace.range(name.format(number), 100 * number, 95)
        for call in range(calls):
            trace.frame("nn.Module: GRUCell_0", 100 * number + 10 * call + 1, 5)
            trace.op("aten::mm", 100 * number + 10 * call + 2, 3)
    for call in range(work_outside):
        trace.frame("nn.Module: GRUCell_0", 400 + 10 * call, 5)
        trace.op("aten::mm", 400 + 10 * call + 1, 3)
    return trace


def test_ranges_that_hold_several_calls_of_the_model_each_are_steps() -> None:
    assert spans_us(find_steps(requests(5).trace())) == [[100.0 * n, 100.0 * n + 95] for n in range(4)]
    assert find_steps(requests(5, "search {}").trace()).count == 4


@pytest.mark.parametrize(
    ("trace", "calls"),
    [(requests(1), 4), (requests(5, "layer {}"), 20), (requests(2, work_outside=8), 16)],
    ids=["one-call-each", "parts-of-a-model", "half-of-the-calls-lie-outside"],
)
def test_other_ranges_around_calls_of_the_model_are_none(trace: TraceBuilder, calls: int) -> None:
    assert find_steps(trace.trace()).count == calls
