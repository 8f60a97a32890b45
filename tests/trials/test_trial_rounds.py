"""Rounds and combination, with programs in memory: order of runs, decisions, budgets, and what breaks."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from fake_program import FakeProgram, choice, make_log, run_of

from perfdoctor.trials.combine_winners import Combination, choose_winners, combine_winners
from perfdoctor.trials.program_run import MetChange
from perfdoctor.trials.trial_rounds import MAX_BLOCK, Candidate, run_rounds, split_into_blocks
from perfdoctor.trials.try_program import FROM_OUTSIDE


def candidates_of(*names: str, **changes) -> list[Candidate]:
    return [Candidate(choice(name, "", **changes)) for name in names]


def try_rounds(program: FakeProgram, *names: str, pairs: int = 6, **log_changes) -> dict[str, Candidate]:
    candidates = candidates_of(*names)
    run_rounds(candidates, make_log(program, **log_changes), pairs)
    return {each.choice.label: each for each in candidates}


def test_what_is_clearly_faster_or_slower_takes_two_pairs_and_what_does_nothing_four():
    found = try_rounds(FakeProgram({"fast": 0.5, "slow": 2.0}, noise=0.005), "fast", "slow", "idle")
    assert {name: each.verdict for name, each in found.items()} == {"fast": "faster", "slow": "slower", "idle": "same"}
    assert {name: len(each.pairs) for name, each in found.items()} == {"fast": 2, "slow": 2, "idle": 4}
    assert found["fast"].median_ratio == pytest.approx(0.5, rel=0.02)


def test_plain_and_changed_take_turns_and_every_second_round_goes_the_other_way():
    program = FakeProgram(noise=0.3, seed=3)
    try_rounds(program, "a", "b", pairs=4)
    rounds = program.runs[2:]
    assert rounds[:6] == ["plain", "a", "b", "b", "a", "plain"]
    assert rounds.count("plain") >= 3


def test_no_change_is_further_from_its_plain_run_than_a_block():
    names = [f"change{number}" for number in range(9)]
    program = FakeProgram(noise=0.2, seed=5)
    try_rounds(program, *names, pairs=2)
    plain = [number for number, label in enumerate(program.runs) if label == "plain"]
    assert max(after - before for before, after in pairwise(plain)) <= 2 * MAX_BLOCK + 1
    for number, label in enumerate(program.runs):
        assert label == "plain" or min(abs(number - each) for each in plain) <= MAX_BLOCK


def test_blocks_hold_all_candidates_once_and_are_of_about_one_size():
    for count in range(1, 30):
        blocks = list(split_into_blocks(candidates_of(*map(str, range(count)))))
        assert [each.choice.label for block in blocks for each in block] == [str(number) for number in range(count)]
        assert max(map(len, blocks)) <= MAX_BLOCK
        assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def test_a_change_that_the_machine_disturbs_gets_more_pairs_but_no_more_than_allowed():
    found = try_rounds(FakeProgram(noise=0.4, seed=11), "idle", pairs=5)
    assert found["idle"].verdict is not None
    assert len(found["idle"].pairs) <= 5


def test_pairs_that_other_programs_disturbed_are_made_again():
    class Disturbed(FakeProgram):
        def __call__(self, name, arm):
            is_disturbed = len(self.runs) in (3, 6)
            run = super().__call__(name, arm)
            steps = {number: ns * 3 for number, ns in run.step_ns.items()} if is_disturbed else run.step_ns
            return dataclasses.replace(run, step_ns=steps, core_share=0.3 if is_disturbed else 0.97)

    found = try_rounds(Disturbed({"a": 0.9}, noise=0.01), "a")["a"]
    assert found.verdict == "faster"
    assert len(found.ratios) == len(found.pairs) - 2
    assert found.median_ratio == pytest.approx(0.9, rel=0.03)


def test_a_change_whose_threads_wait_for_each_other_is_not_left_out():
    slow = run_of(20.0, changes={"a": MetChange(1)}, core_share=0.2)  # sixteen threads on two cores, in each run
    found = try_rounds(FakeProgram(special={"a": slow, "plain": run_of(core_share=0.98)}), "a")["a"]
    assert (found.verdict, len(found.ratios)) == ("slower", 2)


def test_a_machine_that_is_always_busy_leaves_out_no_more_than_half_and_ends():
    class Busy(FakeProgram):
        def __call__(self, name, arm):
            return dataclasses.replace(super().__call__(name, arm), core_share=0.9 if not len(self.runs) % 5 else 0.2)

    found = try_rounds(Busy(noise=0.5, seed=4), "a", pairs=4)["a"]
    assert found.verdict is not None
    assert len(found.pairs) <= 8


BROKEN = {
    "exit": (run_of(exit_code=1, error="ValueError: no"), "broke", "ValueError: no"),
    "hang": (run_of(exit_code=143, timed_out=True, error="ended after 25 s"), "broke", "ended after 25 s"),
    "own": (run_of(changes={"own": MetChange(1, error="TypeError: mine")}), "broke", "TypeError: mine"),
    "short": (run_of(steps=range(5, 8), changes={"short": MetChange(1)}), "broke", "3 of 20 timed steps were made"),
    "nothing": (run_of(steps=range(0)), "broke", "the program ended after 0 steps"),
    "nan": (
        run_of(losses={5: 0.5, 9: float("nan")}, changes={"nan": MetChange(1)}),
        "broke",
        "the loss became nan in step 9",
    ),
    "unmet": (run_of(changes={"unmet": MetChange(0)}), "not applicable", "the program never reached what it changes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_is_not_run_again_and_says_why(name):
    run, verdict, why = BROKEN[name]
    program = FakeProgram(special={name: run, "plain": run_of(losses={5: 0.5, 9: 0.25})})
    found = try_rounds(program, name, "fine")
    assert (found[name].verdict, found[name].why) == (verdict, why)
    assert program.runs.count(name) == 1
    assert found["fine"].verdict == "same"


def test_a_loss_that_is_nan_without_the_change_does_not_break_it():
    run = run_of(losses={5: float("nan")})
    changed = dataclasses.replace(run, changes={"fine": MetChange(1)})
    assert try_rounds(FakeProgram(special={"plain": run, "fine": changed}), "fine")["fine"].verdict == "same"


def test_a_plain_program_that_fails_twice_ends_the_rounds():
    failing = run_of(exit_code=1, error="OSError: disk")
    program = FakeProgram()
    log = make_log(program)
    program.special = {"plain": failing}
    candidates = candidates_of("a")
    run_rounds(candidates, log, 6)
    assert program.runs.count("plain") == 4
    assert candidates[0].verdict is None
    assert candidates[0].pairs == []


class Timed:
    """A program whose runs take three seconds each, by a clock of its own."""

    def __init__(self, program: FakeProgram) -> None:
        self.program, self.now_s = program, 0.0

    def __call__(self, name, arm):
        self.now_s += 3.0
        return self.program(name, arm)

    def read_clock(self) -> float:
        return self.now_s


def test_no_round_begins_that_would_not_end_within_the_budget():
    timed = Timed(FakeProgram(noise=0.5, seed=1))
    candidates = candidates_of("a", "b", "c")
    run_rounds(candidates, make_log(timed, budget_s=30.0, clock=timed.read_clock), 50)
    assert timed.program.runs == ["plain", "plain", "plain", "a", "b", "c"]
    assert [(len(each.pairs), each.verdict) for each in candidates] == [(1, None)] * 3


def test_an_interrupted_block_keeps_the_pairs_that_are_complete():
    program = FakeProgram(interrupt_at=5)
    candidates = candidates_of("a", "b", "c")
    with pytest.raises(KeyboardInterrupt):
        run_rounds(candidates, make_log(program), 6)
    assert [len(each.pairs) for each in candidates] == [1, 1, 0]


# The winners together ------------------------------------------------------------------------------------------------


def combine(program: FakeProgram, *names: str, **log_changes) -> tuple[Combination, FakeProgram]:
    candidates = candidates_of(*names)
    log = make_log(program, **log_changes)
    run_rounds(candidates, log, 6)
    combination = Combination()
    combine_winners(combination, choose_winners(candidates), log, 6)
    return combination, program


def labels(candidates) -> list[str]:
    return [each.choice.label for each in candidates]


def test_winners_are_combined_best_first_and_measured_together():
    combination, program = combine(
        FakeProgram({"good": 0.9, "best": 0.5, "idle": 1.0}, noise=0.002), "good", "idle", "best"
    )
    assert labels(combination.kept) == ["best", "good"]
    assert combination.in_turn["best"].median == pytest.approx(0.5, rel=0.02)
    assert combination.in_turn["good"].median == pytest.approx(0.9, rel=0.02)
    together = [pair.ratio for pair in combination.pairs]
    assert together == pytest.approx([0.45] * len(together), rel=0.02)
    assert "best + good" in program.runs
    assert not any("idle" in label and "+" in label for label in program.runs)


def test_a_winner_that_gives_nothing_on_top_is_dropped_with_the_reason():
    class Overlapping(FakeProgram):
        def __call__(self, name, arm):
            run = super().__call__(name, arm)
            # The second one shortens the same wait.
            return run_of(5.0, changes=run.changes, losses=run.losses) if len(arm) == 2 else run

    combination, _ = combine(Overlapping({"a": 0.5, "b": 0.6}), "a", "b")
    assert labels(combination.kept) == ["a"]
    assert combination.dropped == {"b": "it adds nothing to the others"}


def test_a_winner_that_breaks_with_the_others_is_dropped():
    broken = run_of(exit_code=1, error="RuntimeError: both at once")
    combination, _ = combine(FakeProgram({"a": 0.5, "b": 0.6}, special={"a + b": broken}), "a", "b")
    assert combination.dropped == {"b": "it broke on top of the others: RuntimeError: both at once"}
    assert labels(combination.kept) == ["a"]


def test_one_winner_needs_no_combination():
    combination, program = combine(FakeProgram({"a": 0.5}), "a", "idle")
    assert labels(combination.kept) == ["a"]
    assert not any("+" in label for label in program.runs)


def test_without_time_winners_stay_untried_together():
    timed = Timed(FakeProgram({"a": 0.5, "b": 0.6}))
    candidates = candidates_of("a", "b")
    log = make_log(timed, clock=timed.read_clock)
    run_rounds(candidates, log, 6)
    log.budget_s = timed.now_s + 1
    combination = Combination()
    combine_winners(combination, choose_winners(candidates), log, 6)
    assert labels(combination.untried) == ["b"]


def test_of_one_change_the_best_setting_wins_and_a_what_if_stays_out():
    candidates = [
        Candidate(choice("workers", "2")),
        Candidate(choice("workers", "4")),
        Candidate(choice("compile", "", alters_numerics=True)),
        Candidate(choice("item", "", is_what_if=True)),
        Candidate(choice("idle", "")),
    ]
    program = FakeProgram({"workers=2": 0.8, "workers=4": 0.7, "compile": 0.5, "item": 0.4})
    run_rounds(candidates, make_log(program), 6)
    assert labels(choose_winners(candidates)) == ["compile", "workers=4"]
    kept = [each for each in candidates if FROM_OUTSIDE.keeps_results(each, None)]
    assert labels(choose_winners(kept)) == ["workers=4"]
