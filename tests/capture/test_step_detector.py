"""Step detection and the plan of windows, as values: no torch, no clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import STANDARD_SIZES, RecorderSettings
from perfdoctor.capture.inject._perfdoctor_inject.step_detector import StepDetector
from perfdoctor.capture.inject._perfdoctor_inject.window_plan import AFTER, WindowPlan, make_stages

SIGNS = {
    "L": StepDetector.on_loader_next,
    "Z": StepDetector.on_zero_grad,
    "B": StepDetector.on_backward,
    "G": StepDetector.on_gradient,
}


def feed(detector: StepDetector, events: str) -> list[int]:
    """Feed events to a detector and return the positions where steps end.

    L next, Z zero_grad, B backward, G autograd.grad, O, P and Q optimizers, U scaler, S a step with a closure; a
    gradient of torch.func is h in one transform, g in two; e and f are calls of two models, i the same in a loop over
    a loader that goes on.
    """
    ends = []
    for position, event in enumerate(events):
        if event in "LZBG":
            ended = SIGNS[event](detector)
        elif event in "gh":
            ended = detector.on_gradient("hg".index(event) + 1)
        elif event in "efi":
            ended = detector.on_forward(ord(event), is_loading=event == "i")
        elif event == "U":
            detector.on_scaler_update()
            ended = False
        else:  # O, P, Q or S
            ended = detector.on_optimizer_begin()
            if event == "S":
                inside = [detector.on_zero_grad(), detector.on_backward(), detector.on_loader_next()]
                assert not any(inside), "a closure makes no boundary"
            detector.on_optimizer_step(ord(event))
            detector.on_optimizer_end()
        if ended:
            ends.append(position)
    return ends


def detector_with_optimizer() -> StepDetector:
    detector = StepDetector()
    detector.on_optimizer_built()
    return detector


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("LZBO", 1),  # the ordinary loop
        ("LBOZ", 1),
        ("LBLBLBOZ", 1),  # gradient accumulation over three batches
        ("LZBOZBP", 1),  # two optimizers, one batch
        ("LLZBOZBP", 1),  # two loaders in one loop
        ("LZBU", 1),  # every optimizer step skipped by the scaler
        ("LZBOU", 1),
        ("LS", 1),  # LBFGS with its closure
        ("LZBOLLL", 1),  # evaluation batches after the step
        ("LZBOZBOZBO", 1),  # several optimizer steps a batch
    ],
)
def test_loops_with_a_loader_end_at_the_next_batch(loop: str, steps: int) -> None:
    ends = feed(detector_with_optimizer(), loop * 10 + "L")
    assert len(ends) == 10 * steps
    assert all((loop * 10 + "L")[end] == "L" for end in ends)


@pytest.mark.parametrize(
    ("loop", "mark", "lost"),
    [
        ("ZBO", "Z", 0),
        ("BOZ", "Z", -1),
        ("ZBOZBP", "Z", -1),  # a GAN: the first round does not know of the second optimizer yet
        ("ZBZBO", "Z", 0),
        ("BO", "B", 2),  # no zero_grad at all
        ("S", "S", 2),  # LBFGS alone
        ("ZBU", "Z", 0),
    ],
)
def test_loops_without_a_loader_end_at_the_first_sign(loop: str, mark: str, lost: int) -> None:
    events = loop * 10
    ends = feed(detector_with_optimizer(), events)
    assert len(ends) == 9 - lost
    assert {events[end] for end in ends} == {mark}


def test_inference_is_cut_at_every_batch() -> None:
    assert len(feed(StepDetector(), "L" * 20)) == 17


def test_validation_before_training_is_no_inference() -> None:
    assert feed(detector_with_optimizer(), "L" * 30) == []


def test_weights_updated_by_hand_count_backward_passes() -> None:
    assert len(feed(StepDetector(), "B" * 10)) == 7


def test_a_single_batch_is_no_step() -> None:
    assert feed(detector_with_optimizer(), "LZBO") == []


def test_nothing_happens_without_events() -> None:
    assert feed(StepDetector(), "ZZZZ") == []


def test_an_optimizer_that_stopped_is_not_waited_for() -> None:
    detector = detector_with_optimizer()
    feed(detector, "ZBOZBP" * 5)
    assert len(feed(detector, "ZBO" * 60)) >= 40


def test_optimizers_that_run_one_after_the_other_have_steps_of_their_own() -> None:
    events = "ZBO" * 40 + "ZBP" * 40 + "ZBQ" * 40
    ends = feed(detector_with_optimizer(), events)
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert len(ends) >= 115
    assert max(lengths) <= 6, "two steps in one, where a phase begins"


def test_phases_that_take_turns_are_phases_again() -> None:
    ends = feed(detector_with_optimizer(), ("ZBO" * 40 + "ZBP" * 40) * 3)
    assert len(ends) >= 225


@pytest.mark.parametrize("critic", [2, 5, 10])
def test_a_critic_belongs_to_the_step_of_its_generator(critic: int) -> None:
    ends = feed(detector_with_optimizer(), ("ZBO" * critic + "ZBP") * 20)
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert lengths[-15:] == [3 * critic + 3] * 15


def test_gradients_mark_steps_where_nothing_else_does() -> None:
    assert len(feed(StepDetector(), "G" * 20)) == 17
    assert feed(detector_with_optimizer(), "ZBG" * 20) == []
    assert len(feed(detector_with_optimizer(), "ZGBO" * 20)) == 19, "a gradient penalty is no step"


@pytest.mark.parametrize(
    ("events", "steps"),
    [
        ("f" * 20, 17),
        ("ef" * 20, 17),  # an encoder and a decoder
        ("e" + "f" * 20, 17),  # the encoder runs once
        ("efff" * 10, 27),  # many calls of the decoder for each of the encoder
        ("L" + "f" * 20, 17),  # a batch for a benchmark
        ("LiLi" * 10, 17),  # a loader marks the steps of its loop
        ("fff", 0),
        ("fZfff" * 4, 13),
    ],
)
def test_calls_of_a_model_mark_steps_where_nothing_trains(events: str, steps: int) -> None:
    assert len(feed(StepDetector(), events)) == steps


@pytest.mark.parametrize("events", ["fB" * 20, "fG" * 20, "ZffffBO" * 20, "LfBO" * 20, "LffffS" * 20])
def test_calls_of_a_model_change_nothing_in_a_training(events: str) -> None:
    without = [event for event in events if event not in "ef"]
    make = detector_with_optimizer if set(events) & set("OS") else StepDetector
    marked = [events[end] for end in feed(make(), events)]
    assert marked == [without[end] for end in feed(make(), "".join(without))]


def test_a_rollout_before_the_first_optimizer_step_has_no_steps() -> None:
    assert feed(detector_with_optimizer(), "f" * 200) == []


def test_a_loader_read_once_before_training_is_forgotten() -> None:
    detector = detector_with_optimizer()
    feed(detector, "L" * 10)
    assert len(feed(detector, "ZBO" * 100)) >= 30


@given(st.text(alphabet="LZBOPUS", max_size=200))
def test_a_step_always_holds_work(events: str) -> None:
    ends = feed(detector_with_optimizer(), events.replace("S", "O"))
    for before, after in itertools.pairwise([0, *ends]):
        assert set(events[before:after]) & set("OPUSL")


def settings(**sizes: int) -> RecorderSettings:
    return RecorderSettings(folder="", **{"skip": 2, "base": 3, "warmup": 2, "timing": 4, "evidence": 2, **sizes})


def test_the_windows_follow_each_other() -> None:
    labels = [stage.window for stage in make_stages(settings())]
    assert labels == ["skip"] * 2 + ["base"] * 3 + ["warm"] * 2 + ["timing"] * 4 + ["warm"] + ["evidence"] * 2


def test_the_last_warm_step_is_recorded_and_not_counted() -> None:
    plan = make_stages(settings())
    assert [stage.recording for stage in plan[5:8]] == [False, True, True]
    assert [stage.counted for stage in plan[5:8]] == [False, False, True]


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4), st.integers(1, 9), st.integers(0, 4))
def test_every_counted_step_is_in_its_window(skip: int, base: int, warmup: int, timing: int, evidence: int) -> None:
    made = make_stages(settings(skip=skip, base=base, warmup=warmup, timing=timing, evidence=evidence))
    assert sum(stage.counted and stage.trace == "timing" for stage in made) == timing
    assert sum(stage.counted and stage.trace == "evidence" for stage in made) == evidence
    assert all(stage.trace is None and not stage.recording for stage in made if stage.window in ("skip", "base"))


def test_a_plan_ends_in_after() -> None:
    plan = WindowPlan(settings())
    for _ in range(20):
        plan.advance()
    assert plan.finished
    assert plan.stage is AFTER


def test_a_window_can_be_recorded_again_or_left() -> None:
    plan = WindowPlan(settings())
    for _ in range(8):
        plan.advance()
    assert plan.stage.window == "timing"
    plan.repeat_trace("timing")
    assert plan.stage.window == "base"
    plan.advance()
    assert plan.stage.trace == "timing"
    plan.skip_trace("timing")
    assert plan.stage.trace == "evidence"


STANDARD = RecorderSettings("", *STANDARD_SIZES)


def run_plan(steps: int, plan: WindowPlan | None = None) -> WindowPlan:
    plan = plan or WindowPlan(STANDARD)
    for _ in range(steps):
        plan.advance()
    return plan


def count_steps(plan: WindowPlan, steps: int, trace: str) -> list[int]:
    """Counted steps of a trace in each sample among the first steps."""
    counts: dict[int, int] = {}
    for _ in range(steps):
        if plan.stage.counted and plan.stage.trace == trace:
            counts[plan.stage.sample] = counts.get(plan.stage.sample, 0) + 1
        plan.advance()
    return list(counts.values())


@pytest.mark.parametrize(
    ("steps", "timing", "evidence"), [(4, [1], []), (6, [2], [1]), (18, [2, 4], [1, 2]), (42, [2, 4, 8], [1, 2, 3])]
)
def test_windows_grow_with_the_steps_that_come(steps: int, timing: list[int], evidence: list[int]) -> None:
    assert count_steps(WindowPlan(STANDARD), steps, "timing") == timing
    assert count_steps(WindowPlan(STANDARD), steps, "evidence") == evidence


@given(st.integers(0, 9), st.integers(0, 12), st.integers(0, 4), st.integers(1, 12), st.integers(0, 4))
def test_sizes_of_the_users_are_one_sample(skip: int, base: int, warmup: int, timing: int, evidence: int) -> None:
    sizes = (skip, base, warmup, timing, evidence)
    plan = WindowPlan(RecorderSettings("", *sizes))
    assert plan.adapts == (sizes == STANDARD_SIZES)
    if not plan.adapts:
        assert count_steps(plan, 60, "timing") == [timing]


@pytest.mark.parametrize(("events", "later"), [(1_000, [4, 8]), (60_000, [4, 4]), (200_000, [])])
def test_later_windows_have_no_more_events_than_can_be_written(events: int, later: list[int]) -> None:
    plan = run_plan(5)
    plan.limit_events("timing", events)
    assert count_steps(plan, 60, "timing") == later
    assert sum(stage.window == "base" for stage in plan._stages) == 14, "its base windows stay"


def test_a_window_ends_with_the_running_step() -> None:
    plan = run_plan(3)
    plan.shorten_trace()
    plan.advance()
    assert plan.stage.window == "evidence"


def test_another_sample_follows_the_last() -> None:
    plan = run_plan(100)
    plan.add_sample()
    assert not plan.finished
    assert count_steps(plan, 40, "timing") == [8]
    assert plan.finished


def test_the_base_window_begins_again() -> None:
    plan = run_plan(8)
    assert plan.stage.window == "base"
    plan.restart_base()
    plan.advance()
    assert [plan.stage.window, plan.stage.sample] == ["base", 1]


def test_of_nested_gradients_the_outermost_ends_steps() -> None:
    assert feed(StepDetector(), "gggggh" * 6) == [23, 29, 35]


def test_gradients_that_are_always_nested_end_steps_after_a_while() -> None:
    assert feed(StepDetector(), "g" * 35) == [32, 33, 34]


def test_tasks_before_the_first_outer_gradient_end_no_step() -> None:
    assert feed(StepDetector(), "g" * 30 + "h") == []
