"""Step detection and the plan of windows, as values: no torch, no clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import STANDARD_SIZES, RecorderSettings
from perfdoctor.capture.inject._perfdoctor_inject.step_detector import StepDetector
from perfdoctor.capture.inject._perfdoctor_inject.window_plan import AFTER, WindowPlan, make_stages


class Loop:
    """A detector, and the graph that the forward passes of its program build."""

    def __init__(self, *, has_optimizer: bool = False) -> None:
        self.nodes = 0
        self.detector = StepDetector(lambda: self.nodes)
        if has_optimizer:
            self.detector.on_optimizer_built()

    def feed(self, events: str) -> list[int]:
        """Feed events to the detector and return the positions where steps end.

        L next, F a forward pass that builds a graph, Z zero_grad, B backward, G autograd.grad, O, P and Q optimizers, U
        scaler, S a step with a closure, A backward with an optimizer's step inside, W a step of a class that torch
        wrapped before us; a gradient of torch.func is h in one transform, g in two; e and f are calls of two models, i
        the same in a loop over a loader that goes on.
        """
        return [position for position, event in enumerate(events) if self._ends_at(event)]

    def _ends_at(self, event: str) -> bool:
        detector = self.detector
        if event == "F":
            self.nodes += 5
            return False
        if event in "gh":
            return detector.on_gradient("hg".index(event) + 1)
        if event in "efi":
            return detector.on_forward(ord(event), is_loading=event == "i")
        if event == "B":
            detector.on_backward()
            return detector.on_backward_end()
        if event == "A":
            detector.on_backward()
            assert not any(map(self._ends_at, "OZL")), "a backward pass is not cut"
            return detector.on_backward_end()
        if event in "LZGU":
            signs = (detector.on_loader_next, detector.on_zero_grad, detector.on_gradient, detector.on_scaler_update)
            return dict(zip("LZGU", signs, strict=True))[event]()
        if event == "W":
            return detector.on_optimizer_step(ord(event))
        detector.on_optimizer_begin()  # O, P, Q or S
        if event == "S":
            assert not any(map(self._ends_at, "ZFBL")), "a closure makes no boundary"
        assert not detector.on_optimizer_step(ord(event)), "its range is still open"
        return detector.on_optimizer_end()


def feed(events: str) -> list[int]:
    """Where steps end in a program without an optimizer object."""
    return Loop().feed(events)


def feed_training(events: str) -> list[int]:
    """Where steps end in a program that has built an optimizer."""
    return Loop(has_optimizer=True).feed(events)


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
    ends = feed_training(loop * 10 + "L")
    assert len(ends) == 10 * steps
    assert all((loop * 10 + "L")[end] == "L" for end in ends)


@pytest.mark.parametrize(
    ("loop", "mark", "lost"),
    [
        ("ZFBO", "Z", 0),
        ("FBOZ", "Z", -1),
        ("ZFBOZFBP", "Z", -1),  # a GAN: the first round does not know of the second optimizer yet
        ("ZFBZFBO", "Z", 0),
        ("ZFBU", "Z", 0),
        ("ZFBOU", "Z", 0),
        ("ZZFBOP", "Z", 0),  # several optimizers for one backward pass
        ("FZBO", "O", 0),  # the forward pass lies before zero_grad
        ("FZZBOP", "P", 0),
        ("FZBOFZBP", "P", -1),
        ("FBFBFZBO", "O", 0),
        ("FZBU", "U", 0),
        ("FZBOU", "U", 0),
        ("FZBOUP", "P", 0),  # a scaler for one optimizer of two
        ("FBO", "O", 1),  # no zero_grad at all
        ("FBFBOP", "P", 1),
        ("FBOU", "U", 1),
        ("FZA", "A", 0),  # an optimizer that steps while gradients come
        ("FA", "A", 1),
        ("FZBW", "W", 0),
        ("S", "S", 1),  # LBFGS alone
    ],
)
def test_loops_without_a_loader_have_whole_steps(loop: str, mark: str, lost: int) -> None:
    events = loop * 10
    ends = feed_training(events)
    assert len(ends) == 9 - lost
    assert {events[end] for end in ends} == {mark}
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert lengths[1:] == [len(loop)] * (8 - lost - 1)


@pytest.mark.parametrize(("loop", "mark"), [("FB", "B"), ("FZB", "B"), ("ZFB", "Z"), ("ZFBFB", "Z")])
def test_weights_updated_by_hand_have_whole_steps(loop: str, mark: str) -> None:
    events = loop * 12
    ends = feed(events)
    assert len(ends) >= 8
    assert {events[end] for end in ends} == {mark}
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert lengths[-7:] == [len(loop)] * 7


def test_a_graph_that_grows_after_the_optimizer_moves_the_boundary_there() -> None:
    events = "ZFBOF" * 10  # an evaluation with gradients
    assert {events[end] for end in feed_training(events)} == {"O"}


def test_inference_is_cut_at_every_batch() -> None:
    assert len(feed("L" * 20)) == 17


def test_validation_before_training_is_no_inference() -> None:
    assert feed_training("L" * 30) == []


def test_a_single_batch_is_no_step() -> None:
    assert feed_training("LZBO") == []


def test_nothing_happens_without_events() -> None:
    assert feed("ZZZZ") == []


def test_an_optimizer_that_stopped_is_not_waited_for() -> None:
    loop = Loop(has_optimizer=True)
    loop.feed("ZBOZBP" * 5)
    assert len(loop.feed("ZBO" * 60)) >= 40


def test_optimizers_that_run_one_after_the_other_have_steps_of_their_own() -> None:
    events = "ZBO" * 40 + "ZBP" * 40 + "ZBQ" * 40
    ends = feed_training(events)
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert len(ends) >= 115
    assert max(lengths) <= 6, "two steps in one, where a phase begins"


def test_phases_that_take_turns_are_phases_again() -> None:
    ends = feed_training(("ZBO" * 40 + "ZBP" * 40) * 3)
    assert len(ends) >= 225


@pytest.mark.parametrize("critic", [2, 5, 10])
def test_a_critic_belongs_to_the_step_of_its_generator(critic: int) -> None:
    ends = feed_training(("ZBO" * critic + "ZBP") * 20)
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert lengths[-15:] == [3 * critic + 3] * 15


def test_gradients_mark_steps_where_nothing_else_does() -> None:
    assert len(feed("G" * 20)) == 17
    assert feed_training("ZBG" * 20) == []
    assert len(feed_training("ZGBO" * 20)) == 19, "a gradient penalty is no step"


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
    assert len(feed(events)) == steps


@pytest.mark.parametrize("events", ["fB" * 20, "fG" * 20, "ZffffBO" * 20, "LfBO" * 20, "LffffS" * 20])
def test_calls_of_a_model_change_nothing_in_a_training(events: str) -> None:
    without = [event for event in events if event not in "ef"]
    find = feed_training if set(events) & set("OS") else feed
    assert [events[end] for end in find(events)] == [without[end] for end in find("".join(without))]


def test_a_rollout_before_the_first_optimizer_step_has_no_steps() -> None:
    assert feed_training("f" * 200) == []


def test_a_loader_read_once_before_training_is_forgotten() -> None:
    loop = Loop(has_optimizer=True)
    loop.feed("L" * 10)
    assert len(loop.feed("ZBO" * 100)) >= 30


@given(st.text(alphabet="LFZBOPUSAW", max_size=200))
def test_a_step_always_holds_work(events: str) -> None:
    ends = feed_training(events)
    for before, after in itertools.pairwise([0, *ends]):
        assert set(events[before : after + 1]) & set("OPUSLAW")


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


@pytest.mark.parametrize(
    ("steps", "timing", "evidence"), [(6, [2], []), (7, [2], [1]), (20, [2, 4], [1, 2]), (44, [2, 4, 8], [1, 2, 3])]
)
def test_in_a_job_each_evidence_window_is_warmed_up(steps: int, timing: list[int], evidence: list[int]) -> None:
    def plan() -> WindowPlan:
        plan = WindowPlan(STANDARD)
        plan.warm_up_evidence()
        return plan

    assert count_steps(plan(), steps, "timing") == timing
    assert count_steps(plan(), steps, "evidence") == evidence
    stages = plan()._stages
    before = [last for last, stage in itertools.pairwise(stages) if stage.counted and not last.counted]
    assert {(stage.window, stage.recording) for stage in before} == {("warm", True)}


def test_sizes_of_the_users_stay_in_a_job() -> None:
    plan = WindowPlan(settings(warmup=0))
    plan.warm_up_evidence()
    assert [stage.window for stage in plan._stages] == ["skip"] * 2 + ["base"] * 3 + ["timing"] * 4 + ["evidence"] * 2


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
    assert feed("gggggh" * 6) == [23, 29, 35]


def test_gradients_that_are_always_nested_end_steps_after_a_while() -> None:
    assert feed("g" * 35) == [32, 33, 34]


def test_tasks_before_the_first_outer_gradient_end_no_step() -> None:
    assert feed("g" * 30 + "h") == []
